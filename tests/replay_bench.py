"""Recorded runs on the fake device, in memory: what the tests of replay start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtape.core.decide import decide
from kvtape.core.device import Device
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import State, open_state
from kvtape.devices.fake import fake_group
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.commands import AnyCommand
from kvtape.events.facts import FORMAT, AnyFact, RunOpened
from kvtape.events.ids import RequestId, SessionId, Token
from kvtape.events.reader import Step
from kvtape.events.records import FamilyRules, Sampling
from kvtape.replay.live import Chance, LiveSource
from kvtape.replay.loop import Run, run
from kvtape.replay.machine import MakeDevices
from kvtape.replay.ranks import Ranks

SMALL = 31  # of the vocabulary: prompts repeat each other often


def rules_of(kind: str) -> FamilyRules:
    """drafted and plain have states; paged is pages alone."""
    return {
        "drafted": fake_rules(page_rows=4, mark_rows=8, drafts=2),
        "plain": fake_rules(page_rows=4, mark_rows=8),
        "paged": paged_rules(page_rows=4),
    }[kind]


def opening(kind: str, **changes: object) -> RunOpened:
    """Settings of a small run."""
    settings: dict[str, object] = {
        "format": FORMAT, "contract": 1, "weights": "w16", "build": "test", "model": "fake",
        "model_digest": "", "family": "fake", "rules": rules_of(kind), "lanes": 3, "context": 96,
        "pages": 60, "prompt_rows": 12, "queue": 64, "states": 4, "order": "lowest", "plan": {},
        "world": 1, "devices": ("fake",), "flags": {}, "poison": "off", "digests": "rows",
        "text": "ids",
    }  # fmt: skip
    return RunOpened.model_validate(settings | changes)


def fakes(opened: RunOpened) -> Sequence[Device]:
    """Sound devices for a replay."""
    return fake_group(opened, opened.world)


def arrive(
    request: str, session: str, prompt: Sequence[int], max_new: int = 6, **more: object
) -> c.Arrive:
    """A wish with small defaults."""
    fields: dict[str, object] = {"ignore_eos": True, "sampling": Sampling()}
    return c.Arrive(
        request=RequestId(request),
        session=SessionId(session),
        prompt=tuple(Token(token) for token in prompt),
        max_new=max_new,
        **(fields | more),  # type: ignore[arg-type]
    )


Script = dict[int, list[AnyCommand]]  # wishes by the turn of the loop at which they come
Meddle = Callable[[int, State, Sequence[Device]], None]


@dataclass
class Record:
    """A recorder in memory, with the numbers that a tape would give."""

    steps: list[Step] = field(default_factory=list)
    seq: int = 1

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> int:
        """Keep a turn as a reader would give it back."""
        if commands or facts:
            self.steps.append(Step(step, self.seq, tuple(commands), tuple(facts)))
        self.seq += len(commands) + len(facts)
        return self.seq - len(facts)


@dataclass
class Feed:
    """Puts a script's wishes into the inbox, turn by turn, and closes the run when all is done."""

    source: LiveSource
    script: Script
    devices: Sequence[Device]
    meddle: Meddle
    turn: int = 0

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """After a turn: its wishes, or the end."""
        self.turn += 1
        self.meddle(self.turn, state, self.devices)
        wishes = self.script.get(self.turn, [])
        for wish in wishes:
            self.source.wish(wish)
        if not wishes and not state.streams:
            later = [turn for turn in self.script if turn > self.turn]
            if later:  # nothing is under way, so the next wishes may as well come now
                self.turn = min(later)
                for wish in self.script[self.turn]:
                    self.source.wish(wish)
            elif not state.closed:
                self.source.wish(c.Close(reason="closed"))


def record(
    opened: RunOpened,
    script: Script,
    meddle: Meddle = lambda turn, state, devices: None,
    make: MakeDevices = fakes,
    chance: Callable[[Sequence[Device]], Chance] | None = None,
) -> list[Step]:
    """Run a script live; meddle may spoil a device between two turns, chance may inject a fault."""
    state, kept = open_state(opened), Record()
    devices = make(opened)
    ranks = Ranks(opened, devices)
    try:
        source = LiveSource(state, ranks, chance(devices) if chance else None)
        feed = Feed(source, script, devices, meddle)
        for wish in script.get(0, []):
            source.wish(wish)
        run(Run(state, decide, source, ranks, devices[0], kept, feed))
    finally:
        ranks.close("recorded")
    return kept.steps


def chats(sessions: int = 3, requests: int = 3, **more: object) -> Script:
    """Sessions that send their history again, some cancelled, one flush, one too large."""
    script: Script = {}
    for session in range(sessions):
        history = [(session * 7 + at) % SMALL for at in range(9 + 4 * session)]
        for number in range(requests):
            name = f"s{session}r{number}"
            wish = arrive(
                name, f"s{session}", history, 5 + session, history_tokens=len(history) - 3, **more
            )
            script.setdefault(number * 9 + session, []).append(wish)
            history = history + [(number * 3 + at) % SMALL for at in range(11)]
    script.setdefault(4, []).append(c.Cancel(request=RequestId("s1r0"), why="client_left"))
    script.setdefault(12, []).append(c.Cancel(request=RequestId("s2r1"), why="client_left"))
    script.setdefault(16, []).append(c.Flush())
    script.setdefault(17, []).append(arrive("big", "s0", list(range(30)) * 3, 60))
    return script


Edit = Callable[[AnyFact], AnyFact]


def edited(steps: Sequence[Step], kind: str, change: Edit, nth: int = 0) -> list[Step]:
    """The steps with one fact changed, as whoever tampers would: the nth that `change` alters."""
    left, result = nth, []
    for step in steps:
        facts = list(step.facts)
        for at, fact in enumerate(facts):
            if left >= 0 and fact.kind == kind and change(fact) != fact:
                if left == 0:
                    facts[at] = change(fact)
                left -= 1
        result.append(Step(step.step, step.first, step.commands, tuple(facts)))
    assert left < 0, f"nothing to change in {kind}"
    return result


def other_sum(part: str, session_streams: Sequence[int] = ()) -> Edit:
    """Turns one digit of a StepClosed's sum of a part over, for one of these streams."""

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.StepClosed)
        digests = fact.digests
        named = [at for at, one in enumerate(digests.streams) if one in session_streams]
        if not named or part not in digests.parts:
            return fact
        sums = list(digests.parts[part])
        sums[named[0]] = turned(sums[named[0]])
        parts = {**digests.parts, part: tuple(sums)}
        return fact.model_copy(update={"digests": digests.model_copy(update={"parts": parts})})

    return change


def turned(value: str) -> str:
    """Another sum: the last digit turned over."""
    return value[:-1] + f"{int(value[-1], 16) ^ 1:x}"


def streams_of(steps: Sequence[Step], session: str) -> list[int]:
    """The streams of a session, in the order they were queued."""
    found: list[int] = []
    asked = ""
    for step in steps:
        for fact in step.facts:
            if isinstance(fact, f.RequestArrived):
                asked = fact.session
            elif isinstance(fact, f.StreamQueued) and asked == session:
                found.append(fact.stream)
    return found


def facts_of(steps: Sequence[Step], kind: str) -> list[AnyFact]:
    """Every fact of a kind."""
    return [fact for step in steps for fact in step.facts if fact.kind == kind]
