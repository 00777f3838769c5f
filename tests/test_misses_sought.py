"""What the observer of misses says is so, by a memory of everything, and a tape says the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.apply import apply
from kvtape.core.evict import POLICIES
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.keep import store_of
from kvtape.core.lookups import Lookup, Reason
from kvtape.core.state import FLAT, RADIX, KeptState, State, Stream, open_state, store_flag
from kvtape.events import facts as f
from kvtape.events.commands import Arrive, Cancel, Flush
from kvtape.events.ids import StreamId
from kvtape.replay.opening import NEWER

from .misses_rig import Watched, seen_again
from .rig import arrive, flat_plan, opened_with
from .test_play import of

TEXTS = [[(7 * at + 11 * text) % 61 for at in range(70)] for text in range(5)]


@dataclass(frozen=True, slots=True)
class Turn:
    """One wish: some of a text, one of its tokens perhaps another; then so many steps, -1 for all.

    event: what comes before it: a flush, a rank that will refuse, or a cancel of whoever is here.
    """

    text: int
    length: int
    edit: int
    max_new: int
    history: int
    salt: str
    session: int
    steps: int
    event: str


TURNS = st.lists(
    st.builds(
        Turn,
        text=st.integers(0, len(TEXTS) - 1),
        length=st.integers(10, 70),
        edit=st.one_of(st.just(-1), st.integers(0, 69)),
        max_new=st.integers(1, 12),
        history=st.integers(0, 4),
        salt=st.sampled_from(["", "", "", "other"]),
        session=st.integers(0, 9),
        steps=st.sampled_from([-1, -1, 0, 1, 3]),
        event=st.sampled_from([""] * 9 + ["flush", "refuse", "cancel"]),
    ),
    min_size=4,
    max_size=24,
)


def play(rig: Watched, turns: Sequence[Turn]) -> None:
    """Wishes one after another, some of them at once."""
    for at, turn in enumerate(turns):
        if turn.event == "flush":
            rig.step(Flush())
        elif turn.event == "cancel":
            rig.step(*(Cancel(request=one, why="left") for one in rig.state.requests))
        rig.device.refuse_resume = turn.event == "refuse"
        prompt = list(TEXTS[turn.text][: turn.length])
        if 0 <= turn.edit < len(prompt):
            prompt[turn.edit] = 62
        history = 0 if turn.history == 0 else len(prompt) - turn.history
        wish = arrive(
            f"r{at}", prompt, turn.max_new, session=f"s{turn.session}", salt=turn.salt,
            history_tokens=history,
        )  # fmt: skip
        rig.step(wish)
        for _ in range(turn.steps):
            rig.step()
        if turn.steps < 0:
            rig.settle()
    rig.settle()


KINDS = pytest.mark.parametrize("kind", ["radix", "flat", "pages"])
SERVED = pytest.mark.parametrize("served", [False, True])
WORLDS = given(
    turns=TURNS, states=st.integers(1, 3), pages=st.integers(11, 24), lanes=st.integers(1, 3),
    order=st.sampled_from(sorted(POLICIES.values())),
)  # fmt: skip


@KINDS
@SERVED
@settings(max_examples=40, deadline=None)
@WORLDS
def test_what_is_said_is_so_and_a_tape_says_the_same(
    kind: str, served: bool, turns: list[Turn], states: int, pages: int, lanes: int, order: int
) -> None:
    check_one(kind, served, turns, states, pages, lanes, order)


@pytest.mark.slow
@KINDS
@SERVED
@settings(max_examples=1000, deadline=None)
@WORLDS
def test_the_same_at_length(
    kind: str, served: bool, turns: list[Turn], states: int, pages: int, lanes: int, order: int
) -> None:
    check_one(kind, served, turns, states, pages, lanes, order)


def check_one(
    kind: str, served: bool, turns: list[Turn], states: int, pages: int, lanes: int, order: int
) -> None:
    """As older runs decide, and as served ones do."""
    newer = NEWER | {"prefix_wait": 1, "evict": order} if served else {}
    opened = opened_with(
        paged_rules() if kind == "pages" else fake_rules(),
        flags={"store": FLAT if kind == "flat" else RADIX, **newer},
        plan=flat_plan(40 * states), states=states, pages=pages, lanes=lanes,
    )  # fmt: skip
    rig = Watched(opened)
    play(rig, turns)
    assert seen_again(rig) == rig.lookups, "a tape says other than the run did"
    cached = {one.request: one.cached_tokens for one in rig.lookups}
    for end in of(f.RequestFinished, rig):
        if end.reason in ("stop", "length"):
            assert end.cached_tokens == cached[end.request]
    Everything(rig).check()


class Everything:
    """All kept states of a run, those that went included, and the state at every fact."""

    def __init__(self, rig: Watched) -> None:
        self.rig = rig
        self.rules = rig.opened.rules
        self.whole = self.rules.snapshots or store_flag(rig.opened) == FLAT
        self.ever: list[tuple[int, KeptState]] = []

    def check(self) -> None:
        """Fold the run once more; every lookup is judged where it was made."""
        begun = {one.seq: one for one in self.rig.lookups}
        lost = [one for one in self.rig.lookups if one.reason is Reason.EVICTED]
        state = open_state(self.rig.opened)
        for seq, fact in self.rig.numbered():
            if seq in begun:
                self.judge(begun[seq], state)
            losers = [one for one in lost if one.gone is not None and one.gone.seq == seq]
            for one in losers:
                assert isinstance(fact, f.StateDropped) and one.gone is not None
                assert (fact.why, fact.request) == (one.gone.why, one.gone.request)
                assert self.match(state, one) >= one.lost_mark, "it would not have matched"
            apply(state, fact)
            for one in losers:
                assert self.match(state, one) < one.lost_mark, "it went at another event"
            if isinstance(fact, f.SnapshotTaken):
                self.ever.append((seq, state.kept[fact.state]))

    def match(self, state: State, one: Lookup) -> int:
        """The row at which the store would resume the prompt of a lookup."""
        wish = self.rig.arrived[one.request]
        fields = {
            name: getattr(wish, name) for name in f.RequestArrived.model_fields if name != "kind"
        }
        stream = Stream(StreamId(10**6), f.RequestArrived(**fields), 0, tokens=list(wish.prompt))
        return store_of(state).match(state, stream).mark

    def judge(self, one: Lookup, state: State) -> None:
        """Whether a lookup says what is so, with all that was ever kept in mind."""
        wish = self.rig.arrived[one.request]
        assert (one.reason is None) == (0 < one.cached_tokens == one.last_mark)
        ever = max((self.depth(wish, kept) for _, kept in self.ever), default=0)
        ever = min(ever, one.last_mark)
        match one.reason:
            case Reason.NO_STATE:
                assert ever <= one.cached_tokens, "something like it was kept"
            case Reason.EVICTED:
                assert one.lost_mark == ever > one.cached_tokens
            case Reason.TOO_SHORT:
                assert one.last_mark == 0
            case Reason.EDITED:
                assert one.near is not None
                kept, at = state.kept[one.near.state], one.near.differs_at
                assert kept.tokens[:at] == wish.prompt[:at]
                assert (kept.tokens[at], wish.prompt[at]) == one.near.tokens
                assert one.near.tokens[0] != one.near.tokens[1]
                assert one.near.mark == kept.mark > one.cached_tokens <= at
            case _:
                pass

    def depth(self, wish: Arrive, kept: KeptState) -> int:
        """How far a kept state could bring a prompt."""
        if wish.salt != kept.salt:
            return 0
        rows, ahead = self.rules.page_rows, self.rules.lookahead
        if self.whole:
            return kept.mark if wish.prompt[: kept.mark + ahead] == kept.tokens else 0
        pages = 0
        while pages < len(kept.pages) and (
            wish.prompt[: (pages + 1) * rows + ahead] == kept.tokens[: (pages + 1) * rows + ahead]
        ):
            pages += 1
        return pages * rows
