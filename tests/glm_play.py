"""A play that any device of the tiny GLM can give, and what its reports said, as plain values.

As device_play.py has it for the llama: one recording of the CPU's judges every device. Run as a
process, it prints the recording.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvtape.core.device import Report
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import Rank, StateId, StreamId

from .cpu_rig import ids, kept
from .device_play import SAMPLINGS, Told, told
from .glm_rig import GlmRig

VOCAB = 512
MakeRig = Callable[..., GlmRig]  # of settings by name
Replies = dict[int, list[int]]  # by stream
SMALL: dict[str, Any] = {"lanes": 8, "context": 320, "pages": 120, "prompt_rows": 64}


def some(seed: int, rows: int) -> list[int]:
    """Random ids."""
    found: list[int] = np.random.default_rng(seed).integers(6, VOCAB, rows).tolist()
    return found


def short(report: Report) -> Told:
    """A report, its sums of every row as one sum each."""
    found = told(report)
    if found["every_row"] is not None:
        sums = found["every_row"]["sums"]
        for part, rows in sums.items():
            sums[part] = [sum(a * 31 + b * 17 for a, b in one) % 2**64 for one in rows]
    drafts = {str(stream): list(counts) for stream, counts in report.drafts.items()}
    return {**found, "drafts": drafts, "starts": list(report.starts)}


def lease(rig: GlmRig, before: Sequence[AnyFact], stream: StreamId, rows: int) -> list[AnyFact]:
    """Pages for so many rows of a stream, after what the same step leases already."""
    earlier = [fact for fact in before if isinstance(fact, f.PagesLeased)]
    taken = sum(len(fact.pages) for fact in earlier)
    known = rig.state.streams.get(stream)
    held = known.pages if known else 0
    missing = -(-rows // rig.page_rows) - held
    pages = rig.state.book.next(taken + max(missing, 0))[taken:]
    return [f.PagesLeased(stream=stream, first=held, pages=pages)] if pages else []


def ragged(make: MakeRig) -> list[Told]:
    """Six streams of up to 256 rows, every step other rows of each, all rows sampled at times."""
    rng = np.random.default_rng(5)
    prompts = [some(at, rows) for at, rows in enumerate((256, 1, 33, 130, 64, 17))]
    with make(drafts=2) as rig:
        facts: list[AnyFact] = []
        streams: list[StreamId] = []
        for at, tokens in enumerate(prompts):
            stream, seat = rig.begin(tokens, SAMPLINGS[at], draft=at % 2 == 0)
            streams.append(stream)
            facts += seat
        found: list[Told] = []
        done = [0] * len(streams)
        while any(at < len(tokens) for at, tokens in zip(done, prompts, strict=True)):
            for index in rng.permutation(len(streams)):
                most = int(rng.choice([1, 5, 40]))
                rows = min(most, len(prompts[index]) - done[index], _left(rig, facts))
                if rows:
                    stream = streams[index]
                    facts += lease(rig, facts, stream, done[index] + rows)
                    facts.append(f.PromptStepRun(stream=stream, first=done[index], rows=rows))
                    done[index] += rows
            found.append(short(rig.step(*facts, every_row=len(found) % 3 == 0)[0]))
            facts = []
        return found


def _left(rig: GlmRig, facts: Sequence[AnyFact]) -> int:
    return rig.settings.prompt_rows - sum(
        fact.rows for fact in facts if isinstance(fact, f.PromptStepRun)
    )


def rounds(make: MakeRig, planted: Replies | None = None) -> list[Told]:
    """Replies under every kind of sampling side by side, with the model's own drafts.

    planted: what the streams are known to reply; before each round, drafts that are right for a
    while are put in the place of the model's.
    """
    found: list[Told] = []
    with make(drafts=4) as rig:
        facts: list[AnyFact] = []
        streams = []
        for at, sampling in enumerate(SAMPLINGS):
            stream, seat = rig.begin(some(9, 40 + at), sampling, draft=at % 3 != 1)
            streams.append(stream)
            facts += [*seat, *lease(rig, [*facts, *seat], stream, 40 + at)]
            facts.append(f.PromptStepRun(stream=stream, first=0, rows=40 + at))
            if at % 2:
                report = rig.step(*facts)[0]
                found.append(short(report))
                facts = round_after(rig, report, [])
        for turn in range(16):
            if planted is not None:
                plant(rig, planted, turn, found[-1])
            report = rig.step(*facts)[0]
            found.append(short(report))
            facts = round_after(rig, report, streams[turn // 3 :])
    return found


def plant(rig: GlmRig, replies: Replies, turn: int, last: Told) -> None:
    """Some right drafts for every stream that goes on, then wrong ones."""
    for at, stream in enumerate(last["streams"]):
        known, new = rig.state.streams[stream], last["starts"][at + 1] - last["starts"][at]
        done, right = known.new_tokens + new, (turn + stream) % 5
        true = replies[stream][done : done + right]
        drafts = [*true, *[5] * 4][:4]
        rig.device.drafts[known.lane, :4] = drafts
        rig.device.draft_counts[known.lane] = 4


def planted(make: MakeRig) -> list[Told]:
    """The same rounds, with drafts that are kept."""
    replies: Replies = {}
    for said in rounds(make):
        for at, stream in enumerate(said["streams"]):
            new = said["tokens"][said["starts"][at] : said["starts"][at + 1]]
            replies.setdefault(stream, []).extend(new)
    return rounds(make, replies)


def round_after(rig: GlmRig, report: Report, go_on: Sequence[StreamId]) -> list[AnyFact]:
    """Keep a report's tokens; a round of those of its streams that go on, [] for all."""
    facts: list[AnyFact] = [
        f.RowsKept(
            streams=tuple(report.streams), starts=tuple(report.starts), tokens=ids(report.tokens)
        )
    ]
    lanes = []
    for at, stream in enumerate(report.streams):
        if go_on and stream not in go_on:
            continue
        known = rig.state.streams[stream]
        new = report.starts[at + 1] - report.starts[at]
        if known.new_tokens + new >= known.request.max_new - 1:
            continue
        rows = len(known.tokens) + new
        facts += lease(rig, facts, stream, rows + rig.device.rules.drafts)
        lanes.append(known.lane)
    return [*facts, f.RoundRun(lanes=tuple(lanes))] if lanes else facts


def resumed(make: MakeRig, *, shared: bool = True) -> list[Told]:
    """States kept and resumed in another lane; bits flipped, so that a resume finds broken sums."""
    tokens = some(3, 90)
    found: list[Told] = []
    with make(drafts=2, digests="full", states=1) as rig:
        stream, facts = rig.begin(tokens[:70], draft=True)
        facts += rig.lease(stream, 48)
        found.append(short(rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=48))[0]))
        pages = rig.state.table(rig.state.streams[stream])[:3]
        for state in (0, 1):
            taken = f.SnapshotTaken(
                state=StateId(state), stream=stream, mark=48, shared=shared,
                pages=tuple(pages) if shared else (), digest={},
            )  # fmt: skip
            found.append(short(rig.step(taken)[0]))
        rest = f.PromptStepRun(stream=stream, first=48, rows=22)
        found.append(short(rig.step(*rig.lease(stream, 70), rest)[0]))
        for state, faults in ((0, ()), (1, _faults(stream))):
            other, seat = rig.begin(tokens, draft=True, **kept(state, pages))
            own: list[AnyFact] = [f.PagesAdopted(stream=other, pages=tuple(pages))]
            if not shared:
                fresh = rig.state.book.next(3)
                own = [f.PagesLeased(stream=other, first=0, pages=fresh)]
            found.append(short(rig.step(*faults, *seat, *own)[0]))
            answer = f.StateResumed(stream=other, state=StateId(state), mark=48, digest={})
            more = f.PromptStepRun(stream=other, first=48, rows=42)
            report = rig.step(answer, *rig.lease(other, 90), more)[0]
            found.append(short(report))
            found.append(short(rig.step(*round_after(rig, report, [other]))[0]))
        found.append(_looked(rig, stream))
    return found


def _faults(stream: StreamId) -> tuple[AnyFact, ...]:
    """A bit of a latent row, of a pool's key, of a state, of a raw row."""
    where: tuple[tuple[str, str, int, int, int, int], ...] = (
        ("rows", "latent", 1, 0, 17, 5), ("keys", "pool", 0, 0, 7, 3),
        ("states", "state", 2, 1, 0, 1000), ("rings", "qkv", 0, 3, 69, 70),
    )  # fmt: skip
    return tuple(
        f.FaultInjected(
            rank=Rank(0), stream=stream, part=part, cache=cache, layer=layer, head=head,
            position=position, column=column, bit=9, when="",
        )
        for part, cache, layer, head, position, column in where
    )  # fmt: skip


def _looked(rig: GlmRig, stream: StreamId) -> Told:
    """Rows and sums of every part of a stream, as they stand."""
    device, state, found = rig.device, rig.state, {}
    for part in ("rows", "keys", "drafts", "states", "rings"):
        for layer in range(device.layers(part)):
            rows = device.read_rows(state, stream, part, layer, 0, 70)
            found[f"{part} {layer}"] = [
                [head, len(one.positions), int(one.words.sum(dtype=np.uint64))]
                for head, one in rows.items()
            ] + [list(device.probe(state, stream, part, layer, 3, 60))]
    return found


def unwritten(make: MakeRig) -> list[Told]:
    """A state kept before its last rows were written: what is read is poison."""
    tokens = some(4, 60)
    with make(drafts=1) as rig:
        stream, facts = rig.begin(tokens)
        facts += rig.lease(stream, 48)
        found = [short(rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=41))[0])]
        rig.state.streams[stream].rows = 48
        rig.device.ledger.streams[stream].rows = 48
        pages = rig.state.table(rig.state.streams[stream])
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=48, shared=True, pages=tuple(pages), digest={}
        )
        other, seat = rig.begin(tokens, **kept(0, pages))
        own = f.PagesAdopted(stream=other, pages=tuple(pages))
        found.append(short(rig.step(taken, *seat, own)[0]))
        answer = f.StateResumed(stream=other, state=StateId(0), mark=48, digest={})
        rest = f.PromptStepRun(stream=other, first=48, rows=12)
        found.append(short(rig.step(answer, *rig.lease(other, 60), rest)[0]))
        return found


SCENES: dict[str, tuple[Callable[[MakeRig], list[Told]], dict[str, Any]]] = {
    "ragged": (ragged, {}),
    "rounds": (rounds, {"poison": "b"}),
    "planted": (planted, {"digests": "full"}),
    "resumed": (resumed, {}),
    "owned": (lambda make: resumed(make, shared=False), {}),
    "unwritten a": (unwritten, {"poison": "a"}),
    "unwritten b": (unwritten, {"poison": "b"}),
}


def play(scene: str, rig: MakeRig) -> list[Told]:
    """What a device says of a scene; rig(**settings) makes it."""
    run, settings = SCENES[scene]
    return run(lambda **more: rig(**(SMALL | settings | more)))


def main() -> None:
    """Print what the CPU says."""
    print(json.dumps({scene: play(scene, GlmRig) for scene in SCENES}))  # noqa: T201


if __name__ == "__main__":
    main()
