"""What clients of OpenAI's API get: replies, streams, usage, receipts, models and metrics."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import openai
import pytest

from kvtape.devices.http.engine import Health, Meters
from kvtape.devices.http.serve import Serving
from kvtape.events.commands import Arrive, Flush
from kvtape.tests.door_engine import EOS, ScriptedEngine, opened, said

Opened = tuple[Serving, ScriptedEngine]
USER: Any = [{"role": "user", "content": "Tell me, 日本?"}]


@pytest.fixture(scope="module")
def door() -> Iterator[Opened]:
    with opened() as both:
        yield both


@pytest.fixture
def engine(door: Opened) -> ScriptedEngine:
    door[1].script = said("grüße, 日本 🎌")
    return door[1]


@pytest.fixture
def client(door: Opened, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{door[0].url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def plain(door: Opened, engine: ScriptedEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=door[0].url, trust_env=False) as client:
        yield client


def last(engine: ScriptedEngine) -> Arrive:
    arrive = engine.seen(Arrive)[-1]
    assert isinstance(arrive, Arrive)
    return arrive


def extra(thing: Any) -> dict[str, Any]:
    assert thing.model_extra is not None
    return dict(thing.model_extra)


def test_a_chat_gets_text_usage_and_receipt(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    raw = client.chat.completions.with_raw_response.create(model="bytes", messages=USER)
    reply, arrive = raw.parse(), last(engine)
    assert reply.choices[0].message.content == "grüße, 日本 🎌"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.id == f"chatcmpl-{arrive.request}"
    ids = [*"grüße, 日本 🎌".encode(), EOS]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(arrive.prompt)
    assert reply.usage.completion_tokens == len(ids)
    assert reply.usage.total_tokens == len(arrive.prompt) + len(ids)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    receipt = extra(reply)["kvtape"]
    assert receipt == {
        "session": arrive.request,
        "request": arrive.request,
        "stream": 7,
        "seq": [10, 99],
        "model_digest": "d" * 32,
        "contract": 1,
        "token_sha": hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest(),
        "logits_digest": "e" * 32,
        "miss": "edited",
    }
    assert json.loads(raw.headers["x-kvtape-receipt"]) == receipt
    assert raw.headers["x-kvtape-session"] == arrive.session
    assert raw.headers["x-request-id"] == arrive.request


def test_a_stream_says_the_same_as_a_whole_reply(
    client: openai.OpenAI, engine: ScriptedEngine
) -> None:
    whole = client.chat.completions.create(model="bytes", messages=USER)
    raw = client.chat.completions.with_raw_response.create(
        model="bytes",
        messages=USER,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    chunks = list(raw.parse())
    told = [chunk.choices[0] for chunk in chunks[:-1]]
    text = "".join(choice.delta.content or "" for choice in told)
    assert text == whole.choices[0].message.content
    assert told[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in told] == [None] * (len(told) - 1) + ["stop"]
    ids = [token for choice in told for token in extra(choice).get("token_ids", [])]
    assert ids == [*text.encode(), EOS]
    assert extra(told[0])["prompt_token_ids"] == list(last(engine).prompt)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert [("kvtape" in extra(chunk)) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    proof = extra(chunks[-1])["kvtape"]
    assert proof["token_sha"] == extra(whole)["kvtape"]["token_sha"]
    early = json.loads(raw.headers["x-kvtape-receipt"])
    assert early == {"session": proof["session"], "request": proof["request"]}
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_ends_with_the_receipt(plain: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 3, "stream": True}
    reply = plain.post("/v1/completions", json=body)
    assert reply.headers["content-type"] == "text/event-stream"
    lines = reply.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "gr\ufffd"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["kvtape"]["seq"] == [10, 99]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("prompt", ["grüße", [1, 2, 255], ["grüße"], [[1, 2, 255]]])
def test_a_completion_takes_text_or_ids(
    client: openai.OpenAI, engine: ScriptedEngine, prompt: Any
) -> None:
    reply = client.completions.create(
        model="bytes", prompt=prompt, extra_body={"return_token_ids": True}
    )
    text_or_ids = prompt[0] if isinstance(prompt[0], list | str) and prompt != "grüße" else prompt
    ids = list(text_or_ids.encode()) if isinstance(text_or_ids, str) else text_or_ids
    assert list(last(engine).prompt) == ids
    assert last(engine).history_tokens == 0
    assert last(engine).max_new == 16
    choice = extra(reply.choices[0])
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == list("grüße, 日本 🎌".encode())[:16]
    assert reply.choices[0].finish_reason == "length"


def test_settings_reach_the_run_as_bits(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model="bytes",
        messages=[*USER, {"role": "assistant", "content": "so"}, *USER],
        temperature=0.7,
        top_p=0.9,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"12": -100, "3": 1, "4": 0},
        seed=-5,
        stop=["zz", "yy"],
        max_tokens=9,
        user="me",
        extra_body={
            "top_k": 20,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "draft": False,
            "cache_salt": "s",
            "unheard_of": {"x": [1]},
        },
    )
    arrive = last(engine)

    def bits(value: float) -> int:
        return int(np.float32(value).view(np.uint32))

    got = arrive.sampling
    assert (got.temperature_bits, got.top_p_bits) == (bits(0.7), bits(0.9))
    assert (got.presence_bits, got.frequency_bits) == (bits(-0.5), bits(0.25))
    assert (got.repetition_bits, got.top_k, got.seed) == (bits(1.1), 20, -5)
    assert got.bias == ((3, bits(1)), (12, bits(-100)))
    assert (arrive.stop, arrive.max_new, arrive.salt) == (("zz", "yy"), 9, "s")
    assert (arrive.ignore_eos, arrive.draft, arrive.session) == (True, False, "me")
    assert 0 < arrive.history_tokens < len(arrive.prompt)
    assert (arrive.rewind_tokens, arrive.system_tokens) == (arrive.history_tokens, 0)


def test_the_salt_of_a_cache_is_told_by_both_kinds_of_request(
    plain: httpx.Client, engine: ScriptedEngine
) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    for path, asked in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "a"})):
        for salt in ("mine", None):
            plain.post(path, json=asked | {"cache_salt": salt})
            assert last(engine).salt == (salt or "")


def test_chance_is_drawn_once_and_only_where_it_counts(
    plain: httpx.Client, engine: ScriptedEngine
) -> None:
    seeds = []
    for temperature in (0, 1e-9, 1, 1):
        plain.post("/v1/completions", json={"prompt": "a", "temperature": temperature})
        seeds.append((last(engine).sampling.temperature_bits, last(engine).sampling.seed))
    assert seeds[0] == seeds[1] == (0, 0)
    assert seeds[2][0] == seeds[3][0] == 0x3F800000
    assert seeds[2][1] != seeds[3][1]


def test_requests_are_counted_and_sessions_chosen(
    plain: httpx.Client, engine: ScriptedEngine
) -> None:
    names = []
    for headers, user, session in [
        ({"x-kvtape-session": "given"}, "someone", "given"),
        ({"x-kvtape-session": "d%C3%A9j%C3%A0%25%0a vu"}, None, "déjà%\n vu"),
        ({}, "日本", "日本"),
        ({"x-kvtape-session": ""}, "", None),
    ]:
        reply = plain.post("/v1/completions", json={"prompt": "a", "user": user}, headers=headers)
        arrive = last(engine)
        names.append(arrive.request)
        assert arrive.session == (session or arrive.request)
        assert unquote(reply.headers["x-kvtape-session"]) == arrive.session
        assert json.loads(reply.headers["x-kvtape-receipt"])["session"] == arrive.session
    first = int(names[0].removeprefix("req-"))
    assert names == [f"req-{number:08d}" for number in range(first, first + 4)]


def test_models_are_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, extra(model)["context_length"]) == ("bytes", 2000)
    assert client.models.retrieve("bytes") == model


def test_health_says_whether_requests_are_served(
    plain: httpx.Client, engine: ScriptedEngine
) -> None:
    assert plain.get("/health").json()["status"] == "ok"
    engine.state = Health(ok=False, status="parted")
    try:
        reply = plain.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (503, "parted")
    finally:
        engine.state = Health(ok=True, status="ok")


def test_metrics_show_every_figure(plain: httpx.Client, engine: ScriptedEngine) -> None:
    engine.figures = Meters(
        prompt_tokens=31, pages_total=8, pages_free=6, hits=2, misses={"evicted": 3, "edited": 0},
        missed_tokens={"evicted": 96}, pages_by_holder={"free": 5, "promised": 1, "kept": 2},
    )  # fmt: skip
    plain.post("/v1/completions", json={"prompt": "a"})
    text = plain.get("/metrics").text
    values = {
        name: float(value)
        for name, value in (
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
    }
    assert values["kvtape_prompt_tokens_total"] == 31
    assert values["kvtape_kv_cache_usage_ratio"] == 0.25
    assert values['kvtape_prompt_store_misses_total{reason="evicted"}'] == 3
    assert values['kvtape_prompt_store_misses_total{reason="edited"}'] == 0
    assert values['kvtape_prompt_store_missed_tokens_total{reason="evicted"}'] == 96
    assert values['kvtape_pages_by_holder{holder="kept"}'] == 2
    assert values["kvtape_prompt_store_hits_total"] == 2
    assert values["kvtape_prompt_store_lookups_total"] == 5
    assert values["kvtape_request_seconds_count"] >= 1
    assert values["kvtape_time_to_first_token_seconds_count"] >= 1
    assert all(name.startswith("kvtape_") for name in values)


def test_every_figure_is_told_in_words_with_its_kind(plain: httpx.Client) -> None:
    """What a person reads beside a figure: its help, and whether it may go down."""
    text = plain.get("/metrics").text
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    assert helps.keys() == kinds.keys()
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert len(helps[name].split()) >= 1, name


def test_flush_reaches_the_run(plain: httpx.Client, engine: ScriptedEngine) -> None:
    before = len(engine.seen(Flush))
    for path in ("/v1/cache/flush", "/flush_prompt_cache"):
        done = plain.post(path)
        assert done.status_code == 200
        assert done.json() == {"states_dropped": 3, "states_kept": 1, "pages_free": 9}
    plain.post("/v1/completions", json={"prompt": "a"})  # commands are heard in their order
    assert len(engine.seen(Flush)) == before + 2
