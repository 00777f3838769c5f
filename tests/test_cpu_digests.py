"""The CPU device's sums: of rows, logits, tokens and weights, and what breaks them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.apply import apply
from kvtape.core.device import EveryRow, Report
from kvtape.core.digests import add_pairs, pair_hex, sub_pairs
from kvtape.core.families.llama import Llama
from kvtape.core.kernels import meaning
from kvtape.core.kernels.digest import PARTS, digest_of, row_words
from kvtape.core.state import Phase
from kvtape.devices.ledger import pair_of
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import Rank, StateId, StreamId

from .cpu_rig import CpuRig, adopted, ids, kept, tiny, tiny_bits, tiny_tokens

TOKENS = tiny_tokens()
FIRST = StreamId(0)  # of a rig
q16: Callable[..., Any] = meaning.q16
PARTS_OF_A_STREAM = ("rows", "marks", "logits", "tokens")


def test_sums_are_those_of_the_definition() -> None:
    """tokens and logits from their values; rows from the words that the device reads back."""
    with CpuRig(tiny()) as rig:
        stream, _, reports = rig.run(TOKENS[:40], 40)
        sums = reports[-1].sums[stream]
        tokens = [
            digest_of(np.array([token]).view(np.uint64), PARTS["tokens"], 0, 0, at, np.arange(1))
            for at, token in enumerate(TOKENS[:40])
        ]
        assert sums["tokens"] == add_pairs(*tokens)
        columns = np.arange(256)
        logits = [
            digest_of(row_words(row), PARTS["logits"], 0, 0, at, columns)
            for at, row in enumerate(tiny_bits()[:40])
        ]
        assert sums["logits"] == add_pairs(*logits)
        rows = []
        for layer in range(rig.device.layers("rows")):
            for at in range(40):
                for head, data in rig.device.read(rig.state, stream, "rows", layer, at).items():
                    word = np.frombuffer(data, np.uint64)
                    place = PARTS["rows"], layer, head, at
                    rows.append(digest_of(word, *place, np.arange(word.size)))
        assert sums["rows"] == add_pairs(*rows)
        probe = [rig.device.probe(rig.state, stream, "rows", layer, 32, 8) for layer in range(8)]
        assert sums["marks"] == sub_pairs(sums["rows"], add_pairs(*probe))


@pytest.mark.parametrize(("world", "threads"), [(1, 2), (2, 1), (3, 1)])
def test_split_parts_add_over_ranks_and_the_others_are_equal(world: int, threads: int) -> None:
    with CpuRig(tiny()) as one, CpuRig(tiny(), world=world, threads=threads) as many:
        for rig in (one, many):
            rig.run(TOKENS[:39], 13)
        wanted = one.step(*one.draw(FIRST, TOKENS[39]))[0].sums[FIRST]
        shares = [report.sums[FIRST] for report in many.step(*many.draw(FIRST, TOKENS[39]))]
        for part in PARTS_OF_A_STREAM:
            values = [share[part] for share in shares]
            if part in many.device.rules.split:
                assert add_pairs(*values) == wanted[part], part
            else:
                assert values == [wanted[part]] * world, part


def test_every_row_says_what_single_steps_say() -> None:
    """Sums after each row and its sampled token: rows in one step, and one by one as a reply."""
    prompt = 25
    with CpuRig(tiny()) as steps, CpuRig(tiny()) as once:
        stream, facts = steps.begin(TOKENS[:prompt])
        facts += steps.lease(stream, prompt)
        facts.append(f.PromptStepRun(stream=stream, first=0, rows=prompt))
        reports = [steps.step(*facts)[0]]
        for token in TOKENS[prompt:40]:
            reports.append(steps.step(*steps.draw(stream, token))[0])
        other, facts = once.begin(TOKENS[:prompt])
        facts.append(f.RowsKept(streams=(other,), starts=(0, 15), tokens=ids(TOKENS[prompt:40])))
        facts += once.lease(other, 40, held=0)
        every = _fast_forward(once, facts, 40)
        for at, report in enumerate(reports):
            row = prompt - 1 + at
            for part in ("rows", "logits", "tokens"):
                pair = pair_of(every.sums[part][0][row])
                if part == "logits":  # those of the prompt's rows, which a reply has none of
                    pair = sub_pairs(pair, pair_of(every.sums[part][0][prompt - 2]))
                assert pair == report.sums[stream][part], (part, row)
            assert every.tokens[0][row] == report.tokens[0]


def _fast_forward(rig: CpuRig, facts: list[AnyFact], rows: int) -> EveryRow:
    """Apply facts and then run the stream's rows as one prompt step."""
    for fact in facts:
        apply(rig.state, fact)
    stream = rig.state.streams[FIRST]
    stream.rows, stream.phase = 0, Phase.PROMPTING
    step = f.PromptStepRun(stream=stream.stream, first=0, rows=rows)
    apply(rig.state, step)
    report: Report = rig.device.launch(rig.state, [*facts, step], every_row=True).report()
    assert report.every_row is not None
    return report.every_row


def test_a_resumed_stream_goes_on_from_the_sums_of_its_pages() -> None:
    """The answer to a resume is what is in memory; later sums are those of a stream never cut."""
    with CpuRig(tiny(), world=2) as rig:
        stream, facts = rig.begin(TOKENS)
        facts += rig.lease(stream, 60)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=0, rows=60))
        whole = [report.sums[stream] for report in rig.step(*rig.draw(stream, 7))]
        pages = rig.state.table(rig.state.streams[stream])[:1]
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=32, shared=True, pages=tuple(pages), digest={}
        )
        other, seat = rig.begin(TOKENS, **kept(0, pages))
        reports = rig.step(taken, *seat, adopted(other, pages))
        acks = [report.acks[0] for report in reports]
        assert all(ack.ok and ack.stream == other for ack in acks)
        for rank, ack in enumerate(acks):
            assert ack.digest == {"rows": rig.devices[rank].ledger.of_pages(np.array(pages))}
        resumed = f.StateResumed(stream=other, state=StateId(0), mark=32, digest={})
        rig.step(resumed, *rig.lease(other, 60), f.PromptStepRun(stream=other, first=32, rows=28))
        again = [report.sums[other] for report in rig.step(*rig.draw(other, 7))]
        for part in PARTS_OF_A_STREAM:
            assert [sums[part] for sums in again] == [sums[part] for sums in whole], part


@settings(max_examples=40)
@given(st.data())
def test_level_full_notices_any_flipped_bit(data: st.DataObject) -> None:
    rig = _full_rig()
    fault = f.FaultInjected(
        rank=Rank(0),
        stream=FIRST,
        part="rows",
        layer=data.draw(st.integers(0, 3)),
        cache=data.draw(st.sampled_from("kv")),
        position=data.draw(st.integers(0, 39)),
        head=data.draw(st.integers(0, 1)),
        column=data.draw(st.integers(0, 32)),
        bit=data.draw(st.integers(0, 7)),
        when="",
    )
    assert rig.step()[0].breaks == []
    found = rig.step(fault)[0].breaks
    assert [(one.stream, one.part) for one in found] == [(0, "rows")]
    ledger = rig.device.ledger
    assert found[0].kept == pair_of(ledger.held[ledger.streams[FIRST], 0]) != found[0].found
    rig.step(fault)  # the same bit again: back as it was


_RIGS: list[CpuRig] = []


def _full_rig() -> CpuRig:
    if not _RIGS:
        rig = CpuRig(tiny(), digests="full")
        rig.run(TOKENS[:40], 40)
        _RIGS.append(rig)
    return _RIGS[0]


def test_a_fault_goes_to_the_rank_that_it_names_and_nowhere_else() -> None:
    with CpuRig(tiny(), world=2, digests="full") as rig:
        rig.run(TOKENS[:40], 40)
        fault = f.FaultInjected(
            rank=Rank(1), stream=FIRST, part="rows", layer=2, cache="v", position=33, head=1,
            column=3, bit=9, when="",
        )  # fmt: skip
        reports = rig.step(fault)
        assert [len(report.breaks) for report in reports] == [0, 1]
        wrong = fault.model_copy(update={"head": 0})
        with pytest.raises(ValueError, match="rank 1 does not hold KV head 0"):
            rig.devices[1].launch(rig.states[1], [wrong])


def test_a_damaged_page_is_seen_when_it_is_resumed() -> None:
    with CpuRig(tiny()) as rig:
        stream, _, _ = rig.run(TOKENS, 60)
        pages = rig.state.table(rig.state.streams[stream])[:1]
        taken = f.SnapshotTaken(
            state=StateId(0), stream=stream, mark=32, shared=True, pages=tuple(pages), digest={}
        )
        fault = f.FaultInjected(
            rank=Rank(0), stream=stream, part="rows", layer=0, cache="k", position=5, head=0,
            column=1, bit=0, when="",
        )  # fmt: skip
        other, seat = rig.begin(TOKENS, **kept(0, pages))
        report = rig.step(taken, fault, *seat, adopted(other, pages))[0]
        assert [one.stream for one in report.breaks] == [other]
        assert report.acks[0].digest["rows"] == report.breaks[0].found != report.breaks[0].kept


@pytest.mark.parametrize("level", ["off", "book"])
def test_levels_below_rows_report_no_sums(level: str) -> None:
    with CpuRig(tiny(), digests=level) as rig:
        _, logits, reports = rig.run(TOKENS, 30)
        assert (logits == tiny_bits()).all()
        assert all(report.sums == {} for report in reports)


def test_the_model_digest_is_that_of_the_definition_at_any_rank_count() -> None:
    """Tensors by sorted name; Q16 rows, then the exponent; vectors as float32 words."""
    checkpoint = tiny()
    sums = []
    for index, (name, shape) in enumerate(sorted(Llama(checkpoint.config).tensors().items())):
        if len(shape) == 1:
            words = row_words(checkpoint.vector(name))
            sums.append(digest_of(words, PARTS["weights"], index, 0, 0, np.arange(words.size)))
            continue
        codes, exponents, _ = q16(checkpoint.rows(name, 0, shape[0]))
        for row in range(shape[0]):
            words = np.append(row_words(codes[row]), np.int64(exponents[row]).view(np.uint64))
            sums.append(digest_of(words, PARTS["weights"], index, 0, row, np.arange(words.size)))
    for world in (1, 3):
        with CpuRig(checkpoint, world=world) as rig:
            assert rig.device.model_digest == pair_hex(add_pairs(*sums))
