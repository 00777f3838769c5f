"""The whole machine under random use: replay equals live, and every reply is the oracle's."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtape.core.apply import apply
from kvtape.core.book import book_digest
from kvtape.core.decide import decide
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.pages import ORDERS
from kvtape.core.state import FLAT, RADIX, open_state
from kvtape.events.commands import Cancel, Close, Flush, StopMatched
from kvtape.events.facts import RequestFinished

from .rig import Rig, arrive, expected_reply, flat_plan, fold, frozen, opened_with

TOKENS = st.integers(0, 63)
NEWER = ("marks", "keep_resuming", "keep_at_end", "prefix_wait")


class Machine(RuleBasedStateMachine):
    """Arrivals that repeat, extend and fork earlier prompts; cancels, stops, small pools."""

    rig: Rig
    store = RADIX

    @initialize(
        kind=st.sampled_from(["states", "pages"]),
        drafts=st.integers(0, 4),
        drafter=st.integers(0, 2),
        order=st.sampled_from(ORDERS),
        pages=st.integers(17, 40),
        states=st.integers(0, 5),
        lanes=st.integers(1, 4),
        poison=st.sampled_from(["off", "a", "b"]),
        newer=st.booleans(),
    )
    def open(
        self, kind: str, drafts: int, drafter: int, order: str, pages: int, states: int,
        lanes: int, poison: str, newer: bool,
    ) -> None:  # fmt: skip
        paged = kind == "pages" and self.store == RADIX
        rules = paged_rules() if paged else fake_rules(drafts=drafts)
        opened = opened_with(
            rules, order=order, pages=pages, states=states, lanes=lanes, poison=poison,
            flags=dict.fromkeys(NEWER, int(newer)) | {"fake_drafter": drafter, "store": self.store},
            plan=flat_plan(40 * states), digests="full",
        )  # fmt: skip
        self.rig = Rig(opened)
        self.prompts: list[list[int]] = []

    @rule(
        data=st.data(),
        fresh=st.lists(TOKENS, min_size=1, max_size=40),
        max_new=st.integers(1, 24),
        eos=st.sets(TOKENS, max_size=3),
        draft=st.booleans(),
        salt=st.sampled_from(["", "", "", "other"]),
        count=st.sampled_from([1, 1, 2, 3]),
    )
    def ask(
        self, data: st.DataObject, fresh: list[int], max_new: int, eos: set[int], draft: bool,
        salt: str, count: int,
    ) -> None:  # fmt: skip
        prompt = list(fresh)
        again: bool = data.draw(st.booleans())
        if self.prompts and again:
            earlier: list[int] = data.draw(st.sampled_from(self.prompts))
            prompt = earlier[: data.draw(st.integers(1, len(earlier)))] + fresh[:9]
        prompt = prompt[: 100 - max_new]
        self.prompts.append(prompt)
        within = st.integers(0, len(prompt))
        asked = arrive(
            f"r{len(self.prompts)}", prompt, max_new, session=f"s{len(self.prompts) % 3}",
            eos=tuple(sorted(eos)), draft=draft, salt=salt, history_tokens=data.draw(within),
            rewind_tokens=data.draw(within),
        )  # fmt: skip
        names = [asked.request, *(f"{asked.request}.{at}" for at in range(1, count))]
        self.rig.step(*(asked.model_copy(update={"request": name}) for name in names))

    @rule(steps=st.integers(1, 12))
    def run_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.rig.idle:
                break
            self.rig.step()

    @precondition(lambda self: self.rig.state.streams)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.rig.state.requests)))
        self.rig.step(Cancel(request=request, why="client left"))

    @precondition(lambda self: self.rig.finished)
    @rule(data=st.data())
    def cancel_what_is_over(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.rig.finished)))
        facts = self.rig.step(Cancel(request=request, why="too late"))
        assert not any(fact.kind == "request_cancelled" for fact in facts)

    @precondition(lambda self: self.rig.state.streams)
    @rule(data=st.data())
    def stop_string(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.rig.state.requests)))
        stream = self.rig.state.streams[self.rig.state.requests[request]]
        tokens = data.draw(st.integers(1, max(1, stream.new_tokens)))
        self.rig.step(StopMatched(request=request, tokens=tokens))

    @rule()
    def flush(self) -> None:
        self.rig.step(Flush())
        resuming = {stream.state for stream in self.rig.state.streams.values()}
        assert set(self.rig.state.kept) <= resuming | set(self.rig.state.kept)

    @rule()
    def a_rank_refuses(self) -> None:
        self.rig.device.refuse_resume = not self.rig.device.refuse_resume

    @rule()
    def settle(self) -> None:
        self.rig.settle()
        state = self.rig.state
        held = int((state.book.kept > 0).sum())
        assert state.book.free + held == state.book.total, "pages leaked"
        assert state.book.promised == 0

    @invariant()
    def a_decision_changes_nothing(self) -> None:
        state = self.rig.state
        before = frozen(state)
        next(iter(decide(state, (Flush(),))), None)
        assert before.book == state.book
        assert before.streams == state.streams
        assert before.kept == state.kept

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        replayed = fold(self.rig.opened, self.rig.facts)
        assert book_digest(replayed) == book_digest(self.rig.state)
        assert replayed.streams == self.rig.state.streams
        assert replayed.kept == self.rig.state.kept
        assert replayed.book == self.rig.state.book
        assert replayed.tables.tobytes() == self.rig.state.tables.tobytes()

    @invariant()
    def nothing_is_poisoned_or_broken(self) -> None:
        bad = {"poison_read", "sums_broken", "ranks_parted"}
        assert not bad & {fact.kind for fact in (self.rig.steps or [()])[-1]}

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.settle()
        for request, end in self.rig.finished.items():
            check_reply(self.rig, request, end)
        self.rig.step(Close(reason="closed"))
        assert self.rig.state.closed
        decide_again(self.rig)


def check_reply(rig: Rig, request: str, end: RequestFinished) -> None:
    """A reply is the oracle's, or its head where it was cut short."""
    wish = rig.arrived[end.request]
    reply = rig.replies.get(end.request, [])
    expected = expected_reply(rig.opened.rules, wish)
    if end.reason in ("cancelled", "stop") and end.new_tokens < len(expected):
        assert reply == expected[: len(reply)], f"{request}: {reply} is not a head of {expected}"
    else:
        assert reply[: end.new_tokens] == expected, f"{request}: {reply}, expected {expected}"


def decide_again(rig: Rig) -> None:
    """The recorded commands lead to the recorded facts."""
    state = open_state(rig.opened)
    for commands, facts in zip(rig.commands, rig.steps, strict=True):
        again = []
        for fact in decide(state, commands):
            apply(state, fact)
            again.append(fact)
        assert tuple(again) == facts


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


class FlatMachine(Machine):
    """The same over copies beside the pages; there is room for about as many."""

    store = FLAT


TestFlatMachine = FlatMachine.TestCase
TestFlatMachine.settings = TestMachine.settings


class LongMachine(Machine):
    """The same, at length."""


TestLongMachine = pytest.mark.slow(LongMachine.TestCase)
TestLongMachine.settings = settings(
    max_examples=400, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


class LongFlatMachine(FlatMachine):
    """Copies, at length."""


TestLongFlatMachine = pytest.mark.slow(LongFlatMachine.TestCase)
TestLongFlatMachine.settings = TestLongMachine.settings
