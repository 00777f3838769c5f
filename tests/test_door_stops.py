"""Stop strings end a text at the same character however it is cut into pieces and tokens."""

from itertools import pairwise
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.http.engine import Finished, Tokens
from kvtape.devices.http.stops import StopStrings
from kvtape.devices.http.talk import Talk
from kvtape.events.commands import Arrive, StopMatched
from kvtape.events.ids import RequestId, SessionId, Token
from kvtape.tests.door_engine import EOS, ByteDetokeniser, finished, opened

LETTERS = "ab¢"
TEXTS = st.text(LETTERS, max_size=24)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The meaning, letter by letter: the stop string complete first, of several the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


@settings(deadline=None)
@given(TEXTS, STOPS, st.data())
def test_pieces_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    matcher, shown = StopStrings(stops), ""
    wanted, matched = cut(text, stops)
    for start, end in pairwise([0, *places, len(text)]):
        shown += matcher.push(text[start:end])
        assert wanted.startswith(shown), "text of a stop string was shown"
        if not matcher.matched:  # and no more is held back than may become a stop string
            held = text[len(shown) : end]
            assert not held or any(stop.startswith(held) for stop in stops)
    assert (shown + matcher.flush(), matcher.matched) == (wanted, matched)


class Noted:
    """An engine and a reply that only note what is told to them."""

    def __init__(self) -> None:
        self.ended = False
        self.stops: list[int] = []

    def submit(self, arrive: Arrive) -> Any:
        return self

    def stop_matched(self, request: RequestId, tokens: int) -> None:
        self.stops.append(tokens)


@settings(deadline=None)
@given(TEXTS, STOPS, st.data())
def test_tokens_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    ids = [*text.encode(), EOS]
    arrive = Arrive(
        request=RequestId("r"), session=SessionId("s"), prompt=(Token(1),), max_new=99,
        stop=tuple(stops), eos=(Token(EOS),),
    )  # fmt: skip
    engine: Any = Noted()
    talk = Talk(engine, arrive, ByteDetokeniser())
    talk.begin()
    places = data.draw(st.lists(st.integers(0, len(ids)), max_size=6).map(sorted))
    told: list[int] = []
    shown = ""
    for start, end in pairwise([0, *places, len(ids)]):
        piece, new = talk.take(Tokens(tuple(Token(token) for token in ids[start:end])))
        shown, told = shown + piece, told + new
    wanted, matched = cut(text, stops)
    assert len(engine.stops) == matched
    kept = engine.stops[0] if matched else len(ids)
    if matched:  # the least count of tokens whose text holds a stop string
        assert cut(bytes(ids[:kept]).decode(), stops)[1]
        assert not cut(bytes(ids[: kept - 1]).decode(errors="ignore"), stops)[1]
    piece, new = talk.take(finished(arrive, ids[:kept], "stop"))
    assert shown + piece == talk.text == wanted
    assert told + new == talk.ids == ids[:kept]
    assert isinstance(talk.end, Finished)
    assert talk.finish_reason == "stop"


def test_the_engine_hears_of_a_stop_string_across_tokens() -> None:
    with (
        opened() as (serving, engine),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        engine.script = lambda _: (
            [*((byte,) for byte in "one ¢ST".encode()), (79, 80)] + [(ord("x"),)] * 300
        )
        for stream in (False, True):
            body = {"prompt": "a", "stop": ["STOP", "¢STOPPED"], "max_tokens": 300}
            reply = client.post(
                "/v1/completions", json={**body, "stream": stream, "return_token_ids": True}
            )
            ids = [*"one ¢STOP".encode()]
            assert engine.seen(StopMatched)[-1].tokens == len(ids)
            if stream:
                assert "ST" not in reply.text
                assert '"finish_reason":"stop"' in reply.text
                continue
            choice = reply.json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("one ¢", "stop")
            assert choice["token_ids"] == ids
            assert reply.json()["usage"]["completion_tokens"] == len(ids)
