"""bench openai, cache and concurrent: what they ask, what they measure, and when they fail."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvtape.devices.http.engine import Failed, Finished
from kvtape.events.commands import Arrive
from kvtape.replay.measure_reply import token_hash
from kvtape.tests import door_engine
from kvtape.tests.door_engine import ScriptedEngine
from kvtape.tests.measure_rig import IDS, door, plain, tool
from kvtape.tests.server import Server, serving

# --- openai ---------------------------------------------------------------------------------------


def test_openai_tells_decode_speed_and_first_token_by_prompt_and_temperature() -> None:
    with plain() as server:
        code, told = tool("openai", "--url", server.url, "--tokens", 12, "--reps", 3)
    assert code == 0
    cells = {(cell["prompt"], cell["temperature"]): cell for cell in told["cells"]}
    assert set(cells) == {
        (name, heat) for name in ("fibonacci-raw", "gpu-chat-no-think") for heat in (1.0, 0.0)
    }
    for cell in cells.values():
        for kind in ("decode_tps", "ttft_s"):
            assert len(cell[kind]["all"]) == 3 and min(cell[kind]["all"]) > 0
            assert cell[kind]["median"] == sorted(cell[kind]["all"])[1]


def test_openai_asks_with_a_seed_a_repetition() -> None:
    with door() as (url, engine):
        code, told = tool("openai", "--url", url, "--tokens", 5, "--reps", 2)
        asked = engine.seen(Arrive)
    assert code == 0 and told["server"]["compared"] == "token ids"
    assert len(asked) == 8 and all(one.ignore_eos and one.max_new == 5 for one in asked)
    sampled = [one.sampling for one in asked if one.sampling.temperature_bits]
    assert [one.seed for one in sampled] == [1234, 1235] * 2
    assert {one.top_k for one in sampled} == {20}


def test_a_hash_is_of_the_ids_that_came() -> None:
    with door() as (url, _):
        _, told = tool("openai", "--url", url, "--tokens", 5, "--reps", 1, "--temperatures", "0")
    assert {one["token_sha"] for one in told["replies"]} == {token_hash(list(range(97, 102)))}
    assert token_hash([97, 98, 99, 100, 101]) == "66ae1edbbb36"  # of "97,98,99,100,101"


def test_greedy_replies_that_differ_are_told() -> None:
    calls = count()
    with door(lambda arrive: [(97 + next(calls),), (98,)]) as (url, _):
        code, told = tool(
            "openai", "--url", url, "--tokens", 2, "--reps", 3, "--temperatures", "0", *IDS
        )
    assert code == 1 and "2 of 3 replies differ from the first" in told["faults"][0]


def test_a_servers_hash_that_is_not_its_ids_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = door_engine.finished

    def wrong(arrive: Arrive, ids: list[int], reason: str) -> Finished:
        return right(arrive, [*ids, 1], reason)

    monkeypatch.setattr(door_engine, "finished", wrong)
    with door() as (url, _):
        code, told = tool("cache", "--url", url, "--prompt-tokens", 9, "--tokens", 3)
    assert code == 1 and "the server's hash is" in told["faults"][0]


# --- cache ----------------------------------------------------------------------------------------


def test_cache_asks_first_again_and_at_once() -> None:
    with door() as (url, engine):
        code, told = tool(
            "cache", "--url", url, "--prompt-tokens", 9, "--tokens", 3, "--repeats", 1,
            "--streams", 3, "--require-reuse", "--expected-prompt-tokens", 9,
            "--expected-cached-tokens", 4,
        )  # fmt: skip
    assert code == 0 and told["schema_version"] == 1
    assert [one["phase"] for one in told["requests"]] == ["first", "repeated", *["concurrent"] * 3]
    assert len({one.prompt for one in engine.seen(Arrive)}) == 1
    for one in told["requests"]:
        assert one["cache_state"] == "reused" and one["cached_tokens"] == 4
        assert one["token_sha"] == token_hash([97, 98, 99]) and one["ttft_s"] > 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--require-cold"], "--require-cold: the first reply says that 4 of its prompt tokens"),
        (["--expected-prompt-tokens", 8], "--expected-prompt-tokens 8: the prompt has 9"),
        (["--expected-cached-tokens", 5], "--expected-cached-tokens 5: repeated 1 says that 4"),
    ],
)
def test_what_was_required_and_did_not_come_is_told(flags: list[object], why: str) -> None:
    with door() as (url, _):
        code, told = tool(
            "cache", "--url", url, "--prompt-tokens", 9, "--tokens", 2, "--streams", 0, *flags
        )
    assert code == 1 and why in told["faults"][0]


def test_a_cold_later_reply_is_not_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    with plain() as server:
        server.cached = 0
        code, told = tool("cache", "--url", server.url, "--require-reuse", "--require-cold")
    assert code == 1 and len(told["faults"]) == 4
    assert told["faults"][0].startswith("--require-reuse: repeated 1 says that 0")


def test_a_later_reply_that_differs_is_told() -> None:
    calls = count()
    with door(lambda arrive: [(97 + (next(calls) == 2),)]) as (url, _):
        code, told = tool("cache", "--url", url, "--prompt-tokens", 9, "--tokens", 1)
    assert code == 1 and told["faults"] == [
        f"repeated 2 differs from the first reply: {token_hash([98])}"
    ]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ([5, 6, 7], "prompt"),
        ("a text", "prompt"),
        ([{"role": "user", "content": "x"}], "messages"),
    ],
)
def test_a_prompt_comes_from_a_file(tmp_path: Path, content: object, kind: str) -> None:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(content))
    with plain() as server:
        code, _ = tool("cache", "--url", server.url, "--prompt-file", file, "--repeats", 0)
        assert code == 0 and all(one[kind] == content for one in server.told)


# --- concurrent -----------------------------------------------------------------------------------


def test_concurrent_counts_one_reply_a_stream_and_one_serial_a_cell() -> None:
    with door() as (url, engine):
        code, told = tool(
            "concurrent", "--url", url, "--levels", "1,4", "--tokens", 4, "--reps", 2, "--alone",
            "--serial",
        )  # fmt: skip
        asked = engine.seen(Arrive)
    assert code == 0
    for mode in ("sampled", "greedy"):
        assert told["alone"]["by_mode"][mode] == {"equal": 10, "unequal": 0, "failed": 0}
        assert told["serial"]["by_mode"][mode] == {"equal": 4, "unequal": 0, "failed": 0}
    assert len(told["cells"]) == 8 and not any(cell["failed"] for cell in told["cells"])
    assert sum(not one.draft for one in asked) == 8
    seeds = {one.sampling.seed for one in asked if one.sampling.temperature_bits}
    assert seeds == {1234, 1235, 1236, 1237}
    assert {one.sampling.seed for one in asked if not one.sampling.temperature_bits} == {1234}


def unequal(engine: ScriptedEngine, arrive: Arrive) -> Iterator[tuple[int, ...]]:
    """Another reply wherever others are served."""
    for _ in range(arrive.max_new):
        yield (97 + (len(engine.live) > 1),)


def test_a_reply_that_others_change_is_unequal() -> None:
    with door() as (url, engine):
        engine.script = lambda arrive: unequal(engine, arrive)
        code, told = tool(
            "concurrent", "--url", url, "--levels", "1,3", "--tokens", 40, "--reps", 1, "--alone",
            "--modes", "greedy", *IDS,
        )  # fmt: skip
    assert code == 1 and told["alone"]["equal"] >= 2 and told["alone"]["unequal"] >= 2
    assert all("3 at once" in fault and "--alone" in fault for fault in told["faults"])


def test_a_reply_that_drafts_change_is_unequal() -> None:
    def script(arrive: Arrive) -> list[tuple[int, ...]]:
        return [(97 + arrive.draft,)] * arrive.max_new

    with door(script) as (url, _):
        code, told = tool(
            "concurrent", "--url", url, "--levels", "1", "--tokens", 6, "--reps", 1, "--serial",
            "--modes", "greedy", *IDS,
        )  # fmt: skip
    assert code == 1 and told["serial"]["unequal"] == 2
    assert all("--serial" in fault for fault in told["faults"])


def test_an_undrafted_request_that_was_drafted_all_the_same_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = door_engine.finished

    def drafted(arrive: Arrive, ids: list[int], reason: str) -> Finished:
        return replace(right(arrive, ids, reason), drafted=3, accepted=1)

    monkeypatch.setattr(door_engine, "finished", drafted)
    with door() as (url, _):
        code, told = tool(
            "concurrent", "--url", url, "--levels", "1", "--tokens", 2, "--reps", 1, "--serial",
            "--modes", "greedy", *IDS,
        )  # fmt: skip
    assert code == 1 and told["serial"] == {
        "equal": 0, "unequal": 0, "failed": 2,
        "by_mode": {"greedy": {"equal": 0, "unequal": 0, "failed": 2}},
    }  # fmt: skip
    assert '"draft": false, and 3 tokens were drafted' in told["faults"][0]


def test_a_stream_that_fails_is_counted_and_told() -> None:
    def script(arrive: Arrive) -> Iterator[Any]:
        yield (97,)
        yield Failed("no memory") if arrive.sampling.seed == 1235 else (98,)

    with door(script) as (url, _):
        code, told = tool(
            "concurrent", "--url", url, "--levels", "2", "--tokens", 2, "--reps", 1, "--alone",
            "--modes", "sampled", *IDS,
        )  # fmt: skip
    assert code == 1 and told["alone"]["failed"] == 2 and told["alone"]["equal"] == 2
    (first, second) = told["cells"]
    assert first["failed"] == second["failed"] == 1 and first["aggregate_tps"] is None
    assert "no memory" in told["faults"][0]


def test_too_few_pieces_are_not_timed() -> None:
    with door(lambda arrive: [(97, 98, 99), (100, 101, 102)]) as (url, _):
        code, told = tool("concurrent", "--url", url, "--tokens", 6, "--reps", 2, *IDS)
    assert code == 0
    assert told["cells"][0]["unmeasured"] == 2 and told["cells"][0]["aggregate_tps"] is None


def test_mixed_prompts_run_side_by_side() -> None:
    with door() as (url, engine):
        code, told = tool(
            "concurrent", "--url", url, "--levels", "3", "--tokens", 8, "--reps", 1, "--mixed",
            "--alone", "--stagger-ms", 1,
        )  # fmt: skip
        prompts = [one.prompt for one in engine.seen(Arrive)]
    assert code == 0 and [cell["prompt"] for cell in told["cells"]] == ["mixed", "mixed"]
    assert len(set(prompts)) == 2 and told["alone"]["equal"] == 6


# --- a server as it is ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("measured")
    with serving(folder, "--tp", "2", "--parallel", "4", model="fake-pages") as server:
        yield server


def test_replies_have_the_hashes_of_the_servers_log(fake: Server) -> None:
    code, told = tool(
        "cache", "--url", fake.url, "--prompt-tokens", 100, "--require-cold", "--require-reuse"
    )
    assert code == 0, told["faults"]
    assert [one["cached_tokens"] for one in told["replies"]] == [0, 96, 96, 96, 96]
    (sha,) = {one["token_sha"] for one in told["replies"]}
    assert fake.said().count(f"sha={sha}") == 5
    code, told = tool("cache", "--url", fake.url, "--prompt-tokens", 100, "--require-cold")
    assert code == 1 and "says that 96" in told["faults"][0]


def test_streams_at_once_equal_the_same_alone_and_undrafted(fake: Server) -> None:
    code, told = tool(
        "concurrent", "--url", fake.url, *IDS, "--alone", "--serial", "--tokens", 24, "--reps", 1
    )
    assert code == 0, told["faults"]
    for mode in ("sampled", "greedy"):
        assert told["alone"]["by_mode"][mode]["equal"] == 10
        assert told["serial"]["by_mode"][mode]["equal"] == 4
    assert {told["server"]["compared"], told["server"]["model"]} == {"token ids", "fake-pages"}
