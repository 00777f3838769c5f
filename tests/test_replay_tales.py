"""Replays of a GLM whose drafts are kept: windows of many lengths, ends inside of windows."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from kvtape.core.device import Device
from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.group import choices_of, cpu_group
from kvtape.devices.text import read_codec
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.find import find_model
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.reader import Step
from kvtape.replay.alone import play_alone
from kvtape.replay.alone_plan import Picks, plan_alone
from kvtape.replay.diff import diff_alone, diff_two
from kvtape.replay.forward import play_forward, read_streams, room_for
from kvtape.replay.inject import Fault, Injector
from kvtape.replay.machine import Machine
from kvtape.replay.opening import settings_of
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun
from kvtape.replay.verdict import Verdict

from .replay_bench import Script, arrive, facts_of, record
from .rig import opened_with

PAGE = 32


@cache
def tales() -> Checkpoint:
    return find_model("glm-tales")


def ranks(opened: RunOpened) -> Sequence[Device]:
    """Its ranks for a run."""
    choices = choices_of(opened.rules)
    return cpu_group(tales(), settings_of(opened), world=opened.world, choices=choices)


def run_of(drafts: int, **changes: Any) -> RunOpened:
    rules = Glm(tales().config, Choices(PAGE, PAGE, drafts)).rules()
    settings = {
        "family": "glm", "weights": "w16", "context": 256, "devices": ("cpu", "cpu"), "world": 2,
        "lanes": 3, "pages": 24, "prompt_rows": 48,
    }  # fmt: skip
    return opened_with(rules, **(settings | changes))


def script() -> Script:
    """A story that ends by itself, its continuation, and one that asks for no drafts."""
    text = read_codec(tales().path).prompt
    fox = text(
        "Once upon a time there was a fox who went home. The fox was happy and sang a song. "
    )
    eos, ends = tuple(tales().config["eos_token_ids"]), {"ignore_eos": False}
    return {
        0: [
            arrive("fox", "fox", fox * 2, 40, eos=eos, **ends),
            arrive("plain", "plain", fox, 24, draft=False),
            arrive("anna", "anna", text("A girl named Anna"), 30),
        ],
        30: [arrive("on", "fox", [*fox * 2, *fox[:9]], 20, eos=eos, **ends)],
    }


@cache
def recorded() -> tuple[RunOpened, tuple[Step, ...]]:
    opened = run_of(3, poison="a")
    return opened, tuple(record(opened, script(), make=ranks))


def test_drafts_are_kept_in_windows_of_every_length_and_a_reply_ends_inside_of_one() -> None:
    _, steps = recorded()
    kept = [fact for fact in facts_of(steps, "rows_kept") if isinstance(fact, f.RowsKept)]
    lengths = {b - a for one in kept for a, b in zip(one.starts, one.starts[1:], strict=False)}
    assert lengths == {1, 2, 3, 4}
    reasons = {getattr(fact, "reason", "") for fact in facts_of(steps, "request_finished")}
    assert reasons == {"stop", "length"}
    assert facts_of(steps, "state_resumed")


@pytest.mark.parametrize(("world", "poison"), [(1, "b"), (3, "off")])
def test_the_run_is_equal_at_other_ranks_with_as_many_drafts_kept(world: int, poison: str) -> None:
    opened, steps = recorded()
    with Machine(reopened(opened, world=world, poison=poison), ranks) as machine:
        played = rerun(machine, steps)
    assert played.comparison.first is None and played.comparison.not_comparable == set()
    assert 20 < played.accepted < played.drafted


def picks(session: str) -> Picks:
    return lambda request: request.session == session


def test_each_session_alone_and_forward_is_equal() -> None:
    opened, steps = recorded()
    for session in ("fox", "plain", "anna"):
        plan = plan_alone(reopened(opened, world=1), steps, picks(session))
        with Machine(plan.opened, ranks) as machine:
            alone = play_alone(machine, plan)
        assert (alone.comparison.first, alone.inherited.first) == (None, None)
        assert alone.comparison.not_comparable == set()
    streams = read_streams(opened, steps, lambda request: True)
    with Machine(room_for(reopened(opened, world=1), streams, 0), ranks) as machine:
        played = play_forward(machine, streams)
    assert played.comparison.first is None and played.comparison.not_comparable == set()


def test_undrafted_the_run_says_and_holds_the_same() -> None:
    opened, steps = recorded()
    plain = run_of(0, world=1, devices=("cpu",))
    other = Recording.of(plain, record(plain, script(), make=ranks))
    found = diff_two(Recording.of(opened, steps), other)
    assert found.first is None and found.verdict is Verdict.EQUAL
    assert found.not_comparable == {"drafts"}
    for part in ("rows", "keys", "states", "rings", "logits", "tokens"):
        assert found.compared[part] > 3, part


@pytest.mark.parametrize("part", ["rows", "keys", "states", "rings", "drafts"])
def test_a_bit_that_flips_between_windows_is_found_and_named(part: str) -> None:
    opened = run_of(3, digests="full")
    fault = Fault.parse(f"flip:session=anna,step=6,part={part}")
    steps = record(opened, script(), make=ranks, chance=lambda devices: Injector(fault, devices))
    (flip,), (broken,) = facts_of(steps, "fault_injected"), facts_of(steps, "sums_broken")
    assert isinstance(flip, f.FaultInjected) and isinstance(broken, f.SumsBroken)
    assert (broken.rank, broken.part) == (flip.rank, part)
    place = diff_alone(Recording.of(opened, steps), ranks).place
    assert place is not None, flip
    assert (place.part, place.layer, place.cache, place.head, place.position) == (
        flip.part, flip.layer, flip.cache, flip.head, flip.position,
    )  # fmt: skip
    assert (place.column, place.bit) == (flip.column, flip.bit)
