"""Replays of a run on the CPU device: a tiny llama, real arithmetic, real pages, real flips."""

from collections.abc import Sequence
from functools import cache

import pytest

from kvtape.core.device import Device
from kvtape.core.families.llama import Llama
from kvtape.devices.group import cpu_group, family_of
from kvtape.events import commands as c
from kvtape.events.facts import RunOpened
from kvtape.events.ids import Rank, RequestId, StreamId
from kvtape.events.reader import Step
from kvtape.events.records import Sampling
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.diff import diff_alone
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.machine import Machine
from kvtape.replay.opening import settings_of
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun

from .cpu_rig import tiny
from .replay_bench import Script, arrive, facts_of, opening, record


def cpus(opened: RunOpened) -> Sequence[Device]:
    """CPU devices of the tiny llama."""
    return cpu_group(tiny(), settings_of(opened), world=opened.world)


def opened_for(**changes: object) -> RunOpened:
    rules = family_of(tiny()).rules()
    settings: dict[str, object] = {
        "family": "llama",
        "rules": rules,
        "pages": 24,
        "prompt_rows": 24,
    }
    return opening("paged", **(settings | changes))


def script() -> Script:
    """Two sessions that come back, one that draws at random, one that is cancelled."""
    text = [(at * at * 7 + at) % 500 for at in range(90)]
    drawn = Sampling(temperature_bits=0x3F800000, top_k=40, seed=5)
    return {
        0: [arrive("a0", "a", text[:40], 5), arrive("b0", "b", text[3:45], 4, sampling=drawn)],
        9: [arrive("a1", "a", text[:70], 4)],
        10: [arrive("b1", "b", text[3:75], 4), arrive("gone", "g", text[:50], 9)],
        12: [c.Cancel(request=RequestId("gone"), why="client_left")],
    }


@cache
def recorded(world: int) -> tuple[RunOpened, tuple[Step, ...]]:
    opened = opened_for(world=world)
    return opened, tuple(record(opened, script(), make=cpus))


def _picks(session: str) -> Picks:
    return lambda request: request.session == session


@pytest.mark.parametrize("world", [1, 3])
def test_a_run_on_two_ranks_is_equal_on_others_and_session_by_session(world: int) -> None:
    opened, steps = recorded(2)
    assert facts_of(steps, "state_resumed")
    with Machine(reopened(opened, world=world), cpus) as machine:
        played = rerun(machine, steps)
    assert played.comparison.first is None
    assert played.comparison.compared["logits"] > 10
    for session in ("a", "b"):
        plan = plan_alone(reopened(opened, world=world), steps, _picks(session))
        with Machine(plan.opened, cpus) as machine:
            alone = play_alone(machine, plan)
        assert (alone.comparison.first, alone.inherited.first) == (None, None)
        assert alone.inherited.compared["rows"] > 0


@pytest.mark.parametrize("rows", [0, 64])
def test_fast_forward_has_the_logits_of_every_reply(rows: int) -> None:
    opened, steps = recorded(2)
    streams = read_streams(opened, steps, lambda request: True)
    with Machine(room_for(reopened(opened, world=1), streams, rows), cpus) as machine:
        played = play_forward(machine, streams, coarse=rows > 0)
    assert played.comparison.first is None
    assert played.comparison.compared["logits"] >= 12
    assert played.comparison.not_comparable == set()


def test_the_book_and_the_audit_agree_with_what_was_recorded() -> None:
    opened, steps = recorded(2)
    assert rebook(opened, steps).first is None
    assert audit_run(opened, steps) == []


@pytest.mark.parametrize(
    ("cache_name", "head", "position", "column", "bit"),
    [("k", 0, 0, 0, 0), ("v", 1, 39, 15, 14), ("k", 1, 7, -1, 7), ("v", 0, 33, -1, 1)],
)
def test_any_bit_of_a_key_a_value_or_an_exponent_is_found(
    cache_name: str, head: int, position: int, column: int, bit: int
) -> None:
    """Column -1 stands for the exponent, one past the row's values."""
    opened = opened_for(world=2, digests="full")
    family = family_of(tiny())
    assert isinstance(family, Llama)
    width = family.attention.head_dim
    column = width if column < 0 else column
    flip = c.Inject(
        rank=Rank(head), stream=StreamId(0), part="rows", layer=1, cache=cache_name,
        position=position, head=head, column=column, bit=bit, when="rest",
    )  # fmt: skip
    wishes = script()
    wishes.setdefault(4, []).append(flip)
    steps = record(opened, wishes, make=cpus)
    assert facts_of(steps, "sums_broken")
    place = diff_alone(Recording.of(opened, steps), cpus).place
    assert place is not None
    assert (place.layer, place.cache, place.head, place.position, place.column, place.bit) == (
        1, cache_name, head, position, column, bit,
    )  # fmt: skip
    assert place.rank == head and place.row == position % 32


@pytest.mark.parametrize("world", [1, 2])
def test_many_rows_read_at_once_are_the_rows_read_one_by_one(world: int) -> None:
    opened, steps = recorded(2)
    with Machine(reopened(opened, world=world), cpus) as machine:
        rerun(machine, steps[:4])
        stream = next(iter(machine.state.streams.values()))
        assert stream.rows > 34, "more than a page"
        for device in machine.ranks.devices:
            for layer in range(device.layers("rows")):
                many = device.read_rows(machine.state, stream.stream, "rows", layer, 5, 29)
                for at in range(29):
                    one = device.read(machine.state, stream.stream, "rows", layer, 5 + at)
                    assert {head: held.words[at].tobytes() for head, held in many.items()} == one
                    assert all(held.positions[at] == 5 + at for held in many.values())
