"""The audit: a sound run has no findings, and whatever does not fit is found where it stands."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.core.digests import pair_hex
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.reader import Step
from kvtape.replay.audit import audit_run

from .replay_bench import chats, edited, facts_of, opening, record, turned

KINDS = ("drafted", "plain", "paged")


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_run_has_no_findings_and_neither_has_any_beginning_of_it(
    kind: str, world: int
) -> None:
    opened = opening(kind, world=world)
    steps = record(opened, chats())
    assert audit_run(opened, steps) == []
    for length in range(0, len(steps), 6):
        assert audit_run(opened, steps[:length]) == [], "a crash is no finding"


def _more(**changes: object) -> Callable[[AnyFact], AnyFact]:
    return lambda fact: fact.model_copy(update=changes)


def _one_page_on(fact: AnyFact) -> AnyFact:
    assert isinstance(fact, f.PagesLeased)
    return fact.model_copy(update={"pages": (*fact.pages[:-1], fact.pages[-1] + 1)})


def _other_state(fact: AnyFact) -> AnyFact:
    assert isinstance(fact, f.StateResumed)
    return fact.model_copy(update={"digest": fact.digest | {"rows": turned(fact.digest["rows"])}})


def _other_snapshot(fact: AnyFact) -> AnyFact:
    assert isinstance(fact, f.SnapshotTaken)
    if not fact.digest:
        return fact
    return fact.model_copy(update={"digest": fact.digest | {"rows": turned(fact.digest["rows"])}})


def _other_share(fact: AnyFact) -> AnyFact:
    assert isinstance(fact, f.StepClosed)
    if not fact.digests.streams:
        return fact
    part = next(iter(fact.digests.ranks))
    shares = fact.digests.ranks[part]
    first = (turned(shares[0][0]), *shares[0][1:])
    ranks = fact.digests.ranks | {part: (first, *shares[1:])}
    return fact.model_copy(update={"digests": fact.digests.model_copy(update={"ranks": ranks})})


TAMPERINGS = [
    ("pages_leased", _one_page_on, "state"),
    ("stream_begun", _more(lane=2), "state"),
    ("prompt_step_run", _more(first=1), "state"),
    ("request_finished", _more(token_sha="0" * 64), "sums"),
    ("step_closed", _more(book=pair_hex((1, 1))), "sums"),
    ("step_closed", _other_share, "sums"),
    ("state_resumed", _other_state, "sums"),
    ("snapshot_taken", _other_snapshot, "sums"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("changed", "change", "finds"), TAMPERINGS, ids=lambda one: getattr(one, "__name__", one)
)
def test_what_was_changed_is_found_at_its_event(
    kind: str, changed: str, change: Callable[[AnyFact], AnyFact], finds: str
) -> None:
    opened = opening(kind, world=2)
    tampered = edited(record(opened, chats()), changed, change, 0)
    findings = audit_run(opened, tampered)
    assert findings, f"nobody saw the changed {changed}"
    assert findings[0].kind in (finds, "sums")
    if finds == "sums":
        assert changed in findings[0].where


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
def test_a_fact_that_moved_or_changed_the_state_cannot_go_missing(at: int, kind: str) -> None:
    opened = opening(kind)
    steps = record(opened, chats())
    matter = [
        (number, place)
        for number, step in enumerate(steps)
        for place, fact in enumerate(step.facts)
        if fact.kind not in ("request_refused", "request_cancelled", "run_closed", "state_dropped")
    ]
    number, place = matter[at % len(matter)]
    step = steps[number]
    facts = step.facts[:place] + step.facts[place + 1 :]
    less = [
        *steps[:number],
        Step(step.step, step.first, step.commands, facts),
        *steps[number + 1 :],
    ]
    if step.facts[place].kind == "step_closed":
        return  # its sums are gone with it, and nothing else says that it was there
    assert audit_run(opened, less), f"{step.facts[place].kind} of step {step.step} was not missed"


def test_a_run_that_closes_over_a_stream_is_found() -> None:
    opened = opening("plain")
    steps = record(opened, chats())
    closing = facts_of(steps, "run_closed")[0]
    short = [*steps[:6], Step(6, steps[6].first, (), (closing,))]
    findings = audit_run(opened, short)
    assert findings and "closed over streams" in findings[-1].says
