"""A play that any device of the tiny llama can give, and what its reports said, as plain values.

Everything that a device is asked is in it: ragged steps, rounds, kept pages, faults, poison. What a
device says must be the same on any of them, so one recording judges them all.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvtape.core.device import Report
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import Rank, StateId, StreamId
from kvtape.events.records import Sampling

from .cpu_rig import CpuRig, adopted, kept, tiny_tokens

Told = dict[str, Any]
MakeRig = Callable[..., CpuRig]  # of settings by name


def bits(value: float) -> int:
    """A float32's pattern."""
    return int(np.float32(value).view(np.uint32))


SAMPLINGS = (
    Sampling(temperature_bits=bits(0.9), seed=77),
    Sampling(temperature_bits=bits(1.3), top_k=9, top_p_bits=bits(0.8), seed=-5),
    Sampling(temperature_bits=bits(1.0), repetition_bits=bits(1.5), seed=3),
    Sampling(presence_bits=bits(2.0), frequency_bits=bits(0.7)),
    Sampling(bias=((3, bits(40.0)), (425, bits(-100.0)))),
    Sampling(),
)


def told(report: Report) -> Told:
    """A report as JSON holds it."""
    every = report.every_row
    return {
        "streams": list(report.streams),
        "tokens": list(report.tokens),
        "flagged": list(report.flagged),
        "sums": {
            str(stream): {part: list(pair) for part, pair in sums.items()}
            for stream, sums in report.sums.items()
        },
        "acks": [[a.stream, a.ok, {k: list(v) for k, v in a.digest.items()}] for a in report.acks],
        "breaks": [[b.stream, b.part, list(b.kept), list(b.found)] for b in report.breaks],
        "poisoned": [[p.stream, p.layer, p.position] for p in report.poisoned],
        "every_row": None
        if every is None
        else {
            "sums": {part: [one.tolist() for one in sums] for part, sums in every.sums.items()},
            "tokens": [one.tolist() for one in every.tokens],
        },
    }


def ragged(make: MakeRig) -> list[Told]:
    """Eight streams, every step other rows of each in another order, all rows sampled."""
    rng = np.random.default_rng(11)
    lengths = (60, 1, 33, 2, 64, 31, 17, 32)
    prompts = [[int(t) for t in rng.integers(0, 512, n)] for n in lengths]
    with make() as rig:
        facts: list[AnyFact] = []
        streams: list[StreamId] = []
        for at, tokens in enumerate(prompts):
            stream, seat = rig.begin(tokens, SAMPLINGS[at % len(SAMPLINGS)])
            streams.append(stream)
            facts += seat
        found: list[Told] = []
        done = [0] * len(streams)
        while any(at < len(tokens) for at, tokens in zip(done, prompts, strict=True)):
            for index in rng.permutation(len(streams)):
                rows = int(min(rng.integers(0, 10), len(prompts[index]) - done[index]))
                if rows:
                    facts += _lease(rig, facts, streams[index], done[index], rows)
                    stream = streams[index]
                    facts.append(f.PromptStepRun(stream=stream, first=done[index], rows=rows))
                    done[index] += rows
            found.append(told(rig.step(*facts, every_row=len(found) % 2 == 0)[0]))
            facts = []
        return found


def _lease(
    rig: CpuRig, before: list[AnyFact], stream: StreamId, first: int, rows: int
) -> list[AnyFact]:
    """Pages for a stream's rows, after what the same step leases already."""
    taken = sum(len(fact.pages) for fact in before if isinstance(fact, f.PagesLeased))
    held = -(-first // 32)
    missing = -(-(first + rows) // 32) - held
    pages = rig.state.book.next(taken + max(missing, 0))[taken:]
    return [f.PagesLeased(stream=stream, first=held, pages=pages)] if pages else []


def rounds(make: MakeRig) -> list[Told]:
    """A reply under every kind of sampling, drawn by the device itself."""
    tokens = tiny_tokens()[:20]
    found: list[Told] = []
    with make() as rig:
        for sampling in SAMPLINGS:
            stream, facts = rig.begin(tokens, sampling)
            facts += rig.lease(stream, len(tokens))
            report = rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=20))[0]
            for _ in range(12):
                found.append(told(report))
                report = rig.step(*rig.draw(stream, report.tokens[0]))[0]
    return found


def resumed(make: MakeRig) -> list[Told]:
    """Rows kept and resumed; a bit of one flipped, so that the next resume finds a broken sum."""
    tokens = tiny_tokens()
    found: list[Told] = []
    with make() as rig:
        stream, facts = rig.begin(tokens)
        facts += rig.lease(stream, 40)
        prompt = f.PromptStepRun(stream=stream, first=0, rows=40)
        found.append(told(rig.step(*facts, prompt)[0]))
        pages = rig.state.table(rig.state.streams[stream])[:1]
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=32, shared=True, pages=tuple(pages), digest={}
        )
        fault = f.FaultInjected(
            rank=Rank(0), stream=stream, part="rows", cache="v", layer=2, head=1, position=17,
            column=5, bit=9, when="",
        )  # fmt: skip
        found.append(told(rig.step(taken)[0]))
        injected: tuple[list[AnyFact], ...] = ([], [fault])
        for facts in injected:
            other, seat = rig.begin(tokens, **kept(0, pages))
            found.append(told(rig.step(*facts, *seat, adopted(other, pages))[0]))
            answer = f.StateResumed(stream=other, state=StateId(0), mark=32, digest={})
            rest = f.PromptStepRun(stream=other, first=32, rows=28)
            found.append(told(rig.step(answer, *rig.lease(other, 60), rest)[0]))
        rows = [rig.device.read_rows(rig.state, stream, "rows", at, 3, 36) for at in (0, 5)]
        found.append({"rows": [[int(x) for h in r for x in r[h].words.sum(axis=0, dtype=np.uint64)]
                               for r in rows]})  # fmt: skip
        probes = [rig.device.probe(rig.state, stream, "rows", at, 7, 30) for at in range(8)]
        found.append({"probes": [list(one) for one in probes]})
    return found


def unwritten(make: MakeRig) -> list[Told]:
    """A state kept before its last rows were written, with poison on."""
    tokens = tiny_tokens()
    with make() as rig:
        stream, facts = rig.begin(tokens)
        facts += rig.lease(stream, 32)
        found = [told(rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=29))[0])]
        rig.state.streams[stream].rows = 32
        pages = rig.state.table(rig.state.streams[stream])
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=32, shared=True, pages=tuple(pages), digest={}
        )
        other, seat = rig.begin(tokens, **kept(0, pages))
        found.append(told(rig.step(taken, *seat, adopted(other, pages))[0]))
        resumed = f.StateResumed(stream=other, state=StateId(0), mark=32, digest={})
        rest = f.PromptStepRun(stream=other, first=32, rows=28)
        found.append(told(rig.step(resumed, *rig.lease(other, 60), rest)[0]))
        return found


SCENES: dict[str, tuple[Callable[[MakeRig], list[Told]], dict[str, Any]]] = {
    "ragged": (ragged, {}),
    "rounds": (rounds, {}),
    "resumed": (resumed, {"digests": "full"}),
    "unwritten a": (unwritten, {"poison": "a"}),
    "unwritten b": (unwritten, {"poison": "b"}),
    "poisoned": (rounds, {"poison": "b"}),
}


def play(scene: str, rig: MakeRig) -> list[Told]:
    """What a device says of a scene; rig(**settings) makes it."""
    run, settings = SCENES[scene]
    return run(lambda **more: rig(**settings, **more))
