"""Old recordings are tests: golden tapes replay for ever, broken ones are refused."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvtape.core.device import Device
from kvtape.devices.fake import fake_group
from kvtape.events.errors import TapeError
from kvtape.events.export import import_jsonl
from kvtape.events.facts import RunOpened
from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay.audit import audit_run
from kvtape.replay.book import rebook
from kvtape.replay.machine import Machine
from kvtape.replay.rerun import reopened, rerun

from .glm_rig import glm_devices
from .golden import STORIES, lines_of, write_tape

TRACES = Path(__file__).parent.parent / "traces"
GOLDEN = sorted((TRACES / "golden").glob("*.jsonl"))
FOUND = sorted((TRACES / "found").glob("*.jsonl"))
BROKEN = json.loads((TRACES / "broken" / "reasons.json").read_text())


def devices(opened: RunOpened) -> Sequence[Device]:
    """Sound devices for a replay of a golden run."""
    return glm_devices(opened) if opened.family == "glm" else fake_group(opened, opened.world)


def taken(lines: Path, folder: Path) -> Path:
    """A tape made from lines."""
    path = folder / "taken.tape"
    with lines.open(encoding="utf-8") as text:
        import_jsonl(text, path)
    return path


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    write_tape(STORIES[name](), tmp_path / "told.tape")
    told = "\n".join(lines_of(tmp_path / "told.tape")) + "\n"
    golden = TRACES / "golden" / f"{name}.jsonl"
    if os.environ.get("UPDATE"):
        golden.write_text(told, encoding="utf-8")
    assert golden.read_text(encoding="utf-8") == told


def test_no_golden_tape_lacks_its_story() -> None:
    current = {path.stem for path in GOLDEN if not path.stem.startswith("format_")}
    assert current == set(STORIES)


@pytest.mark.parametrize("lines", [*GOLDEN, *FOUND], ids=lambda path: path.stem)
def test_a_recording_verifies_is_decided_again_and_replays(lines: Path, tmp_path: Path) -> None:
    path = taken(lines, tmp_path)
    assert verify(path) == []
    with Tape.open(path) as tape:
        assert audit_run(tape.opened, tape.steps()) == []
        assert rebook(tape.opened, tape.steps()).first is None
        for world in (1, 3):
            opened = reopened(tape.opened, world=world)
            with Machine(opened, devices) as machine:
                comparison = rerun(machine, tape.steps()).comparison
                assert comparison.first is None
                assert comparison.compared["tokens"] > 0 or "refused" in lines.stem


def test_a_taken_tape_exports_the_same_lines(tmp_path: Path) -> None:
    path = taken(GOLDEN[0], tmp_path)
    assert "\n".join(lines_of(path)) + "\n" == GOLDEN[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_tape_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    reason, lines = BROKEN[name], TRACES / "broken" / f"{name}.jsonl"
    if reason["by"] == "import":
        with pytest.raises(TapeError) as refused:
            taken(lines, tmp_path)
        assert reason["says"] in str(refused.value)
        assert refused.value.exit_code == reason["exit"]
        assert not (tmp_path / "taken.tape").exists()
        return
    with Tape.open(taken(lines, tmp_path)) as tape:
        says = [finding.says for finding in audit_run(tape.opened, tape.steps())]
        assert any(reason["says"] in said for said in says), says


def test_every_broken_tape_has_its_reason() -> None:
    assert {path.stem for path in (TRACES / "broken").glob("*.jsonl")} == set(BROKEN)
