"""The CPU device beside its bits: sampling, poison, flags, what it refuses, and how it ends."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.core.apply import apply
from kvtape.core.kernels import interpreter
from kvtape.core.kernels.sampling import sample_row_meaning, sample_scratch
from kvtape.core.link import RankLost
from kvtape.devices.program import Op, Recorder
from kvtape.devices.weights.checkpoint import BadModel, Checkpoint
from kvtape.events import facts as f
from kvtape.events.ids import StateId
from kvtape.events.records import Sampling

from .cpu_rig import CpuRig, adopted, kept, tiny, tiny_bits, tiny_tokens

TOKENS = tiny_tokens()
sample: Callable[..., Any] = sample_row_meaning
HOT = Sampling(temperature_bits=int(np.float32(0.9).view(np.uint32)), seed=77)


def bits(value: float) -> int:
    """A float32's pattern."""
    return int(np.float32(value).view(np.uint32))


def drawn(sampling: Sampling, position: int, known: list[int], prompt: int) -> int:
    """The token after a row, by the meaning of sampling over the recorded logits."""
    counts = [np.bincount(ids, minlength=512).astype(np.int32) for ids in (known, known[prompt:])]
    of = np.array(
        [
            sampling.temperature_bits,
            sampling.top_p_bits,
            sampling.repetition_bits,
            sampling.frequency_bits,
            sampling.presence_bits,
        ],
        np.uint32,
    ).view(np.float32)
    ids = np.array([token for token, _ in sampling.bias], np.int32)
    extra = np.array([pattern for _, pattern in sampling.bias], np.uint32).view(np.float32)
    return int(
        sample(
            tiny_bits()[position].view(np.float32), of[0], sampling.top_k, of[1], tuple(of[2:]),
            ids, extra, *counts, sampling.seed, position + 1, 0, *sample_scratch(512),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        HOT,
        Sampling(temperature_bits=bits(1.3), top_k=9, top_p_bits=bits(0.8), seed=-5),
        Sampling(temperature_bits=bits(1.0), repetition_bits=bits(1.5), seed=3),
        Sampling(presence_bits=bits(2.0), frequency_bits=bits(0.7)),
        Sampling(bias=((425, bits(-100.0)), (3, bits(40.0)))),
    ],
)
def test_tokens_are_drawn_as_sampling_means(sampling: Sampling) -> None:
    """In rounds, and again after each row of one step over the same tokens."""
    prompt = 30
    with CpuRig(tiny(), threads=2) as rig:
        stream, facts = rig.begin(TOKENS[:prompt], sampling)
        facts += rig.lease(stream, prompt)
        report = rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=prompt))[0]
        for position in range(prompt - 1, 45):
            known = TOKENS[: position + 1]
            assert report.tokens == [drawn(sampling, position, known, prompt)], position
            report = rig.step(*rig.draw(stream, TOKENS[position + 1]))[0]
        reports = rig.run(TOKENS[:44], 20, sampling)[2]
        tokens = np.concatenate([r.every_row.tokens[0] for r in reports if r.every_row])
        wanted = [drawn(sampling, at, TOKENS[: at + 1], 44) for at in range(44)]
        assert tokens.tolist() == wanted


@pytest.mark.parametrize("pattern", ["a", "b"])
@pytest.mark.parametrize(("world", "threads"), [(1, 1), (1, 2), (2, 2)])
def test_poison_changes_nothing_and_is_never_read(pattern: str, world: int, threads: int) -> None:
    with CpuRig(tiny(), world=world, threads=threads, poison=pattern) as rig:
        stream, logits, reports = rig.run(TOKENS[:50], 9)
        assert (logits == tiny_bits()[:50]).all()
        last = rig.step(*rig.draw(stream, TOKENS[50]))
        assert all(report.poisoned == [] for report in [*reports, *last])
        assert (rig.logits(stream, 50) == tiny_bits()[50]).all()


@pytest.mark.parametrize("pattern", ["a", "b"])
def test_a_row_that_nobody_wrote_is_reported(pattern: str) -> None:
    """A state kept before its last rows were written: the first of them is named."""
    with CpuRig(tiny(), poison=pattern, threads=2) as rig:
        stream, facts = rig.begin(TOKENS)
        facts += rig.lease(stream, 32)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=29))
        rig.state.streams[stream].rows = 32
        pages = rig.state.table(rig.state.streams[stream])
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=32, shared=True, pages=tuple(pages), digest={}
        )
        other, seat = rig.begin(TOKENS, **kept(0, pages))
        rig.step(taken, *seat, adopted(other, pages))
        report = rig.step(
            f.StateResumed(stream=other, state=StateId(0), mark=32, digest={}),
            *rig.lease(other, 60),
            f.PromptStepRun(stream=other, first=32, rows=28),
        )[0]
        assert [(p.stream, p.layer, p.position) for p in report.poisoned] == [(other, 0, 29)]


class Spoiled:
    """A checkpoint whose embedding of one id is no number."""

    def __init__(self, token: int) -> None:
        self._checkpoint, self._token = tiny(), token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        self._checkpoint.embed(ids, out)
        out[ids == self._token, 3] = np.nan


def test_a_row_that_is_no_number_flags_its_stream_alone() -> None:
    token = next(t for t in range(512) if t not in TOKENS)
    with CpuRig(cast(Checkpoint, Spoiled(token)), world=2) as rig:
        one, seat = rig.begin(TOKENS[:20])
        two, other = rig.begin([*TOKENS[:5], token])
        pages = rig.state.book.next(2)
        reports = rig.step(
            *seat,
            *other,
            f.PagesLeased(stream=one, first=0, pages=pages[:1]),
            f.PagesLeased(stream=two, first=0, pages=pages[1:]),
            f.PromptStepRun(stream=one, first=0, rows=20),
            f.PromptStepRun(stream=two, first=0, rows=6),
        )
        assert [report.flagged for report in reports] == [[two], [two]]
        assert (rig.logits(one, 19) == tiny_bits()[19]).all()


class Broken:
    """A checkpoint with one tensor row that is no number."""

    def __init__(self, name: str, row: int) -> None:
        self._checkpoint, self._at = tiny(), (name, row)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        rows = self._checkpoint.rows(name, first, last)
        if name == self._at[0] and first <= self._at[1] < last:
            rows[self._at[1] - first, 0] = np.inf
        return rows


def test_weights_that_are_no_numbers_are_refused_by_name() -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(BadModel, match=f"{name} row 7"):
        CpuRig(cast(Checkpoint, Broken(name, 7)))


def test_a_rank_that_does_not_come_stops_the_others() -> None:
    """Rank 0 waits in the first gather; the watchdog ends the step for everyone."""
    with CpuRig(tiny(), world=2, limit_s=0.2) as rig:
        stream, facts = rig.begin(TOKENS)
        facts += rig.lease(stream, 60)
        facts.append(f.PromptStepRun(stream=stream, first=0, rows=60))
        for fact in facts:
            apply(rig.state, fact)
        running = rig.device.launch(rig.state, facts)
        with pytest.raises(RankLost, match="rank 0 has been in step 0"):
            running.report()


def test_a_closed_rank_stops_the_others() -> None:
    with CpuRig(tiny(), world=2, threads=2) as rig:
        stream, facts = rig.begin(TOKENS)
        rig.devices[1].close()
        facts += [*rig.lease(stream, 60), f.PromptStepRun(stream=stream, first=0, rows=60)]
        for fact in facts:
            apply(rig.state, fact)
        with pytest.raises(RankLost, match="closed"):
            rig.device.launch(rig.state, facts).report()


def test_a_step_of_too_many_rows_is_refused() -> None:
    with CpuRig(tiny(), prompt_rows=16, lanes=1) as rig:
        stream, facts = rig.begin(TOKENS)
        facts += rig.lease(stream, 60)
        with pytest.raises(ValueError, match="a step of 60 rows, the device has 17"):
            rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=60))


def test_the_program_and_its_interpreter_use_the_same_codes() -> None:
    assert {op.name: int(op) for op in Op} == {op.name: getattr(interpreter, op.name) for op in Op}


def test_a_program_is_the_same_however_often_it_is_recorded() -> None:
    """Nothing in a recording depends on order of sets or on what was recorded before."""
    family = CpuRig(tiny()).device.family
    one, two = (Recorder(family, 2, 1, 72, 2, checks=False).program() for _ in range(2))
    assert (one.ops == two.ops).all() and one.matrices == two.matrices
