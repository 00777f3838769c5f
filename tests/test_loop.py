"""The loop keeps its order: decided, applied, sent, launched, durable, shown, reported."""

from collections.abc import Sequence
from typing import Any

import pytest

from kvtape.core.decide import decide
from kvtape.core.families.fake import fake_rules
from kvtape.core.state import open_state
from kvtape.devices.fake import fake_group
from kvtape.events.commands import AnyCommand, Close
from kvtape.events.errors import TapeError
from kvtape.replay.live import LiveSource
from kvtape.replay.loop import Run, run
from kvtape.replay.ranks import Ranks

from .rig import arrive, opened_with


class Witness:
    """Recorder, door, device and step of a run, each writing down that it was called."""

    def __init__(self, device: Any, fails_at: int = -1) -> None:
        self.calls: list[str] = []
        self.shown: list[str] = []
        self._device, self._fails_at = device, fails_at
        self._appends = 0

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[Any]) -> int:
        self.calls.append("append")
        self._appends += 1
        if self._appends == self._fails_at:
            raise TapeError("the disk is full")
        return 0

    def show(self, step: int, first_seq: int, facts: Sequence[Any], state: Any) -> None:
        self.calls.append("show")
        self.shown += [fact.kind for fact in facts]

    def launch(self, state: Any, facts: Sequence[Any], *, every_row: bool = False) -> Any:
        self.calls.append("launch")
        self._running = self._device.launch(state, facts, every_row=every_row)
        return self

    def report(self) -> Any:
        self.calls.append("report")
        return self._running.report()


def witnessed(fails_at: int = -1) -> tuple[Run, Witness]:
    opened = opened_with(fake_rules())
    state, devices = open_state(opened), fake_group(opened, 1)
    ranks = Ranks(opened, devices)
    source, witness = LiveSource(state, ranks), Witness(devices[0], fails_at)
    source.wish(arrive("one", [1, 2, 3], 4))
    one: Any = witness
    return Run(state, decide, source, ranks, one, one, one), witness


def test_nothing_is_shown_before_it_is_durable_nor_reported_before_it_is_shown() -> None:
    live, witness = witnessed()

    def ends(step: int, first_seq: int, facts: Sequence[Any], state: Any) -> None:
        Witness.show(witness, step, first_seq, facts, state)
        if "request_finished" in witness.shown and not state.closed:
            live.source.wish(Close(reason="closed"))  # type: ignore[attr-defined]

    witness.show = ends  # type: ignore[method-assign]
    run(live)
    assert live.state.closed
    first = [
        "launch",
        "append",
        "show",
    ]  # launched first: the device computes while the tape is written
    turns = "".join(witness.calls).split("".join(first))
    assert turns[0] == "" and set(turns[1:]) == {"report", ""}
    assert "rows_kept" in witness.shown


def test_what_could_not_be_kept_is_neither_shown_nor_heard_of() -> None:
    live, witness = witnessed(fails_at=2)
    with pytest.raises(TapeError):
        run(live)
    assert witness.calls == ["launch", "append", "show", "report", "launch", "append"]
    assert "rows_kept" not in witness.shown


def test_a_step_that_ends_its_device_is_on_the_tape() -> None:
    live, witness = witnessed()

    def dies(state: Any, facts: Sequence[Any], *, every_row: bool = False) -> Any:
        raise ValueError("a bit fell out")

    witness.launch = dies  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a bit fell out"):
        run(live)
    assert witness.calls == ["append"]
    assert witness.shown == []
