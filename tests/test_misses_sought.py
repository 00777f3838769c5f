"""What the observer of misses says is so, by a memory of everything, and a tape says the same."""

import pytest
from hypothesis import HealthCheck, settings

from kvtape.core.apply import apply
from kvtape.core.evict import POLICIES
from kvtape.core.keep import store_of
from kvtape.core.lookups import Lookup, Reason
from kvtape.core.state import FLAT, KeptState, State, Stream, open_state, store_flag
from kvtape.events import facts as f
from kvtape.events.commands import Arrive
from kvtape.events.facts import RunOpened
from kvtape.events.ids import StreamId
from kvtape.replay.opening import NEWER

from .misses_rig import Watched, seen_again
from .test_machine import Machine
from .test_play import of


class Sought(Machine):
    """The observer beside a random machine: what it says is so, by a memory of everything."""

    made = Watched

    def teardown(self) -> None:
        super().teardown()
        rig = getattr(self, "rig", None)
        if not isinstance(rig, Watched):
            return
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


TestSought = Sought.TestCase
TestSought.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


class FlatSought(Sought):
    """The same over copies beside the pages."""

    store = FLAT


TestFlatSought = FlatSought.TestCase
TestFlatSought.settings = TestSought.settings


class Served(Watched):
    """The same with what a served run decides by; an order in which states go is the pool's."""

    def __init__(self, opened: RunOpened) -> None:
        orders = sorted(POLICIES.values())
        newer = NEWER | {"prefix_wait": 1, "evict": orders[opened.pages % len(orders)]}
        super().__init__(opened.model_copy(update={"flags": opened.flags | newer}))


class ServedSought(Sought):
    """The same over a run as it is served now."""

    made = Served


TestServedSought = ServedSought.TestCase
TestServedSought.settings = TestSought.settings


class ServedFlatSought(ServedSought):
    """The same over copies beside the pages."""

    store = FLAT


TestServedFlatSought = ServedFlatSought.TestCase
TestServedFlatSought.settings = TestSought.settings


class LongSought(Sought):
    """The same, at length."""


TestLongSought = pytest.mark.slow(LongSought.TestCase)
TestLongSought.settings = settings(TestSought.settings, max_examples=400, stateful_step_count=60)


class LongFlatSought(FlatSought):
    """Copies, at length."""


TestLongFlatSought = pytest.mark.slow(LongFlatSought.TestCase)
TestLongFlatSought.settings = TestLongSought.settings
