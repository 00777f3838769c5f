"""kvtape why-miss on tapes: what people and scripts read, exit codes, and what is never told."""

import json
from pathlib import Path

import pytest

from kvtape.core.families.fake import fake_rules, paged_rules
from kvtape.core.state import FLAT, RADIX
from kvtape.core.store_flat import state_bytes
from kvtape.events import facts as f
from kvtape.events.commands import Close
from kvtape.events.tape import TapeWriter
from kvtape.replay.why_miss_command import WhyMissOptions, run_why_miss

from .rig import Rig, arrive
from .server import tool
from .test_stores import ask, opened_in

WORDS = [40_000 + 5 * at % 63 for at in range(40)]  # ids that are found where they are printed
LARGE_VOCAB = 50_000


def written(path: Path, rig: Rig) -> Path:
    """What a machine did, as a tape."""
    rig.step(Close(reason="closed"))
    with TapeWriter.create(path, rig.opened) as writer:
        for at, (commands, facts) in enumerate(zip(rig.commands, rig.steps, strict=True), 1):
            writer.append(at, commands, facts)
    return path


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat, the same edited, another that pushes both out, the first again, and a short one."""
    rules = fake_rules(vocab=LARGE_VOCAB)
    rig = Rig(opened_in(RADIX, rules=rules, states=2))
    ask(rig, "first", WORDS)
    ask(rig, "edited", [*WORDS[:21], 49_999, *WORDS[22:]])
    rig.step(arrive("other", [41_000] * 40, 4, session="theirs", history_tokens=38))
    rig.settle()
    ask(rig, "again", WORDS)
    ask(rig, "resumed", WORDS)
    ask(rig, "short", WORDS[:16])
    return written(tmp_path_factory.mktemp("tapes") / "run.tape", rig)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is lost."""
    rig = Rig(opened_in(FLAT, rules=fake_rules()))
    for name in ("first", "again"):
        ask(rig, name, [at % 64 for at in range(40)])
    return written(tmp_path_factory.mktemp("tapes") / "warm.tape", rig)


def told(path: Path, capsys: pytest.CaptureFixture[str], **options: object) -> tuple[int, str]:
    """What the command says: its code and its lines."""
    code = run_why_miss(path, WhyMissOptions(**options))  # type: ignore[arg-type]
    said = capsys.readouterr()
    return code, said.out + said.err


GOLDEN = """\
first: 40 tokens, 0 cached of 32: no state: nothing like it is kept
edited: 40 tokens, 0 cached of 32: edited at token 21: first left a state with its mark at 32
other: 40 tokens, 0 cached of 32: no state: nothing like it is kept
again: 40 tokens, 0 cached of 32: evicted: mark 32 was evicted for other at event 82
resumed: 40 tokens, 32 cached of 32: resumed at its last mark
short: 16 tokens, 0 cached of 0: too short to be kept
6 prompts: 2 no state, 1 edited, 1 evicted, 1 resumed at the last mark, 1 too short
"""


def test_people_read_a_line_for_each_prompt(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(tape, capsys) == (1, GOLDEN)


def test_one_request_or_one_session(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tape, capsys, request="resumed")
    assert (code, said.splitlines()[0]) == (0, GOLDEN.splitlines()[4])
    code, said = told(tape, capsys, session="theirs")
    assert (code, said.splitlines()[0]) == (0, GOLDEN.splitlines()[2])


def test_scripts_read_json(tape: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(tape, capsys, as_json=True)
    found = json.loads(said)
    assert (code, found["verdict"]) == (1, "missed")
    assert found["reasons"] == {"no_state": 2, "edited": 1, "evicted": 1, "too_short": 1}
    assert (found["prompt_tokens"], found["cached_tokens"]) == (216, 32)
    by_name = {one["request"]: one for one in found["requests"]}
    edited, again = by_name["edited"], by_name["again"]
    assert edited["nearest"] == {"differs_at": 21, "mark": 32, "state": 0, "request": "first"}
    assert edited["lost"] is None
    assert again["lost"] == {"mark": 32, "why": "evicted", "request": "other", "seq": 82}
    assert (again["again"], by_name["first"]["again"]) == (True, False)
    assert by_name["resumed"]["reason"] is None


def test_ids_are_told_only_where_they_are_asked_for(
    tape: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for as_json in (False, True):
        _, said = told(tape, capsys, as_json=as_json)
        assert not any(str(token) in said for token in {*WORDS, 49_999, 41_000})
    _, said = told(tape, capsys, tokens=True)
    assert f"(token {WORDS[21]} there, 49999 here)" in said
    _, said = told(tape, capsys, tokens=True, as_json=True)
    assert json.loads(said)["requests"][1]["nearest"]["tokens"] == [WORDS[21], 49_999]


def test_nothing_lost_ends_with_0(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(warm, capsys)
    assert (code, said.splitlines()[-1]) == (0, "2 prompts: 1 no state, 1 resumed at the last mark")
    assert told(warm, capsys, as_json=True)[1].startswith('{"verdict": "hit"')


def test_the_event_that_is_named_is_the_one_that_dropped_it(tape: Path) -> None:
    """As `trace export` numbers it."""
    lines = tool("trace", "export", tape).stdout.splitlines()
    (row,) = [json.loads(line) for line in lines if line.startswith('{"seq":82,')]
    assert (row["fact"]["kind"], row["fact"]["request"]) == ("state_dropped", "other")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request": "nobody"}, "no such session or request"),
        ({"session": "a", "request": "first"}, "one of them"),
        ({"run": 7}, "holds no run 7"),
    ],
)
def test_wrong_use(
    tape: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], words: str
) -> None:
    code, said = told(tape, capsys, **options)
    assert code == 2 and words in said


def test_what_is_no_tape_or_has_facts_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junk = tmp_path / "junk.tape"
    junk.write_text("no tape")
    assert told(junk, capsys)[0] == 2
    rig = Rig(opened_in(RADIX, rules=paged_rules()))
    ask(rig, "first", list(range(40)))
    at = next(at for at, facts in enumerate(rig.steps) if any(_kept(fact) for fact in facts))
    rig.steps[at] = tuple(fact for fact in rig.steps[at] if not _kept(fact))
    ask(rig, "again", list(range(40)))
    code, said = told(written(tmp_path / "torn.tape", rig), capsys)
    assert code == 2 and "stream_begun, does not fit the ones before it" in said


def _kept(fact: object) -> bool:
    return isinstance(fact, f.SnapshotTaken)


def test_the_command_line(tape: Path) -> None:
    done = tool("why-miss", tape)
    assert (done.returncode, done.stdout) == (1, GOLDEN)
    done = tool("why-miss", tape, "--request", "resumed", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["reasons"] == {}


def test_a_store_too_small_for_a_state_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(opened_in(FLAT, state_bytes(opened_in(FLAT), 32) - 1))
    for name in ("fresh", "again"):
        ask(rig, name, list(range(40)))
    code, said = told(written(tmp_path / "small.tape", rig), capsys)
    assert code == 1
    assert "again: 40 tokens, 0 cached of 32: refused: mark 32 of fresh was not kept" in said
