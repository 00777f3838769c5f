"""How much recording costs: `python -m kvtape.tests.tape_bench` writes and reads a busy run."""

import sys
import tempfile
import time
from pathlib import Path

from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.reader import Tape
from kvtape.events.records import Digests
from kvtape.events.tape import TapeWriter, Times
from kvtape.events.verify import verify

from .tape_records import OPENED, a_sum, made

STREAMS = tuple(range(8))
Round = tuple[list[c.AnyCommand], list[f.AnyFact]]


def a_round(step: int) -> Round:
    """What one round of eight streams puts on a tape: four rows."""
    parts = ("logits", "rows", "states", "tokens")
    digests = made(
        Digests, streams=STREAMS, parts={part: tuple(map(a_sum, STREAMS)) for part in parts}
    )
    kept = {"streams": STREAMS, "starts": tuple(range(9)), "tokens": tuple(range(1000, 1008))}
    done = {"step": step, "flagged": (), "digests": digests, "book": a_sum(step)}
    return [made(c.DeviceDone, **done, **kept)], [
        made(f.RowsKept, **kept),
        made(f.StepClosed, **done),
        made(f.RoundRun, lanes=STREAMS),
    ]


def bench_append(rounds: int = 5000) -> str:
    """Microseconds a round for the writer, the reader and verify, of wall and of processor time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.tape"
        made_before = [a_round(step) for step in range(rounds)]
        writer = TapeWriter.create(path, OPENED)
        laps = []
        wall, cpu = time.perf_counter(), time.process_time()
        for step, (commands, facts) in enumerate(made_before):
            lap = time.perf_counter()
            writer.append(step, commands, facts, Times(step, step, step))
            laps.append(time.perf_counter() - lap)
        said = [_said("append", rounds, wall, cpu)]
        laps.sort()
        middle, late = (laps[int(rounds * part)] * 1e6 for part in (0.5, 0.99))
        said.append(f"append: median {middle:.0f} us, 99 of 100 below {late:.0f} us")
        said.append(f"append: {path.stat().st_size / rounds:.0f} bytes a round")
        wall, cpu = time.perf_counter(), time.process_time()
        writer.close()
        said.append(_said("close", rounds, wall, cpu))
        wall, cpu = time.perf_counter(), time.process_time()
        with Tape.open(path) as tape:
            assert sum(1 for _ in tape.steps()) == rounds + 1
        said.append(_said("read", rounds, wall, cpu))
        wall, cpu = time.perf_counter(), time.process_time()
        assert verify(path) == []
        said.append(_said("verify", rounds, wall, cpu))
    return "\n".join(said) + "\n"


def _said(what: str, rounds: int, wall: float, cpu: float) -> str:
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return (
        f"{what}: {wall / rounds * 1e6:.0f} us a round, {cpu / rounds * 1e6:.0f} of them computing"
    )


if __name__ == "__main__":
    sys.stdout.write(bench_append())
