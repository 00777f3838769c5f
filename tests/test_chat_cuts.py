"""Where other chats part from one: after its system messages, at the user's latest message."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.chat import Chat, Prompt
from kvtape.devices.text import Codec
from kvtape.tests import tiny_chat, tiny_llama
from kvtape.tests.test_text import byte_level, save

TOOLS = [{"type": "function", "function": {"name": "find", "description": "é <think>"}}]
Talk = list[dict[str, Any]]
Both = tuple[Codec, Chat]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The usual template, whose messages stand between special tokens."""
    codec = save(tmp_path_factory.mktemp("plain"), byte_level())
    return codec, Chat(codec, tiny_llama.TEMPLATE)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A template with tools, tags and reasoning."""
    return tiny_chat.made(tmp_path_factory.mktemp("tagged"))


def say(role: str, content: str) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": content}


def parts(both: Both, messages: Talk, tools: Any = None) -> tuple[str, str]:
    """The text before the user's first words, and before the latest ones."""
    prompt = both[1].render(messages, tools)
    cut = (prompt.ids[: prompt.system_tokens], prompt.ids[: prompt.rewind_tokens])
    return both[0].decode(cut[0], special=True), both[0].decode(cut[1], special=True)


def test_the_system_part_ends_where_the_user_begins(plain: Both, tagged: Both) -> None:
    messages = [say("system", "be brief"), say("user", "hi")]
    before = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>"
    assert parts(plain, messages) == (before, before)
    before = "[gMASK]<sop><|system|>be brief<|user|>"
    assert parts(tagged, messages) == (before, before)


def test_tools_are_of_the_system_part_though_no_message_is(tagged: Both) -> None:
    system, rewind = parts(tagged, [say("user", "hi")], TOOLS)
    assert system == rewind
    assert '"name": "find"' in system and system.endswith("</tool_call><|user|>")


def test_the_latest_message_of_the_user_is_written_anew_though_tools_answered_it(
    tagged: Both,
) -> None:
    called = {"role": "assistant", "content": "so", "reasoning_content": "why"}
    messages = [
        say("system", "be brief"), say("user", "one"), called, say("user", "two"),
        say("assistant", "wait"), say("tool", "3"),
    ]  # fmt: skip
    system, rewind = parts(tagged, messages)
    assert system == "[gMASK]<sop><|system|>be brief<|user|>"
    assert rewind == system + "one<|assistant|><think>why</think>so<|user|>"


def test_without_a_user_there_is_nothing_to_rewind(plain: Both) -> None:
    prompt = plain[1].render([say("system", "be brief"), say("assistant", "yes")])
    assert (prompt.rewind_tokens, prompt.system_tokens > 0) == (0, True)


def test_a_template_that_takes_no_such_messages_has_no_cut(plain: Both) -> None:
    refuses = "{% if messages[-1].content == 'a' %}{{ raise_exception('no') }}{% endif %}"
    prompt = Chat(plain[0], refuses + tiny_llama.TEMPLATE).render([say("user", "hi")])
    assert (prompt.system_tokens, prompt.rewind_tokens) == (0, 0)
    assert prompt.history_tokens > 0


def test_a_template_without_special_tokens_has_no_cut(plain: Both) -> None:
    """Where the ids of a text depend on what follows it, none of them are sure to stay."""
    chat = Chat(plain[0], "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    prompt = chat.render([say("system", "be brief"), say("user", "hi")])
    assert (prompt.system_tokens, prompt.rewind_tokens) == (0, 0)


WORDS = st.text(max_size=12) | st.sampled_from(
    ["a", "b", " a", "ab", "<|im_end|>", "<|user|>", "\ufdd0"]
)


@settings(deadline=None)
@given(system=WORDS, turns=st.lists(WORDS, min_size=1, max_size=4), edited=WORDS)
def test_what_is_cut_stays_whatever_the_user_says_instead(
    plain: Both, tagged: Both, system: str, turns: list[str], edited: str
) -> None:
    talk = [say("system", system)]
    for turn in turns:
        talk += [say("user", turn), say("assistant", "yes")]
    talk.pop()
    for _, chat in (plain, tagged):
        prompt, other = chat.render(talk), chat.render([*talk[:-1], say("user", edited)])
        fresh = chat.render([talk[0], say("user", edited)])
        assert 0 < prompt.system_tokens <= prompt.rewind_tokens <= prompt.history_tokens
        assert heads(prompt, prompt.rewind_tokens) == heads(other, prompt.rewind_tokens)
        assert heads(prompt, prompt.system_tokens) == heads(fresh, prompt.system_tokens)
        assert prompt.rewind_tokens == other.rewind_tokens
        assert prompt.system_tokens == other.system_tokens == fresh.system_tokens


def heads(prompt: Prompt, tokens: int) -> list[int]:
    """The first ids of a prompt."""
    return prompt.ids[:tokens]


ENDS_OTHERWISE = (
    "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_end|>x{% else %}xy<|im_end|>{% endif %}"
)


@settings(deadline=None)
@given(words=st.lists(WORDS, min_size=1, max_size=4))
def test_the_history_is_what_both_texts_encode_to_from_their_beginning(
    plain: Both, tagged: Both, words: list[str]
) -> None:
    """Though only what follows the last special token in common is encoded twice."""
    for codec, source in (
        (plain[0], tiny_llama.TEMPLATE), (plain[0], ENDS_OTHERWISE),
        (tagged[0], tiny_chat.TEMPLATE),
    ):  # fmt: skip
        prompt = Chat(codec, source).render([say("user", word) for word in words])
        unasked = Chat(codec, "{% set add_generation_prompt = false %}" + source)
        other = unasked.render([say("user", word) for word in words]).ids
        pairs = enumerate(zip(prompt.ids, other, strict=False))
        whole = min(len(prompt.ids), len(other))
        assert prompt.history_tokens == next((at for at, (a, b) in pairs if a != b), whole)


def test_a_cut_within_a_special_token_is_before_it(tmp_path: Path, plain: Both) -> None:
    codec, text = plain[0], "ab<|im_start|>cd<|im_end|>"
    ids, counts, seams = codec.encode_cut(text, range(len(text) + 1))
    assert ids == codec.encode(text, special=True)
    two, whole = len(codec.encode("ab")) + 1, len(ids)
    ends = {text.index("cd"): two, len(text): whole}
    assert counts == [max(n for end, n in {0: 0, **ends}.items() if end <= at)
                      for at in range(len(text) + 1)]  # fmt: skip
    for seam, count in zip(seams, counts, strict=True):
        assert codec.encode_cut(text, (), seam=seam).ids == ids[count:]
