"""Run as a process on a GPU: a GLM's steps at its real widths, eight layers of random weights.

Decode of 1, 8 and 32 rows at row 8,190 of as many streams, a prompt of 2,048 rows from the first
on. Steps are graphs, their replays timed by device events; "a layer" is a step's layers over
eight. Then every kind of launch by itself, beside its floor: bytes at the rate of a copy, 8-bit
operations at that of a large product, both measured here. Sampled outputs are compared with
NumPy's. Then what recording costs an engine, then torch and transformers, in a process of their
own; arguments name the parts that are wanted.
"""

import gc
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvtape.core.families.glm import Glm
from kvtape.core.kernels.cuda import target
from kvtape.devices.cuda.card import Launch, open_card
from kvtape.devices.cuda.graph import all_of
from kvtape.devices.cuda.kernel_store import fill_store
from kvtape.devices.settings import DeviceSettings

from . import cuda_floors, cuda_real_checks, cuda_real_engine
from .cuda_floors import Step
from .cuda_real_rig import RealRig

CONFIG = json.loads((Path(__file__).parent / "data" / "glm_real.json").read_text())
CONTEXT, PROMPT, ROWS = 8192, 2048, (1, 8, 32)
BARS = {1: 0.45, 8: 1.2, 32: 2.5, PROMPT: 16.0}  # milliseconds a layer
LEAST_SHARE = 0.015  # of a step's layers, below which a kind of launch is not told by itself
TABLE: list[str] = []
FIGURES: dict[str, float] = {}


def tell(line: str) -> None:
    """Print a line now, and again at the end."""
    TABLE.append(line)
    print(line, flush=True)  # noqa: T201


def sound() -> bool:
    """Whether nothing failed, and no sample had other bits than the host's."""
    bad = ("failed:", "equal: False", "equal: None")
    wrong = [line for line in TABLE if "wrong: " in line and not line.endswith("wrong: none")]
    return not wrong and not any(word in line for line in TABLE for word in bad)


def guarded(do: Callable[..., Any], *given: Any) -> Any:
    """Go on past what fails."""
    try:
        return do(*given)
    except Exception:
        traceback.print_exc()
        tell(f"failed: {getattr(do, '__name__', do)}: {traceback.format_exc().splitlines()[-1]}")
        return None


class Clock:
    """Times what is put into a card's stream."""

    def __init__(self, card: Any) -> None:
        import cupy  # pyright: ignore[reportMissingImports]

        self.card, self._events, self._stream = card, cupy.cuda, card._stream

    def times(self, run: Launch, turns: int) -> list[float]:
        """Microseconds of each turn."""
        took = []
        for _ in range(turns):
            start, end = self._events.Event(), self._events.Event()
            start.record(self._stream)
            run()
            end.record(self._stream)
            end.synchronize()
            took.append(1e3 * float(self._events.get_elapsed_time(start, end)))
        return took

    def graph(self, launches: Sequence[Launch], turns: int = 9) -> float:
        """The median of microseconds that a graph of launches takes; they run once before."""
        run = all_of(launches)
        run()
        self.card.wait()
        replay = self.card.captured(run)
        replay()
        return statistics.median(self.times(replay, turns))


def measured_rates() -> tuple[float, float]:
    """(bytes, 8-bit operations) a microsecond: of a copy, and of cuBLAS's int8 product."""
    import torch  # pyright: ignore[reportMissingImports]

    def rate(run: Callable[[], Any], work: float) -> float:
        took = []
        for _ in range(6):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            took.append(1e3 * float(start.elapsed_time(end)))
        return work / statistics.median(took)

    a, products = torch.randn(1 << 30, device="cuda"), 0.0
    moved = rate(a.clone, 8 * a.numel())
    for m, n, k in ((4096, 8192, 4096), (8192, 8192, 8192)):
        x, y = (torch.randint(-128, 128, (s, k), dtype=torch.int8, device="cuda") for s in (m, n))
        products = max(products, rate(partial(torch._int_mm, x, y.t()), 2 * m * n * k))
    del a, x, y
    torch.cuda.empty_cache()
    tell(f"copy {moved / 1e6:.2f} TB/s, int8 product {products / 1e6:.0f} TOPS")
    return moved, products


def step_of(rig: RealRig, rows: int, position: int, *, prompt: bool) -> Step:
    """What a step did, by what it left in memory."""
    s = rig.family.sizes
    experts = rig.host(rig.memory.arrays["experts"][:rows])
    at = np.arange(position, position + rows) if prompt else np.full(rows, position)
    pools = (at + 1) // s.kpool
    seen = np.minimum(pools, s.pools) * s.kpool + (at + 1) % s.kpool
    return Step(
        rows=rows,
        runs=1 if prompt else rows,
        busy=float(len(np.unique(experts))),
        slots=rows * s.experts_per_token,
        pools=float(pools.mean()),
        seen=float(seen.mean()),
        latents=float(min(position + rows, seen.sum()) if prompt else seen.sum()),
    )


def measure(rig: RealRig, clock: Clock, rates: tuple[float, float], rows: int, at: int) -> None:
    """One step: whole, by kinds of launches, checked."""
    prompt, layers = rows > max(ROWS), rig.family.sizes.layers
    name = f"prompt {rows} rows at {at}" if prompt else f"decode {rows} rows"
    rig.seat([(0, at, rows)] if prompt else [(lane, at, 1) for lane in range(rows)])
    start = time.perf_counter()
    ops = rig.of_layers(rows)
    launches = [one for op in ops for one in op]
    whole = clock.graph([*rig.embedding(rows), *launches], 5 if prompt else 20) / layers
    first = time.perf_counter() - start
    if not prompt:
        checked(rig, clock, rows, whole)
    head = clock.graph(rig.logits(rows, 1 if prompt else rows))
    step = step_of(rig, rows, at, prompt=prompt)
    found, flags = parts(clock, ops, step, rates), rig.host(rig.memory.tables["flags"][:rows])
    floor = sum(part.floor * part.count for part in found) / layers
    FIGURES[name] = whole / 1e3
    bar = f", bar {BARS[rows]}" if not at or not prompt else ""
    tell(
        f"{name}: {whole / 1e3:.3f} ms a layer{bar}, floor {floor / 1e3:.3f}, ratio"
        f" {whole / floor:.2f}; logits {head:.0f} us; {len(launches)} launches, alone"
        f" {sum(part.took * part.count for part in found) / layers / 1e3:.3f}; experts of the last"
        f" layer {step.busy:.0f}; flags {int(flags.sum())}; first run {first:.1f} s"
    )
    show(name, found, whole * layers)
    checks = guarded(cuda_real_checks.all_checks, rig, rows) or {}
    wrong = [kind for kind, equal in checks.items() if not equal]
    tell(f"{name}: {len(checks)} sampled kernels, wrong: {', '.join(wrong) or 'none'}")


def checked(rig: RealRig, clock: Clock, rows: int, plain: float) -> None:
    """The same step's layers where products are looked at. plain: microseconds a layer without."""
    launches = [one for op in rig.of_layers(rows, verify=True) for one in op]
    whole = clock.graph([*rig.embedding(rows), *launches], 20) / rig.family.sizes.layers
    words = rig.host(rig.memory.tables["checks"])
    wrong = [name for name, word in zip(rig.memory.checks.names, words, strict=True) if word]
    tell(
        f"decode {rows} rows with checksums: {whole / 1e3:.3f} ms a layer,"
        f" {whole / plain - 1:+.1%}; products that are wrong: {', '.join(wrong) or 'none'}"
    )


class Part:
    """A kind of launch: how often it comes, its microseconds and those of its floor, each."""

    def __init__(self, name: str, launches: Sequence[Launch], took: float, floor: float) -> None:
        self.name, self.count = name, len(launches)
        self.took, self.floor = took / self.count, floor / self.count


def parts(
    clock: Clock, ops: Sequence[Sequence[Launch]], step: Step, rates: tuple[float, float]
) -> list[Part]:
    """Every kind of launch in a graph of its own: those of all layers, one after another."""
    kinds: dict[str, list[Launch]] = defaultdict(list)
    for op in ops:
        for launch in op:
            kinds[cuda_floors.name_of(launch)].append(launch)
    found = []
    for name, launches in kinds.items():
        floor = sum(cuda_floors.work_of(one, step).floor(*rates) for one in launches)
        found.append(Part(name, launches, clock.graph(launches, 5), floor))
    return sorted(found, key=lambda part: -part.took * part.count)


def show(name: str, found: Sequence[Part], whole: float) -> None:
    """A line for each kind of launch; the small ones together."""
    rest_took = rest_count = rest_floor = 0.0
    for part in found:
        share = part.took * part.count / whole
        if share < LEAST_SHARE:
            rest_took += part.took * part.count
            rest_floor += part.floor * part.count
            rest_count += part.count
            print(line_of(part, share))  # noqa: T201
            continue
        tell(line_of(part, share))
    tell(
        f"  {'others':28s} {rest_count:3.0f} x{rest_took / whole:24.1%} in all, floors"
        f" {rest_floor:.0f} us"
    )


def line_of(part: Part, share: float) -> str:
    """One kind of launch."""
    ratio = part.took / part.floor if part.floor else 0.0
    return (
        f"  {part.name:28s} {part.count:3d} x {part.took:9.1f} us {share:7.1%}"
        f"  floor {part.floor:8.1f} ({ratio:.1f})"
    )


def compiled(rig: RealRig, rows: Sequence[int]) -> int:
    """Compile what steps of these rows launch, many kernels at once; returns how many there are."""
    with target.recorded() as launches:
        for count in rows:
            sampled = 1 if count > max(ROWS) else count
            for launch in [
                *rig.embedding(count), *(one for op in rig.of_layers(count) for one in op),
                *(one for op in rig.of_layers(count, verify=True) for one in op),
                *rig.logits(count, sampled),
            ]:  # fmt: skip
                launch()
    fill_store(launches)
    return len({(kernel.name, types) for kernel, types in launches})


def own() -> None:
    """Our steps."""
    card = open_card(0)
    info = card.info()
    tell(f"{info.name}, {info.driver}, {info.free / 2**30:.1f} of {info.total / 2**30:.1f} GiB")
    rates = measured_rates()
    pages = max(ROWS) * CONTEXT // 512
    settings = DeviceSettings(
        lanes=max(ROWS), context=CONTEXT, pages=pages, prompt_rows=PROMPT, states=1, verify=True
    )
    start = time.perf_counter()
    rig = RealRig(card, Glm(CONFIG), settings)
    tell(
        f"planes {rig.memory.arrays['planes'].nbytes / 1e9:.1f} GB written; made in"
        f" {time.perf_counter() - start:.1f} s; {card.info().free / 2**30:.1f} GiB left"
    )
    start = time.perf_counter()
    count = guarded(compiled, rig, (*ROWS, PROMPT))
    tell(f"{count} kernels made ready in {time.perf_counter() - start:.1f} s")
    clock = Clock(card)
    for rows, at in (*((rows, CONTEXT - 2) for rows in ROWS), (PROMPT, 0), (PROMPT, 6144)):
        guarded(measure, rig, clock, rates, rows, at)
    card.close()


def engine() -> None:
    """What recording costs."""
    card = open_card(0)
    cuda_real_engine.recording(card, Glm(CONFIG), tell)
    card.close()


def peers() -> None:
    """Peers, and how many times as long they take."""
    said = subprocess.run(
        [sys.executable, "-m", "kvtape.tests.cuda_peers", "--json"], capture_output=True, text=True
    )
    lines = said.stdout.splitlines()
    table = lines.index("--- peers ---") if "--- peers ---" in lines else len(lines) - 20
    for line in lines[max(0, table) :]:
        tell(line)
    if said.returncode:
        tell(said.stderr[-600:])
        return
    for name, took in json.loads(lines[-1]).items():
        mine = FIGURES.get(name.partition(": ")[2])
        if mine:
            tell(f"{name}: {took / mine:.2f} x ours")


def main(wanted: list[str]) -> int:
    """Print everything that was measured, a table last; 1 where anything is wrong."""
    for part in (own, engine, peers):
        if not wanted or part.__name__ in wanted:
            guarded(part)
            gc.collect()
    print("\n".join(["", "--- real widths ---", *TABLE]), flush=True)  # noqa: T201
    return int(not sound())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
