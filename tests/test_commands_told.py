"""What the commands say to whoever uses them for the first time: every line names its mend."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvtape import __version__
from kvtape.__main__ import app
from kvtape.events.commands import Close
from kvtape.events.facts import RunOpened
from kvtape.events.reader import Tape
from kvtape.events.tape import TapeWriter
from kvtape.replay import run_diff as command
from kvtape.replay.faults import FAULTS

from .replay_bench import Script, arrive, chats, opening, record


def run(*arguments: str | Path) -> Result:
    """A command in this process; an error that nobody caught is raised."""
    given = {"TF_KV_POISON": "", "KVTAPE_API_KEY": "", "COLUMNS": "200", "NO_COLOR": "1"}
    named = list(map(str, arguments))
    return CliRunner().invoke(app, named, env=given, catch_exceptions=False)


def refused(result: Result, code: int, *words: str) -> None:
    """One line says what is wrong, with these words in it, and the code is right."""
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("kvtape: "), lines
    for word in words:
        assert word in lines[0], lines[0]


def write(path: Path, opened: RunOpened, script: Script, *, append: bool = False) -> Path:
    with TapeWriter.create(path, opened, append=append) as writer:
        for step in record(opened, script):
            writer.append(step.step, step.commands, step.facts)
    return path


def asking(*sessions: str, words: int = 6) -> Script:
    """One request a session, all at once; the same session asks the same on every tape."""
    return {
        0: [
            arrive(f"{session}r", session, [int(session[1:]) + at for at in (1, 2, 3)], words)
            for session in sessions
        ]
    }


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tapes") / "run.tape", opening("paged", world=2), chats())


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("empty") / "empty.tape",
        opening("paged"),
        {0: [Close(reason="closed")]},
    )


@pytest.fixture(scope="module")
def last(tape: Path) -> int:
    with Tape.open(tape) as opened:
        return opened.last_seq


def of(tmp_path: Path, name: str, *sessions: str, words: int = 6) -> Path:
    return write(tmp_path / f"{name}.tape", opening("paged"), asking(*sessions, words=words))


# --- what has nothing in common is not equal ------------------------------------------------------


def apart(left: str | Path, right: str | Path, *words: str) -> None:
    """The sides are apart, to people and to scripts, and these words say how."""
    for more in ((), ("--no-deep",), ("--json",)):
        result = run("diff", left, right, *more)
        assert result.exit_code == 1, result.output
        for word in words:
            assert word in result.stdout, result.stdout
        if "--json" in more:
            said = json.loads(result.stdout)
            assert (said["verdict"], said["first"]) == ("apart", None)
        else:
            assert result.stdout.startswith("apart")


def test_tapes_without_a_session_in_common_are_apart(tmp_path: Path) -> None:
    left, right = of(tmp_path, "left", "s0", "s1"), of(tmp_path, "right", "s2")
    apart(
        left, right, "nothing in common", "only in the left tape: session s0; session s1",
        "only in the right tape: session s2",
    )  # fmt: skip


def test_a_session_on_one_side_alone_is_a_difference(tmp_path: Path) -> None:
    more, less = of(tmp_path, "more", "s0", "s1"), of(tmp_path, "less", "s0")
    apart(more, less, "only in the left tape: session s1")
    apart(less, more, "only in the right tape: session s1")
    assert "nothing in common" not in run("diff", more, less).stdout


def test_many_sessions_on_one_side_are_a_line(tmp_path: Path) -> None:
    many = of(tmp_path, "many", *(f"s{number}" for number in range(12)))
    apart(many, of(tmp_path, "one", "s0"), "session s8; and 3 more")


def test_a_reply_on_one_side_alone_is_a_difference(tmp_path: Path) -> None:
    script = asking("s0")
    script[3] = [arrive("again", "s0", [9, 9], 4)]
    twice = write(tmp_path / "twice.tape", opening("paged"), script)
    apart(twice, of(tmp_path, "once", "s0"), "only in the left tape: session s0, reply 1")


def test_where_nothing_is_compared_nothing_is_equal(tape: Path, empty: Path, last: int) -> None:
    apart(f"{tape}@1", f"{tape}@1", "nothing was compared")
    apart(empty, empty, "nothing was compared")
    apart(f"{tape}@1", f"{tape}@{last}", "nothing in common", "only in the right tape")
    assert run("diff", tape, f"{tape}@{last}").stdout.startswith("equal")


def test_a_tape_that_begins_like_the_other_is_said_to_end_earlier(tmp_path: Path) -> None:
    short, long = (of(tmp_path, f"of{words}", "s0", "s1", words=words) for words in (4, 9))
    result = run("diff", short, long)
    assert result.exit_code == 0
    assert "2 replies end earlier in the left tape, a prefix of the other" in result.stdout
    assert "earlier in the right tape" in run("diff", long, short).stdout
    assert "earlier" not in run("diff", long, long).stdout


def test_tokens_alone_are_said_to_be_all_that_was_compared(tmp_path: Path) -> None:
    quiet = write(tmp_path / "quiet.tape", opening("paged", digests="off"), asking("s0"))
    result = run("diff", quiet, of(tmp_path, "summed", "s0"))
    assert result.exit_code == 0 and "tokens alone were compared" in result.stdout


def test_ranks_are_said_to_hold_their_own_heads(tape: Path) -> None:
    result = run("diff", f"{tape}#0", f"{tape}#1")
    assert result.exit_code == 0
    assert "marks, rows: split over ranks: each holds its own heads" in result.stdout
    assert "split over ranks" not in run("diff", f"{tape}#0", f"{tape}#0").stdout


def test_a_diff_says_why_it_did_not_compute_again(
    tape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "not computed again, as asked" in run("diff", tape, "--no-deep").stdout
    monkeypatch.setattr(command, "SHORT_SEQS", 9)
    assert "it has over 9 events" in run("diff", tape).stdout
    assert "not computed again" not in run("diff", tape, "--deep").stdout


# --- events, runs and sides that are not there ----------------------------------------------------


def test_an_event_beyond_the_run_is_refused(tape: Path, last: int) -> None:
    says = f"the run has events 1 to {last}"
    refused(run("diff", f"{tape}@{last + 1}", tape), 2, f"run.tape@{last + 1}", says)
    refused(run("diff", tape, f"{tape}@99999"), 2, "run.tape@99999", says)
    refused(run("replay", tape, "--to", "99999"), 2, "--to 99999", says)
    assert run("replay", tape, "--to", str(last)).exit_code == 0
    said = json.loads(run("replay", tape, "--to", "99999", "--json").stdout)
    assert said["verdict"] == "error" and says in said["why"]


@pytest.mark.parametrize("side", ["#1", "@5"])
def test_a_side_without_a_tape_is_told(side: str) -> None:
    refused(run("diff", side), 2, f"no tape before {side[0]}")


def test_which_of_several_runs_is_read_is_said(tmp_path: Path, tape: Path) -> None:
    path = of(tmp_path, "run", "s0")
    write(path, opening("paged"), asking("s1"), append=True)
    result = run("replay", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "run 2 of 2; --run 1 for the other"
    assert "run 1 of 2; --run 2 for the other" in run("replay", path, "--run", "1").stdout
    for way in ((), ("--fast-forward",)):
        result = run("replay", path, "--session", "s0", *way)
        refused(result, 2, "holds no such session", "run 2 of 2; --run 1 for the other")
    assert json.loads(run("replay", path, "--json").stdout)["verdict"] == "equal"
    write(path, opening("paged"), asking("s2"), append=True)
    assert "run 3 of 3; --run 1, 2 for the others" in run("replay", path, "--book").stdout
    assert "--run" not in run("replay", tape).stdout


def test_an_empty_run_has_no_replies_to_go_forward_through(empty: Path) -> None:
    refused(run("replay", empty, "--fast-forward"), 2, "empty.tape holds no replies")


def test_a_state_at_an_event_is_a_table(tape: Path) -> None:
    shown = run("replay", tape, "--to", "40").stdout
    assert "at event 40" in shown and "free pages" in shown
    heads = next(line for line in shown.splitlines() if "session" in line and "lane" in line)
    assert heads.index("session") < heads.index("rows")
    assert "sums of stream 0: " in shown
    assert "{" not in shown and "'" not in shown, "values, not the names of Python"


# --- tapes as lines -------------------------------------------------------------------------------


def test_an_import_says_what_it_wrote_and_never_to_append(tape: Path, tmp_path: Path) -> None:
    lines, path = tmp_path / "run.jsonl", tmp_path / "again.tape"
    lines.write_text(run("trace", "export", tape).stdout)
    result = run("trace", "import", lines, path)
    assert result.exit_code == 0
    rows = sum('"seq":' in line[:7] for line in lines.read_text().splitlines())
    assert result.stdout == f"wrote {path}: {rows} events\n"
    result = run("trace", "import", lines, path)
    refused(result, 2, "again.tape exists: choose another name")
    assert "--append" not in result.stderr
    with Tape.open(path) as tape_again:
        assert tape_again.last_seq == rows - 1


def test_lines_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    path = tmp_path / "again.tape"
    refused(run("trace", "import", tmp_path / "nope.jsonl", path), 2, "nope.jsonl does not exist")
    refused(run("trace", "import", tmp_path, path), 2, "is a directory")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    refused(run("trace", "import", tmp_path / "bytes.jsonl", path), 2, "bytes.jsonl is not text")
    assert not path.exists()


def test_a_directory_is_no_tape(tmp_path: Path) -> None:
    refused(run("replay", tmp_path), 2, "is a directory")
    refused(run("audit", tmp_path), 2, "is a directory")
    for more in ((), ("--append",)):
        result = run("serve", "fake", "--port", "0", "--trace", tmp_path, *more)
        refused(result, 2, "is a directory")


# --- small things ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [("replay", "no.tape"), ("diff", "no.tape"), ("audit", "no.tape")]
)
def test_every_command_begins_its_errors_alike(arguments: tuple[str, ...]) -> None:
    refused(run(*arguments), 2, "no.tape does not exist")


def test_a_choice_has_no_empty_names(tape: Path) -> None:
    result = run("replay", tape, "--poison", "q")
    assert result.exit_code == 2
    assert "'q': off, a, b" in result.stderr


@pytest.mark.parametrize("command", ["serve", "replay", "diff"])
def test_threads_that_no_machine_has_are_refused(tape: Path, command: str) -> None:
    for threads in ("1025", "99999999"):
        result = run(command, tape, "--threads", threads)
        assert result.exit_code == 2
        assert "'--threads'" in result.stderr and "1024" in result.stderr


@pytest.mark.parametrize(
    "command", [("replay",), ("audit",), ("why-miss",), ("trace", "export")], ids=" ".join
)
def test_an_empty_name_is_no_folder(command: tuple[str, ...]) -> None:
    result = run(*command, "")
    assert result.exit_code == 2
    assert "the name is empty" in result.stderr and "directory" not in result.stderr


def test_one_is_not_many(empty: Path) -> None:
    assert "1 step," in run("replay", empty).stdout
    assert "1 fact in 1 step\n" in run("replay", empty, "--book").stdout


def test_the_version_is_told() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"kvtape {__version__}\n")


def test_help_says_what_options_and_models_mean() -> None:
    told = " ".join(run("serve", "--help").stdout.replace("│", " ").split())
    assert "smollm2, glm-tales, a .gguf file" in told
    assert "fake-pages" in told and "listen" in told and "any free one" in told
    assert told.count("0: automatic") == 2
    assert "which run" in run("trace", "export", "--help").stdout


def test_asked_for_faults_a_doctor_tells_nothing_else() -> None:
    shown = run("doctor", "--faults").stdout
    assert "while serving" in shown and "how to get it" not in shown
    said = json.loads(run("doctor", "--faults", "--json").stdout)
    assert list(said) == ["faults"] and len(said["faults"]) == len(FAULTS)
