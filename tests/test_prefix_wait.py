"""Prompts that wait for a prefix that another is about to keep: who waits, how long, who passes."""

import random
from collections.abc import Iterable, Sequence

import pytest

from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import FLAT, RADIX
from kvtape.events import facts as f
from kvtape.events.commands import AnyCommand, Arrive, Cancel
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId, StreamId
from kvtape.events.records import FamilyRules
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.machine import Machine
from kvtape.replay.rerun import reopened

from .replay_bench import fakes, record
from .rig import Rig, arrive, flat_plan, opened_with
from .test_play import of

FLAGS = {"prefix_wait": 1, "marks": 1, "keep_resuming": 1, "keep_at_end": 1}
PROMPT = [(7 * at + at // 9) % 61 for at in range(70)]
OTHER = [(11 * at + 5) % 61 for at in range(40)]
KINDS = ["radix", "flat", "pages"]
MARK = {"radix": 64, "flat": 64, "pages": 64}


def opened_as(kind: str, rules: FamilyRules | None = None, **settings: object) -> RunOpened:
    """A run with one of the stores, or of a family whose states are pages alone."""
    rules = rules or (paged_rules() if kind == "pages" else fake_rules())
    fields: dict[str, object] = {
        "flags": FLAGS | {"store": FLAT if kind == "flat" else RADIX},
        "plan": flat_plan(10**6), "lanes": 8, "pages": 120, "states": 12,
    }  # fmt: skip
    return opened_with(rules, **(fields | settings))


def chat(name: str, prompt: Sequence[int] = PROMPT, max_new: int = 5, **fields: object) -> Arrive:
    """A wish whose history is its prompt but the last two tokens."""
    told = {"history_tokens": len(prompt) - 2} | fields
    return arrive(name, prompt, max_new, session=name, **told)


def burst(count: int) -> list[Arrive]:
    """Equal chats."""
    return [chat(f"chat{at}") for at in range(count)]


def held_back(rig: Rig) -> list[AnyCommand]:
    """Take the ranks' answers to resumes out of the news."""
    news, rig.news = rig.news, []
    rig.news += [one for one in news if one.kind != "resume_acked"]
    return [one for one in news if one.kind == "resume_acked"]


def of_session(session: str) -> Picks:
    """The requests of one session."""
    return lambda request: request.session == session


def prompt_rows(rig: Rig) -> int:
    """Prompt rows that were computed, by all streams."""
    return sum(fact.rows for fact in of(f.PromptStepRun, rig))


def begun(facts: Iterable[f.AnyFact]) -> list[StreamId]:
    """Who was seated, in order."""
    return [fact.stream for fact in facts if isinstance(fact, f.StreamBegun)]


@pytest.mark.parametrize("lanes", [8, 3, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_eight_equal_chats_at_once_cost_one_prompt(kind: str, lanes: int) -> None:
    rig = Rig(opened_as(kind, lanes=lanes))
    rig.step(*burst(8))
    rig.settle()
    cached = [rig.finished[RequestId(f"chat{at}")].cached_tokens for at in range(8)]
    assert cached == [0] + [MARK[kind]] * 7
    assert prompt_rows(rig) == 70 + 7 * (70 - MARK[kind])
    assert len({end.token_sha for end in rig.finished.values()}) == 1
    assert bool(of(f.StreamWaits, rig)) == (lanes > 1), "a full house has nobody to hold back"


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_behaviour_every_chat_of_a_burst_runs_whole(kind: str) -> None:
    """As old tapes were decided."""
    for flags in ({"prefix_wait": 0}, {}):
        opened = opened_as(kind, flags=flags | {"store": FLAT if kind == "flat" else RADIX})
        rig = Rig(opened)
        rig.step(*burst(8))
        rig.settle()
        assert prompt_rows(rig) == 8 * 70
        assert not of(f.StreamWaits, rig)


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_holds_nothing_and_lets_those_behind_it_begin(kind: str) -> None:
    rig = Rig(opened_as(kind, lanes=2, pages=20))
    first = rig.step(chat("first"), chat("equal"), chat("other", OTHER, 2), chat("last", OTHER, 2))
    assert begun(first) == [0, 2], "the other takes the lane that the equal one leaves free"
    (wait,) = [fact for fact in first if isinstance(fact, f.StreamWaits)]
    assert (wait.stream, wait.behind, wait.mark) == (1, 0, MARK[kind])
    waiting = rig.state.streams[StreamId(1)]
    assert (waiting.pages, waiting.promise, waiting.lane) == (0, 0, -1)
    assert rig.state.queue == [1, 3]
    rig.settle()
    assert begun(rig.facts)[2] == 1, "it kept its place: the last one came after it"
    assert rig.finished[RequestId("equal")].cached_tokens == MARK[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_is_told_once_and_ends_in_the_turn_that_keeps_the_mark(kind: str) -> None:
    rig = Rig(opened_as(kind))
    rig.step(*burst(2))
    rig.settle()
    assert len(of(f.StreamWaits, rig)) == 1
    (turn,) = [step for step in rig.steps if StreamId(1) in begun(step)]
    taken = [fact for fact in turn if isinstance(fact, f.SnapshotTaken)]
    assert [fact.mark for fact in taken] == [MARK[kind]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_wait_ends_with_the_stream_that_it_was_for(kind: str, turns: int) -> None:
    rig = Rig(opened_as(kind))
    rig.step(*burst(2))
    for _ in range(turns - 1):
        rig.step()
    last = rig.step(Cancel(request=RequestId("chat0"), why="client-left"))
    assert begun(last) == [1], "nothing is left to wait for"
    rig.settle()
    assert rig.finished[RequestId("chat1")].reason == "length"


def test_of_three_the_second_runs_for_the_third_when_the_first_is_gone() -> None:
    rig = Rig(opened_as("radix"))
    rig.step(*burst(3))
    rig.step(Cancel(request=RequestId("chat0"), why="client-left"))
    rig.settle()
    waits = [(fact.stream, fact.behind) for fact in of(f.StreamWaits, rig)]
    assert waits == [(1, 0), (2, 0), (2, 1)]
    cached = [rig.finished[RequestId(f"chat{at}")].cached_tokens for at in (1, 2)]
    assert cached == [0, 64]


def test_nobody_waits_for_one_that_came_later() -> None:
    """It has passed: it shares too little with who runs to wait for that, but enough with both."""
    rig = Rig(opened_as("radix"))
    later = chat("later", PROMPT[:40] + OTHER, rewind_tokens=38)
    rig.step(*burst(2), later)
    assert begun(rig.facts) == [0, 2]
    assert of(f.StreamBegun, rig)[1].marks == (32, 64)
    turn = rig.step(Cancel(request=RequestId("chat0"), why="client-left"))
    assert begun(turn) == [1]
    rig.settle()


def test_a_mark_that_is_planned_no_more_is_waited_for_no_longer() -> None:
    """What two prompts of one state share is planned for who resumes it; the resume is refused."""
    rig = Rig(opened_as("radix", fake_rules(mark_rows=8), context=200))
    shared = [*PROMPT[:40], *OTHER, 61, 61]
    asked = [PROMPT[:30], shared + OTHER[:9], shared + PROMPT[:40]]
    for at, text in enumerate(asked[:2]):
        rig.step(chat(str(at), text))
        rig.settle()
    rig.device.refuse_resume = True
    rig.step(chat("resumes", asked[2]), chat("waits", shared + PROMPT[9:30]))
    assert of(f.StreamBegun, rig)[-1].marks == (80, 120)
    assert [fact.mark for fact in of(f.StreamWaits, rig)] == [80]
    turn = rig.step()
    assert begun(turn) == [2, 3] and of(f.ResumeRefused, rig)
    rig.settle()


def test_one_that_waits_may_be_cancelled() -> None:
    rig = Rig(opened_as("radix"))
    rig.step(*burst(3))
    rig.step(Cancel(request=RequestId("chat1"), why="client-left"))
    rig.settle()
    assert rig.finished[RequestId("chat1")].reason == "cancelled"
    assert rig.finished[RequestId("chat2")].cached_tokens == 64


def test_a_mark_that_is_refused_is_waited_for_no_longer() -> None:
    """The only copy that there is room for is being read back while the mark comes up."""
    rig = Rig(opened_as("flat", plan=flat_plan(64 + 8), prompt_rows=64))
    rig.step(chat("kept", OTHER + OTHER[::-1], history_tokens=66))
    rig.settle()
    rig.step(chat("again", OTHER + OTHER[::-1]), chat("first"), chat("equal"))
    assert [fact.behind for fact in of(f.StreamWaits, rig)] == [2]
    answers = held_back(rig)
    turn = rig.step()
    assert len(rig.state.kept) == 1, "the copy that is being read back stayed"
    assert begun(turn) == [3]
    rig.news += answers
    rig.settle()
    assert rig.finished[RequestId("equal")].cached_tokens == 0


def test_a_mark_that_was_refused_is_not_waited_for_though_another_is_to_come() -> None:
    rig = Rig(opened_as("flat", plan=flat_plan(64 + 8 + 32 + 8), prompt_rows=64))
    text = [*OTHER, *OTHER[::-1], *OTHER[:20]]
    rig.step(chat("kept", text))
    rig.settle()
    rig.step(chat("again", text), chat("first", rewind_tokens=34))
    assert of(f.StreamBegun, rig)[-1].marks == (32, 64)
    answers = held_back(rig)
    turn = rig.step(chat("shares", [*PROMPT[:40], *OTHER]))
    assert begun(turn) == [3] and not of(f.StreamWaits, rig)
    rig.news += answers
    rig.settle()


@pytest.mark.parametrize(
    ("rules", "cached"), [(fake_rules(), 0), (fake_rules(lookahead=0), 0), (paged_rules(), 56)]
)
def test_a_mark_at_a_prompts_end_serves_it_where_states_can_be_cut(
    rules: FamilyRules, cached: int
) -> None:
    """One row is left to run: a state that is more than pages has passed it."""
    rig = Rig(opened_as("radix", rules))
    rig.step(chat("first", rewind_tokens=0), chat("its head", PROMPT[:64]))
    assert bool(of(f.StreamWaits, rig)) == bool(cached)
    rig.settle()
    assert rig.finished[RequestId("its head")].cached_tokens == cached


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_for_what_is_not_its_own(kind: str) -> None:
    """Another salt, another text, less than a page in common, a first token that differs."""
    for wish in (
        chat("equal", salt="other"), chat("equal", OTHER), chat("equal", PROMPT[:7] + OTHER),
        chat("equal", [60, *PROMPT[1:]]),
    ):  # fmt: skip
        rig = Rig(opened_as(kind))
        rig.step(chat("first"), wish)
        assert not of(f.StreamWaits, rig)
        rig.settle()


@pytest.mark.parametrize(("common", "waits"), [(63, False), (64, False), (65, True)])
def test_a_mark_serves_whoever_repeats_it_and_the_token_after_it(common: int, waits: bool) -> None:
    rig = Rig(opened_as("radix"))
    rig.step(chat("first"), chat("other", [*PROMPT[:common], 62, 62, 62]))
    assert bool(of(f.StreamWaits, rig)) == waits
    rig.settle()
    assert rig.finished[RequestId("other")].cached_tokens == (64 if waits else 0)


@pytest.mark.parametrize(("tokens", "waits"), [(75, 0), (76, 1)])
def test_nobody_waits_for_little_more_than_it_can_resume_already(tokens: int, waits: int) -> None:
    rig = Rig(opened_as("radix", fake_rules(mark_rows=8, min_prompt=20)))
    rig.step(chat("kept", PROMPT[:60]))
    rig.settle()
    text = [*PROMPT, *OTHER][:tokens]
    rig.step(chat("one", text), chat("equal", text))
    assert [fact.state for fact in of(f.StreamBegun, rig)][1] == 0, "kept at 56"
    assert len(of(f.StreamWaits, rig)) == waits
    rig.settle()


def test_a_prompt_below_the_least_waits_for_nobody() -> None:
    for least, waits in ((70, 1), (71, 0)):
        rig = Rig(opened_as("radix", fake_rules(min_prompt=least)))
        rig.step(*burst(2))
        assert len(of(f.StreamWaits, rig)) == waits
        rig.settle()


def test_as_many_tokens_must_be_alike_from_the_first_on() -> None:
    """One that differs before the least is enough, though later ones are alike again."""
    for at, waits in ((18, 0), (20, 1)):
        rig = Rig(opened_as("radix", fake_rules(mark_rows=8, min_prompt=20)))
        other = [*PROMPT[:at], 62, *PROMPT[at + 1 :]]
        rig.step(chat("first", rewind_tokens=16), chat("other", other))
        assert len(of(f.StreamWaits, rig)) == waits
        rig.settle()


def test_it_waits_for_the_last_mark_that_it_repeats() -> None:
    """Not for the first: the rows between would be run twice."""
    rig = Rig(opened_as("radix"))
    rig.step(*(chat(name, rewind_tokens=34) for name in ("first", "equal")))
    assert of(f.StreamBegun, rig)[0].marks == (32, 64)
    assert [fact.mark for fact in of(f.StreamWaits, rig)] == [64]
    rig.settle()
    assert len(of(f.StreamWaits, rig)) == 1
    assert rig.finished[RequestId("equal")].cached_tokens == 64


def test_chats_that_share_a_system_part_wait_for_that_alone() -> None:
    """At the size that such a part is kept at; in both kinds of family."""
    system = [(at * at + 3 * at) % 63 for at in range(565)]
    for rules in (fake_rules(), paged_rules()):
        rig = Rig(opened_as("radix", rules, context=700, pages=400, prompt_rows=64))
        asked = [chat(f"chat{at}", [*system, at, *OTHER], system_tokens=565) for at in range(3)]
        rig.step(*asked)
        assert {fact.mark for fact in of(f.StreamWaits, rig)} == {560}
        rig.settle()
        cached = [rig.finished[wish.request].cached_tokens for wish in asked]
        assert cached == [0, 560, 560]


def test_no_stream_starves_though_equal_ones_never_end_to_come() -> None:
    """Each that runs is cancelled just before its mark; who waited is next, in its order."""
    rig = Rig(opened_as("radix", lanes=4))
    rig.step(*burst(3))
    for at in range(3, 40):
        going = [one for one in rig.state.lanes if one is not None]
        assert len(going) == 1, "the others wait for it"
        rig.step(chat(f"chat{at}"))
        name = rig.state.streams[going[0]].request.request
        rig.step(Cancel(request=name, why="client-left"))
    order = begun(rig.facts)
    assert order == sorted(order) and len(order) >= 37
    rig.settle()
    assert len(rig.finished) == 40


@pytest.mark.parametrize("kind", KINDS)
def test_at_random_all_end_and_only_those_that_wait_are_passed(kind: str) -> None:
    """Every fact is checked as it is applied: no stream begins before one that does not wait."""
    waits = [wait for seed in range(6) for wait in waits_at_random(kind, random.Random(seed))]
    assert waits and all(fact.behind < fact.stream for fact in waits)


def waits_at_random(kind: str, rng: random.Random) -> list[f.StreamWaits]:
    """Fifty requests, some of them alike, some cancelled, in little room: who waited."""
    rig = Rig(opened_as(kind, lanes=rng.choice((2, 3, 5)), pages=rng.choice((26, 40)), states=3,
                        plan=flat_plan(rng.choice((90, 300)))))  # fmt: skip
    stems = [PROMPT, OTHER, PROMPT[:33] + OTHER]
    for at in range(50):
        stem = rng.choice(stems)
        text = stem[: rng.choice((len(stem), rng.randint(9, len(stem))))] + [at % 3] * 2
        fields = {"rewind_tokens": rng.choice((0, 17, 33))}
        rig.step(chat(str(at), text, rng.randint(1, 6), **fields))
        if rng.random() < 0.2 and rig.state.streams:
            some = rng.choice(list(rig.state.streams.values()))
            rig.step(Cancel(request=some.request.request, why="client-left"))
    rig.settle()
    assert len(rig.finished) == 50
    return of(f.StreamWaits, rig)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_which_prompts_waited_is_decided_again_audited_and_replayed_alone(
    kind: str, world: int
) -> None:
    opened = opened_as(kind, world=world, devices=("fake",) * world)
    steps = record(opened, {0: [*burst(4)], 3: [chat("late")]}, make=fakes)
    kinds = [fact.kind for step in steps for fact in step.facts]
    assert kinds.count("stream_waits") == 4
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []
    for session in ("chat2", "late"):
        plan = plan_alone(reopened(opened, world=1), steps, of_session(session))
        with Machine(plan.opened, fakes) as machine:
            alone = play_alone(machine, plan)
        assert (alone.comparison.first, alone.inherited.first) == (None, None)
        assert alone.inherited.compared["rows"] > 0
    silent = opened.model_copy(update={"flags": opened.flags | {"prefix_wait": 0}})
    parted = rebook(silent, steps).first
    assert parted is not None and parted.recorded is not None
    assert parted.recorded.kind == "stream_waits"
