"""The whole machine on the GLM under random use: drafts, kept states, evictions, any lane."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kvtape.core.pages import ORDERS
from kvtape.events.commands import Arrive, Close, Flush
from kvtape.events.facts import RequestFinished
from kvtape.events.records import Sampling

from .glm_memory import Playing
from .glm_rig import glm_device, glm_opened
from .rig import Rig, arrive
from .test_machine import Machine, decide_again

PAGE, VOCAB, MOST = 16, 512, 90
SAMPLINGS = (
    Sampling(),
    Sampling(temperature_bits=int(np.float32(1).view(np.uint32)), top_k=20, seed=4),
    Sampling(presence_bits=int(np.float32(1).view(np.uint32))),
)
BASES = [np.random.default_rng(at).integers(6, VOCAB, MOST).tolist() for at in range(3)]
Sums = dict[str, str]
_ALONE: dict[str, tuple[list[int], Sums]] = {}


class SummedRig(Rig):
    """A rig that remembers the last sums of every request."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sums: dict[str, Sums] = {}

    def _note(self, fact: Any) -> None:
        super()._note(fact)
        if fact.kind == "step_closed":
            for at, stream in enumerate(fact.digests.streams):
                self.sums[self._requests[stream]] = {
                    part: totals[at] for part, totals in fact.digests.parts.items()
                }


def alone(wish: Arrive) -> tuple[list[int], Sums]:
    """What a request is answered, and its sums, alone on a fresh device that drafts nothing."""
    plain = wish.model_copy(
        update={"request": "alone", "session": "s", "draft": False, "history_tokens": 0, "salt": ""}
    )
    key = plain.model_dump_json()
    if key not in _ALONE:
        rig = SummedRig(glm_opened(1, lanes=1, pages=14, prompt_rows=96), make=glm_device)
        rig.step(plain)
        rig.settle()
        rig.device.close()
        _ALONE[key] = rig.replies[plain.request], rig.sums["alone"]
    return _ALONE[key]


class GlmMachine(Machine):
    """The machine's rules; prompts grow out of three, so that states are kept and resumed."""

    summed: SummedRig  # `rig`, whose sums are looked at

    @initialize(
        drafts=st.sampled_from([0, 1, 2, 4]),
        drafter=st.sampled_from(["own", "wrong", "mixed"]),
        order=st.sampled_from(ORDERS),
        pages=st.sampled_from([9, 14, 24, 40]),
        states=st.sampled_from([1, 2, 5, 0]),
        lanes=st.integers(1, 4),
        poison=st.sampled_from(["off", "a", "b"]),
        prompt_rows=st.sampled_from([7, 16, 48]),
    )
    def open(
        self, drafts: int, drafter: str, order: str, pages: int, states: int, lanes: int,
        poison: str, prompt_rows: int,
    ) -> None:  # fmt: skip
        opened = glm_opened(
            drafts, order=order, pages=pages, states=states, lanes=lanes, poison=poison,
            prompt_rows=prompt_rows, context=128, digests="full",
        )  # fmt: skip
        self.drafts, self.turn = drafts, 0
        play = None if drafter == "own" or not drafts else self.play
        self.wrong = drafter == "wrong"
        self.rig = self.summed = SummedRig(opened, make=lambda run: Playing(glm_device(run), play))
        self.prompts: list[list[int]] = []

    def play(self, stream: Any) -> list[int]:
        """Drafts of every length, wrong ones or right for a while."""
        self.turn += 1
        request = stream.request
        reply, _ = alone(self.rig.arrived[request.request])
        known = len(stream.tokens) - stream.prompt_tokens
        true = [*reply[known:], 5, 5, 5, 5][: self.drafts]
        right = 0 if self.wrong else self.turn * 7 % (self.drafts + 1)
        return [t if at < right else (t + 3) % VOCAB for at, t in enumerate(true)]

    @rule(
        asked=st.lists(
            st.fixed_dictionaries({
                "base": st.sampled_from([0, 0, 0, 1]),
                "rows": st.sampled_from([33, 34, 49, 50, 65, 66, 80, MOST, 17, 16, 3, 1]),
                "other_end": st.booleans(),
                "max_new": st.integers(1, 24),
                "sampling": st.sampled_from(SAMPLINGS),
                "draft": st.sampled_from([True, True, False]),
                "ends": st.booleans(),
                "salt": st.sampled_from(["", "", "", "", "other"]),
                "history": st.sampled_from([0, 16, 33, 64]),
            }),
            min_size=1,
            max_size=4,
        )
    )  # fmt: skip
    def ask(self, asked: list[dict[str, Any]]) -> None:
        """Some requests at once, over heads of a prompt that others are over too."""
        self.rig.step(*(self.wish(**one) for one in asked))

    def wish(
        self, base: int, rows: int, other_end: bool, max_new: int, sampling: Sampling, draft: bool,
        ends: bool, salt: str, history: int,
    ) -> Arrive:  # fmt: skip
        """A request; other_end: its prompt's last token is one of its own."""
        prompt = [*BASES[base][: rows - other_end], *[6 + rows % 7] * other_end]
        self.prompts.append(prompt)
        wish = arrive(
            f"r{len(self.prompts)}", prompt, max_new, session=f"s{len(self.prompts) % 3}",
            sampling=sampling, draft=draft, salt=salt, history_tokens=min(history, len(prompt)),
        )  # fmt: skip
        if not ends:
            return wish
        reply, _ = alone(wish)
        return wish.model_copy(update={"eos": (reply[len(reply) // 2],)})

    @invariant()
    def nothing_outlives_its_owner(self) -> None:
        """Copies are those of kept states, totals those of streams."""
        device, state = self.rig.device, self.rig.state
        assert device.copies.keys() <= state.kept.keys()
        assert device.ledger.streams.keys() <= state.streams.keys()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.settle()
        for request, end in self.rig.finished.items():
            self.check(request, end)
        self.rig.step(Close(reason="closed"))
        assert self.rig.state.closed
        decide_again(self.rig)
        self.rig.device.close()

    def check(self, request: str, end: RequestFinished) -> None:
        """A reply is what it is alone, or its head where it was cut; whole ones have its sums."""
        reply = self.rig.replies.get(end.request, [])
        want, sums = alone(self.rig.arrived[end.request])
        if end.reason in ("cancelled", "stop") and end.new_tokens < len(want):
            assert reply == want[: len(reply)], request
            return
        assert reply == want, (request, end)
        assert end.reason != "fault"
        mine = self.summed.sums[request]
        assert mine == {part: sums[part] for part in mine}, request
        assert set(sums) - set(mine) <= ({"drafts"} if not self.drafts else set())


BUSY: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
TestGlmMachine = GlmMachine.TestCase
TestGlmMachine.settings = settings(max_examples=6, stateful_step_count=14, **BUSY)


class LongGlmMachine(GlmMachine):
    """The same, at length."""


TestLongGlmMachine = pytest.mark.slow(LongGlmMachine.TestCase)
TestLongGlmMachine.settings = settings(max_examples=150, stateful_step_count=50, **BUSY)


def play(*orders: Any, **opened: Any) -> SummedRig:
    """Requests one after another; lists are asked at once."""
    rig = SummedRig(
        glm_opened(4, lanes=3, pages=24, prompt_rows=32, digests="full", **opened), make=glm_device
    )
    for order in orders:
        rig.step(*(order if isinstance(order, list) else [order]))
        rig.settle()
        assert rig.device.copies.keys() == rig.state.kept.keys()
    rig.step(Flush())
    assert not rig.device.copies and not rig.device.ledger.streams
    rig.device.close()
    return rig


@pytest.mark.parametrize("poison", ["off", "b"])
def test_a_b_a_in_any_lane_is_what_each_is_alone(poison: str) -> None:
    """The second a resumes what the first left, at its mark, in another lane, beside b."""
    a, b = BASES[0][:60], BASES[1][:70]
    more = [*a[:50], *BASES[2][:20]]
    rig = play(
        arrive("a", a, 9, draft=True, history_tokens=33),
        [arrive("b", b, 12, draft=True), arrive("a again", a, 9, draft=True)],
        [arrive("c", b[:20], 6), arrive("b again", b, 12, draft=True), arrive("a more", more, 9)],
        poison=poison, states=4,
    )  # fmt: skip
    cached = {str(request): end.cached_tokens for request, end in rig.finished.items()}
    assert cached == {"a": 0, "b": 0, "a again": 48, "c": 0, "b again": 64, "a more": 48}
    lanes = {fact.lane for fact in rig.facts if fact.kind == "stream_begun" and fact.state >= 0}
    assert len(lanes) > 1
    for request, wish in rig.arrived.items():
        reply, sums = alone(wish)
        assert rig.replies[request] == reply, request
        assert rig.sums[str(request)] == sums, request


@pytest.mark.parametrize("rows", [33, 48, 49, 50, 64, 65, 66])
def test_a_state_is_resumed_at_every_mark_as_a_fresh_run_has_it(rows: int) -> None:
    """At page 2 of 33 tokens, at page 3 of 49: a page's last row depends on the token after it."""
    prompt = BASES[0][:rows]
    rig = play(arrive("first", prompt, 3, draft=True), arrive("again", prompt, 20, draft=True))
    mark = (rows - 1) // PAGE * PAGE
    assert [end.cached_tokens for end in rig.finished.values()] == [0, mark]
    other = [*prompt[:mark], (prompt[mark] + 1) % VOCAB, *prompt[mark + 1 :]]
    apart = play(arrive("first", prompt, 3, draft=True), arrive("again", other, 20, draft=True))
    assert [end.cached_tokens for end in apart.finished.values()] == [0, 0]
    for found in (rig, apart):
        for request, wish in found.arrived.items():
            assert (found.replies[request], found.sums[str(request)]) == alone(wish), request
