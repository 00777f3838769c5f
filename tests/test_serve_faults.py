"""Faults in a live server: flipped bits, signals and full disks end it with the reason, or not."""

import json
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from kvtape.__main__ import app
from kvtape.core.families.fake import Oracle
from kvtape.events.facts import AnyFact
from kvtape.events.reader import Tape
from kvtape.events.seal import Seal, read_seal
from kvtape.events.verify import verify
from kvtape.replay.fakes import FAKES
from kvtape.tests.door_engine import eventually
from kvtape.tests.server import Seen, Server, serving, stream, wish
from kvtape.tests.test_serve_crash import assert_kept, assert_sound, kept_by_request

PROMPT = list(range(40, 52))
LAST = len(PROMPT) - 1  # the row that the first round reads
REPLY = 200


def tool(*arguments: str | Path) -> Result:
    """A reading command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


def found(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Its exit code and JSON."""
    result = tool(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def facts_of(path: Path, kind: str) -> list[Any]:
    """The facts of one kind on a tape."""
    with Tape.open(path) as tape:
        facts: list[AnyFact] = [fact for _, fact in tape.facts() if fact.kind == kind]
    return facts


def oracle(model: str, prompt: list[int], new_tokens: int) -> list[int]:
    """The reply that a sound server gives."""
    one = Oracle(FAKES[model]())
    one.extend(prompt)
    return one.reply(new_tokens)


# --- flipped bits ---------------------------------------------------------------------------------


def stopped_by(folder: Path, model: str, fault: str, *flags: str) -> tuple[Server, Seen]:
    """A server whose run stops itself while it serves a client; what that client saw."""
    seen = Seen()
    with serving(folder, "--tp", "2", "--inject", fault, *flags, model=model) as server:
        stream(server, wish(model, PROMPT, REPLY, stream=True), seen, "flipped")
        assert server.wait() == 1
    assert seen.error is not None and not seen.whole
    return server, seen


def test_a_flip_in_a_replicated_part_stops_the_run_with_both_sides_bytes(tmp_path: Path) -> None:
    fault = f"flip:rank=1,part=rows,layer=1,position={LAST},head=0,column=2,bit=5"
    server, seen = stopped_by(tmp_path, "fake", fault)
    (parted,) = facts_of(server.tape, "ranks_parted")
    (flipped,) = facts_of(server.tape, "fault_injected")
    assert (parted.layer, parted.position) == (flipped.layer, flipped.position) == (1, LAST)
    assert parted.ranks == (0, 1) and len(set(parted.values)) == 2
    with Tape.open(server.tape) as tape:
        left, right = (int.from_bytes(tape.blob(name), "little") for name in parted.blobs)
        assert tape.closed is not None and tape.closed.reason == "ranks_parted"
    assert left ^ right == 1 << (2 * 16 + 5), "both sides' rows, one bit apart"
    assert "ranks_parted" in server.said() and "Traceback" not in server.said()
    assert seen.ids == oracle("fake", PROMPT, REPLY)[: len(seen.ids)], "nothing wrong was shown"
    assert read_seal(server.tape) is Seal.WHOLE and verify(server.tape) == []
    code, told = found("diff", server.tape)
    assert code == 1
    place = {name: told["first"][name] for name in ("rank", "layer", "position", "column", "bit")}
    assert place == {"rank": 1, "layer": 1, "position": LAST, "column": 2, "bit": 5}


@pytest.mark.parametrize(
    ("model", "part", "position"),
    [("fake", "states", "*"), ("fake-pages", "rows", str(LAST))],  # a state has one row
)
def test_a_flip_in_a_split_part_breaks_its_sums_at_the_next_step(
    tmp_path: Path, model: str, part: str, position: str
) -> None:
    fault = f"flip:rank=1,step=9,part={part},layer=0,position={position},column=3,bit=7"
    server, seen = stopped_by(tmp_path, model, fault, "--digests", "full")
    (broken,) = facts_of(server.tape, "sums_broken")
    (flipped,) = facts_of(server.tape, "fault_injected")
    assert (broken.rank, broken.part, broken.stream) == (1, part, flipped.stream)
    assert broken.kept != broken.found
    with Tape.open(server.tape) as tape:
        steps = {entry.record.kind: entry.step for entry in tape.entries()}
        assert tape.closed is not None and tape.closed.reason == "sums_broken"
    assert steps["fault_injected"] == broken.step == steps["sums_broken"] - 1
    assert "sums_broken" in server.said()
    assert seen.ids == oracle(model, PROMPT, REPLY)[: len(seen.ids)], "nothing wrong was shown"
    code, told = found("diff", server.tape)
    first = told["first"]
    assert code == 1
    assert (first["rank"], first["head"]) == (1, flipped.head)
    assert (first["layer"], first["column"], first["bit"]) == (0, 3, 7)


def test_a_flip_that_nobody_sees_live_is_found_by_replay_and_diff(tmp_path: Path) -> None:
    fault = f"flip:rank=1,part=rows,layer=1,position={LAST},column=0,bit=3"
    with serving(tmp_path, "--tp", "2", "--inject", fault, model="fake-pages") as server:
        reply = server.ask(PROMPT, 30, "flipped")
        assert server.stop() == 0
    assert reply != oracle("fake-pages", PROMPT, 30), "the flip changes what is said"
    assert verify(server.tape) == []
    code, told = found("replay", server.tape)
    assert (code, told["verdict"]) == (1, "unrepeatable")
    code, told = found("replay", server.tape, "--with-faults")
    assert (code, told["verdict"]) == (0, "equal")
    code, told = found("diff", server.tape)
    assert code == 1
    with Tape.open(server.tape) as tape:
        (step,) = (one.step for one in tape.entries() if one.record.kind == "fault_injected")
    first = told["first"]
    assert (first["step"], first["session"], first["part"]) == (step, "flipped", "tokens")


def test_a_fault_without_a_place_is_said_and_harms_nobody(tmp_path: Path) -> None:
    fault = "flip:rank=1,part=rows,column=999"
    with serving(tmp_path, "--tp", "2", "--inject", fault) as server:
        assert server.ask(PROMPT, 30) == oracle("fake", PROMPT, 30)
        assert "column=999" in server.said()
        assert server.stop() == 0
    assert facts_of(server.tape, "fault_injected") == []


# --- signals --------------------------------------------------------------------------------------


@contextmanager
def inherited_as_ignored() -> Iterator[None]:
    """As a shell starts what it puts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_streams_and_seals_the_tape(tmp_path: Path, number: int) -> None:
    with inherited_as_ignored(), serving(tmp_path, "--tp", "2", "--context", "100000") as server:
        seen = [Seen() for _ in range(4)]
        clients = [
            threading.Thread(
                target=stream, args=(server, wish("fake", [at], 90_000, stream=True), one)
            )
            for at, one in enumerate(seen)
        ]
        for client in clients:
            client.start()
        eventually(lambda: all(one.ids for one in seen))
        assert server.stop(number) == 0
        for client in clients:
            client.join(30)
            assert not client.is_alive()
    for one in seen:
        assert one.whole or (one.error is not None and one.error["type"] == "server_error")
    assert any(not one.whole for one in seen), "some were cut off"
    assert read_seal(server.tape) is Seal.WHOLE
    assert "Traceback" not in server.said()
    with Tape.open(server.tape) as tape:
        assert tape.closed is not None and tape.closed.reason == "closed"
        kept, ended = kept_by_request(tape)
    for one in seen:
        assert one.ids == kept[one.request][: len(one.ids)]
        assert ended[one.request].reason in ("cancelled", "length")
    assert verify(server.tape) == []
    assert tool("replay", server.tape, "--book").exit_code == 0


# --- a disk that is full --------------------------------------------------------------------------

TAPE_BYTES_MAX = 2_000_000


def ask_until(server: Server, over: threading.Event) -> list[Seen]:
    """One reply after another until the server is gone or the event is set; what was seen."""
    replies: list[Seen] = []
    while not over.is_set() and len(replies) < 500:
        replies.append(Seen())
        try:
            stream(server, wish("fake", [1, len(replies) % 256], 40, stream=True), replies[-1])
        except httpx.TransportError:
            break
        if replies[-1].error is not None:
            break
    return replies


def test_a_full_disk_stops_the_run_and_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, "--tp", "2") as server:
        limit = (TAPE_BYTES_MAX, TAPE_BYTES_MAX)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
        replies = ask_until(server, threading.Event())
        assert server.wait() == 1
    assert len(replies) > 2 and not replies[-1].whole
    said = server.said()
    assert "run.tape is torn, or its disk fails" in said and "Traceback" not in said
    assert_kept(server.tape, replies)
    assert_sound(server.tape)


def test_a_full_disk_need_not_stop_the_run(tmp_path: Path) -> None:
    with serving(tmp_path, "--tp", "2", "--trace-on-error", "serve") as server:
        limit = (TAPE_BYTES_MAX, TAPE_BYTES_MAX)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
        lost = threading.Event()
        asking = threading.Thread(target=ask_until, args=(server, lost))
        asking.start()
        eventually(lambda: "without a tape" in server.said(), 60)
        lost.set()
        asking.join(60)
        assert server.ask(PROMPT, 30) == oracle("fake", PROMPT, 30)
        assert server.stop() == 0
    assert "its disk fails" in server.said() and "Traceback" not in server.said()
    assert_sound(server.tape)
