"""Reasoning and tool calls over the socket, as the official client sees them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.chat import Chat
from kvtape.devices.http.asks import Message
from kvtape.devices.http.engine import Tokens
from kvtape.devices.http.model_text import ModelText
from kvtape.devices.http.parts import call_id
from kvtape.devices.http.reasoning import ReplyReader
from kvtape.devices.http.serve import Serving
from kvtape.devices.http.shapes import Form
from kvtape.devices.http.talk import Talk
from kvtape.devices.text import TAGS, Codec
from kvtape.events.commands import Arrive
from kvtape.events.ids import RequestId, SessionId, Token
from kvtape.tests import tiny_chat
from kvtape.tests.door_engine import INFO, ScriptedEngine, finished, opened

USER: Any = [{"role": "user", "content": "Weather?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = (
    "<tool_call>weather<arg_key>city</arg_key><arg_value>Zürich 1</arg_value>"
    "<arg_key>days</arg_key><arg_value>[1, 2]</arg_value></tool_call>"
)
GIVEN = '{"city": "Zürich 1", "days": [1, 2]}'


class Place(NamedTuple):
    """A door, its engine, and the client and tokenizer that go with them."""

    serving: Serving
    engine: ScriptedEngine
    client: openai.OpenAI
    codec: Codec

    def says(self, text: str, end: str = "<|user|>") -> None:
        """The next replies: tags and ends as their tokens, all else byte by byte, one a round."""
        ids = [*tokens_of(self.codec, text), self.codec.special[end]]
        self.engine.script = lambda _: [(token,) for token in ids]

    def whole(self, **fields: Any) -> Any:
        return self.client.chat.completions.create(model="bytes", messages=USER, **fields)

    def streamed(self, **fields: Any) -> tuple[dict[str, Any], str]:
        """The message that a stream's deltas add up to, and its finish reason."""
        chunks = list(self.whole(stream=True, **fields))
        told = [chunk.choices[0] for chunk in chunks]
        assert [choice.finish_reason for choice in told[:-1]] == [None] * (len(told) - 1)
        deltas = [choice.delta.model_dump(exclude_unset=True) for choice in told]
        return added_up(deltas), str(told[-1].finish_reason)

    @property
    def request(self) -> RequestId:
        """The last request's name."""
        return RequestId(self.engine.seen(Arrive)[-1].request)


def added_up(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of deltas."""
    said: dict[str, Any] = {"calls": []}
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                said[name] = said.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if call["index"] == len(said["calls"]):
                assert call["type"] == "function"
                said["calls"].append([call["id"], function["name"], function["arguments"]])
            else:  # no more than the arguments are told again
                assert call.keys() == {"index", "function"}
                assert function.keys() == {"arguments"}
                said["calls"][call["index"]][2] += function["arguments"]
    return said


def as_added_up(message: dict[str, Any]) -> dict[str, Any]:
    """A whole message in the same shape."""
    said: dict[str, Any] = {"calls": []}
    for name in ("content", "reasoning_content"):
        if message.get(name):
            said[name] = message[name]
    for call in message.get("tool_calls") or ():
        assert call["type"] == "function"
        said["calls"].append([call["id"], call["function"]["name"], call["function"]["arguments"]])
    return said


def tokens_of(codec: Codec, text: str) -> list[int]:
    """Tags as one token each, all else byte by byte."""
    ids: list[int] = []
    for token in codec.encode(text, special=True):
        known = token in codec.structure.values()
        ids += [token] if known else bytes_ids(codec, codec.pieces[token])
    return ids


def bytes_ids(codec: Codec, data: bytes) -> list[int]:
    """One token a byte."""
    return [codec.pieces.index(bytes([byte])) for byte in data]


@pytest.fixture(scope="module", params=[False, True], ids=["added", "special"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    codec, chat = tiny_chat.made(tmp_path_factory.mktemp("door"), special_tags=request.param)
    with (
        opened(text=ModelText(codec, chat)) as (serving, engine),
        openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client,
    ):
        engine.info = replace(INFO, vocab=codec.vocab, eos=tuple(map(Token, chat.ends)))
        yield Place(serving, engine, client, codec)


def test_reasoning_stands_beside_the_answer(place: Place) -> None:
    place.says("Hm, 日本.</think>\nYes <b>")
    message = place.whole().choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm, 日本.", "Yes <b>")
    assert message.tool_calls is None
    said, reason = place.streamed()
    assert said == {"reasoning_content": "Hm, 日本.", "content": "Yes <b>", "calls": []}
    assert reason == "stop"


def test_reasoning_that_never_ends_is_no_answer(place: Place) -> None:
    place.says("Hm " * 99)
    choice = place.whole(max_tokens=8).choices[0]
    assert (choice.message.reasoning_content, choice.message.content) == ("Hm Hm Hm", None)
    assert choice.finish_reason == "length"
    assert place.streamed(max_tokens=8) == (
        {"reasoning_content": "Hm Hm Hm", "calls": []},
        "length",
    )


def test_thinking_can_be_switched_off(place: Place) -> None:
    place.says("Yes")
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    message = place.whole(extra_body=off).choices[0].message
    assert (message.reasoning_content, message.content) == (None, "Yes")
    prompt = place.engine.seen(Arrive)[-1].prompt
    assert place.codec.decode(prompt, special=True).endswith("<think></think>")
    assert place.streamed(extra_body=off) == ({"content": "Yes", "calls": []}, "stop")
    place.whole(reasoning_effort="low")
    prompt = place.engine.seen(Arrive)[-1].prompt
    assert "Effort: low" in place.codec.decode(prompt)


def test_calls_have_names_ids_and_json_arguments(place: Place) -> None:
    place.says("Hm</think>Let me see.\n" + CALL + CALL, end="<|observation|>")
    choice = place.whole(tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    ids = [call_id(place.request, index) for index in (0, 1)]
    told = {
        "reasoning_content": "Hm",
        "content": "Let me see.",
        "calls": [[name, "weather", GIVEN] for name in ids],
    }
    assert as_added_up(choice.message.model_dump()) == told
    assert len(set(ids)) == 2
    assert all(name.startswith("call_") and len(name) == 29 for name in ids)
    said, reason = place.streamed(tools=TOOLS)
    told["calls"] = [[call_id(place.request, index), "weather", GIVEN] for index in (0, 1)]
    assert (said, reason) == (told, "tool_calls")
    one = place.whole(tools=TOOLS, parallel_tool_calls=False).choices[0]
    assert len(one.message.tool_calls) == 1


def test_the_clients_own_reader_of_streams_agrees(place: Place) -> None:
    place.says("Hm</think>So:" + CALL)
    with place.client.chat.completions.stream(model="bytes", messages=USER, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        choice = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "So:")
    calls = choice.message.tool_calls
    assert calls is not None and len(calls) == 1
    (call,) = calls
    assert (call.id, call.function.name) == (call_id(place.request, 0), "weather")
    assert call.function.arguments == GIVEN


def test_a_call_alone_has_no_content_and_may_be_cut(place: Place) -> None:
    place.says("</think>" + CALL)
    choice = place.whole(tools=TOOLS).choices[0]
    assert (choice.message.content, choice.message.reasoning_content) == (None, None)
    limit = len(tokens_of(place.codec, "</think>" + CALL)) - 12
    choice = place.whole(tools=TOOLS, max_tokens=limit).choices[0]
    assert choice.finish_reason == "length"
    (call,) = choice.message.tool_calls
    assert GIVEN.startswith(call.function.arguments)
    assert place.streamed(tools=TOOLS, max_tokens=limit)[1] == "length"


def test_a_whole_round_of_tools_comes_back_as_the_prompt(place: Place) -> None:
    place.says("Hm</think>" + CALL)
    reply = place.whole(tools=TOOLS).choices[0].message
    asked = place.engine.seen(Arrive)[-1].prompt
    answer: Any = {
        "role": "tool",
        "tool_call_id": reply.tool_calls[0].id,
        "content": "</think>rain",
    }
    place.says("So</think>Rain.")
    messages = [*USER, reply.model_dump(), answer]
    place.client.chat.completions.create(model="bytes", messages=messages, tools=TOOLS)
    arrive = place.engine.seen(Arrive)[-1]
    written = place.codec.decode(arrive.prompt, special=True)
    # The reply's own tokens stand again where it left off, so that kept states match.
    begun = place.codec.decode(asked, special=True) + "Hm</think>" + CALL
    assert written.startswith(begun + "<|observation|><tool_response></think>rain</tool_response>")
    assert list(arrive.prompt[: len(asked)]) == list(asked)
    assert arrive.prompt.count(place.codec.tags["</think>"]) == 1


def test_fields_that_clients_send_as_null_are_absent() -> None:
    sent = {"role": "assistant", "content": None, "tool_calls": None, "name": "a"}
    assert Message.model_validate(sent).plain() == {
        "role": "assistant",
        "content": None,
        "name": "a",
    }


def test_without_tools_or_chat_the_text_is_as_it_is(place: Place) -> None:
    special = "<think>" in place.codec.special
    shown = "" if special else CALL
    place.says("</think>a" + CALL)
    unoffered: list[dict[str, Any]] = [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]
    for fields in unoffered:
        choice = place.whole(**fields).choices[0]
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"
        assert special or choice.message.content == "a" + shown
        assert "<tool_call>" not in (choice.message.content if special else "")
    reply = place.client.completions.create(model="bytes", prompt="a", max_tokens=999)
    assert reply.choices[0].text.startswith("a" if special else "</think>a<tool_call>")


def test_token_ids_are_told_whatever_the_text_becomes(place: Place) -> None:
    text = "Hm</think>" + CALL
    place.says(text)
    ids = [*tokens_of(place.codec, text), place.codec.special["<|user|>"]]
    fields: dict[str, Any] = {"tools": TOOLS, "extra_body": {"return_token_ids": True}}
    assert place.whole(**fields).choices[0].model_extra["token_ids"] == ids
    told = [chunk.choices[0].model_extra for chunk in place.whole(stream=True, **fields)]
    assert [token for extra in told for token in (extra or {}).get("token_ids", ())] == ids


def test_options_that_are_the_servers_are_refused(place: Place) -> None:
    unfit: list[Any] = [{"add_generation_prompt": False}, {"messages": []}, 1]
    for options in unfit:
        with pytest.raises(openai.BadRequestError, match="chat_template_kwargs"):
            place.whole(extra_body={"chat_template_kwargs": options})
    unserved: list[dict[str, Any]] = [
        {"n": 2},
        {"logprobs": True},
        {"tools": TOOLS, "tool_choice": "required"},
    ]
    for fields in unserved:
        with pytest.raises(openai.BadRequestError, match=next(reversed(fields))):
            place.whole(**fields)


# --- any cut into tokens -------------------------------------------------------------------------

SOUP = st.lists(
    st.sampled_from([*sorted(TAGS), CALL, "weather", "city", "a ", "\n", "日", "1", "<"])
    | st.text(max_size=3),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Codec, Chat]:
    return tiny_chat.made(tmp_path_factory.mktemp("cuts"))


@settings(deadline=None, max_examples=150)
@given(SOUP, st.booleans(), st.sampled_from(["stop", "length"]), st.data())
def test_any_cut_into_tokens_says_the_same_streamed_and_whole(
    made: tuple[Codec, Chat], text: str, thinking: bool, reason: str, data: st.DataObject
) -> None:
    codec = made[0]
    text = text.encode(errors="ignore").decode()
    tags = data.draw(st.booleans(), label="tags are one token each")
    spelt = tokens_of(codec, text) if tags else bytes_ids(codec, text.encode())
    packed = codec.encode(text, special=tags)
    ids = data.draw(st.sampled_from([spelt, packed]))
    arrive = Arrive(
        request=RequestId("r"), session=SessionId("s"), prompt=(Token(1),), max_new=9999,
        eos=(Token(codec.special["<|user|>"]),),
    )  # fmt: skip

    def form() -> tuple[Talk, Form]:
        reader = ReplyReader(dict.fromkeys(codec.tags, True), thinking=thinking, tools=TOOLS)
        engine: Any = None
        talk = Talk(engine, arrive, codec.detokeniser(shown=reader.reads))
        return talk, Form(arrive, INFO, 0, chat=True, ids=False, usage=False, reader=reader)

    end = finished(arrive, ids, reason)
    talk, whole = form()
    talk.take(Tokens(tuple(map(Token, bytes_ids(codec, text.encode())))))
    talk.take(end)
    said = whole.whole(talk.text, ids, talk.finish_reason, end, {})["choices"][0]
    talk, chunked = form()
    places = data.draw(st.lists(st.integers(0, len(ids)), max_size=9).map(sorted))
    chunks = []
    for a, b in pairwise([0, *places, len(ids)]):
        chunks.append(chunked.piece(*talk.take(Tokens(tuple(map(Token, ids[a:b]))))))
    chunks += [chunked.piece(*talk.take(end)), *chunked.closing(talk.finish_reason, end, {})]
    told = [chunk["choices"][0] for chunk in chunks if chunk is not None]
    assert added_up([choice["delta"] for choice in told]) == as_added_up(said["message"])
    assert told[-1]["finish_reason"] == said["finish_reason"]
    if reason == "stop":
        assert (said["finish_reason"] == "tool_calls") == bool(said["message"].get("tool_calls"))
        for call in said["message"].get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
