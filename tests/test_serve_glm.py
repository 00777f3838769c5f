"""A served GLM, end to end: drafts on two ranks, told to clients, on a tape that replays."""

import json
import random
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.devices.weights import find
from kvtape.devices.weights.checkpoint import ModelNotFound
from kvtape.events.facts import RequestArrived
from kvtape.events.reader import Tape

from .door_engine import eventually
from .server import Seen, Server, serving, stream, wish

TINY = str(Path(__file__).with_name("data") / "glm_tiny")
FLAGS = ("--tp", "2", "--mtp-drafts", "2", "--context", "2048", "--parallel", "4")
NAME = "glm_tiny"
VOCAB = 512
PROMPT = [(at * at * 7 + 3 * at) % 500 for at in range(700)]


def found(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """The exit code and JSON of a reading command, in this process."""
    told = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    return told.exit_code, json.loads(told.stdout)


def ask(server: Server, body: dict[str, Any], session: str, replies: dict[str, Any]) -> None:
    headers = {"x-kvtape-session": session}
    url = f"{server.url}/v1/completions"
    reply = httpx.post(url, json=body, headers=headers, timeout=120)
    assert reply.status_code == 200, reply.text
    replies[session] = reply.json()


def bodies() -> dict[str, dict[str, Any]]:
    """By session: one that comes back over a page, some short ones, one that wants no drafts."""
    return {
        "long": wish(NAME, PROMPT[:600], 12),
        "short": wish(NAME, PROMPT[7:40], 20),
        "warm": wish(NAME, PROMPT[3:50], 16, temperature=1, seed=7),
        "plain": wish(NAME, PROMPT[7:40], 20, draft=False),
    }


def test_drafts_are_served_told_and_replayed(tmp_path: Path) -> None:
    replies: dict[str, Any] = {}
    with serving(tmp_path, *FLAGS, model=TINY) as server:
        threads = [
            threading.Thread(target=ask, args=(server, body, session, replies))
            for session, body in bodies().items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        ask(server, wish(NAME, PROMPT[:680], 5), "again", replies)
        meters = server.metrics()
        assert server.stop() == 0
    assert_told(replies, meters, server.said())
    assert_replayed(server.tape)


def assert_told(replies: dict[str, Any], meters: dict[str, float], log: str) -> None:
    """Usage, metrics and log tell the same drafts; an undrafted reply is the drafted one."""
    ids = {session: reply["choices"][0]["token_ids"] for session, reply in replies.items()}
    assert ids["short"] == ids["plain"]
    assert replies["again"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 512
    assert "completion_tokens_details" not in replies["plain"]["usage"]
    details = [
        reply["usage"]["completion_tokens_details"]
        for session, reply in replies.items()
        if session != "plain"
    ]
    kept = sum(one["accepted_prediction_tokens"] for one in details)
    refused = sum(one["rejected_prediction_tokens"] for one in details)
    assert kept + refused > 50
    assert meters["kvtape_drafted_tokens_total"] == kept + refused
    assert meters["kvtape_accepted_draft_tokens_total"] == kept
    said = [re.search(r" drafted=(\d+) kept=(\d+)", line) for line in log.splitlines()]
    pairs = [(int(one[1]), int(one[2])) for one in said if one]
    assert len(pairs) == len(details)
    assert (sum(a for a, _ in pairs), sum(b for _, b in pairs)) == (kept + refused, kept)


def assert_replayed(tape: Path) -> None:
    code, whole = found("replay", tape, "--model", TINY)
    assert (code, whole["verdict"]) == (0, "equal"), whole
    assert whole["drafted"] > whole["accepted"] >= 0
    assert whole["compared"]["drafts"] > 0 and whole["not_comparable"] == []
    for more in (
        ("--session", "again"),
        ("--fast-forward", "--tp", "1"),
        ("--book",),
        ("--tp", "3"),
    ):
        code, part = found("replay", tape, *more)
        assert (code, part["verdict"]) == (0, "equal"), (more, part)
    again = [tape.with_name(f"{world}.tape") for world in (1, 3)]
    for world, path in zip((1, 3), again, strict=True):
        assert found("replay", tape, "--tp", str(world), "--record", path)[0] == 0
    for sides in ((f"{tape}#0", f"{tape}#1"), again, (tape, again[1])):
        code, diffed = found("diff", *sides)
        assert (code, diffed["verdict"]) == (0, "equal"), diffed
        assert diffed["compared"]["drafts"] > 0
    code, audited = found("audit", tape)
    assert (code, audited["findings"]) == (0, [])


def test_a_served_state_whose_bit_flips_stops_the_run_and_is_named(tmp_path: Path) -> None:
    fault = "flip:rank=1,part=states,layer=1,cache=state,head=3,column=77,bit=13"
    seen = Seen()
    flags = (*FLAGS, "--digests", "full", "--inject", fault)
    with serving(tmp_path, *flags, model=TINY) as server:
        stream(server, wish(NAME, PROMPT[:40], 60, stream=True), seen, "flipped")
        assert server.wait() == 1
    assert seen.error is not None and not seen.whole
    code, diffed = found("diff", server.tape)
    assert code == 1
    first = diffed["first"]
    assert (first["part"], first["layer"], first["cache"], first["head"]) == (
        "states",
        1,
        "state",
        3,
    )
    assert (first["column"], first["bit"], first["rank"]) == (77, 13, 1)


def test_a_killed_server_leaves_a_sound_tape(tmp_path: Path) -> None:
    rng = random.Random(4)
    seen = [Seen() for _ in range(3)]
    with serving(tmp_path, *FLAGS, model=TINY) as server:
        threads = []
        for one in seen:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(5, 90))]
            body = wish(NAME, prompt, 400, stream=True)
            threads.append(threading.Thread(target=read, args=(server, body, one)))
        for thread in threads:
            thread.start()
        eventually(lambda: all(len(one.ids) > 20 for one in seen))
        server.kill()
        for thread in threads:
            thread.join(60)
    code, audited = found("audit", server.tape)
    assert (code, audited["findings"]) == (0, [])
    code, replayed = found("replay", server.tape)
    assert (code, replayed["verdict"]) == (0, "equal"), replayed
    with Tape.open(server.tape) as tape:
        asked = [fact for _, fact in tape.facts() if isinstance(fact, RequestArrived)]
    assert len(asked) == len(seen)


def read(server: Server, body: dict[str, Any], seen: Seen) -> None:
    """A client whose server goes away."""
    try:
        stream(server, body, seen)
    except httpx.TransportError:
        return


@pytest.mark.parametrize("lacking", find.OWN_FILES)
def test_a_model_that_should_have_come_along_is_named_with_what_it_lacks(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in find.OWN_FILES:
        if file != lacking:
            (tmp_path / file).touch()
    monkeypatch.setitem(find.OWN, "glm-tales", tmp_path)
    with pytest.raises(ModelNotFound, match=f"glm-tales: .* without its {lacking}"):
        find.find_model("glm-tales")
