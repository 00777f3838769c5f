"""Damaged, edited and foreign tapes on the command line: what and where, the right code."""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvtape.__main__ import app
from kvtape.events.facts import FORMAT
from kvtape.events.seal import Seal, read_seal, seal, unseal
from kvtape.events.tape import TapeWriter
from kvtape.replay.models import load
from kvtape.replay.opening import RunOptions
from kvtape.tests.replay_bench import chats, opening, record
from kvtape.tests.test_serve_bad_input import tiny_folder

COMMANDS = (
    ("replay",), ("replay", "--book"), ("replay", "--fast-forward"), ("replay", "--session", "s0"),
    ("replay", "--to", "240"), ("diff",), ("audit",), ("trace", "export"),
)  # fmt: skip
CUTS, FLIPS, SEED = 12, 12, 5


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tape that was closed in order."""
    return write(tmp_path_factory.mktemp("sound") / "run.tape", close=True)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tape whose run broke off; its rows are in the main file."""
    return write(tmp_path_factory.mktemp("crashed") / "run.tape", close=False)


def write(path: Path, *, close: bool) -> Path:
    """A few sessions on the fake model."""
    opened = opening("drafted")
    writer = TapeWriter.create(path, opened)
    for step in record(opened, chats()):
        if close or not any(fact.kind == "run_closed" for fact in step.facts):
            writer.append(step.step, step.commands, step.facts)
    if close:
        writer.close()
    else:
        writer.abandon()
    return path


def run(command: tuple[str, ...], *more: str | Path) -> Result:
    """A command in this process; an error that nobody caught is raised."""
    return CliRunner().invoke(app, [*command, *map(str, more)], catch_exceptions=False)


def reports(command: tuple[str, ...], path: Path, *codes: int) -> str:
    """The command ends with one of the codes and names the tape; what it says."""
    result = run(command, path)
    said = result.stdout + result.stderr
    assert result.exit_code in codes, f"{command}: {result.exit_code}: {said}"
    assert "Traceback" not in said
    assert said.strip(), command
    return said


@pytest.fixture(params=COMMANDS, ids=" ".join)
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Each command that reads tapes."""
    chosen: tuple[str, ...] = request.param
    return chosen


@pytest.mark.parametrize("which", ["sound", "crashed"])
def test_an_undamaged_tape_is_read(
    command: tuple[str, ...], which: str, request: pytest.FixtureRequest
) -> None:
    result = run(command, request.getfixturevalue(which))
    assert result.exit_code == 0, result.stderr


def test_a_tape_cut_short_is_told(
    command: tuple[str, ...], sound: Path, crashed: Path, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    for source in (sound, crashed):
        whole = source.read_bytes()
        for _ in range(CUTS):
            path = tmp_path / "run.tape"
            cut = rng.randrange(len(whole))
            path.write_bytes(whole[:cut])
            said = reports(command, path, 1, 2, 3)
            assert "run.tape" in said or command == ("audit",), (cut, said)


def test_a_tape_cut_short_is_told_even_by_who_reads_its_head(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    path.write_bytes(sound.read_bytes()[:-5000])
    assert "cut short" in reports(("replay", "--to", "9"), path, 2)


def test_a_flipped_byte_is_told(command: tuple[str, ...], sound: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for _ in range(FLIPS):
        path = tmp_path / "run.tape"
        damaged = bytearray(sound.read_bytes())
        at = rng.randrange(len(damaged))
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        if read_seal(path) is Seal.NONE:  # the seal's own name was hit: the rows are whole
            assert run(("audit",), path).exit_code == 1
            continue
        said = reports(command, path, 1 if command == ("audit",) else 2, 2, 3)
        assert "run.tape" in said, (at, said)


def edited(source: Path, tmp_path: Path, statement: str) -> Path:
    """A copy that someone edited."""
    path = Path(shutil.copy(source, tmp_path / "run.tape"))
    with sqlite3.connect(path) as store:
        assert store.execute(statement).rowcount != 0, "the edit hits a row"
    store.close()
    return path


EDITS = {
    "a token": "UPDATE events SET body = replace(body, '\"tokens\":[', '\"tokens\":[1') WHERE seq ="
    " (SELECT min(seq) FROM events WHERE kind = 'rows_kept' AND body NOT LIKE '%\"tokens\":[]%')",
    "a session": "UPDATE events SET body = replace(body, 's1', 's2') WHERE kind = 'request_arrived'"
    " AND session = 's1'",
    "a lane": "UPDATE events SET body = replace(body, '\"lane\":0', '\"lane\":2')",
    "no json": "UPDATE events SET body = 'nothing' WHERE kind = 'stream_begun'",
    "no text": "UPDATE events SET body = x'00ff' WHERE kind = 'stream_begun'",
    "a command": "UPDATE commands SET body = replace(body, '\"max_new\":5', '\"max_new\":6')",
    "a row gone": "DELETE FROM events WHERE kind = 'stream_released'",
    "a prompt": "UPDATE content SET bytes = zeroblob(length(bytes))",
    "a sum": 'UPDATE events SET body = replace(body, \'"book":"\', \'"book":"0\') WHERE kind ='
    " 'step_closed'",
}


@pytest.mark.parametrize("which", ["sound", "crashed"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_told_with_its_row(
    command: tuple[str, ...], which: str, edit: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = edited(request.getfixturevalue(which), tmp_path, EDITS[edit])
    said = reports(command, path, 1 if command == ("audit",) else 2)
    if which == "crashed":
        assert "row" in said, said
    assert "run.tape" in said or command == ("audit",)


def test_another_format_is_refused(command: tuple[str, ...], sound: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(sound, tmp_path / "run.tape"))
    unseal(path)
    with sqlite3.connect(path) as store:
        store.execute(f"PRAGMA user_version={FORMAT + 1}")
    store.close()
    seal(path)
    said = reports(command, path, 3)
    assert f"format {FORMAT + 1}" in said and "run.tape" in said


@pytest.mark.parametrize("what", ["text", "empty", "folder", "missing", "songs", "zeros"])
def test_what_is_no_tape_is_told(command: tuple[str, ...], what: str, tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    match what:
        case "text":
            path.write_text("Once upon a time there was a tape.\n" * 200)
        case "empty":
            path.touch()
        case "folder":
            path.mkdir()
        case "songs":
            with sqlite3.connect(path) as store:
                store.execute("CREATE TABLE songs (title TEXT)")
            store.close()
        case "zeros":
            path.write_bytes(bytes(20_000))
        case _:
            pass
    assert "run.tape" in reports(command, path, 2)


def test_a_diff_says_which_side_is_damaged(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.tape"
    path.write_bytes(sound.read_bytes()[:5000])
    for sides in ((sound, path), (path, sound)):
        result = run(("diff",), *sides)
        assert result.exit_code == 2
        assert "other.tape" in result.stderr


# --- another model --------------------------------------------------------------------------------


def tape_of(folder: Path, model: Path) -> Path:
    """A tape with nothing but its opening, made on a model."""
    loaded = load(str(model), RunOptions(context=64), lambda line: None, lambda done, all: None)
    for device in loaded.devices:
        device.close()
    with TapeWriter.create(folder / "run.tape", loaded.opened, {"weights": loaded.weights}):
        pass
    return folder / "run.tape"


def test_a_replay_on_other_weights_is_refused(tmp_path: Path) -> None:
    mine, other = tiny_folder(tmp_path / "mine"), tiny_folder(tmp_path / "other", seed=1)
    path = tape_of(tmp_path, mine)
    assert run(("replay",), path).exit_code == 0
    assert run(("replay",), path, "--model", mine).exit_code == 0
    for command in (("replay",), ("diff", "--deep")):
        result = run(command, path, "--model", other)
        assert result.exit_code == 3, result.stderr
        assert "another model" in result.stderr and "other" in result.stderr
    shutil.rmtree(mine)
    result = run(("replay",), path)
    assert result.exit_code == 2
    assert "mine" in result.stderr and "Traceback" not in result.stderr


def test_a_replay_on_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    mine = tiny_folder(tmp_path / "mine")
    path = tape_of(tmp_path, mine)
    for name, changes in (
        ("deeper", {"num_hidden_layers": 3}),
        ("wider", {"vocab_size": 288}),
        ("odd", {"vocab_size": 264}),
    ):
        result = run(("replay",), path, "--model", tiny_folder(tmp_path / name, **changes))
        assert result.exit_code == (2 if name == "odd" else 3), (name, result.stderr)
        assert "Traceback" not in result.stderr and result.stderr.strip()
