"""The verdict: each kind of fault gets the one that says whose it is."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import cast

import pytest

from kvtape.core.device import Device
from kvtape.core.digests import pair_hex
from kvtape.devices.fake import fake_group
from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import Rank, StreamId
from kvtape.events.reader import Step
from kvtape.replay.alone import Alone, play_alone
from kvtape.replay.alone_plan import plan_alone
from kvtape.replay.machine import Machine, MakeDevices
from kvtape.replay.rerun import Played, rerun
from kvtape.replay.verdict import Judgement, Verdict, judge_run, judge_session

from .replay_bench import (
    chats,
    edited,
    fakes,
    opening,
    other_sum,
    record,
    streams_of,
    turned,
)

KINDS = ("drafted", "plain", "paged")


def session_verdict(
    opened: RunOpened, steps: Sequence[Step], session: str, make: MakeDevices = fakes
) -> Judgement:
    def alone() -> Alone:
        plan = plan_alone(opened, steps, lambda request: request.session == session)
        with Machine(plan.opened, make) as machine:
            return play_alone(machine, plan)

    return judge_session(alone, lambda: whole(opened, steps, make))


def whole(opened: RunOpened, steps: Sequence[Step], make: MakeDevices = fakes) -> Played:
    with Machine(opened, make) as machine:
        return rerun(machine, steps)


def run_verdict(opened: RunOpened, steps: Sequence[Step], make: MakeDevices = fakes) -> Judgement:
    return judge_run(lambda: whole(opened, steps, make))


class Spoiled:
    """A device that spoils one value of its reports, as another model or bad hardware would."""

    def __init__(self, device: Device, spoil: Callable[[int], int], lane: int = -1) -> None:
        self._device = device
        self._spoil = spoil
        self._lane = lane

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(self._device, name)

    def launch(self, state, facts, *, every_row=False):  # type: ignore[no-untyped-def]
        running = self._device.launch(state, facts, every_row=every_row)
        spoil, lane = self._spoil, self._lane

        class Running:
            def report(self):  # type: ignore[no-untyped-def]
                report = running.report()
                report.sums = dict(report.sums)
                for stream, sums in report.sums.items():
                    if lane not in (-1, state.streams[stream].lane):
                        continue
                    sums["rows"] = (spoil(sums["rows"][0]), sums["rows"][1])
                return report

        return Running()


def spoiled_fakes(spoil: Callable[[int], int]) -> MakeDevices:
    def make(opened: RunOpened) -> Sequence[Device]:
        return [cast(Device, Spoiled(device, spoil)) for device in fake_group(opened, opened.world)]

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_run_is_equal(kind: str) -> None:
    opened = opening(kind)
    steps = record(opened, chats())
    assert run_verdict(opened, steps).verdict is Verdict.EQUAL
    for session in ("s0", "s1", "s2"):
        assert session_verdict(opened, steps, session).verdict is Verdict.EQUAL


@pytest.mark.parametrize("kind", KINDS)
def test_another_model_differs_at_once_and_again(kind: str) -> None:
    opened = opening(kind)
    steps = record(opened, chats())
    other = spoiled_fakes(lambda lane: lane ^ 1)
    for judged in (run_verdict(opened, steps, other), session_verdict(opened, steps, "s1", other)):
        assert judged.verdict is Verdict.MODEL
        assert judged.first is not None and judged.first.part == "rows"


@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_does_not_repeat_itself_is_not_repeatable(kind: str) -> None:
    opened = opening(kind)
    steps = record(opened, chats())
    turn = count()
    shaky = spoiled_fakes(lambda lane: lane ^ next(turn))
    assert run_verdict(opened, steps, shaky).verdict is Verdict.UNREPEATABLE
    assert session_verdict(opened, steps, "s1", shaky).verdict is Verdict.UNREPEATABLE


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_replays_agree_against_was_the_hardware(kind: str) -> None:
    """Nothing of the session's beginning differs, and the whole run does not repeat it either."""
    opened = opening(kind)
    steps = record(opened, chats())
    stream = streams_of(steps, "s1")[-1]
    tampered = edited(steps, "step_closed", other_sum("logits", [stream]), 3)
    for judged in (run_verdict(opened, tampered), session_verdict(opened, tampered, "s1")):
        assert judged.verdict is Verdict.UNREPEATABLE
        assert judged.first is not None and judged.first.stream == stream
    assert session_verdict(opened, tampered, "s0").verdict is Verdict.EQUAL


@pytest.mark.parametrize("kind", KINDS)
def test_a_flip_that_no_check_saw_is_the_hardware_and_names_its_session(kind: str) -> None:
    opened = opening(kind)
    script = chats()
    flip = c.Inject(
        rank=Rank(0), stream=StreamId(0), part="rows", layer=0, cache="k", position=5, head=0,
        column=1, bit=4, when="rest",
    )  # fmt: skip
    script.setdefault(2, []).append(flip)
    steps = record(opened, script)
    judged = session_verdict(opened, steps, "s0")
    assert judged.verdict is Verdict.UNREPEATABLE
    assert judged.first is not None and judged.first.session == "s0"
    assert run_verdict(opened, steps).verdict is Verdict.UNREPEATABLE
    with Machine(opened, fakes) as machine:
        again = rerun(machine, steps, with_faults=True)
    assert again.comparison.first is None, "with its faults the run is what it was"


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_state_taken_over_is_a_placement_fault_and_named(kind: str) -> None:
    opened = opening(kind)
    steps = record(opened, chats())

    def change(fact: AnyFact) -> AnyFact:
        assert isinstance(fact, f.SnapshotTaken)
        if not fact.digest:
            return fact
        return fact.model_copy(
            update={"digest": fact.digest | {"rows": turned(fact.digest["rows"])}}
        )

    for nth in range(6):
        tampered = edited(steps, "snapshot_taken", change, nth)
        verdicts = {s: session_verdict(opened, tampered, s) for s in ("s0", "s1", "s2")}
        wrong = {s: one for s, one in verdicts.items() if one.verdict is not Verdict.EQUAL}
        for judged in wrong.values():
            assert judged.verdict is Verdict.PLACEMENT
            assert judged.first is not None and judged.first.part == "rows"
        if wrong:
            return
    raise AssertionError("no session resumed any of these states whole")


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_one_lane_is_a_placement_fault(kind: str) -> None:
    """The whole run repeats it, its streams sit in the same lanes; the session alone does not."""
    opened = opening(kind)

    def make(run: RunOpened) -> Sequence[Device]:
        devices = fake_group(run, run.world)
        return [cast(Device, Spoiled(one, lambda lane: lane ^ 1, lane=1)) for one in devices]

    steps = record(opened, chats(), make=make)
    assert run_verdict(opened, steps, make).verdict is Verdict.EQUAL
    verdicts = {s: session_verdict(opened, steps, s, make) for s in ("s0", "s1", "s2")}
    found = {s: one.verdict for s, one in verdicts.items()}
    assert Verdict.PLACEMENT in found.values()
    assert set(found.values()) <= {Verdict.PLACEMENT, Verdict.EQUAL}


def test_the_same_facts_that_make_another_book_are_a_placement_fault() -> None:
    opened = opening("paged")
    steps = record(opened, chats())
    tampered = edited(
        steps, "step_closed",
        lambda fact: fact.model_copy(update={"book": pair_hex((3, 4))}), 6,
    )  # fmt: skip
    judged = run_verdict(opened, tampered)
    assert judged.verdict is Verdict.PLACEMENT
    assert judged.first is not None and judged.first.part == "book"
