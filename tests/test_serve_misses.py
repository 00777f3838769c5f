"""A served run tells what its prompt store did: figures, log, replies and tape say the same."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtape.core.lookups import Lookup, Reason
from kvtape.events import facts as f
from kvtape.events.ids import RequestId, SessionId, StreamId
from kvtape.events.reader import Tape
from kvtape.replay.door_alarm import EVERY_SECONDS, REPEATS, StoreAlarm
from kvtape.tests.server import Server, serving, tool, wish

from .door_engine import eventually
from .test_serve_clients import ask as begin

FIRST = [at * 7 % 251 for at in range(100)]
EDITED = [*FIRST[:50], 255, *FIRST[51:]]
OTHER, THIRD = [200] * 100, [201] * 100
SHORT = FIRST[:20]


def figures(server: Server) -> dict[str, float]:
    """Every figure of /metrics, those with labels too."""
    page = httpx.get(f"{server.url}/metrics", timeout=60).text
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def ask(server: Server, prompt: Sequence[int]) -> dict[str, Any]:
    """The whole body of a reply of 5 tokens."""
    body = wish(server.model, prompt, 5, user="USER-WORD", cache_salt="SALT-WORD")
    session = f"SESSION-WORD-{len(prompt)}-{prompt[-1]}"
    reply = httpx.post(
        f"{server.url}/v1/completions", json=body, timeout=120,
        headers={"x-kvtape-session": session},
    )  # fmt: skip
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def told_by_tape(server: Server) -> list[dict[str, Any]]:
    """What why-miss says of a server's tape."""
    done = tool("why-miss", server.tape, "--json")
    assert done.returncode in (0, 1), done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["requests"]
    return found


# A hand-counted session: prompts, what each resumed, and why no more.
SESSION = [
    (FIRST, 0, "no_state"),
    (FIRST, 96, None),
    (EDITED, 32, "edited"),
    ([*FIRST, *FIRST[:30]], 96, "no_state"),
    (SHORT, 0, "too_short"),
    (OTHER, 0, "no_state"),
]


@pytest.mark.parametrize("model", ["fake", "fake-pages"])
def test_a_hand_counted_session(tmp_path: Path, model: str) -> None:
    with serving(tmp_path, "--tp", "2", model=model) as server:
        now: dict[str, float] = {}
        replies = []
        for prompt, cached, miss in SESSION:
            if model == "fake" and prompt is EDITED:
                cached = 0  # a state is resumed at its own mark only
            reply = ask(server, prompt)
            replies.append(reply)
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
            assert reply["kvtape"]["miss"] == miss
            before, now = now, figures(server)
            down = [name for name in before if name.endswith("_total") and now[name] < before[name]]
            assert not down, "a counter went down"
        assert server.stop() == 0
        said = server.said()
    hits = 3 if model == "fake-pages" else 2
    cached = 96 + 96 + (32 if model == "fake-pages" else 0)
    assert now["kvtape_prompt_store_lookups_total"] == len(SESSION)
    assert now["kvtape_prompt_store_hits_total"] == hits
    assert now["kvtape_cached_tokens_total"] == cached
    assert now["kvtape_prompt_tokens_total"] == sum(len(prompt) for prompt, _, _ in SESSION)
    misses = {
        reason: now[f'kvtape_prompt_store_misses_total{{reason="{reason}"}}'] for reason in Reason
    }
    edited = {"fake": 1, "fake-pages": 0}[model]
    assert misses == {
        "no_state": 2, "edited": edited, "evicted": 0, "too_short": 1, "refused": 0,
    }  # fmt: skip
    missed = 'kvtape_prompt_store_missed_tokens_total{reason="%s"}'
    assert now[missed % "edited"] == (64 if model == "fake-pages" else 96)
    assert now[missed % "no_state"] == 96 + 32 + 96
    _check_store(server, now, model)
    _check_log(said, replies)
    assert "WORD" not in said, "what users name is no business of the log's"
    told = told_by_tape(server)
    assert [one["reason"] for one in told] == [reply["kvtape"]["miss"] for reply in replies]
    assert [one["cached_tokens"] for one in told] == [
        reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies
    ]


def _check_store(server: Server, now: dict[str, float], model: str) -> None:
    """The figures of states and pages against the facts on the tape."""
    with Tape.open(server.tape) as tape:
        facts = [fact for _, fact in tape.facts()]
        opened = tape.opened
    kept = sum(isinstance(fact, f.SnapshotTaken) for fact in facts)
    whys = [fact.why for fact in facts if isinstance(fact, f.StateDropped)]
    assert now["kvtape_prompt_store_kept_total"] == kept
    assert now["kvtape_prompt_store_evicted_total"] == whys.count("evicted")
    assert now["kvtape_prompt_store_reclaimed_total"] == whys.count("reclaimed")
    assert now["kvtape_kept_states"] == kept - len(whys)
    assert now["kvtape_kept_states_limit"] == opened.states
    holders = {
        name.split('"')[1]: value
        for name, value in now.items()
        if name.startswith("kvtape_pages_by")
    }
    assert holders.keys() == {"free", "promised", "streams", "kept", "shared"}
    assert sum(holders.values()) == now["kvtape_pages"] == opened.pages
    assert holders["kept"] == now["kvtape_pages_held"] > 0
    assert holders["promised"] == holders["streams"] == holders["shared"] == 0, "nobody is here"


def _check_log(said: str, replies: list[dict[str, Any]]) -> None:
    """A line for each prompt and each reply, with the reply's hash."""
    prompts = re.findall(
        r"prompt cache: (\d+) tokens of (\S+), resumed at (\d+), kept (\d+); "
        r"(\d+) states and (\d+) pages \(([\d.]+) MiB\) of (\d+) states and (\d+) pages "
        r"\(hits (\d+), misses (\d+), evicted \d+, reclaimed \d+, refused \d+, failed \d+\); (.+)",
        said,
    )
    done = re.findall(r"done (\S+) prompt=(\d+) cached=(\d+) tokens=5 sha=(\w{12}) (.+)", said)
    assert len(prompts) == len(done) == len(replies)
    for reply, line, end in zip(replies, prompts, done, strict=True):
        usage, receipt = reply["usage"], reply["kvtape"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert (line[1], line[0], line[2]) == (
            receipt["request"], str(usage["prompt_tokens"]), str(cached)
        )  # fmt: skip
        ids = reply["choices"][0]["token_ids"]
        sha = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        assert end[:4] == (receipt["request"], line[0], line[2], sha[:12])
        assert receipt["token_sha"] == sha
        miss = receipt["miss"]
        assert (f"miss={miss}" in end[4]) == (miss is not None)
        assert re.search(r"\brounds=[1-5]\b", end[4])
        assert ("resumed at its last mark" in line[-1]) == (miss is None)
    assert prompts[0][3] == "96" and prompts[1][3] == "0"
    edited = next(line for line in prompts if "edited" in line[-1])
    assert edited[-1].startswith("edited at token 50: req-00000001 left a state with its mark at")


def test_the_flat_store_tells_its_bytes(tmp_path: Path) -> None:
    flags = ("--store", "flat", "--prompt-cache-gib", "0.25")
    with serving(tmp_path, *flags, model="fake") as server:
        ask(server, FIRST)
        now = figures(server)
        assert now["kvtape_prompt_store_bytes_limit"] == 2**28
        assert now["kvtape_prompt_store_bytes"] == 0, "a prompt of ids alone leaves none"
        assert now["kvtape_kept_states_limit"] == 0
        assert re.search(
            r"kept 0; 0 states, 0\.00 MiB of 256\.00 MiB \(hits 0, misses 1", server.said()
        )


def test_prompts_that_push_each_other_out_ring_the_alarm_once(tmp_path: Path) -> None:
    """Who evicted whom is on the tape and in the log."""
    with serving(
        tmp_path, "--kv-pages", "on", "--share", "1", "--parallel", "1", model="fake"
    ) as server:
        for _ in range(4):
            for prompt in (FIRST, OTHER):
                ask(server, prompt)
        now = figures(server)
        assert server.stop() == 0
        said = server.said()
    assert now['kvtape_prompt_store_misses_total{reason="evicted"}'] == 6
    assert said.count("the prompt store does not serve: 3 prompts in a row came again") == 1
    told = told_by_tape(server)
    assert [one["reason"] for one in told] == ["no_state"] * 2 + ["evicted"] * 6
    for at, one in enumerate(told[2:], 2):
        assert one["lost"]["request"] == told[at - 1]["request"], "the one between pushed it out"
        event = f"evicted for {one['lost']['request']} at event {one['lost']['seq']}"
        assert f"evicted: mark 96 was {event}" in said
    with Tape.open(server.tape) as tape:
        for one in told[2:]:
            dropped = tape.at(one["lost"]["seq"]).record
            assert isinstance(dropped, f.StateDropped)
            assert (dropped.why, dropped.request) == ("evicted", one["lost"]["request"])


def test_a_run_without_a_tape_tells_the_same(tmp_path: Path) -> None:
    """Only its events are numbered for themselves."""
    flags = ("--kv-pages", "on", "--share", "1", "--parallel", "1")
    with serving(tmp_path, *flags, model="fake", tape="") as server:
        misses = [ask(server, prompt)["kvtape"]["miss"] for prompt in (FIRST, OTHER, FIRST)]
    assert misses == ["no_state", "no_state", "evicted"]


def test_how_long_the_head_of_the_queue_has_waited(tmp_path: Path) -> None:
    with serving(tmp_path, "--parallel", "1", "--context", "100000", model="fake") as server:
        assert figures(server)["kvtape_queue_age_seconds"] == 0
        first = begin(server, streams=True, prompt=[1], max_tokens=90_000)
        eventually(lambda: figures(server)["kvtape_requests_running"] == 1)
        second = begin(server, streams=True, prompt=[2], max_tokens=5)
        eventually(lambda: figures(server)["kvtape_queue_age_seconds"] > 0.2)
        one = figures(server)
        assert one["kvtape_requests_waiting"] == 1
        assert one['kvtape_pages_by_holder{holder="promised"}'] > 0
        assert one['kvtape_pages_by_holder{holder="streams"}'] > 0
        third = begin(server, streams=True, prompt=[3], max_tokens=5)
        eventually(lambda: figures(server)["kvtape_requests_waiting"] == 2)
        second.close()  # the head leaves: the age is the next one's, which is younger
        eventually(lambda: figures(server)["kvtape_requests_waiting"] == 1)
        assert figures(server)["kvtape_queue_age_seconds"] > 0
        first.close()
        eventually(lambda: figures(server)["kvtape_queue_age_seconds"] == 0)
        third.close()


# --- the alarm ------------------------------------------------------------------------------------


def found(*, cached: int = 0, again: bool = True) -> Lookup:
    """A lookup of a prompt of 100 tokens."""
    reason = None if cached else Reason.EVICTED
    return Lookup(
        seq=1, stream=StreamId(0), request=RequestId("r"), session=SessionId("s"),
        prompt_tokens=100, cached_tokens=cached, last_mark=96, reason=reason, again=again,
    )  # fmt: skip


def test_the_alarm_rings_for_repeats_that_never_hit_and_not_again_for_an_hour() -> None:
    alarm = StoreAlarm()
    rang = [bool(alarm.see(found(), float(at))) for at in range(2 * REPEATS)]
    assert rang == [False] * (REPEATS - 1) + [True] + [False] * REPEATS
    first = float(REPEATS - 1)
    assert not alarm.see(found(), first + EVERY_SECONDS - 1)
    assert "evicted" in alarm.see(found(), first + EVERY_SECONDS)


def test_a_cold_workload_or_a_hit_rings_no_alarm() -> None:
    cold, hit = StoreAlarm(), StoreAlarm()
    for at in range(10 * REPEATS):
        assert not cold.see(found(again=False), float(at))
        assert not hit.see(found(cached=96 if at % REPEATS == 0 else 0), float(at))
