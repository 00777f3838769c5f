"""The tape: what is appended comes back, whatever ends the writer; and a closed file is sealed."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.canon import encode
from kvtape.events.errors import TapeError
from kvtape.events.facts import RunClosed
from kvtape.events.files import SEAL_BYTES
from kvtape.events.reader import DigestRow, Tape, TimesRow
from kvtape.events.seal import Seal, read_seal
from kvtape.events.tape import TIMES_NS, TIMES_TOGETHER, TapeWriter, Times
from kvtape.events.verify import verify

from .tape_records import COMMANDS, LATER_FACTS, OPENED, a_run, a_sum

STEPS = st.lists(
    st.tuples(
        st.lists(COMMANDS, min_size=1, max_size=2),
        st.lists(LATER_FACTS, min_size=1, max_size=3),
    ),
    max_size=4,
)


def write_run(path: Path, rounds: int = 3) -> None:
    """A short closed tape with hints and times."""
    with TapeWriter.create(path, OPENED, {"weights": "here.gguf"}) as writer:
        for step, commands, facts in a_run(rounds):
            writer.append(step, commands, facts, Times(100 + step, 10 * step, step))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, closed=st.booleans())
def test_what_is_appended_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[list[c.AnyCommand], list[f.AnyFact]]],
    closed: bool,
) -> None:
    path = tmp_path_factory.mktemp("tape") / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    seq = 1
    for step, (commands, facts) in enumerate(steps):
        rows = writer.append(step, commands, facts)
        assert rows == range(seq, seq + len(commands) + len(facts))
        seq = rows.stop
    if closed:
        writer.close("done")
    else:
        writer.abandon()
    with Tape.open(path) as tape:
        assert tape.opened == OPENED
        assert tape.closed == (RunClosed(reason="done", steps=len(steps)) if closed else None)
        found = list(tape.steps(last=seq - 1))
        assert [step.step for step in found] == list(range(len(steps)))
        assert [list(step.facts) for step in found] == [facts for _, facts in steps]
        for turn, (commands, _) in zip(found, steps, strict=True):
            assert [*map(encode, turn.commands)] == [*map(encode, commands)]
            for at, record in zip(
                (*turn.command_seqs, *turn.fact_seqs), (*turn.commands, *turn.facts), strict=True
            ):
                assert tape.at(at).record == record


def test_a_run_reads_as_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with Tape.open(path) as tape:
        *steps, last = tape.steps()
        turns = a_run()
        assert [step.filled() for step in steps] == [tuple(turn[1]) for turn in turns]
        assert [list(step.facts) for step in steps] == [turn[2] for turn in turns]
        assert last.facts == (RunClosed(reason="closed", steps=len(turns)),)
        assert tape.hints == {"weights": "here.gguf"}
        alice, bob = tape.sessions()
        assert (alice.session, alice.requests, alice.streams) == ("alice", ("r0",), (0,))
        assert (bob.session, bob.requests, bob.streams) == ("bob", ("r1",), (1,))
        assert tape.at(alice.first).session == "alice"
        released = [e for e in tape.entries() if e.record.kind == "stream_released"]
        assert [(e.stream, e.session) for e in released] == [(0, "alice"), (1, "bob")]
        assert [fact.kind for _, fact in tape.facts(3, 4)] == ["request_arrived", "stream_queued"]


def test_the_index_of_sums_and_the_clocks_answer_without_the_records(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with Tape.open(path) as tape:
        closed = [fact for _, fact in tape.facts() if fact.kind == "step_closed"]
        expected = [
            (fact.step, stream, part, values[at])
            for fact in closed
            for part, values in fact.digests.parts.items()
            for at, stream in enumerate(fact.digests.streams)
        ] + [(fact.step, None, "book", fact.book) for fact in closed]
        rows = list(tape.digests())
        assert sorted(map(str, expected)) == sorted(str(row[1:]) for row in map(tuple, rows))
        assert all(tape.at(row.seq).record in closed for row in rows)
        assert DigestRow(rows[0].seq, 0, None, "book", a_sum(0)) in rows
        first = next(iter(tape.steps())).first
        assert next(tape.times()) == TimesRow(first, 0, 100, 0, 0)
        assert sum(1 for _ in tape.times()) == len(a_run())


@pytest.mark.parametrize("gap_ns", [1, TIMES_NS])
@pytest.mark.parametrize("closed", [True, False])
def test_clocks_wait_for_others_but_not_for_long(tmp_path: Path, gap_ns: int, closed: bool) -> None:
    path = tmp_path / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    appended: list[int] = []
    for step in range(TIMES_TOGETHER + 5):
        rows = writer.append(step, [c.Flush()], [], Times(7 + step, gap_ns * step, 0))
        appended.append(rows.start)
        with Tape.open(path) as tape:
            assert tape.at(rows.start).record == c.Flush()
            written = [row.seq for row in tape.times()]
        assert written == appended[: len(written)]
        waiting = len(appended) - len(written)
        assert waiting <= (1 if gap_ns == TIMES_NS else TIMES_TOGETHER - 1)
    if closed:
        writer.close()
    else:
        writer.abandon()
    with Tape.open(path) as tape:
        assert [row.seq for row in tape.times()] == appended


def test_a_tape_is_its_owners_alone_from_the_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    before = os.umask(0)
    try:
        writer = TapeWriter.create(path, OPENED)
        writer.append(*a_run()[0])
        files = list(tmp_path.iterdir())
        assert {file.name for file in files} == {"run.tape", "run.tape-wal", "run.tape-shm"}
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        writer.close()
    finally:
        os.umask(before)
    assert [file.name for file in tmp_path.iterdir()] == ["run.tape"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    before = path.read_bytes()
    with pytest.raises(TapeError, match=r"run\.tape exists"):
        TapeWriter.create(path, OPENED)
    path.with_name("other.tape-wal").write_bytes(b"left")
    with pytest.raises(TapeError, match=r"other\.tape-wal is left of another tape"):
        TapeWriter.create(tmp_path / "other.tape", OPENED)
    assert path.read_bytes() == before


def test_a_run_is_added_and_each_run_reads_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    with Tape.open(path) as tape:
        first = list(tape.entries())
    with TapeWriter.create(path, OPENED, append=True) as writer:
        assert writer.run == 2
        writer.append(*a_run(1)[0])
        assert read_seal(path) == Seal.NONE
    assert read_seal(path) == Seal.WHOLE
    assert verify(path) == []
    with Tape.open(path, run=1) as tape:
        assert list(tape.entries()) == first
    with Tape.open(path) as tape:
        assert (tape.run, tape.runs) == (2, (1, 2))
        assert tape.at(0).record == OPENED
    with pytest.raises(TapeError, match="holds no run 3, but 1, 2"):
        Tape.open(path, run=3)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_changed_byte_of_a_closed_tape_is_seen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("seal")
    path = folder / "run.tape"
    write_run(path, rounds=1)
    whole = bytearray(path.read_bytes())
    edge = st.sampled_from([0, 18, 28, 60, len(whole) - 1, len(whole) - SEAL_BYTES])
    at = data.draw(st.one_of(edge, st.integers(0, len(whole) - 1)))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    assert "seal" in found_in(path)
    if at < len(whole) - SEAL_BYTES:
        with pytest.raises(TapeError):
            TapeWriter.create(path, OPENED, append=True)


def found_in(path: Path) -> list[str]:
    """The kinds of what is wrong with a tape; where it cannot even be read, that is one, too."""
    try:
        return [finding.kind for finding in verify(path)]
    except TapeError as error:
        if str(path) not in str(error):
            raise
        return ["seal"]


def test_a_sealed_tape_opens_in_plain_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    write_run(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    asked = "SELECT value FROM digests WHERE step = 1 AND stream = 1 AND part = 'rows'"
    assert connection.execute(asked).fetchall() == [(a_sum(1011),)]
    connection.close()
    assert read_seal(path) == Seal.WHOLE


@pytest.mark.parametrize("closed", [True, False])
def test_reading_changes_nothing(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    for turn in a_run():
        writer.append(*turn)
    if closed:
        writer.close()
    kept = [path] if closed else [path, path.with_name("run.tape-wal")]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept]
    with Tape.open(path) as tape:
        assert sum(1 for _ in tape.steps()) == len(a_run()) + closed
        assert tape.seal == (Seal.WHOLE if closed else Seal.NONE)
    verify(path)
    assert [(file.read_bytes(), file.stat().st_mtime_ns) for file in kept] == before
    writer.abandon()


def test_a_tape_reads_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    with Tape.open(path) as tape:
        for count, turn in enumerate(a_run(), 1):
            writer.append(*turn)
            assert sum(1 for _ in tape.steps()) == count
            assert tape.closed is None
    writer.close()


def test_a_tape_that_is_being_read_closes_whole_but_unsealed(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    writer.append(*a_run()[0])
    with Tape.open(path) as tape:
        with pytest.raises(TapeError, match=r"run\.tape is held by another"):
            writer.close("done")
        assert tape.closed == RunClosed(reason="done", steps=1)
    assert [finding.kind for finding in verify(path)] == ["seal"]
    with TapeWriter.create(path, OPENED, append=True):
        pass
    assert verify(path) == []


def test_a_full_disk_is_told_and_ends_the_tape_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    writer = TapeWriter.create(path, OPENED)
    turns = a_run(400)
    pages = writer._driver.execute("PRAGMA page_count").fetchone()[0]
    writer._driver.execute(f"PRAGMA max_page_count={pages + 8}")
    written = 0

    def write_all() -> None:
        nonlocal written
        for turn in turns:
            writer.append(*turn)
            written += 1

    with pytest.raises(TapeError, match=r"run\.tape cannot grow"):
        write_all()
    assert 0 < written < len(turns)
    with pytest.raises(TapeError, match="no longer written"):
        writer.append(*turns[-1])
    assert verify(path) == []
    with Tape.open(path) as tape:
        assert [list(step.facts) for step in tape.steps()] == [turn[2] for turn in turns[:written]]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "missing" / "run.tape", tmp_path / "file" / "run.tape"):
        with pytest.raises(TapeError, match=r"run\.tape cannot be written"):
            TapeWriter.create(path, OPENED)


def test_a_run_that_ends_in_its_facts_is_not_ended_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    with TapeWriter.create(path, OPENED) as writer:
        writer.append(4, (), [RunClosed(reason="ranks_parted", steps=4)])
    with Tape.open(path) as tape:
        assert tape.closed == RunClosed(reason="ranks_parted", steps=4)
        assert tape.last_seq == 1


WRITER = """
import sys
from kvtape.events.tape import TapeWriter
from kvtape.tests.tape_records import OPENED, a_run
writer = TapeWriter.create(sys.argv[1], OPENED)
for turn in a_run(2000):
    writer.append(*turn)
    print(turn[0], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("lines", [1, 2, 30, 171])
def test_a_killed_writer_leaves_every_step_that_anyone_saw(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "run.tape"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seen = -1
    for _ in range(lines):
        seen = int(process.stdout.readline())
    process.kill()
    seen = max([seen, *(int(line) for line in process.stdout.read().splitlines() if line)])
    process.stdout.close()
    process.stdin.close()
    process.wait()
    assert verify(path) == []
    with Tape.open(path) as tape:
        steps = list(tape.steps())
        assert tape.closed is None
        assert tape.seal == Seal.NONE
    assert steps[-1].step >= seen
    for turn, (number, commands, facts) in zip(steps, a_run(len(steps) + 1), strict=False):
        assert (turn.step, turn.filled(), turn.facts) == (number, tuple(commands), tuple(facts))
    with TapeWriter.create(path, OPENED, append=True) as writer:
        assert writer.run == 2
    assert verify(path) == []
