"""Reasoning and tool calls in prompts: templates get them, callers' text cannot become them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtape.devices.chat import Chat
from kvtape.devices.messages import ChatError
from kvtape.devices.text import TAGS, Codec
from kvtape.tests import tiny_chat
from kvtape.tests.test_text import byte_level, save

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "find", "description": "é <think>"}}]


@pytest.fixture(scope="module", params=[False, True], ids=["added", "special"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Codec and chat; tags are added tokens, as in the family's own files, or special ones."""
    return tiny_chat.made(tmp_path_factory.mktemp("tags"), special_tags=request.param)


def written(both: tuple[Codec, Chat], messages: list[dict[str, Any]], **options: Any) -> str:
    prompt = both[1].render(messages, options.pop("tools", None), options)
    return both[0].decode(prompt.ids, special=True)


def asking(**other: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **other}


def call(arguments: str) -> dict[str, Any]:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": "find", "arguments": arguments},
    }


def test_calls_and_reasoning_of_the_history_reach_the_template(both: tuple[Codec, Chat]) -> None:
    arguments = json.dumps({"city": "Zürich\n", "days": [1, 2.5, None], "deep": {"a": True}})
    messages = [
        USER,
        asking(reasoning_content="so", tool_calls=[call(arguments), call("")]),
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        asking(content="It rains."),
        USER,
    ]
    assert written(both, messages) == (
        "[gMASK]<sop><|user|>hi<|assistant|><think>so</think>"
        "<tool_call>find<arg_key>city</arg_key><arg_value>Zürich\n</arg_value>"
        "<arg_key>days</arg_key><arg_value>[1, 2.5, null]</arg_value>"
        '<arg_key>deep</arg_key><arg_value>{"a": true}</arg_value></tool_call>'
        "<tool_call>find</tool_call><|observation|><tool_response>rain</tool_response>"
        "<|assistant|><think></think>It rains.<|user|>hi<|assistant|><think>"
    )


def test_the_templates_own_tags_are_tokens(both: tuple[Codec, Chat]) -> None:
    codec, chat = both
    ids = chat.render([USER, asking(tool_calls=[call('{"a": 1}')])], TOOLS).ids
    counts = {tag: ids.count(codec.tags[tag]) for tag in TAGS}
    assert codec.tags.keys() == TAGS
    assert counts["<tool_call>"] == counts["</arg_value>"] == 2  # the form, and the call
    assert (counts["<think>"], counts["</think>"]) == (2, 1)


TEXTS = st.lists(st.text() | st.sampled_from([*sorted(TAGS), "<", "\ufdd0", "<|user|>"]))
PLACES: list[Callable[[str], tuple[list[dict[str, Any]], dict[str, Any]]]] = [
    lambda text: ([{"role": "user", "content": text}], {}),
    lambda text: ([{"role": "tool", "content": text}], {}),
    lambda text: ([asking(reasoning_content=text)], {}),
    lambda text: ([asking(reasoning_content="", content=f"({text})")], {}),
    lambda text: ([asking(tool_calls=[call(json.dumps({f"k{text}": text}))])], {}),
    lambda text: ([USER], {"reasoning_effort": text}),
]


@given(parts=TEXTS, place=st.sampled_from(PLACES))
def test_text_of_callers_never_becomes_a_tag(
    both: tuple[Codec, Chat],
    parts: list[str],
    place: Callable[[str], tuple[list[dict[str, Any]], dict[str, Any]]],
) -> None:
    codec, chat = both
    text = "".join(parts)

    def rendered(text: str) -> list[int]:
        messages, options = place(text)
        return chat.render(messages, None, options).ids

    def structure(ids: list[int]) -> list[int]:
        return [token for token in ids if token in codec.structure.values()]

    assert structure(rendered(text)) == structure(rendered("x"))
    assert text in codec.decode(rendered(text), special=True)
    assert not structure(codec.encode(text))
    assert codec.decode(codec.encode(text), special=True) == text


def test_an_assistants_one_text_is_parted(both: tuple[Codec, Chat]) -> None:
    for text in ("<think>so</think>\nyes", "so</think>yes"):
        assert "<think>so</think>yes" in written(both, [USER, asking(content=text), USER])
    assert "<think></think>yes" in written(both, [USER, asking(content="<think></think>yes")])
    kept = asking(content="a</think>b", reasoning_content="so")
    ids = both[1].render([kept]).ids
    assert ids.count(both[0].tags["</think>"]) == 1


def test_the_header_says_whether_the_reply_begins_in_reasoning(both: tuple[Codec, Chat]) -> None:
    closed = asking(content="yes", reasoning_content="so")
    for messages in ([USER], [USER, closed, USER]):
        assert both[1].render(messages).thinking
        prompt = both[1].render(messages, None, {"enable_thinking": False})
        assert not prompt.thinking
        assert both[0].decode(prompt.ids, special=True).endswith("<|assistant|><think></think>")


def test_a_tag_before_the_header_opens_nothing(both: tuple[Codec, Chat]) -> None:
    template = "Begin with <think>.{% if add_generation_prompt %}<|assistant|>{% endif %}"
    prompt = Chat(both[0], template).render([USER])
    assert both[0].tags["<think>"] in prompt.ids
    assert not prompt.thinking


def test_options_reach_the_template_and_its_own_names_are_refused(
    both: tuple[Codec, Chat],
) -> None:
    assert "<|system|>Effort: low<|user|>" in written(both, [USER], reasoning_effort="low")
    assert '{"name": "find", "description": "é <think>"}\n' in written(both, [USER], tools=TOOLS)
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        with pytest.raises(ChatError, match=name):
            both[1].render([USER], None, {name: ""})


def test_a_vocabulary_without_tags_leaves_their_text_alone(tmp_path: Path) -> None:
    codec = save(tmp_path, byte_level())
    assert codec.tags == {}
    chat = Chat(codec, "{{ messages[0].content }}{% if add_generation_prompt %}<think>{% endif %}")
    prompt = chat.render([asking(content="<think>a</think>b")])
    assert codec.decode(prompt.ids) == "<think>a</think>b<think>"
    assert not prompt.thinking
