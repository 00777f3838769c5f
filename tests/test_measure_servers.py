"""The measuring tools on servers that are not ours, on none at all, and asked wrongly."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.replay.measure_reply import token_hash
from kvtape.tests.door_engine import opened
from kvtape.tests.measure_rig import IDS, door, plain, tool

# --- other servers --------------------------------------------------------------------------------


def test_a_server_of_openais_fields_alone_is_compared_by_text() -> None:
    with plain() as server:
        code, told = tool(
            "concurrent", "--url", server.url, "--levels", "2", "--tokens", 6, "--reps", 1,
            "--alone",
        )  # fmt: skip
    assert code == 0 and told["server"]["compared"] == "text"
    assert any("no token hashes" in note for note in told["notes"])
    assert any("no fields but OpenAI's own" in note for note in told["notes"])
    assert told["alone"]["equal"] == 8 and all(not one["token_sha"] for one in told["replies"])
    assert all(one["tokens"] == 6 for one in told["replies"])
    for cell in told["cells"]:
        assert cell["failed"] == cell["unmeasured"] == 0
        assert min(cell["ttft_s_max"], cell["per_stream_tps"], cell["aggregate_tps"]) > 0


def test_serial_cannot_be_shown_where_draft_is_no_field() -> None:
    with plain() as server:
        code, told = tool("concurrent", "--url", server.url, "--tokens", 6, "--serial")
    assert code == 1 and "the server takes no field draft" in told["faults"][0]


def test_a_server_that_does_not_say_what_it_kept_is_unverified() -> None:
    with plain() as server:
        code, told = tool("cache", "--url", server.url, "--require-cold", "--streams", 0)
    assert code == 1 and {one["cache_state"] for one in told["requests"]} == {"unverified"}
    assert "does not say how many prompt tokens were cached" in told["faults"][0]


def test_ids_of_another_server_are_hashed_here() -> None:
    with plain() as server:
        server.strict, server.ids = False, True
        code, told = tool("cache", "--url", server.url + "/v1", "--tokens", 3)
    assert code == 0 and told["server"] == {
        "model": "plain", "model_digest": "", "compared": "token ids",
    }  # fmt: skip
    assert {one["token_sha"] for one in told["replies"]} == {token_hash([0, 1, 2])}


@pytest.mark.parametrize(
    ("fault", "why"),
    [("error", "the engine is gone"), ("broken", "broke off"), ("status", "status 503: too many")],
)
def test_a_reply_that_is_not_whole_fails(fault: str, why: str) -> None:
    with plain() as server:
        server.strict, server.fault = False, fault
        code, told = tool("cache", "--url", server.url, "--repeats", 0, "--streams", 0)
    assert code == 1 and why in told["faults"][0]


# --- wrong use ------------------------------------------------------------------------------------


def closed_port(_: str) -> list[object]:
    return ["openai", "--url", "127.0.0.1:9"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (closed_port, "no server at http://127.0.0.1:9/v1"),
        (lambda url: ["openai", "--url", url, "--form", "words"], "--form 'words': text, ids"),
        (lambda url: ["openai", "--url", url, "--temperatures", "1,hot"], "--temperatures 'hot'"),
        (lambda url: ["openai", "--url", url, "--model", "other"], "is not served here"),
        (lambda url: ["cache", "--url", url, "--prompt-file", "none.json"], "none.json"),
        (lambda url: ["cache", "--url", url, "--prompt-tokens", 1999], "context is 2000 tokens"),
        (
            lambda url: ["cache", "--require-reuse", "--repeats", 0, "--streams", 0],
            "--require-reuse",
        ),
        (lambda url: ["concurrent", "--url", url, "--levels", "1,0"], "--levels '0'"),
        (lambda url: ["concurrent", "--url", url, "--modes", "warm"], "--modes 'warm'"),
        (lambda url: ["concurrent", "--url", url, "--no-seed", "--alone"], "--no-seed"),
    ],
)
def test_wrong_use_is_2_and_says_why(
    arguments: Callable[[str], list[object]], why: str
) -> None:  # fmt: skip
    with door() as (url, _):
        code, told = tool(*arguments(url))
    assert code == 2 and why in told["why"]


def test_a_model_without_a_tokenizer_gets_the_hint() -> None:
    with opened(tokenizer=False) as (serving, _):
        code, told = tool("openai", "--url", serving.url)
        assert code == 2 and "--form ids" in told["why"]
        assert tool("openai", "--url", serving.url, *IDS, "--tokens", 4)[0] == 0


def test_a_file_that_is_no_prompt_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompt.json"
    for content in ("", "[]", '""', "[true]", "[1, null]", '{"a": 1}', '[{"content": "x"}]'):
        file.write_text(content)
        assert tool("cache", "--prompt-file", file)[0] == 2


def test_people_see_a_table_and_the_verdict() -> None:
    with door() as (url, _):
        asked = ["bench", "cache", "--url", url, "--prompt-tokens", "9", "--tokens", "1"]
        good, bad = (CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--require-cold"]))
    assert good.exit_code == 0 and "everything asked for is met" in good.stdout
    assert bad.exit_code == 1 and "not met: --require-cold" in bad.stdout
    assert "cache first 1/1" in good.stderr and "first: first token" in good.stdout
