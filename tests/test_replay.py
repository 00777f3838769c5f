"""Replays on the fake device: whole, alone, fast-forward and the book, of any run that there is."""

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.digests import pair_hex
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import RequestId
from kvtape.events.reader import Step
from kvtape.events.records import Sampling
from kvtape.replay.alone import Alone, play_alone
from kvtape.replay.alone_plan import plan_alone
from kvtape.replay.book import rebook
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.machine import Machine
from kvtape.replay.recording import cut_at
from kvtape.replay.rerun import Played, reopened, rerun

from .replay_bench import (
    Script,
    arrive,
    chats,
    edited,
    facts_of,
    fakes,
    opening,
    other_sum,
    record,
    streams_of,
    turned,
)

KINDS = ("drafted", "plain", "paged")
SESSIONS = ("s0", "s1", "s2")


@cache
def recorded(kind: str, world: int = 1) -> tuple[RunOpened, tuple[Step, ...]]:
    """A run with resumes, cancels, evictions, a flush and a refusal."""
    opened = opening(kind, world=world)
    return opened, tuple(record(opened, chats()))


def whole(opened: RunOpened, steps: Sequence[Step], world: int = 1) -> Played:
    with Machine(reopened(opened, world=world), fakes) as machine:
        return rerun(machine, steps)


def alone(opened: RunOpened, steps: Sequence[Step], session: str) -> Alone:
    plan = plan_alone(opened, steps, lambda request: request.session == session)
    with Machine(plan.opened, fakes) as machine:
        return play_alone(machine, plan)


def forward(opened: RunOpened, steps: Sequence[Step], rows: int = 0, world: int = 1) -> Played:
    streams = read_streams(opened, steps, lambda request: True)
    room = room_for(reopened(opened, world=world), streams, rows)
    with Machine(room, fakes) as machine:
        return play_forward(machine, streams, coarse=rows > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_run_holds_what_the_replays_are_to_show(kind: str) -> None:
    _, steps = recorded(kind)
    for wanted in ("state_resumed", "request_cancelled", "state_dropped", "request_refused"):
        assert facts_of(steps, wanted), f"no {wanted} in this run"
    assert facts_of(steps, "run_closed")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_is_equal_at_any_number_of_ranks(kind: str, world: int) -> None:
    opened, steps = recorded(kind, 2)
    played = whole(opened, steps, world)
    closed = facts_of(steps, "step_closed")
    assert played.comparison.first is None
    assert played.steps == len(steps)
    assert played.comparison.compared["book"] == len(closed)
    named = sum(len(one.digests.streams) for one in closed if isinstance(one, f.StepClosed))
    for part in opened.rules.parts:
        assert played.comparison.compared[part] >= named, part
    shares = sum(len(one.digests.streams) for one in closed if isinstance(one, f.StepClosed)) * 2
    split = opened.rules.split[0]
    compared = played.comparison.compared[split]
    assert (compared >= named + shares) == (world == 2), "shares are compared in the same world"


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_session_alone_is_equal(kind: str, session: str) -> None:
    opened, steps = recorded(kind)
    played = alone(opened, steps, session)
    assert played.comparison.first is None
    assert played.inherited.first is None
    ours = set(streams_of(steps, session))
    named = [
        stream
        for one in facts_of(steps, "step_closed")
        if isinstance(one, f.StepClosed)
        for stream in one.digests.streams
        if stream in ours
    ]
    assert played.comparison.compared["rows"] >= len(named) * 9 // 10
    assert played.tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_that_a_session_took_over_is_checked(kind: str) -> None:
    opened, steps = recorded(kind)
    resumed = len(facts_of(steps, "state_resumed"))
    checked = sum(alone(opened, steps, session).inherited.compared["rows"] for session in SESSIONS)
    assert resumed > 0
    assert checked >= resumed, "each resume has the digest that was read back, some the one kept"


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("rows", [0, 5, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_fast_forward_is_equal_however_it_is_cut(kind: str, rows: int, world: int) -> None:
    opened, steps = recorded(kind)
    played = forward(opened, steps, rows, world)
    assert played.comparison.first is None
    rounds = len(facts_of(steps, "round_run"))
    named = sum(len(one.sums) for one in read_streams(opened, steps, lambda request: True))
    assert played.comparison.compared["logits"] >= rounds, "every kept position of every reply"
    assert (played.comparison.compared["logits"] == named) == (rows == 0), "and of every prompt"
    assert played.comparison.not_comparable == set()


@pytest.mark.parametrize("kind", KINDS)
def test_the_book_decides_the_same_facts_again(kind: str) -> None:
    opened, steps = recorded(kind)
    done = rebook(opened, steps)
    assert done.first is None
    assert done.facts == sum(len(step.facts) for step in steps)


# --- any run ---

wishes = st.tuples(
    st.integers(0, 25),  # turn
    st.integers(0, 2),  # session
    st.integers(1, 40),  # prompt tokens, of a text that all sessions share a part of
    st.integers(1, 7),  # reply tokens
    st.integers(0, 6),  # seed; 0 is greedy
    st.booleans(),  # draft
    st.integers(0, 30),  # cancelled so many turns later, past 20 not at all
)


def script_of(drawn: list[tuple[int, int, int, int, int, bool, int]]) -> Script:
    script: Script = {}
    for number, (turn, session, prompt, reply, seed, draft, later) in enumerate(drawn):
        tokens = [(at * at + (session if at > 12 else 0)) % 29 for at in range(prompt)]
        sampling = Sampling(temperature_bits=0x3F800000 if seed else 0, seed=seed)
        wish = arrive(
            f"r{number}", f"s{session}", tokens, reply, sampling=sampling, draft=draft,
            history_tokens=prompt // 2, ignore_eos=number % 2 == 0, eos=(7,),
        )  # fmt: skip
        script.setdefault(turn, []).append(wish)
        if later <= 20:
            cancel = c.Cancel(request=RequestId(f"r{number}"), why="client_left")
            script.setdefault(turn + later, []).append(cancel)
    return script


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    drawn=st.lists(wishes, min_size=1, max_size=9),
    pages=st.integers(30, 60),
    states=st.integers(0, 4),
    world=st.integers(1, 4),
)
def test_any_run_replays_whole_alone_forward_and_on_paper(
    kind: str,
    drawn: list[tuple[int, int, int, int, int, bool, int]],
    pages: int,
    states: int,
    world: int,
) -> None:
    opened = opening(kind, pages=pages, states=states)
    script = script_of(drawn)
    script.setdefault(0, []).insert(0, arrive("first", "s0", [1, 2, 3], 2))
    steps = record(opened, script)
    assert whole(opened, steps, world).comparison.first is None
    for session in {f"s{one[1]}" for one in drawn}:
        played = alone(opened, steps, session)
        assert (played.comparison.first, played.inherited.first) == (None, None)
    assert forward(opened, steps, 16).comparison.first is None
    assert rebook(opened, steps).first is None


# --- what is not equal ---


@pytest.mark.parametrize("part", ["rows", "logits", "tokens"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_was_changed_is_found_where_it_was(kind: str, part: str) -> None:
    opened, steps = recorded(kind)
    stream = streams_of(steps, "s1")[-1]
    tampered = edited(steps, "step_closed", other_sum(part, [stream]), 1)
    for played in (whole(opened, tampered), alone(opened, tampered, "s1")):
        first = played.comparison.first
        assert first is not None
        assert (first.part, first.stream, first.session) == (part, stream, "s1")
        assert turned(first.left) == first.right
        closed = next(
            fact for step in tampered for seq, fact in zip(step.fact_seqs, step.facts, strict=True)
            if seq == first.seq
        )  # fmt: skip
        assert isinstance(closed, f.StepClosed) and closed.step == first.step
    first = forward(opened, tampered).comparison.first
    assert first is not None and (first.part, first.stream) == (part, stream)
    assert alone(opened, tampered, "s0").comparison.first is None, "another session is not touched"


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_was_changed_is_found(kind: str) -> None:
    opened, steps = recorded(kind)

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.RowsKept)
        if len(fact.tokens) == 0:
            return fact
        return fact.model_copy(update={"tokens": ((fact.tokens[0] + 1) % 64, *fact.tokens[1:])})

    tampered = edited(steps, "rows_kept", change, 3)
    first = whole(opened, tampered).comparison.first
    assert first is not None and first.part == "tokens"


def test_a_share_is_compared_in_the_same_world_only() -> None:
    opened, steps = recorded("paged", 2)

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.StepClosed)
        if not fact.digests.streams:
            return fact
        shares = [list(one) for one in fact.digests.ranks["rows"]]
        shares[0] = [shares[0][1], shares[0][0]]
        ranks = fact.digests.ranks | {"rows": tuple(tuple(one) for one in shares)}
        return fact.model_copy(update={"digests": fact.digests.model_copy(update={"ranks": ranks})})

    tampered = edited(steps, "step_closed", change, 4)
    first = whole(opened, tampered, 2).comparison.first
    assert first is not None and (first.part, first.rank) == ("rows", 0)
    assert whole(opened, tampered, 1).comparison.first is None


def test_a_book_that_was_changed_is_found() -> None:
    opened, steps = recorded("plain")
    tampered = edited(
        steps, "step_closed",
        lambda fact: fact.model_copy(update={"book": pair_hex((1, 2))}), 5,
    )  # fmt: skip
    first = whole(opened, tampered).comparison.first
    assert first is not None and first.part == "book" and first.stream == -1


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_read_back_otherwise_is_found_whole_and_as_inherited(kind: str) -> None:
    opened, steps = recorded(kind)

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.StateResumed)
        return fact.model_copy(
            update={"digest": fact.digest | {"rows": turned(fact.digest["rows"])}}
        )

    tampered = edited(steps, "state_resumed", change)
    first = whole(opened, tampered).comparison.first
    assert first is not None and first.part == "rows"
    inherited = alone(opened, tampered, first.session).inherited.first
    assert inherited is not None
    assert (inherited.seq, inherited.part) == (first.seq, "rows")
    assert alone(opened, tampered, first.session).comparison.first is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_fact_that_was_not_decided_is_named_with_both_sides(kind: str) -> None:
    opened, steps = recorded(kind)
    tampered = edited(
        steps, "stream_begun",
        lambda fact: fact.model_copy(update={"marks": (8, 16, 24)}), 1,
    )  # fmt: skip
    first = rebook(opened, tampered).first
    assert first is not None and isinstance(first.recorded, f.StreamBegun)
    assert isinstance(first.decided, f.StreamBegun)
    assert first.recorded.marks == (8, 16, 24) != first.decided.marks


def test_a_fact_that_is_missing_or_too_much_is_named() -> None:
    opened, steps = recorded("plain")
    at = next(i for i, step in enumerate(steps) if len(step.facts) > 2)
    step = steps[at]
    short = Step(step.step, step.first, step.commands, step.facts[:-1])
    first = rebook(opened, [*steps[:at], short]).first
    assert first is not None and first.recorded is None and first.decided == step.facts[-1]
    more = Step(step.step, step.first, step.commands, (*step.facts, step.facts[-1]))
    first = rebook(opened, [*steps[:at], more]).first
    assert first is not None and first.decided is None and first.recorded == step.facts[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_crashed_replays_to_its_end(kind: str) -> None:
    opened, steps = recorded(kind)
    for length in range(1, len(steps), 5):
        crashed = steps[:length]
        played = whole(opened, crashed, 2)
        assert played.comparison.first is None and played.steps == length
        assert rebook(opened, crashed).first is None
        for session in SESSIONS:
            assert alone(opened, crashed, session).comparison.first is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_to_a_fact_stops_at_the_state_of_that_fact(kind: str) -> None:
    opened, steps = recorded(kind)
    for seq in range(steps[3].first, steps[9].first, 3):
        with Machine(opened, fakes) as machine:
            rerun(machine, cut_at(steps, seq))
            told = [fact for step in cut_at(steps, seq) for fact in step.facts]
            begun = {one.stream for one in told if isinstance(one, f.StreamBegun)}
            gone = {one.stream for one in told if isinstance(one, f.StreamReleased)}
            seated = {stream for stream in machine.state.lanes if stream is not None}
            assert seated == begun - gone


def test_a_refused_resume_begins_later_and_is_equal_alone() -> None:
    for kind in KINDS:
        opened = opening(kind)

        def meddle(turn: int, state: object, devices: Sequence[object]) -> None:
            for device in devices:
                device.refuse_resume = True  # type: ignore[attr-defined]

        steps = record(opened, chats(), meddle)
        assert facts_of(steps, "resume_refused") and not facts_of(steps, "state_resumed")
        assert whole(opened, steps, 2).comparison.first is None
        for session in SESSIONS:
            assert alone(opened, steps, session).comparison.first is None
        assert forward(opened, steps).comparison.first is None
