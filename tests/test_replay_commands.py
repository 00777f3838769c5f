"""The commands that read tapes, on tapes: exit codes, JSON, lines for people."""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvtape.core.device import Device
from kvtape.devices.fake import fake_group
from kvtape.devices.weights.checkpoint import ModelNotFound
from kvtape.events import commands as c
from kvtape.events.facts import RunOpened, StepClosed
from kvtape.events.ids import Rank, StreamId
from kvtape.events.reader import Step, Tape
from kvtape.events.tape import TapeWriter
from kvtape.replay.machine import MakeDevices
from kvtape.replay.run_diff import run_audit, run_diff
from kvtape.replay.run_replay import ReplayOptions, run_replay
from kvtape.replay.verdict import Refused

from .replay_bench import chats, edited, facts_of, opening, other_sum, record, streams_of


def for_fakes(model: str) -> MakeDevices:
    return lambda opened: fake_group(opened, opened.world)


def write(path: Path, opened: RunOpened, steps: Sequence[Step], hint: str = "") -> Path:
    with TapeWriter.create(path, opened, {"weights": hint} if hint else None) as writer:
        for step in steps:
            writer.append(step.step, step.commands, step.facts)
    return path


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opened = opening("drafted", world=2)
    path = tmp_path_factory.mktemp("tapes") / "run.tape"
    return write(path, opened, record(opened, chats()))


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opened = opening("paged", world=2, digests="full")
    script = chats()
    flip = c.Inject(
        rank=Rank(1), stream=StreamId(0), part="rows", layer=1, cache="k", position=4, head=2,
        column=3, bit=5, when="rest",
    )  # fmt: skip
    script.setdefault(3, []).append(flip)
    return write(tmp_path_factory.mktemp("tapes") / "flip.tape", opened, record(opened, script))


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The one line of JSON that a command printed."""
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found


ASKED = [
    ReplayOptions(as_json=True),
    ReplayOptions(world=3, as_json=True),
    ReplayOptions(session="s1", as_json=True),
    ReplayOptions(request="s2r0", as_json=True),
    ReplayOptions(fast_forward=True, as_json=True),
    ReplayOptions(fast_forward=True, session="s0", rows_a_step=64, world=4, as_json=True),
    ReplayOptions(poison="b", as_json=True),
]


@pytest.mark.parametrize("options", ASKED, ids=range(len(ASKED)))
def test_a_sound_tape_is_equal_and_says_how_much_was_compared(
    tape: Path, options: ReplayOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_replay(tape, options, for_fakes) == 0
    said = told(capsys)
    assert list(said)[:6] == ["verdict", "steps", "tokens", "seconds", "compared", "first"]
    assert said["verdict"] == "equal" and said["first"] is None
    assert isinstance(said["compared"], dict) and said["compared"]["rows"] > 0


def test_the_book_needs_no_device(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_replay(tape, ReplayOptions(book=True, as_json=True), None) == 0
    assert told(capsys)["verdict"] == "equal"
    assert run_replay(tape, ReplayOptions(as_json=True), None) == 3


def test_a_difference_is_exit_code_1_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = opening("plain")
    steps = record(opened, chats())
    stream = streams_of(steps, "s1")[0]
    steps = edited(steps, "step_closed", other_sum("logits", [stream]), 2)
    path = write(tmp_path / "bad.tape", opened, steps)
    assert run_replay(path, ReplayOptions(as_json=True), for_fakes) == 1
    said = told(capsys)
    assert said["verdict"] == "unrepeatable"
    first = said["first"]
    assert isinstance(first, dict)
    assert first["part"] == "logits" and first["stream"] == stream and first["session"] == "s1"
    assert run_replay(path, ReplayOptions(), for_fakes) == 1
    shown = capsys.readouterr().out
    assert "unrepeatable" in shown and "logits" in shown
    assert run_diff(str(path), None, for_fakes, as_json=True) == 1
    assert told(capsys)["first"] == first


def test_a_replay_to_a_fact_shows_lanes_rows_and_pages(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_replay(tape, ReplayOptions(to=40, as_json=True), for_fakes) == 0
    state = told(capsys)["state"]
    assert isinstance(state, dict)
    assert any(one["rows"] > 0 and one["table"] for one in state["streams"])


def test_a_flipped_bit_is_shown_with_every_coordinate(
    flipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_diff(str(flipped), None, for_fakes, as_json=True) == 1
    first = told(capsys)["first"]
    assert isinstance(first, dict)
    wanted = {
        "part": "rows",
        "layer": 1,
        "head": 2,
        "position": 4,
        "column": 3,
        "bit": 5,
        "rank": 1,
    }
    assert {name: first[name] for name in wanted} == wanted
    assert {"step", "seq", "stream", "cache", "page", "row", "left", "right", "written_by"} <= set(
        first
    )
    assert run_diff(str(flipped), None, for_fakes) == 1
    assert "written_by" in capsys.readouterr().out


def test_without_a_model_a_diff_still_names_the_step(
    flipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_diff(str(flipped), None, None, as_json=True) == 1
    first = told(capsys)["first"]
    assert isinstance(first, dict) and first["part"] == "rows" and "layer" not in first


def test_sides_are_tapes_ranks_and_moments(
    tape: Path, flipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_diff(str(tape), str(tape), for_fakes, as_json=True) == 0
    assert told(capsys)["verdict"] == "equal"
    assert run_diff(f"{tape}#0", f"{tape}#1", for_fakes, as_json=True) == 0
    assert told(capsys)["not_comparable"] == ["rings", "states"]
    assert run_diff(f"{tape}@60", f"{tape}@60", for_fakes, as_json=True) == 0
    assert told(capsys)["verdict"] == "equal"
    assert run_diff(f"{tape}#2", f"{tape}#0", for_fakes) == 2


def test_wrong_use_and_unreadable_input_are_exit_code_2(tape: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "no.tape"
    assert run_replay(nothing, ReplayOptions(), for_fakes) == 2
    assert run_diff(str(nothing), None, for_fakes) == 2
    assert run_audit(nothing) == 2
    assert run_replay(tape, ReplayOptions(session="nobody"), for_fakes) == 2
    assert run_replay(tape, ReplayOptions(session="s0", request="s0r0"), for_fakes) == 2
    assert run_replay(tape, ReplayOptions(book=True, session="s0"), for_fakes) == 2
    assert run_replay(tape, ReplayOptions(to=9, session="s0"), for_fakes) == 2
    assert run_replay(tape, ReplayOptions(run=7), for_fakes) == 2


def test_another_model_is_refused_and_a_missing_one_is_said(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(model: str) -> MakeDevices:
        def make(opened: RunOpened) -> Sequence[Device]:
            raise Refused(f"{model} is another model")

        return make

    def missing(model: str) -> MakeDevices:
        def make(opened: RunOpened) -> Sequence[Device]:
            raise ModelNotFound("no such file")

        return make

    assert run_replay(tape, ReplayOptions(model="m.gguf", as_json=True), other) == 3
    assert told(capsys) == {"verdict": "refused", "why": "m.gguf is another model", "first": None}
    assert run_replay(tape, ReplayOptions(), missing) == 2


def test_the_weights_hint_of_the_tape_is_what_the_maker_is_given(tmp_path: Path) -> None:
    opened = opening("plain")
    there = tmp_path / "there.gguf"
    there.touch()
    path = write(tmp_path / "hint.tape", opened, record(opened, chats()), hint=str(there))
    given: list[str] = []

    def make_for(model: str) -> MakeDevices:
        given.append(model)
        return for_fakes(model)

    run_replay(path, ReplayOptions(as_json=True), make_for)
    run_replay(path, ReplayOptions(model="here.gguf", as_json=True), make_for)
    there.unlink()
    run_replay(path, ReplayOptions(as_json=True), make_for)
    assert given == [str(there), "here.gguf", ""], "a place that is gone says nothing"


def test_an_audit_is_sound_or_names_what_is_not(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_audit(tape, as_json=True) == 0
    assert told(capsys) == {"findings": []}
    copy = tmp_path / "copy.tape"
    copy.write_bytes(tape.read_bytes())
    with sqlite3.connect(copy) as store:
        store.execute("update events set body = replace(body, '\"lane\":0', '\"lane\":1')")
    store.close()
    assert run_audit(copy) == 1
    assert capsys.readouterr().out.strip()


def test_facts_that_do_not_fit_are_exit_code_1_of_an_audit_and_2_of_a_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = opening("plain")
    steps = edited(
        record(opened, chats()), "prompt_step_run",
        lambda fact: fact.model_copy(update={"first": 1}),
    )  # fmt: skip
    assert facts_of(steps, "prompt_step_run")
    path = write(tmp_path / "misfit.tape", opened, steps)
    assert run_audit(path, as_json=True) == 1
    findings = told(capsys)["findings"]
    assert isinstance(findings, list) and findings[0]["kind"] == "state"
    assert run_replay(path, ReplayOptions(), for_fakes) == 2


def test_two_replays_are_kept_and_compared(
    tape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [tmp_path / f"at{world}.tape" for world in (1, 3)]
    for world, path in zip((1, 3), kept, strict=True):
        options = ReplayOptions(world=world, record=str(path), as_json=True)
        assert run_replay(tape, options, for_fakes) == 0
        assert run_audit(path) == 0
    capsys.readouterr()
    assert run_diff(str(kept[0]), str(kept[1]), for_fakes, as_json=True) == 0
    assert told(capsys)["verdict"] == "equal"
    assert run_replay(tape, ReplayOptions(record=str(kept[0])), for_fakes) == 2  # it exists


def test_a_kept_replay_has_its_own_sums(flipped: Path, tmp_path: Path) -> None:
    kept = tmp_path / "flipped.tape"
    options = ReplayOptions(with_faults=True, record=str(kept))
    run_replay(flipped, options, for_fakes)
    with Tape.open(flipped) as recorded, Tape.open(kept) as again:
        sums = [
            {
                fact.step: fact.digests.parts
                for _, fact in tape.facts()
                if isinstance(fact, StepClosed)
            }
            for tape in (recorded, again)
        ]
    assert sums[1], "nothing was kept"
    assert all(sums[0][step] == parts for step, parts in sums[1].items())


def test_record_is_for_whole_runs(tape: Path, tmp_path: Path) -> None:
    path = tmp_path / "part.tape"
    for part in (ReplayOptions(session="a"), ReplayOptions(fast_forward=True)):
        assert run_replay(tape, replace(part, record=str(path)), for_fakes) == 2
    assert not path.exists()
