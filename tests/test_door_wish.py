"""A request's numbers become bit patterns and limits; a talk tells the engine only what it must."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvtape.devices.http.asks import CompletionAsk, parse
from kvtape.devices.http.engine import Failed, Info, Rendered, Tokens
from kvtape.devices.http.errors import ApiError
from kvtape.devices.http.talk import Talk
from kvtape.devices.http.wish import arrive, bits, reply_limit, sampling
from kvtape.events.commands import Arrive
from kvtape.events.ids import RequestId, SessionId, Token
from kvtape.events.records import Sampling
from kvtape.tests.door_engine import EOS, INFO, ByteDetokeniser


def float_of(pattern: int) -> float:
    return float(np.uint32(pattern).view(np.float32))


@settings(deadline=None)
@given(st.floats(-100, 100))
@example(-0.0)
def test_bits_are_float32s_and_minus_zero_is_zero(value: float) -> None:
    assert bits(value) == int(np.float32(value + 0.0).view(np.uint32))
    assert bits(value) != 0x80000000 or value != 0


def drawn(**fields: Any) -> Sampling:
    return sampling(CompletionAsk(prompt="a", **fields), 257, lambda: 77)


@settings(deadline=None)
@given(st.floats(0, 2), st.floats(0, 1, exclude_min=True), st.integers(-1, 2**31 - 1))
@example(0.5, 1.0, -1)
@example(1e-45, 1e-45, 0)
def test_whatever_is_asked_the_sampler_gets_sound_numbers(
    temperature: float, top_p: float, top_k: int
) -> None:
    got = drawn(temperature=temperature, top_p=top_p, top_k=top_k)
    said = float_of(got.temperature_bits)
    assert said == (0 if temperature < 1e-5 else np.float32(temperature))
    with np.errstate(all="raise"):  # its inverse is finite, and so is any logit times that
        assert said == 0 or np.isfinite(np.float32(1e4) * (np.float32(1) / np.float32(said)))
    assert np.rint(float_of(got.top_p_bits) * 2.0**24) >= 1
    assert got.top_k == max(top_k, 0)
    assert got.seed == (77 if said else 0)


def test_what_nobody_asked_for_is_openais_default() -> None:
    assert drawn() == Sampling(temperature_bits=0x3F800000, seed=77)


@settings(deadline=None)
@given(st.none() | st.integers(1, 40), st.integers(1, 30), st.integers(1, 40), st.integers(2, 40))
def test_prompt_and_reply_fit_the_context_or_are_refused(
    asked: int | None, default: int, prompt: int, context: int
) -> None:
    if prompt + (asked or 1) > context:
        with pytest.raises(ApiError, match=f"{context} tokens"):
            reply_limit(asked, default, prompt, context, "prompt")
        return
    limit = reply_limit(asked, default, prompt, context, "prompt")
    assert 1 <= limit <= context - prompt
    assert limit == asked or (asked is None and limit == min(default, context - prompt))


def test_fields_nobody_knows_are_ignored() -> None:
    ask = parse(CompletionAsk, b'{"prompt": "a", "mine": NaN, "metadata": {"a": [1, null]}}')
    assert ask == CompletionAsk(prompt="a")


class Noted:
    """An engine and its reply, which note what they are told."""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended
        self.told: list[Any] = []

    def submit(self, arrive: Arrive) -> Any:
        return self

    def cancel(self, request: RequestId, why: str) -> None:
        self.told.append(why)

    def stop_matched(self, request: RequestId, tokens: int) -> None:
        self.told.append(tokens)

    def close(self) -> None:
        self.told.append("closed")


def talk_of(*, ended: bool, ignore_eos: bool = False) -> tuple[Talk, list[Any]]:
    info: Info = INFO
    ask = CompletionAsk(prompt="a", stop="bc", ignore_eos=ignore_eos)
    wish = arrive(
        ask, info, request=RequestId("r"), session=SessionId("s"), prompt=Rendered([1]), max_new=9,
        drawn=Sampling(),
    )  # fmt: skip
    engine: Any = Noted(ended=ended)
    talk = Talk(engine, wish, ByteDetokeniser())
    talk.begin()
    return talk, engine.told


def tokens(*ids: int) -> Tokens:
    return Tokens(tuple(Token(token) for token in ids))


def test_an_ended_reply_is_neither_stopped_nor_cancelled() -> None:
    talk, told = talk_of(ended=True)
    assert talk.take(tokens(*b"abc"))[0] == "a"
    talk.leave("client-left")
    assert told == ["closed"]
    talk, told = talk_of(ended=False)
    assert talk.take(tokens(*b"abc"))[0] == "a"
    talk.leave("client-left")
    talk.leave("client-left")
    assert told == [3, "client-left", "closed"]
    talk, told = talk_of(ended=False)
    talk.take(Failed("over"))
    talk.leave("client-left")
    assert told == []


@pytest.mark.parametrize(("ignore_eos", "text"), [(False, "a"), (True, "a<end>")])
def test_the_end_of_turn_is_shown_only_to_who_ignores_it(ignore_eos: bool, text: str) -> None:
    talk, _ = talk_of(ended=False, ignore_eos=ignore_eos)
    assert talk.take(tokens(97, EOS)) == (text, [97, EOS])
