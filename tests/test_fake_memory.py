"""The fake device's memory: states kept and resumed, poison, flipped bits, sums after each row."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvtape.core.device import Ack, Poisoned
from kvtape.core.digests import add_pairs, sub_pairs
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.kernels.fake_memory import LAYERS
from kvtape.core.link import RankLost
from kvtape.events import facts as f
from kvtape.events.ids import PageId, Rank, RequestId, StateId, StreamId

from .hand import Hand, check_stream, digest, opened, oracle_of, oracle_sums

STATES, PAGED = fake_rules(vocab=16), paged_rules(vocab=16)
BOTH = pytest.mark.parametrize("rules", [STATES, PAGED], ids=["states", "paged"])
FIRST = [5, 4, 3, 2] * 10
SECOND = [*FIRST[:33], 9, 9, 1]
IN_MEMORY = ("rows", "keys", "states", "rings", "drafts")


def run_rows(hand: Hand, stream: StreamId, rows: int) -> None:
    """Some rows of a prompt as one step."""
    hand.prompt(stream, rows)
    hand.launch()


def kept(hand: Hand) -> tuple[StateId, Sequence[PageId]]:
    """The first 32 rows of a prompt of 40, kept; its stream goes on and is let go."""
    first = hand.start(FIRST)
    run_rows(hand, first, 32)
    state = hand.keep(first)
    pages = hand.state.kept[state].pages
    run_rows(hand, first, 8)
    hand.decode(first)
    check_stream(hand, first)
    hand.finish(first)
    return state, pages


def resume(hand: Hand, state: StateId, pages: Sequence[PageId]) -> tuple[StreamId, list[Ack]]:
    """A stream that shares 33 tokens begins on the state's pages; every rank's answer."""
    stream = hand.arrive(SECOND)
    hand.begin(stream, state, pages)
    reports = hand.launch()
    return stream, [report.acks[0] for report in reports]


@BOTH
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_resumed_stream_is_the_same_as_a_fresh_one(rules: Any, world: int) -> None:
    hand = Hand(opened(rules, world=world, digests="full", poison="a"))
    state, pages = kept(hand)
    stream, acks = resume(hand, state, pages)
    whole = oracle_sums(oracle_of(hand, stream), 32, len(SECOND))
    for part in acks[0].digest:
        shares = [ack.digest[part] for ack in acks]
        assert (add_pairs(*shares) if part in rules.split else shares[0]) == whole[part]
    assert set(IN_MEMORY) & set(rules.parts) <= set(acks[0].digest)
    hand.do(f.StateResumed(stream=stream, state=state, mark=32, digest={}))
    run_rows(hand, stream, 4)
    hand.decode(stream)
    check_stream(hand, stream)


@BOTH
def test_pages_that_were_used_before_resume_as_fresh_ones_do(rules: Any) -> None:
    hand = Hand(opened(rules))
    used = hand.start(FIRST)
    run_rows(hand, used, len(FIRST))
    hand.finish(used)
    state, pages = kept(hand)
    stream = hand.arrive(SECOND)
    hand.begin(stream, state, pages)
    (report,) = hand.launch()
    assert report.breaks == []
    assert report.acks[0].ok


def test_a_copy_is_of_the_mark_though_its_stream_went_on() -> None:
    hand = Hand(opened(STATES), broken=["restore"])
    state, pages = kept(hand)
    stream, _ = resume(hand, state, pages)
    hand.do(f.StateResumed(stream=stream, state=state, mark=32, digest={}))
    run_rows(hand, stream, 4)
    with pytest.raises(AssertionError):
        check_stream(hand, stream)


@pytest.mark.parametrize("why", ["told_to_refuse", "no_copy"])
def test_a_rank_that_cannot_resume_says_so_and_the_stream_begins_anew(why: str) -> None:
    hand = Hand(opened(STATES, world=2))
    state, pages = kept(hand)
    if why == "no_copy":
        hand.devices[1].launch(hand.states[1], [dropped(state)])
    else:
        hand.devices[1].refuse_resume = True
    stream, acks = resume(hand, state, pages)
    assert [ack.ok for ack in acks] == [True, False]
    assert acks[1].why == why
    hand.do(
        f.PagesReturned(stream=stream, pages=tuple(pages)),
        f.ResumeRefused(stream=stream, state=state, rank=Rank(1), why=why),
    )
    hand.begin(stream)
    run_rows(hand, stream, len(SECOND))
    hand.decode(stream)
    check_stream(hand, stream)


def dropped(state: StateId) -> f.StateDropped:
    """A state that goes."""
    return f.StateDropped(state=state, why="flushed", request=RequestId(""))


def flip(
    stream: StreamId,
    part: str,
    rank: int = 0,
    layer: int = 0,
    position: int = 0,
    head: int = 0,
    column: int = 1,
) -> f.FaultInjected:
    """Bit 3 of a 16-bit element, flipped."""
    return f.FaultInjected(
        rank=Rank(rank),
        stream=stream,
        part=part,
        layer=layer,
        cache="k",
        position=position,
        head=head,
        column=column,
        bit=3,
        when="rest",
    )


def fresh(rules: Any, **other: Any) -> tuple[Hand, StreamId]:
    """A stream whose prompt has run."""
    hand = Hand(opened(rules, **other))
    stream = hand.start(FIRST)
    run_rows(hand, stream, len(FIRST))
    return hand, stream


@pytest.mark.parametrize("part", IN_MEMORY)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_flipped_bit_breaks_its_parts_sum_on_its_rank_alone(part: str, rank: int) -> None:
    hand, stream = fresh(STATES, world=2, digests="full")
    head = 2 * rank if part in STATES.split else 0  # rank 1 holds the last of three heads
    layer, position = (1, 0) if part == "states" else (0, 39)
    word = hand.words(stream, part, layer, position)[head]
    hand.do(flip(stream, part, rank, layer, position, head))
    hand.round(stream)
    breaks = [report.breaks for report in hand.launch()]
    assert breaks[1 - rank] == []
    assert [(one.stream, one.part) for one in breaks[rank]] == [(stream, part)]
    flipped = [word[0] ^ 1 << 19, *word[1:]]
    syndrome = sub_pairs(
        digest(part, layer, head, position, flipped), digest(part, layer, head, position, word)
    )
    assert sub_pairs(breaks[rank][0].found, breaks[rank][0].kept) == syndrome


@BOTH
def test_rows_that_were_flipped_are_found_when_they_are_resumed(rules: Any) -> None:
    hand = Hand(opened(rules))
    first = hand.start(FIRST)
    run_rows(hand, first, 32)
    state = hand.keep(first)
    hand.do(flip(first, "rows", position=17))
    stream = hand.arrive(SECOND)
    hand.begin(stream, state, hand.state.kept[state].pages)
    (report,) = hand.launch()
    assert [(one.stream, one.part) for one in report.breaks] == [(stream, "rows")]
    assert report.acks[0].digest["rows"] == report.breaks[0].found


@pytest.mark.parametrize(("word", "part"), [(0, "states"), (-1, "rings")])
def test_a_copy_that_was_flipped_is_found_when_it_is_resumed(word: int, part: str) -> None:
    hand = Hand(opened(STATES))
    state, pages = kept(hand)
    hand.devices[0].copies[state].fixed[word] ^= 1
    stream = hand.arrive(SECOND)
    hand.begin(stream, state, pages)
    (report,) = hand.launch()
    assert [(one.stream, one.part) for one in report.breaks] == [(stream, part)]
    assert report.acks[0].digest[part] == report.breaks[0].found


@BOTH
@pytest.mark.parametrize(
    ("position", "layer", "column"), [(0, 1, 5), (13, 0, 1), (20, 0, 1), (20, 1, 5), (39, 0, 1)]
)
def test_what_is_drawn_depends_on_rows_read_back(
    rules: Any, position: int, layer: int, column: int
) -> None:
    hand, stream = fresh(rules)
    hand.do(flip(stream, "rows", layer=layer, position=position, column=column))
    hand.round(stream)  # of row 40, which reads rows 39, 20, 13 and 0
    hand.launch()
    clean = oracle_sums(oracle_of(hand, stream), 41, len(FIRST))
    assert hand.sums(stream)["logits"] != clean["logits"]


@pytest.mark.parametrize("poison", ["a", "b"])
def test_a_row_read_before_it_is_written_is_named(poison: str) -> None:
    hand, stream = fresh(STATES, poison=poison)
    other = hand.start([1] * 8)
    run_rows(hand, other, 1)
    lane = hand.stream(stream).lane
    hand.state.tables[lane, 2] = hand.state.table(hand.stream(other))[0]  # has one row
    hand.round(stream)
    (report,) = hand.launch()  # row 40 reads rows 39, 20 and 13
    assert report.poisoned == [Poisoned(stream, 0, 20)]


def test_a_swapped_page_changes_the_tokens() -> None:
    hand, stream = fresh(STATES)
    hand.state.tables[0, [2, 4]] = hand.state.tables[0, [4, 2]]
    hand.decode(stream)
    with pytest.raises(AssertionError):
        check_stream(hand, stream)


def test_a_follower_keeps_what_rank_0_draws() -> None:
    kept_tokens = {}
    for broken in ([], ["lead"]):
        hand = Hand(opened(fake_rules(vocab=16, drafts=3), world=2), broken=broken)
        stream = hand.start(FIRST)
        run_rows(hand, stream, len(FIRST))
        hand.do(flip(stream, "rows", 1, layer=1, position=0, column=5))
        hand.round(stream)
        lead, follower = hand.launch()
        assert lead.sums[stream]["logits"] != follower.sums[stream]["logits"]
        kept_tokens[len(broken)] = (lead.tokens, follower.tokens)
    assert kept_tokens[0][0] == kept_tokens[0][1]
    assert kept_tokens[1][0] != kept_tokens[1][1]


@BOTH
@pytest.mark.parametrize("world", [1, 3])
def test_probes_of_the_layers_add_up_to_the_sums(rules: Any, world: int) -> None:
    hand, stream = fresh(rules, world=world)
    rows = hand.stream(stream).rows
    for part in set(IN_MEMORY) & set(rules.parts):
        for rank, device in enumerate(hand.devices):
            layers = range(device.layers(part))
            pieces = [
                device.probe(hand.states[rank], stream, part, layer, first, 10)
                for layer in layers
                for first in range(0, rows, 10)
            ]
            assert add_pairs(*pieces) == hand.share(rank, stream)[part]
    assert [hand.devices[0].layers(part) for part in ("logits", "tokens", "marks")] == [0, 0, 0]
    assert hand.devices[0].layers("rows") == LAYERS


@BOTH
@pytest.mark.parametrize("chunk", [7, 64])
def test_a_fast_forward_has_the_sums_of_every_row(rules: Any, chunk: int) -> None:
    live, stream = fresh(rules)
    live.decode(stream)
    tokens = live.stream(stream).tokens[:-1]
    hand = Hand(opened(rules))
    again = hand.start(FIRST)
    hand.state.streams[again].tokens[:] = tokens  # a reply that is known stands behind its prompt
    run_rows(hand, again, len(FIRST) - 1)
    oracle, rows, drawn = oracle_of(live, stream), len(FIRST) - 1, list[int]()
    while rows < len(tokens):
        hand.prompt(again, min(chunk, len(tokens) - rows))
        every = hand.launch(every_row=True)[0].every_row
        assert every is not None
        assert (every.streams, every.firsts) == ([again], [rows])
        for i, token in enumerate(every.tokens[0].tolist()):
            rows += 1
            drawn.append(token)
            sums = {part: tuple(each[0][i].tolist()) for part, each in every.sums.items()}
            assert sums == oracle_sums(oracle, rows, len(FIRST))
    assert drawn == live.drawn[stream]
    assert hand.sums(again) == live.sums(stream)


def test_rows_are_summed_at_the_last_whole_page() -> None:
    hand = Hand(opened(PAGED))
    stream = hand.start(FIRST)
    run_rows(hand, stream, 24)
    whole = hand.sums(stream)
    assert whole["marks"] == whole["rows"]
    run_rows(hand, stream, 7)
    assert hand.sums(stream)["marks"] == whole["rows"] != hand.sums(stream)["rows"]
    run_rows(hand, stream, 1)
    assert hand.sums(stream)["marks"] == hand.sums(stream)["rows"] != whole["rows"]


@pytest.mark.parametrize("level", ["off", "book"])
def test_no_sums_are_kept_below_the_level_of_rows(level: str) -> None:
    hand, stream = fresh(STATES, digests=level)
    hand.round(stream)
    (report,) = hand.launch()
    assert report.sums == {}
    assert len(report.tokens) == 1


def test_a_stream_that_is_told_to_raises_the_flag() -> None:
    hand, stream = fresh(STATES)
    hand.devices[0].flag.add(stream)
    hand.round(stream)
    assert hand.launch()[0].flagged == [stream]


def test_a_rank_that_fails_wakes_the_others_with_its_reason() -> None:
    hand = Hand(opened(STATES, world=2))
    stream = hand.start([1, 2, 3])
    hand.prompt(stream, 3)
    *others, prompt = hand.facts
    assert isinstance(prompt, f.PromptStepRun)
    wrong = prompt.model_copy(update={"first": 1})
    with pytest.raises(AssertionError, match="row 1 after 0"):
        hand.devices[1].launch(hand.states[1], [*others, wrong])
    with pytest.raises(RankLost, match="rank 1 stopped in step 0: row 1 after 0"):
        hand.devices[0].launch(hand.state, hand.facts)


def test_a_rank_that_closes_is_not_waited_for() -> None:
    hand = Hand(opened(STATES, world=2))
    hand.prompt(hand.start([1, 2, 3]), 3)
    hand.devices[1].close()
    with pytest.raises(RankLost, match="rank 1 closed"):
        hand.devices[0].launch(hand.state, hand.facts)
