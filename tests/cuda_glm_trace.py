"""Where a GPU parts from the CPU: one step of a GLM, op by op, every array after each of them.

Run as a process: `record FILE MODEL` writes what the CPU's arrays hold after each op of a step,
`check FILE MODEL` runs the same ops on a card, names those after which anything differs, and puts
the CPU's values in their place, so that one run finds all of them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.glm_ops import Rows
from kvtape.core.kernels.glm_interpreter import run_glm
from kvtape.core.kernels.glm_memory import OPS
from kvtape.devices.glm.layout import ARGUMENTS, GlmOp
from kvtape.devices.weights.find import find_model
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact

from .glm_rig import GlmRig

ARRAYS = (
    "floats", "codes", "code_exponents", "latent", "keys", "index_ring", "conv_ring", "states",
)  # fmt: skip
SMALL: dict[str, Any] = {"lanes": 2, "context": 320, "pages": 40, "prompt_rows": 32, "drafts": 2}
ROWS = ((5, 3), (16, 16))  # of the two streams, by step
Arrays = dict[str, NDArray[Any]]
Deltas = list[dict[str, tuple[int, NDArray[Any]]]]  # by op: where an array changed, and to what


def steps(rig: GlmRig) -> Iterator[list[AnyFact]]:
    """Steps that fill their buckets: eight rows of two streams, then 32; both may draft."""
    tokens = [(at * at * 7 + 3 * at) % 500 for at in range(21)]
    streams, seats = zip(*(rig.begin(tokens[at : at + n], draft=True)
                           for at, n in enumerate((21, 19))), strict=True)  # fmt: skip
    done = [0, 0]
    for each in ROWS:
        facts: list[AnyFact] = [*seats[0], *seats[1]] if not any(done) else []
        for at, rows in enumerate(each):
            pages = 2 if not done[at] else 0
            if pages:
                free = rig.state.book.next(4)[2 * at : 2 * at + 2]
                facts.append(f.PagesLeased(stream=streams[at], first=0, pages=free))
            facts.append(f.PromptStepRun(stream=streams[at], first=done[at], rows=rows))
            done[at] += rows
        yield facts


def changes(before: Arrays, after: Arrays) -> dict[str, tuple[int, NDArray[Any]]]:
    """The part of each array that is not what it was."""
    found = {}
    for name, now in after.items():
        at = np.flatnonzero(before[name].view(np.uint8) != now.view(np.uint8)) // now.itemsize
        if len(at):
            found[name] = int(at[0]), now[at[0] : at[-1] + 1].copy()
    return found


def glm(model: str) -> GlmCheckpoint:
    """A GLM by name or path."""
    found = find_model(model)
    assert isinstance(found, GlmCheckpoint)
    return found


class Tracing(GlmRig):
    """A CPU rank that runs op by op."""

    def trace(self) -> Deltas:
        """What each op of every step changed."""
        found: Deltas = []
        device, memory = self.device, self.device.memory
        flat = {name: getattr(memory, name).reshape(-1) for name in ARRAYS}

        def run(running: Any, thread: int) -> None:
            places, size = device._places.copy(), ARGUMENTS * 8
            places[OPS, 1] = 1
            for _ in device.program.ops:
                before = {name: one.copy() for name, one in flat.items()}
                shared, party = device.exchange.shared, device._parties[0]
                run_glm(places, shared, running.tables, running.draws, party)
                found.append(changes(before, flat))
                places[OPS, 0] += size

        device._run = run
        for facts in steps(self):
            self.step(*facts)
        return found


def record(path: Path, model: str) -> None:
    """Write the CPU's trace."""
    with Tracing(checkpoint=glm(model), **SMALL) as rig:
        found = rig.trace()
    named: dict[str, Any] = {
        f"{at} {name} {first}": values
        for at, changed in enumerate(found)
        for name, (first, values) in changed.items()
    }
    np.savez_compressed(path, **named)


def read(path: Path) -> Deltas:
    """A written trace."""
    found: Deltas = []
    with np.load(path) as file:
        for key in file.files:
            at, name, first = key.split(" ")
            while len(found) <= int(at):
                found.append({})
            found[int(at)][name] = int(first), file[key]
    return found


class Checker:
    """Runs a rank's ops one by one beside a trace."""

    def __init__(self, rig: GlmRig, trace: Deltas) -> None:
        self.rig, self.trace, self.at = rig, trace, 0
        self.device = rig.device
        arrays = self.device.memory.arrays
        self.on_card = {name: arrays[name].reshape(arrays[name].size) for name in ARRAYS}
        self.want = {n: np.zeros(one.size, one.dtype) for n, one in self.on_card.items()}
        self.faults: list[str] = []
        self.device._enqueue = self.enqueue

    def enqueue(self, running: Any) -> None:
        """As the device's, an op at a time, in the order of the program."""
        from kvtape.devices.cuda.glm_lower import LOWERED, GlmLowering

        device, card = self.device, self.device.card
        batch = running.batch.rows
        lowering: GlmLowering = device._graphs[0]._lower.func.__self__
        rows, sampled = batch.rows, len(batch.selected)
        drafting = device._tables.write(running.tables, running.draws, rows, sampled)
        card.upload(device._tables.block, device.memory.arrays["step"])
        counts = (rows, sampled, drafting)
        for words in device.program.ops.tolist():
            count = counts[words[-1]]
            if count and GlmOp(words[0]) in LOWERED:
                for launch in lowering.lowered(tuple(words), Rows(words[-1]), count):
                    launch()
            self.compare(GlmOp(words[0]).name, words)
        card.download(device._told, device._tables.told)

    def compare(self, name: str, words: list[int]) -> None:
        """Every array with what the trace says it is by now."""
        changed = self.trace[self.at] if self.at < len(self.trace) else {}
        for array, (first, values) in changed.items():
            self.want[array][first : first + len(values)] = values
        card = self.device.card
        for array, on_card in self.on_card.items():
            have = np.empty(on_card.size, on_card.dtype)
            card.download(on_card, have)
            card.wait()
            want = self.want[array]
            bits = f"u{want.itemsize}"
            apart = np.flatnonzero(have.view(bits) != want.view(bits))
            if len(apart):
                at = int(apart[0])
                self.faults.append(
                    f"op {self.at} {name} {words[1:12]} set {words[-1]}: {array} {len(apart)} apart"
                    f" from {at} to {apart[-1]}: {have[at]!r} for {want[at]!r}"
                )
                card.upload(want, on_card)
                card.wait()
        self.at += 1


def check(path: Path, model: str) -> list[str]:
    """The ops after which a card holds something else, and where."""
    from .cuda_glm_rig import GlmEagerRig

    with GlmEagerRig(checkpoint=glm(model), **SMALL) as rig:
        checker = Checker(rig, read(path))
        for facts in steps(rig):
            rig.step(*facts)
    return [*checker.faults, f"{checker.at} ops of {model}, {len(checker.faults)} apart"]


def main() -> None:
    """Record or check."""
    from kvtape.devices.kernel_cache import use_cache

    use_cache()
    what, path, model = sys.argv[1:]
    if what == "record":
        record(Path(path), model)
    else:
        print("\n".join(check(Path(path), model)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
