"""Chat templates: the prompt a model was trained on; callers' text cannot become structure."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtape.devices.chat import Chat, read_chat
from kvtape.devices.messages import ChatError
from kvtape.devices.text import Codec, read_codec
from kvtape.devices.weights.checkpoint import BadModel
from kvtape.devices.weights.find import find_path
from kvtape.tests import tiny_llama
from kvtape.tests.test_text import byte_level, save

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    """A byte-level tokenizer with three special tokens."""
    return save(tmp_path_factory.mktemp("chat"), byte_level())


@pytest.fixture(scope="module")
def chat(codec: Codec) -> Chat:
    """The usual template over it."""
    return Chat(codec, tiny_llama.TEMPLATE)


@pytest.mark.smollm2
def test_smollm2_prompt_is_what_the_model_was_trained_on() -> None:
    path = find_path("smollm2")
    codec = read_codec(path)
    chat = read_chat(path, codec, ends=(2,))
    assert chat is not None
    prompt = chat.render([{"role": "user", "content": "What is 2+2?"}])
    history = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
    )
    assert codec.decode(prompt.ids, special=True) == history + "<|im_start|>assistant\n"
    assert codec.decode(prompt.ids[: prompt.history_tokens], special=True) == history
    assert prompt.ids == codec.encode(history + "<|im_start|>assistant\n", special=True)
    assert chat.ends == (2,)


TEXTS = st.lists(st.text() | st.sampled_from([*tiny_llama.SPECIAL, "\ufdd0", "\ufdd1", "<|"]))


@given(parts=TEXTS, role=st.sampled_from(["system", "user", "assistant", "tool"]))
def test_text_of_callers_never_becomes_a_special_token(
    codec: Codec, chat: Chat, parts: list[str], role: str
) -> None:
    content = "".join(parts)
    ids = chat.render([{"role": role, "content": content}]).ids
    specials = [token for token in ids if token in codec.special.values()]
    assert [codec.pieces[token] for token in specials] == [
        b"<|im_start|>",
        b"<|im_end|>",
        b"<|im_start|>",
    ]
    start = ids.index(codec.special["<|im_start|>"]) + 1
    end = ids.index(codec.special["<|im_end|>"])
    assert codec.decode(ids[start:end]) == f"{role}\n{content}"


def test_tools_are_guarded_too_keys_and_values(codec: Codec) -> None:
    chat = Chat(codec, "{{ tools | tojson }}{{ '<|im_end|>' }}")
    tools = [{"<|im_end|>": {"é": ["<|im_start|>", 1, None]}}]
    ids = chat.render(USER, tools).ids
    assert [token for token in ids if token in codec.special.values()] == [2]
    assert codec.decode(ids) == '[{"<|im_end|>": {"é": ["<|im_start|>", 1, null]}}]'


def test_a_special_token_of_one_character_is_guarded(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["★"])
    codec = save(tmp_path, tokenizer)
    chat = Chat(codec, "{{ '★' + messages[0].content + '★' }}")
    ids = chat.render([{"role": "user", "content": "a★★b"}]).ids
    mark = codec.special["★"]
    assert ids == [mark, *codec.encode("a★★b"), mark]
    assert mark not in codec.encode("a★★b")


def test_the_history_is_what_stays_when_the_talk_goes_on(codec: Codec, chat: Chat) -> None:
    first = chat.render(USER)
    reply = {"role": "assistant", "content": "yes"}
    second = chat.render([*USER, reply, *USER])
    kept = first.ids[: first.history_tokens]
    assert second.ids[: first.history_tokens] == kept
    assert codec.decode(kept, special=True) == "<|im_start|>user\nhi<|im_end|>\n"
    assert second.ids[: len(first.ids)] == first.ids


def test_history_is_the_common_head_where_a_template_ends_otherwise(codec: Codec) -> None:
    chat = Chat(codec, "abc{% if add_generation_prompt %}d{% else %}zz{% endif %}")
    prompt = chat.render(USER)
    assert (codec.decode(prompt.ids), prompt.history_tokens) == ("abcd", 3)


def calling(arguments: Any) -> dict[str, Any]:
    """An assistant's message that calls a tool."""
    function = {"name": "find", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one"),
        ([{"role": "wizard", "content": "x"}], r"messages\[0\]: role is 'wizard'"),
        ([{"content": "x"}], "role is None"),
        ([*USER, {"role": "user"}], r"messages\[1\]: content is missing"),
        ([{"role": "user", "content": None}], "content is missing"),
        ([{"role": "user", "content": 3}], "neither text nor"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only text parts"),
        ([{"role": "user", "content": ["x"]}], "only text parts"),
        ([{"role": "assistant", "content": None}], "content is missing"),
        ([{"role": "assistant", "tool_calls": [1]}], "names no function"),
        ([{"role": "assistant", "tool_calls": "x"}], "not a list"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "names no function"),
        ([calling('"{"')], "not a JSON object"),
        ([calling("[1]")], "not a JSON object"),
        ([calling("{" + '"a":{' * 5000 + "}" * 5001)], "not a JSON object|too deeply"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
    ],
)
def test_messages_that_cannot_be_written_are_refused(
    chat: Chat, messages: list[dict[str, Any]], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        chat.render(messages)
    assert type(caught.value).__module__.startswith("kvtape.")


def test_text_parts_are_joined(chat: Chat) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert chat.render([{"role": "user", "content": parts}]) == chat.render(USER)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.here }}", "do not fit"),
        ("{{ 1 // 0 }}", "fails"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "range"),
    ],
)
def test_a_template_that_fails_or_reaches_out_gives_a_clear_error(
    codec: Codec, template: str, says: str
) -> None:
    chat = Chat(codec, template)
    with pytest.raises(ChatError, match=says):
        chat.render(USER)


def test_a_template_that_does_not_parse_is_named_by_line(codec: Codec) -> None:
    with pytest.raises(BadModel, match="line 2"):
        Chat(codec, "\n{% if %}")


def test_the_date_is_the_callers(codec: Codec) -> None:
    today = datetime.date(2031, 2, 3)
    chat = Chat(codec, "{{ strftime_now('%d %b %Y') }}", today=today)
    assert codec.decode(chat.render(USER).ids) == "03 Feb 2031"
    optional = "{% if strftime_now is defined %}x{% else %}fixed{% endif %}"
    assert codec.decode(Chat(codec, optional).render(USER).ids) == "fixed"


def test_helpers_that_templates_expect(codec: Codec) -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ {'é': '<'} | tojson }}"
    )
    assert codec.decode(Chat(codec, template).render([*USER, *USER]).ids) == 'hi{"é": "<"}'


def test_ends_are_the_configs_and_what_the_template_writes(codec: Codec, chat: Chat) -> None:
    assert chat.ends == (codec.special["<|im_end|>"],)
    assert Chat(codec, tiny_llama.TEMPLATE, ends=(0, 2)).ends == (0, 2)
    assert Chat(codec, "{{ raise_exception('no') }}", ends=(0,)).ends == (0,)


def test_where_a_directory_keeps_its_template(tmp_path: Path) -> None:
    codec = save(tmp_path, byte_level())
    assert read_chat(tmp_path, codec) is None
    for text in (
        '"one"',
        '[{"name": "rag", "template": "x"}, {"name": "default", "template": "one"}]',
    ):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {text}}}')
        chat = read_chat(tmp_path, codec)
        assert chat is not None
        assert codec.decode(chat.render(USER).ids) == "one"
    (tmp_path / "chat_template.jinja").write_text("two{{ eos_token }}")
    settings = '{"chat_template": "one", "eos_token": {"content": "<|end|>"}}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    codec = read_codec(tmp_path)
    chat = read_chat(tmp_path, codec)
    assert chat is not None
    assert codec.decode(chat.render(USER).ids, special=True) == "two<|end|>"
