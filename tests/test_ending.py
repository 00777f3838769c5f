"""A run that fails: whatever the fault and whenever it comes, the tape says so and is sound."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvtape.core.apply import apply
from kvtape.core.decide import decide
from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.link import RankLost
from kvtape.core.outcome import Parting
from kvtape.core.state import FLAT, State
from kvtape.events.commands import AnyCommand, Cancel, Close, PartingFound
from kvtape.events.errors import TapeError
from kvtape.events.facts import RequestFinished, RunClosed
from kvtape.events.ids import RequestId
from kvtape.events.lock import being_written
from kvtape.events.reader import Tape
from kvtape.events.records import FamilyRules
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify
from kvtape.replay import ending, live
from kvtape.replay.ending import ERROR_CHARS, close_failed, words_of
from kvtape.replay.live import LiveSource
from kvtape.replay.loop import Run
from kvtape.replay.models import devices_for
from kvtape.replay.recorder import TapeRecorder
from kvtape.replay.recording import NEVER_CLOSED, end_of
from kvtape.replay.run_diff import run_audit
from kvtape.replay.run_replay import ReplayOptions, run_replay
from kvtape.replay.serving import TapeOptions

from .rig import Rig, arrive, flat_plan, opened_with
from .test_serve_rank_lost import (
    DIES_AT,
    Start,
    assert_says,
    assert_told,
    loaded,
    no_thread_stays,
    start,
)

__all__ = ["start"]  # a fixture

TEXT = [7 * at % 61 for at in range(60)]
LOST = RankLost("rank 1 failed on its GPU in step 9: CUDARuntimeError: an illegal address")
NEWER = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1, "prefix_wait": 1}
SETTINGS: list[tuple[FamilyRules, dict[str, Any]]] = [
    (fake_rules(drafts=2), {"flags": NEWER}),
    (fake_rules(), {"lanes": 2, "pages": 20}),
    (paged_rules(), {"lanes": 3, "pages": 24, "flags": NEWER}),
    (fake_rules(drafts=1), {"flags": {"store": FLAT}, "plan": flat_plan(64)}),
]


def wishes(rng: random.Random, step: int) -> Sequence[AnyCommand]:
    """Chats that share prefixes, come again, and are given up now and then."""
    made: list[AnyCommand] = []
    for at in range(rng.randint(0, 2)):
        prompt = [rng.randint(0, 1), *TEXT[: rng.randint(1, 45)]]
        history = rng.choice((0, len(prompt) - 1))
        made.append(arrive(f"r{step}-{at}", prompt, rng.randint(1, 6), history_tokens=history))
    if rng.random() < 0.1:
        made.append(Cancel(request=RequestId(f"r{rng.randint(0, step)}-0"), why="client left"))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_fails_after_any_step_has_a_sound_tape_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Its last step was launched and nothing came back: no tokens, no answer to a resume."""
    rng = random.Random(seed)
    rules, settings = SETTINGS[seed % len(SETTINGS)]
    rig = Rig(opened_with(rules, **settings))
    path, steps = tmp_path / "run.tape", rng.randint(1, 40)
    for step in range(1, steps + 1):
        rig.step(*wishes(rng, step))
    writer = TapeWriter.create(path, rig.opened)
    for step, (commands, facts) in enumerate(zip(rig.commands, rig.steps, strict=True), 1):
        writer.append(step, commands, facts)
    nobody: Any = None  # is asked for anything any more
    recorder = TapeRecorder(writer, stop_on_error=True)
    run = Run(rig.state, decide, nobody, nobody, nobody, recorder, nobody, step=steps)
    seated = list(rig.state.streams)
    close_failed(run, recorder, LOST)
    with Tape.open(path) as tape:
        assert tape.closed is not None and tape.closed.error == str(LOST)
        assert tape.at(tape.last_seq).step == steps + 1
        entries = [one.record for one in tape.entries() if one.step == steps + 1]
        assert entries[0] == Close(reason="failed", error=str(LOST))
        ended = [one for one in entries if isinstance(one, RequestFinished)]
        assert [one.stream for one in ended] == seated
        assert {one.reason for one in ended} <= {"fault"}
    assert verify(path) == []
    assert run_audit(path) == 0
    assert f"the run ended at step {steps + 1}: {LOST}" in capsys.readouterr().out
    assert run_replay(path, ReplayOptions(book=True), None) == 0
    assert run_replay(path, ReplayOptions(), devices_for(1)) == 0


@pytest.mark.parametrize("part", ["decide", "apply"])
def test_a_machine_that_cannot_decide_closes_its_tape_over_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    start: Start, part: str,
) -> None:  # fmt: skip
    """The state has facts that the tape lacks, so nothing that is decided of it belongs there."""
    count, path = [0], tmp_path / "run.tape"
    real: Any = decide if part == "decide" else apply

    def broken(state: State, what: Any) -> Any:
        count[0] += 1
        assert count[0] < 50, "a bit fell out"
        return real(state, what)

    with monkeypatch.context() as patch, no_thread_stays():
        where = "serving" if part == "decide" else "loop"
        patch.setattr(f"kvtape.replay.{where}.{part}", broken)
        one = loaded("fake", 1)
        run = start(one, one.devices, TapeOptions(path=path))
        assert_told(run.ask())
        assert run.join() == 1
    with Tape.open(path) as tape:
        assert tape.closed is not None
        assert tape.closed.error.startswith("AssertionError: a bit fell out")
        assert not [fact for _, fact in tape.facts() if fact.kind == "request_finished"]
        step = tape.at(tape.last_seq).step
    assert verify(path) == []
    assert run_audit(path) == 0
    assert f"the run ended at step {step}: AssertionError: a bit" in capsys.readouterr().out
    assert run_replay(path, ReplayOptions(book=True), None) == 0
    assert run_replay(path, ReplayOptions(), devices_for(1)) == 0


def broken_off(path: Path) -> tuple[Rig, TapeWriter]:
    """A run of one stream that is seated, and its tape so far."""
    rig = Rig(opened_with(fake_rules()))
    writer = TapeWriter.create(path, rig.opened)
    rig.step(arrive("one", TEXT, 4))
    writer.append(1, rig.commands[0], rig.steps[0])
    return rig, writer


def test_a_run_that_is_closed_over_its_streams_by_no_failure_is_found(tmp_path: Path) -> None:
    _, writer = broken_off(tmp_path / "run.tape")
    writer.close("closed")
    assert run_audit(tmp_path / "run.tape") == 1


def test_a_failure_that_was_decided_and_left_its_streams_is_found(tmp_path: Path) -> None:
    _, writer = broken_off(tmp_path / "run.tape")
    closed = RunClosed(reason="failed", steps=1, error="gone")
    writer.append(2, (Close(reason="failed", error="gone"),), (closed,))
    writer.close()
    assert run_audit(tmp_path / "run.tape") == 1


def test_a_run_that_ended_before_its_tape_could_be_sealed_keeps_its_own_end(tmp_path: Path) -> None:
    """Sealing failed, and works the second time."""
    path = tmp_path / "run.tape"
    rig, writer = broken_off(path)
    rig.step(Close(reason="told to stop"))
    writer.append(2, rig.commands[1], rig.steps[1])
    nobody: Any = None
    recorder = TapeRecorder(writer, stop_on_error=True)
    run = Run(rig.state, decide, nobody, nobody, nobody, recorder, nobody, step=2)
    close_failed(run, recorder, TapeError("others read the tape"))
    with Tape.open(path) as tape:
        assert tape.closed is not None
        assert (tape.closed.reason, tape.closed.error) == ("told to stop", "")
    assert verify(path) == [] and run_audit(path) == 0


def test_a_tape_whose_end_cannot_be_decided_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.tape"
    rig, writer = broken_off(path)
    nobody: Any = None
    recorder = TapeRecorder(writer, stop_on_error=True)
    run = Run(rig.state, decide, nobody, nobody, nobody, recorder, nobody, step=1)

    def broken(*given: Any) -> Any:
        raise AssertionError("a bit fell out")

    monkeypatch.setattr(ending, "decide", broken)
    with Tape.open(path) as tape:
        assert being_written(path) and end_of(tape) == ""
        close_failed(run, recorder, LOST)
        assert not being_written(path)
        assert tape.closed is None and end_of(tape) == NEVER_CLOSED


def test_bytes_kept_for_a_finding_that_never_came_are_not_on_the_tape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    """A rank is lost while both sides' rows are fetched: the first one's are there already."""
    count = [0]

    def located(source: LiveSource, step: int, parting: Parting) -> PartingFound:
        source._keep(b"a row")
        raise RankLost(f"rank 1 died in step {step}")

    def parted(*given: Any) -> list[Any]:
        count[0] += 1
        return [None] if count[0] == DIES_AT else []

    with monkeypatch.context() as patch, no_thread_stays():
        patch.setattr(LiveSource, "_found", located)
        patch.setattr(live, "partings", parted)
        one = loaded("fake", 2)
        run = start(one, one.devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
    assert run.live.error is not None
    assert_says(tmp_path / "run.tape", run.live.error)


def test_whatever_an_error_says_is_a_line_that_the_tape_can_hold(tmp_path: Path) -> None:
    error = ValueError("\udc80 two\nlines \0 " + "x" * 9000)
    said = words_of(error)
    assert said.startswith("ValueError: ? two lines \0 xx") and len(said) == ERROR_CHARS
    writer = TapeWriter.create(tmp_path / "run.tape", opened_with(fake_rules()))
    writer.close("failed", said)
    with Tape.open(tmp_path / "run.tape") as tape:
        assert tape.closed is not None and tape.closed.error == said
    assert verify(tmp_path / "run.tape") == []


def test_a_tape_that_fails_at_the_end_stays_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start
) -> None:
    """A rank is lost, and when its end is written the disk is full."""
    append = TapeWriter.append

    def full(self: TapeWriter, step: int, commands: Any, facts: Any, *more: Any) -> range:
        if any(isinstance(one, Close) for one in commands):
            self.abandon()
            raise TapeError("the disk is full")
        return append(self, step, commands, facts, *more)

    def lost(*given: Any) -> list[Any]:
        raise RankLost("rank 0 is lost")

    with monkeypatch.context() as patch, no_thread_stays():
        patch.setattr(TapeWriter, "append", full)
        patch.setattr(live, "partings", lost)
        one = loaded("fake", 1)
        run = start(one, one.devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
    assert "the tape stays without an end: the disk is full" in caplog.text
    with Tape.open(tmp_path / "run.tape") as tape:
        assert tape.closed is None
    assert verify(tmp_path / "run.tape") == []
    assert run_audit(tmp_path / "run.tape") == 0
