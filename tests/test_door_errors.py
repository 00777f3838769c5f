"""Every request that cannot be served gets a status and a body that OpenAI's clients understand."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from kvtape.devices.http.door import DoorSettings
from kvtape.devices.http.engine import Failed, Refused
from kvtape.devices.http.serve import Serving
from kvtape.events.commands import Arrive
from kvtape.tests.door_engine import EOS, ByteText, ScriptedEngine, finished, opened, said

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
MiB = 2**20


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Serving, ScriptedEngine]]:
    with opened(DoorSettings(body_bytes_max=MiB, retry_seconds=7)) as both:
        yield both


@pytest.fixture
def engine(door: tuple[Serving, ScriptedEngine]) -> Iterator[ScriptedEngine]:
    door[1].script = said("hello")
    yield door[1]
    door[1].full = door[1].closed = False


@pytest.fixture(scope="module")
def connection(door: tuple[Serving, ScriptedEngine]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door[0].url, trust_env=False) as client:
        yield client


@pytest.fixture
def client(connection: httpx.Client, engine: ScriptedEngine) -> httpx.Client:
    return connection


def told(reply: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """The message of an error in OpenAI's shape."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["message"]
    return str(error["message"])


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (PLAIN, {}, "missing_required_parameter", "prompt"),
    (PLAIN, {"prompt": ""}, "empty_prompt", "prompt"),
    (PLAIN, {"prompt": []}, "empty_prompt", "prompt"),
    (PLAIN, {"prompt": [[]]}, "empty_prompt", "prompt"),
    (PLAIN, {"prompt": [[1], [2]]}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": ["a", "b"]}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": [1, True]}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": [1, 2.0]}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": [1, "a"]}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": {"a": 1}}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": None}, "invalid_value", "prompt"),
    (PLAIN, {"prompt": [10**4000]}, "invalid_token_id", "prompt"),
    (PLAIN, {"prompt": [257]}, "invalid_token_id", "prompt"),
    (PLAIN, {"prompt": [1, -1]}, "invalid_token_id", "prompt"),
    (PLAIN, {"prompt": [1] * 2000}, "context_length_exceeded", "prompt"),
    (PLAIN, {"prompt": [1] * 1990, "max_tokens": 11}, "context_length_exceeded", "prompt"),
    (PLAIN, {"prompt": "a", "echo": True}, "unsupported_parameter", "echo"),
    (PLAIN, {"prompt": "a", "suffix": "b"}, "unsupported_parameter", "suffix"),
    (PLAIN, {"prompt": "a", "best_of": 2}, "invalid_value", "best_of"),
    (PLAIN, {"prompt": "a", "logprobs": 0}, "unsupported_parameter", "logprobs"),
    (CHAT, {}, "missing_required_parameter", "messages"),
    (CHAT, {"messages": []}, "invalid_value", "messages"),
    (CHAT, {"messages": "hello"}, "invalid_value", "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "a"}]}, "invalid_value", "messages.0.role"),
    (CHAT, {"messages": [{"role": "user", "content": 1}]}, "invalid_value", "messages.0.content"),
    (
        CHAT,
        {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
        "invalid_value",
        "messages.1.content",
    ),
    (CHAT, {"messages": [{"role": "assistant", "content": "a"}]}, "bad_prompt", "messages"),
    (CHAT, {"messages": HELLO, "logprobs": True}, "unsupported_parameter", "logprobs"),
    (CHAT, {"messages": HELLO, "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
    (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        "unsupported_parameter",
        "response_format",
    ),
]


@pytest.mark.parametrize(("path", "body", "code", "param"), REFUSED)
def test_what_cannot_be_served_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], code: str, param: str
) -> None:
    told(client.post(path, json=body), 400, code, param)


ELSEWHERE: list[tuple[str, list[Any], list[Any]]] = [  # what changes a reply, and what does not
    ("response_format", [{"type": "json_object"}, {"type": "json_schema"}], [{"type": "text"}, {}]),
    ("min_p", [0.05, True], [0, 0.0, False]),
    ("typical_p", [0.9, 0, True], [1, 1.0, False]),
    ("top_a", [0.2], [0]),
    ("mirostat", [2], [0]),
    ("min_tokens", [3], [0]),
    ("echo", [True], [False]),
    ("suffix", ["b"], [""]),
    ("grammar", ['root ::= "a"'], [""]),
    ("json_schema", [{}], []),
    ("guided_json", [{}, "{}"], []),
    ("guided_regex", ["a+"], []),
    ("guided_choice", [["a", "b"]], []),
    ("guided_grammar", ["root"], []),
    ("structured_outputs", [{"json": {}}], []),
]


@pytest.mark.parametrize(("field", "changes", "neutral"), ELSEWHERE)
def test_what_would_change_a_reply_is_not_dropped(
    client: httpx.Client, field: str, changes: list[Any], neutral: list[Any]
) -> None:
    for path, body in ((PLAIN, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        for value in changes:
            reply = client.post(path, json={**body, field: value})
            assert field in told(reply, 400, "unsupported_parameter", field)
        for value in (*neutral, None):
            assert client.post(path, json={**body, field: value}).status_code == 200


def test_a_chat_is_one_reply_of_one_too(client: httpx.Client) -> None:
    told(client.post(CHAT, json={"messages": HELLO, "best_of": 2}), 400, "invalid_value", "best_of")


FIELDS: list[tuple[str, list[Any]]] = [
    ("n", [0, 2, True, "1", 1.0]),
    ("max_tokens", [0, -1, True, "5", 1.5, 2**31]),
    ("max_completion_tokens", [0, "5"]),
    ("temperature", [-0.1, 2.1, True, "1", float("nan"), float("inf")]),
    ("top_p", [0, -1, 1.01, True, float("nan")]),
    ("top_k", [-2, 1.5, True, 2**31]),
    ("presence_penalty", [-2.5, 2.5, False, float("-inf")]),
    ("frequency_penalty", [-2.5, 2.5, "1"]),
    ("repetition_penalty", [0, -1, 11, float("nan")]),
    ("seed", [2**63, -(2**63) - 1, True, 1.0, "1"]),
    ("stop", [1, True, "", ["a", ""], ["a", 1], list("abcde"), "x" * 1025]),
    ("stream", ["yes", 1]),
    ("stream_options", [True]),
    ("ignore_eos", [1, "true"]),
    ("return_token_ids", [1]),
    ("draft", [0]),
    ("cache_salt", [1, "x" * 257]),
    ("user", [1, "x" * 257]),
    ("model", [1]),
    ("logit_bias", [[1], {"a": 1}, {"-1": 1}, {"01": 1}, {"1": 101}, {"1": True}, {"257": 1}]),
]


@pytest.mark.parametrize(("field", "value"), [(f, value) for f, many in FIELDS for value in many])
def test_wrong_types_and_ranges_are_named(client: httpx.Client, field: str, value: Any) -> None:
    for path, body in ((PLAIN, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        content = json.dumps({**body, field: value})  # NaN as a bare word, which is no JSON
        reply = client.post(path, content=content)
        message = told(reply, 400, "invalid_value", field)
        assert field in message


@pytest.mark.parametrize("field", [name for name, _ in FIELDS])
def test_null_means_absent(client: httpx.Client, field: str) -> None:
    reply = client.post(PLAIN, json={"prompt": "a", field: None})
    assert reply.json()["choices"][0]["text"] == "hello"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b'{"prompt": "a"', b"[]", b"1", b"null", b"[" * 100_000),
        *(b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'),
    ],
)
def test_malformed_json_is_told(client: httpx.Client, body: bytes) -> None:
    told(client.post(PLAIN, content=body), 400, "invalid_json")


def test_another_model_is_not_found(client: httpx.Client) -> None:
    for path, body in ((PLAIN, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        reply = client.post(path, json={**body, "model": "other"})
        assert "'bytes'" in told(reply, 404, "model_not_found", "model")
    told(client.get("/v1/models/other"), 404, "model_not_found", "model")


def test_unknown_routes_and_methods_have_the_same_shape(client: httpx.Client) -> None:
    told(client.get("/v1/nothing"), 404, "not_found")
    told(client.get(CHAT), 405, "method_not_allowed")


def test_a_context_error_gives_numbers(client: httpx.Client) -> None:
    reply = client.post(PLAIN, json={"prompt": [1] * 1990, "max_tokens": 11})
    message = told(reply, 400, "context_length_exceeded", "prompt")
    assert "2000" in message
    assert "2001" in message


def test_a_large_body_is_refused_and_the_answer_is_read(client: httpx.Client) -> None:
    for size in (MiB + 1, 4 * MiB):
        told(client.post(PLAIN, content=b"x" * size), 413, "body_too_large")
    fits = json.dumps({"prompt": "a", "x": ""})
    padded = fits.replace('""', '"' + "x" * (MiB - len(fits)) + '"')
    assert client.post(PLAIN, content=padded).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_header_is_bounded(client: httpx.Client, stream: bool) -> None:
    for session in ("x" * 257, b"caf\xe9"):
        headers: Any = {"x-kvtape-session": session}
        reply = client.post(PLAIN, json={"prompt": "a", "stream": stream}, headers=headers)
        told(reply, 400, "invalid_value", "x-kvtape-session")


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_come_back(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = lambda _: [Refused("queue_full", 9, 8)]
    for full in (True, False):  # known at once, or decided by the run
        engine.full = full
        reply = client.post(PLAIN, json={"prompt": "a", "stream": stream})
        told(reply, 503, "queue_full")
        assert reply.headers["retry-after"] == "7"


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_engine_is_503(client: httpx.Client, engine: ScriptedEngine, stream: bool) -> None:
    engine.closed = True
    told(client.post(PLAIN, json={"prompt": "a", "stream": stream}), 503, "engine_closed")
    for path in ("/v1/cache/flush", "/flush_prompt_cache"):
        told(client.post(path), 503, "engine_closed")


@pytest.mark.parametrize("stream", [False, True])
def test_the_runs_refusal_has_its_reason_and_numbers(
    client: httpx.Client, engine: ScriptedEngine, stream: bool
) -> None:
    engine.script = lambda _: [Refused("larger_than_pool", 41, 17)]
    reply = client.post(PLAIN, json={"prompt": "a", "stream": stream})
    message = told(reply, 400, "larger_than_pool", "prompt")
    assert "need 41 pages, and all streams share 17: shorten the prompt" in message
    engine.script = lambda _: [Refused("context_length_exceeded", 2002, 2000)]
    reply = client.post(CHAT, json={"messages": HELLO, "stream": stream})
    told(reply, 400, "context_length_exceeded", "messages")


def broken(reason: str, *first: tuple[int, ...]) -> Any:
    """A reply that ends so after its first tokens."""
    ids = [token for piece in first for token in piece]
    return lambda arrive: [*first, finished(arrive, ids, reason)]


def test_a_fault_is_an_error_that_names_the_session_to_replay(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script = broken("fault", (104,))
    reply = client.post(PLAIN, json={"prompt": "a", "user": "mine"})
    told(reply, 500, "fault")
    assert reply.json()["kvtape"]["session"] == "mine"
    assert reply.json()["kvtape"]["seq"] == [10, 99]


def test_a_reply_given_up_by_the_engine_is_an_error(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script = broken("cancelled")
    told(client.post(PLAIN, json={"prompt": "a"}), 503, "cancelled")
    engine.script = lambda _: [(104,), Failed("rank 1 is lost")]
    reply = client.post(PLAIN, json={"prompt": "a"})
    assert "rank 1 is lost" in told(reply, 500, "engine_failed")


def test_an_open_stream_tells_its_error_as_an_event(
    client: httpx.Client, door: tuple[Serving, ScriptedEngine], engine: ScriptedEngine
) -> None:
    engine.script = broken("fault", (104,), (105,))
    reply = client.post(PLAIN, json={"prompt": "a", "stream": True})
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    error = json.loads(lines[-3].removeprefix("data: "))
    assert error["error"]["code"] == "fault"
    assert error["kvtape"]["request"] == engine.seen(Arrive)[-1].request
    with openai.OpenAI(base_url=f"{door[0].url}/v1", api_key="x", max_retries=0) as official:
        stream = official.completions.create(model="bytes", prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="replayed"):
            list(stream)


def test_a_key_opens_everything_and_health_needs_none() -> None:
    with (
        opened(DoorSettings(api_key="sesame")) as (serving, _),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        assert client.get("/health").status_code == 200
        wrong = ["", "sesame", "Bearer", "Bearer sesam", "Bearer sesamee", "Basic sesame"]
        for given in wrong:
            headers = {"authorization": given}
            for path in (PLAIN, CHAT, "/v1/cache/flush", "/flush_prompt_cache"):
                told(client.post(path, headers=headers, json={}), 401, "invalid_api_key")
            for path in ("/metrics", "/v1/models", "/v1/models/bytes"):
                told(client.get(path, headers=headers), 401, "invalid_api_key")
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="sesame") as official:
            assert official.completions.create(model="bytes", prompt="a").choices[0].text == "hello"


def test_a_model_without_a_tokenizer_is_served_ids() -> None:
    with (
        opened(tokenizer=False) as (serving, engine),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        reply = client.post(PLAIN, json={"prompt": [1, 2], "max_tokens": 9})
        assert reply.json()["choices"][0]["token_ids"] == [*b"hello", EOS]
        assert reply.json()["choices"][0]["text"] == ""
        told(client.post(PLAIN, json={"prompt": "a"}), 400, "no_tokenizer", "prompt")
        told(client.post(CHAT, json={"messages": HELLO}), 400, "no_tokenizer", "messages")
        reply = client.post(PLAIN, json={"prompt": [1], "stop": "a"})
        told(reply, 400, "no_tokenizer", "stop")
        assert len(engine.seen(Arrive)) == 1


def test_our_own_fault_is_a_plain_500() -> None:
    class Broken(ByteText):
        def encode(self, text: str) -> list[int]:
            raise RuntimeError("secret")

    with (
        opened(text=Broken()) as (serving, _),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        assert "secret" not in told(client.post(PLAIN, json={"prompt": "a"}), 500, "internal_error")
