"""A machine on the fake device, step by step: what tests of the whole machine are played on."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from kvtape.core.apply import apply
from kvtape.core.book import book_digest
from kvtape.core.check import check
from kvtape.core.decide import decide, expects_report
from kvtape.core.device import Device
from kvtape.core.families.fake import Oracle
from kvtape.core.outcome import commands_of
from kvtape.core.state import State, open_state
from kvtape.devices.fake import fake_group
from kvtape.events.canon import decode_fact, encode
from kvtape.events.commands import AnyCommand, Arrive
from kvtape.events.facts import FORMAT, AnyFact, RequestFinished, RowsKept, RunOpened
from kvtape.events.ids import RequestId, SessionId, StreamId, Token
from kvtape.events.records import FamilyRules
from kvtape.replay.loop import Decide


def opened_with(rules: FamilyRules, **settings: object) -> RunOpened:
    """A run on the fake family; settings override small defaults."""
    fields: dict[str, object] = {
        "format": FORMAT,
        "contract": 1,
        "weights": "none",
        "build": "test",
        "model": "fake",
        "model_digest": "0" * 32,
        "family": "fake",
        "rules": rules,
        "lanes": 4,
        "context": 128,
        "pages": 40,
        "prompt_rows": 16,
        "queue": 64,
        "states": 6,
        "order": "lowest",
        "plan": {},
        "world": 1,
        "devices": ("fake",),
        "flags": {},
        "poison": "off",
        "digests": "rows",
        "text": "ids",
    }
    return RunOpened.model_validate(fields | settings)


def flat_plan(cache_bytes: int) -> dict[str, int]:
    """What a flat store is bounded by: a byte a row and 8 of what does not grow with them."""
    return {"row_bytes": 1, "snapshot_bytes": 8, "cache_bytes": cache_bytes}


class Rig:
    """One rank's machine, and a follower's fold of the same facts beside it."""

    def __init__(
        self, opened: RunOpened, make: Callable[[RunOpened], Device] | None = None, **device: object
    ) -> None:
        self.opened = opened
        self.state = open_state(opened)
        self.decide: Decide = decide
        self.follower = open_state(opened, leader=False)
        one = make(opened) if make else fake_group(opened, 1, **device)[0]  # type: ignore[arg-type]
        self.device: Any = one
        self.news: list[AnyCommand] = []
        self.commands: list[tuple[AnyCommand, ...]] = []
        self.steps: list[tuple[AnyFact, ...]] = []
        self.arrived: dict[RequestId, Arrive] = {}
        self.replies: dict[RequestId, list[int]] = {}
        self.finished: dict[RequestId, RequestFinished] = {}
        self._requests: dict[StreamId, RequestId] = {}

    @property
    def facts(self) -> list[AnyFact]:
        """Every fact so far."""
        return [fact for step in self.steps for fact in step]

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do without a new command."""
        return not self.news and not self.state.streams

    def step(self, *wishes: AnyCommand) -> tuple[AnyFact, ...]:
        """One turn of the loop: decide, apply and check each fact, launch, take the outcome."""
        commands = (*self.news, *wishes)
        self.news = []
        for wish in wishes:
            if isinstance(wish, Arrive):
                self.arrived[wish.request] = wish
        facts: list[AnyFact] = []
        for fact in self.decide(self.state, commands):
            apply(self.state, fact)
            apply(self.follower, decode_fact(encode(fact)))
            check(self.state)
            check(self.follower)
            facts.append(fact)
            self._note(fact)
        book = book_digest(self.state)
        assert book == book_digest(self.follower), "a follower's fold is another book"
        running = self.device.launch(self.state, facts)
        if expects_report(facts):
            report = running.report()
            report.step = len(self.steps) + 1
            self.news = commands_of(self.opened.rules, [report], book)
        self.commands.append(commands)
        self.steps.append(tuple(facts))
        return tuple(facts)

    def settle(self, steps: int = 5000) -> None:
        """Step until nothing is left to do."""
        for _ in range(steps):
            if self.idle:
                return
            self.step()
        raise AssertionError(f"still busy after {steps} steps")

    def _note(self, fact: AnyFact) -> None:
        match fact:
            case RowsKept():
                for at, stream in enumerate(fact.streams):
                    request = self._requests[stream]
                    kept = fact.tokens[fact.starts[at] : fact.starts[at + 1]]
                    self.replies.setdefault(request, []).extend(kept)
            case RequestFinished():
                self.finished[fact.request] = fact
            case _ if fact.kind == "stream_queued":
                self._requests[fact.stream] = fact.request


def arrive(
    request: str, prompt: Sequence[int], max_new: int, *, session: str = "", **fields: object
) -> Arrive:
    """A wish with its defaults."""
    return Arrive.model_validate(
        {
            "request": RequestId(request),
            "session": SessionId(session or request),
            "prompt": tuple(Token(token) for token in prompt),
            "max_new": max_new,
        }
        | fields
    )


def expected_reply(rules: FamilyRules, wish: Arrive) -> list[int]:
    """What the oracle says a greedy request is answered with, up to its end token."""
    oracle = Oracle(rules)
    oracle.extend(wish.prompt)
    reply = oracle.reply(wish.max_new)
    if wish.ignore_eos:
        return reply
    ends = [at for at, token in enumerate(reply) if token in wish.eos]
    return reply[: ends[0] + 1] if ends else reply


def fold(opened: RunOpened, facts: Sequence[AnyFact]) -> State:
    """The state that facts lead to, by apply alone."""
    state = open_state(opened)
    for fact in facts:
        apply(state, fact)
    return state


def frozen(state: State) -> State:
    """A copy to compare with, to show that a decision changed nothing."""
    return copy.deepcopy(state)
