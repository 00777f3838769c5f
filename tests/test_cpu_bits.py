"""A llama on the CPU device: the contract's bits, however rows are cut, shared or placed."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.core.families.llama import Llama
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import StreamId

from .cpu_rig import TINY, CpuRig, ids, tiny, tiny_bits, tiny_tokens

TOKENS = tiny_tokens()


@pytest.fixture(scope="module")
def alone() -> Iterator[CpuRig]:
    """One rank, one thread."""
    with CpuRig(tiny()) as rig:
        yield rig


def same(have: NDArray[np.uint32], want: NDArray[np.uint32]) -> bool:
    return have.shape == want.shape and bool((have == want).all())


def test_the_recorded_bits_are_near_a_float32_forward() -> None:
    """The contract's own error on this model, an order below what bfloat16 does."""
    reference = np.load(TINY / "logits.npz")["full_logits"]
    ours = tiny_bits().view(np.float32)
    assert np.abs(ours - reference).max() < 4e-3
    assert (ours.argmax(-1) == reference.argmax(-1)).all()


@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_chunks_do_not_change_bits(chunk: int) -> None:
    with CpuRig(tiny()) as rig:
        assert same(rig.run(TOKENS, chunk)[1], tiny_bits())


@pytest.mark.parametrize(("world", "threads"), [(1, 2), (2, 1), (2, 2), (3, 1), (4, 1)])
def test_ranks_and_threads_do_not_change_bits(world: int, threads: int) -> None:
    """The tiny llama has two KV heads: ranks 2 and 3 work on columns alone."""
    with CpuRig(tiny(), world=world, threads=threads) as rig:
        stream, logits, _ = rig.run(TOKENS[:41], 7)
        assert same(logits, tiny_bits()[:41])
        for position in range(41, 45):
            rig.step(*rig.draw(stream, TOKENS[position]))
            for rank in range(world):
                assert same(rig.logits(stream, position, rank), tiny_bits()[position])


@pytest.mark.parametrize("order", ["lifo", "fifo", "adversarial"])
def test_page_ids_do_not_change_bits(order: str) -> None:
    with CpuRig(tiny(), order=order) as rig:
        rig.run(TOKENS[5:40], 8)
        assert same(rig.run(TOKENS, 17)[1], tiny_bits())


def prompts() -> list[list[int]]:
    """Eight streams that share nothing, of every length up to two pages."""
    rng = np.random.default_rng(5)
    return [[int(t) for t in rng.integers(0, 512, n)] for n in (60, 1, 33, 2, 64, 31, 17, 32)]


@pytest.mark.parametrize(("world", "threads"), [(1, 1), (2, 2)])
def test_a_ragged_batch_computes_what_each_stream_computes_alone(world: int, threads: int) -> None:
    """Every step takes another number of rows of each stream, in another order."""
    rng = np.random.default_rng(11)
    with CpuRig(tiny()) as rig:
        wanted = [rig.run(tokens, 64)[1] for tokens in prompts()]
    with CpuRig(tiny(), world=world, threads=threads) as rig:
        facts: list[AnyFact] = []
        streams: list[StreamId] = []
        for tokens in prompts():
            stream, seat = rig.begin(tokens)
            streams.append(stream)
            facts += seat
        done = [0] * len(streams)
        while any(at < len(tokens) for at, tokens in zip(done, prompts(), strict=True)):
            taken = []
            for index in rng.permutation(len(streams)):
                rows = int(min(rng.integers(0, 10), len(prompts()[index]) - done[index]))
                if rows:
                    facts += _lease(rig, facts, streams[index], done[index], rows)
                    taken.append((int(index), rows))
                    facts.append(
                        f.PromptStepRun(stream=streams[index], first=done[index], rows=rows)
                    )
            rig.step(*facts, every_row=True)
            facts = []
            for index, rows in taken:
                for position in range(done[index], done[index] + rows):
                    have = rig.logits(streams[index], position)
                    assert same(have, wanted[index][position]), (index, position)
                done[index] += rows


def _lease(
    rig: CpuRig, before: list[AnyFact], stream: StreamId, first: int, rows: int
) -> list[AnyFact]:
    """Pages for a stream's rows, after what the same step leases already."""
    taken = sum(len(fact.pages) for fact in before if isinstance(fact, f.PagesLeased))
    held = -(-first // 32)
    missing = -(-(first + rows) // 32) - held
    pages = rig.state.book.next(taken + max(missing, 0))[taken:]
    return [f.PagesLeased(stream=stream, first=held, pages=pages)] if pages else []


def test_rounds_of_many_lanes_mix_with_prompt_steps() -> None:
    """A lane that decodes beside another's prompt gets the bits that it gets alone."""
    with CpuRig(tiny(), threads=2) as rig:
        first, _, _ = rig.run(TOKENS[:30], 30)
        other, seat = rig.begin(TOKENS)
        rig.step(
            *seat,
            *_lease(rig, [], other, 0, 20),
            f.PromptStepRun(stream=other, first=0, rows=20),
            f.RowsKept(streams=(first,), starts=(0, 1), tokens=ids([TOKENS[30]])),
            f.RoundRun(lanes=(rig.state.streams[first].lane,)),
            every_row=True,
        )
        assert same(rig.logits(first, 30), tiny_bits()[30])
        assert same(rig.logits(other, 19), tiny_bits()[19])


def test_only_sampled_rows_get_logits(alone: CpuRig) -> None:
    """A prompt step that ends before the last known token samples nothing."""
    stream, facts = alone.begin(TOKENS)
    facts += alone.lease(stream, 40)
    report = alone.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=40))[0]
    assert report.tokens == []
    last = f.PromptStepRun(stream=stream, first=40, rows=20)
    report = alone.step(*alone.lease(stream, 60), last)[0]
    assert (report.streams, report.starts) == ([stream], [0, 1])
    assert report.tokens == [int(tiny_bits()[59].view(np.float32).argmax())]
    assert same(alone.logits(stream, 59), tiny_bits()[59])
    assert alone.device.read(alone.state, stream, "logits", 0, 58) == {}


def test_every_matrix_column_has_one_rank() -> None:
    """Heads and columns are dealt out whole, in order, the first ranks one more."""
    family = Llama(tiny().config)
    for world in range(1, 6):
        assert [family.heads(world, rank) for rank in range(world)][-1][1] == 2
        for name, shape in family.tensors().items():
            if len(shape) == 2:
                spans = [family.columns(name, world, rank) for rank in range(world)]
                assert spans[0][0] == 0 and spans[-1][1] == shape[0]
                assert all(a[1] == b[0] for a, b in pairwise(spans))
                assert all(first % 16 == 0 for first, _ in spans)
    sizes = [family.heads(3, rank) for rank in range(3)]
    assert sizes == [(0, 1), (1, 2), (2, 2)]
