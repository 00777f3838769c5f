"""Replies as they stream: pieces, times and hashes, whatever their text holds."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtape.replay.measure_client import Client, base_url, events, problem
from kvtape.replay.measure_concurrent import rates_of
from kvtape.replay.measure_prompts import IDS_HIGH, IDS_LOW, long_prompt, prompts
from kvtape.replay.measure_reply import Prompt, Reply, Wish, compared, token_hash
from kvtape.tests.door_engine import opened

IDS = st.lists(st.integers(0, 2**31), max_size=20)
SHA = "a" * 64


def chunk(text: str = "", ids: list[int] | None = None) -> dict[str, object]:
    """One chunk of a completion's stream."""
    return {"choices": [{"text": text, **({} if ids is None else {"token_ids": ids})}]}


@given(IDS)
def test_the_hash_is_sha_256_over_decimals_and_commas(ids: list[int]) -> None:
    joined = b",".join(str(one).encode() for one in ids)
    assert token_hash(ids) == hashlib.sha256(joined).hexdigest()[:12]


@given(st.lists(IDS, min_size=1, max_size=8))
def test_ids_are_the_same_however_they_are_cut(pieces: list[list[int]]) -> None:
    reply, whole = Reply(0.0), [one for piece in pieces for one in piece]
    for at, piece in enumerate(pieces):
        reply.take(float(at), chunk(ids=piece))
    assert reply.ids == whole and reply.token_sha == token_hash(whole)
    assert reply.tokens == len(whole) and sum(reply.counts) == len(whole)


@pytest.mark.parametrize("name", ["kvtape", "tensorfold"])
@pytest.mark.parametrize(
    ("told", "kept"),
    [(SHA, "a" * 12), ("b" * 12, "b" * 12), ("c" * 13, ""), ("G" * 12, ""), (7, "")],
)
def test_a_servers_own_hash_has_12_or_64_digits(name: str, told: object, kept: str) -> None:
    reply = Reply(0.0)
    reply.take(1.0, chunk("x") | {name: {"token_sha": told}})
    assert reply.token_sha == kept


def test_text_is_hashed_in_two_parts() -> None:
    reply = Reply(0.0)
    for delta in ({"reasoning_content": "hm"}, {"content": "a"}, {"content": "b"}, {"role": "x"}):
        reply.take(1.0, {"choices": [{"delta": delta}]})
    sides = (hashlib.sha256(side).digest() for side in (b"ab", b"hm"))
    assert reply.output_sha256 == hashlib.sha256(b"".join(sides)).hexdigest()
    assert len(reply.times) == 3  # a chunk without text is no piece


def test_tokens_are_compared_where_both_sides_have_them_and_text_elsewhere() -> None:
    with_ids, other, text, failed = (Reply(0.0) for _ in range(4))
    with_ids.take(1.0, chunk("x", [1]))
    other.take(1.0, chunk("x", [2]))
    text.take(1.0, chunk("x"))
    failed.error = "gone"
    assert compared(with_ids, other) == "unequal"
    assert compared(with_ids, text) == compared(text, other) == "equal"
    assert compared(failed, failed) == compared(text, failed) == "failed"
    text.take(2.0, chunk("y"))
    assert compared(with_ids, text) == "unequal"


def test_speed_counts_the_tokens_after_the_first_piece() -> None:
    reply = Reply(9.0)
    for at, ids in ((10.0, [1, 2]), (11.0, [3]), (14.0, [4, 5, 6])):
        reply.take(at, chunk(ids=ids))
    assert reply.ttft == 1.0 and reply.decode_tps == 4 / 4.0
    counted = Reply(9.0)
    for at in (10.0, 12.0):
        counted.take(at, chunk("word"))
    counted.take(12.0, {"choices": [], "usage": {"completion_tokens": 7}})
    assert counted.decode_tps == 6 / 2.0
    lone = Reply(9.0)
    lone.take(10.0, chunk(ids=[1, 2, 3]))
    assert lone.decode_tps is None and Reply(0.0).ttft is None


def test_the_steady_rate_is_of_the_time_when_all_streams_ran() -> None:
    early, late = Reply(0.0), Reply(0.0)
    for at in range(1, 9):
        early.take(float(at), chunk(ids=[at]))
    for at in range(5, 21):
        late.take(float(at), chunk(ids=[at, at]))
    rates = rates_of([early, late])
    assert rates["steady_tps"] == (3 + 6) / 3.0  # after 5 and by 8: three pieces of each
    assert rates["aggregate_tps"] == (8 + 32) / 20.0 and rates["ttft_s_max"] == 5.0


@given(st.binary(max_size=200), st.lists(st.integers(0, 220), max_size=6))
def test_lines_end_at_newlines_alone_wherever_the_bytes_are_cut(raw: bytes, at: list[int]) -> None:
    stream = b"data: " + raw.replace(b"\n", b"") + b"\n\n: a remark\ndata:[DONE]\n"
    cuts = sorted({0, *(min(cut, len(stream)) for cut in at), len(stream)})

    async def read() -> list[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            for start, end in pairwise(cuts):
                yield stream[start:end]

        return [data async for data in events(httpx.Response(200, content=pieces()))]

    assert asyncio.run(read()) == [raw.replace(b"\n", b"").strip(), b"[DONE]"]


def test_text_with_separators_of_lines_arrives_whole() -> None:
    text = "a\u2028b\x85c\u2029"

    async def ask(url: str) -> Reply:
        async with Client(url) as client:
            return await client.ask(Wish(Prompt("p", ({"role": "user", "content": "?"},)), 40))

    with opened() as (serving, engine):
        engine.script = lambda _: [*((byte,) for byte in text.encode())]
        reply = asyncio.run(ask(serving.url))
    assert "".join(reply.content) == text and not reply.error


def test_a_wish_without_chance_is_repeatable() -> None:
    prompt = Prompt("p", "text")
    assert Wish(prompt, 1).repeatable and Wish(prompt, 1, 1.0, 7).repeatable
    assert not Wish(prompt, 1, 1.0).repeatable


def test_only_openais_fields_are_sent_to_a_plain_server() -> None:
    wish = Wish(Prompt("p", "text"), 5, 1.0, 7).undrafted
    plain, full = wish.body("m", plain=True), wish.body("m", plain=False)
    assert set(full) - set(plain) == {"ignore_eos", "return_token_ids", "top_k", "draft"}
    assert plain["seed"] == 7 and plain["max_tokens"] == 5 and full["draft"] is False
    assert "draft" not in Wish(Prompt("p", "text"), 5).body("m", plain=False)


def test_prompts_are_the_same_on_every_machine() -> None:
    prompt = long_prompt("ids", 1000, 7).content
    assert len(prompt) == 1000 and prompt == long_prompt("ids", 1000, 7).content
    assert prompt != long_prompt("ids", 1000, 8).content
    assert token_hash([int(str(one)) for one in prompt]) == "4b9cfcd2ebf6"
    assert all(IDS_LOW <= int(str(one)) <= IDS_HIGH for one in prompt)
    first, second = prompts("ids")
    assert first.content != second.content and first.name != second.name
    assert long_prompt("chat", 100, 1).chat and not long_prompt("text", 100, 1).chat


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1/v1"), ("http://a:1/", "http://a:1/v1"), ("a:1", "http://a:1/v1"),
        ("https://a/api/v1/", "https://a/api/v1"), ("http://a/v1", "http://a/v1"),
    ],
)  # fmt: skip
def test_an_address_may_have_v1_or_not(url: str, base: str) -> None:
    assert base_url(url) == base


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"error": {"message": "no", "code": "no_tokenizer"}}', "no (--form ids sends them)"),
        (b'{"error": "plain words"}', "plain words"), (b'{"detail": "of FastAPI"}', "of FastAPI"),
        (b"<html>", "<html>"), (b"", "no reason given"), (b"[1]", "[1]"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_the_servers_words(body: bytes, why: str) -> None:
    assert problem(body) == why
