"""Run as a process on a machine with a GPU: everything that a GLM says there, beside the CPU's.

Arguments: a folder for what comes back, one with what the CPU made (a trace by op and a tape).
"""

import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvtape.core.families.glm import Glm
from kvtape.devices.cuda.ahead import compile_ahead
from kvtape.devices.cuda.card import open_card
from kvtape.devices.cuda.gathering import alone
from kvtape.devices.cuda.glm_group import glm_rank
from kvtape.devices.group import choices_of, no_progress
from kvtape.events.facts import RunOpened
from kvtape.events.reader import Tape
from kvtape.replay.machine import Machine
from kvtape.replay.opening import settings_of
from kvtape.replay.rerun import reopened, rerun

from .cuda_glm_pieces import pieces
from .cuda_glm_rig import GlmCudaRig, GlmEagerRig
from .cuda_glm_trace import check
from .glm_play import SCENES, play
from .glm_sessions import play_sessions, sessions_opened, tales
from .golden import lines_of, write_tape

DATA = Path(__file__).with_name("data")
SAID: list[str] = []


def say(text: str) -> None:
    """Now, and again at the end."""
    SAID.append(text)
    print(text, flush=True)  # noqa: T201


def part(name: str, do: Callable[[], str]) -> None:
    """A part of the check; what it raises ends it alone."""
    start = time.time()
    try:
        said = do()
    except Exception as error:
        traceback.print_exc()
        said = f"FAILED {type(error).__name__}: {error}"[:600]
    say(f"{name}: {said} ({time.time() - start:.1f} s)")


def ahead() -> str:
    """Compile all that a start needs, at once."""
    with GlmCudaRig(drafts=2, lanes=8, prompt_rows=64, poison="a") as rig:
        compile_ahead(rig.device._graphs)
    return "compiled"


def random_pieces() -> str:
    """Pieces of steps over random cases."""
    rng = np.random.default_rng(4)
    wrong, cases = Counter[str](), 0
    for rows in (*range(1, 101), *range(120, 140)):
        found = pieces(rng, rows)
        cases += len(found)
        wrong.update(name for name, equal in found.items() if not equal)
    return f"{cases} cases, wrong {dict(wrong)}"


def scene(name: str, rig: type[GlmCudaRig]) -> str:
    """A scene beside its recording."""
    want = json.loads((DATA / "glm_play.json").read_text())[name]
    have = json.loads(json.dumps(play(name, rig)))
    parted = [(at, sorted(k for k in a if a[k] != b.get(k)))
              for at, (a, b) in enumerate(zip(want, have, strict=True)) if a != b]  # fmt: skip
    return f"{len(want)} steps, {len(parted)} parted {parted[:6]}"


def ranks(opened: RunOpened) -> list[Any]:
    """The tales on the card."""
    family = Glm(tales().config, choices_of(opened.rules))
    _, _, make = glm_rank(tales(), family, settings_of(opened), open_card(0), 0, 1, no_progress)
    device = make(gather=alone)
    device.warm()
    return [device]


def sessions(out: Path, cpu: Path) -> str:
    """The sessions recorded here, their tape beside the CPU's."""
    made: list[Any] = []

    def one(opened: RunOpened) -> Any:
        made.extend(ranks(opened))
        return made[-1]

    start = time.time()
    rig = play_sessions(sessions_opened("cuda", ""), one)
    took = time.time() - start
    rig.opened = rig.opened.model_copy(update={"model_digest": made[-1].model_digest})
    write_tape(rig, out / "glm_cuda.tape")
    made[-1].close()
    mine, others = lines_of(out / "glm_cuda.tape"), lines_of(cpu)
    parted = [at for at, (a, b) in enumerate(zip(mine, others, strict=False)) if a != b]
    first = [f"{mine[at][:300]} | {others[at][:300]}" for at in parted[1:2]]
    return f"{len(mine)} lines for {len(others)}, parted {parted[:8]} {first}, {took:.1f} s"


def replayed(cpu: Path) -> str:
    """The CPU's tape again, on the card."""
    with Tape.open(cpu) as tape:
        opened, steps = reopened(tape.opened, device="cuda", poison="off"), list(tape.steps())
    with Machine(opened, ranks) as machine:
        played = rerun(machine, steps)
    found = played.comparison
    return (
        f"{played.steps} steps, {played.tokens} tokens, first difference {found.first},"
        f" not comparable {found.not_comparable}, {played.accepted} of {played.drafted} drafts kept"
    )


def main() -> None:
    """All parts, then all that was said."""
    out, made = Path(sys.argv[1]), Path(sys.argv[2])
    part("ahead", ahead)
    part("pieces", random_pieces)
    part("trace", lambda: "\n  ".join(check(made / "glm_trace.npz", str(DATA / "glm_tiny"))[-25:]))
    for name in SCENES:
        part(f"{name}, eager", partial(scene, name, GlmEagerRig))
        part(f"{name}, graphs", partial(scene, name, GlmCudaRig))
    part("sessions", lambda: sessions(out, made / "glm_cpu.tape"))
    part("replayed", lambda: replayed(made / "glm_cpu.tape"))
    print("\n".join(["", *SAID]))  # noqa: T201
    (out / "glm_check.txt").write_text("\n".join(SAID) + "\n")


if __name__ == "__main__":
    main()
