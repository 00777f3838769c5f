"""What cannot be done is refused in a line that says what to do, by every command alike."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.devices.weights.checkpoint import ModelNotFound
from kvtape.events.errors import NotATape, TapeError
from kvtape.events.tape import TapeWriter
from kvtape.replay import simulate_command
from kvtape.replay.models import devices_for, load
from kvtape.replay.opening import MalformedOption, RunOptions
from kvtape.replay.serving import tape_of
from kvtape.replay.simulate import SimulateOptions
from kvtape.replay.simulate_command import Shown, run_simulate
from kvtape.replay.verdict import Refused

from .tape_records import OPENED

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
REQUEST = '{"timestamp": 0, "input_length": 512, "output_length": 4, "hash_ids": [1]}\n'


@pytest.mark.parametrize("name", [".", "/", "", "..", "folder"])
def test_a_directory_is_no_tape_to_write(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / name if name == "folder" else Path(name)
    with pytest.raises(TapeError, match="is a directory, not a tape"):
        TapeWriter.create(path, OPENED)


@pytest.mark.parametrize(("content", "what"), [(b"", "is empty"), (b"x" * 600, "no SQLite file")])
def test_a_run_is_not_added_to_what_is_no_tape(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "run.tape"
    path.write_bytes(content)
    with pytest.raises(NotATape, match=what):
        TapeWriter.create(path, OPENED, append=True)
    assert path.read_bytes() == content


def test_a_run_that_is_to_be_kept_says_where() -> None:
    assert tape_of(None, append=False) is None
    assert tape_of("run.tape", append=True) == Path("run.tape")
    for trace, append in (("", False), (" ", True)):
        with pytest.raises(MalformedOption, match="--trace is blank: name a tape"):
            tape_of(trace, append=append)
    with pytest.raises(MalformedOption, match="name it with --trace"):
        tape_of(None, append=True)


@pytest.mark.parametrize("arguments", [["--trace", ""], ["--append"]])
def test_a_server_does_not_start_without_the_tape_that_was_meant(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", "fake", *arguments])
    assert done.exit_code == 2 and "--trace" in done.output


@pytest.mark.parametrize("name", ["glm-5.3-flash", "nonsense"])
def test_a_shape_is_planned_and_not_served(name: str) -> None:
    """A server names no shapes as what would do, and asks for no room first."""
    with pytest.raises(ModelNotFound, match="no known name") as refused:
        load(name, RunOptions(), lambda line: None, lambda done, total: None)
    assert "shape" not in str(refused.value)


def test_what_a_replay_was_asked_in_vain_is_said() -> None:
    weighted: Any = OPENED.model_copy(update={"family": "llama", "model": "some"})
    with pytest.raises(Refused, match="--device fake: some has weights"):
        devices_for(1, "fake")("")(weighted)
    fake: Any = OPENED.model_copy(update={"family": "fake", "model": "fake"})
    with pytest.raises(Refused, match="--model other: fake has no weights"):
        devices_for(1)("other")(fake)


def test_weights_that_cannot_be_the_tapes_are_another_model(tmp_path: Path) -> None:
    """A tape's drafts are no option of a replay: nobody is told to ask for fewer."""
    path = tmp_path / "glm.tape"
    lines = ROOT / "traces" / "golden" / "a_glm_resumes_and_drafts.jsonl"
    assert CliRunner().invoke(app, ["trace", "import", str(lines), str(path)]).exit_code == 0
    llama = ["--model", str(DATA / "llama_tiny")]
    for command in (["replay"], ["diff", "--deep"]):
        done = CliRunner().invoke(app, [*command, str(path), *llama])
        assert done.exit_code == 3, done.output
        said = "llama_tiny is another model: of the family llama, the tape was made on glm_tiny"
        assert said in done.stderr and "would do" not in done.stderr


def test_a_model_of_the_family_that_cannot_do_what_the_run_chose_is_another() -> None:
    rules = OPENED.rules.model_copy(update={"page_rows": 16, "mark_rows": 16, "drafts": 2})
    changes = {"family": "llama", "model": "some", "devices": ("cpu",), "rules": rules}
    with pytest.raises(Refused, match=r"llama_tiny is another model: .*drafts none"):
        devices_for(1, "cpu")(str(DATA / "llama_tiny"))(OPENED.model_copy(update=changes))


@pytest.mark.parametrize("what", ["missing", "folder", "bytes"])
def test_a_trace_that_is_none_is_named(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    elif what == "bytes":
        path.write_bytes(b"\xff\xfe\x00")
    assert run_simulate(path, SimulateOptions(100, 2, "odds"), Shown()) == 2
    said = capsys.readouterr().err
    assert str(path) in said and "Errno" not in said and "codec" not in said


def test_more_pages_than_memory_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much(*given: Any) -> Any:
        raise MemoryError

    path = tmp_path / "one.jsonl"
    path.write_text(REQUEST)
    monkeypatch.setattr(simulate_command, "simulate", too_much)
    assert run_simulate(path, SimulateOptions(1 << 40, 2, "odds"), Shown()) == 3
    assert "--pages 1099511627776: more than this machine's memory" in capsys.readouterr().err
