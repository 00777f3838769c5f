"""A reply's text becomes reasoning, answer and tool calls, the same however it is cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.http.argument_types import argument_types, value_json
from kvtape.devices.http.parts import CallPiece, message
from kvtape.devices.http.reasoning import ReplyReader
from kvtape.devices.text import TAGS
from kvtape.events.ids import RequestId

KNOWN = dict.fromkeys(TAGS, True)
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "word": {"enum": ["1", "true"]},
        "either": {"type": ["string", "integer"]},
        "count": {"type": "integer"},
        "deep": {"$ref": "#/$defs/deep"},
        "name": {"allOf": [{"$ref": "#/$defs/name"}, {"minLength": 2}]},
        "loop": {"$ref": "#/$defs/loop"},
    },
    "$defs": {
        "deep": {"type": "object"},
        "name": {"type": "string"},
        "loop": {"oneOf": [{"$ref": "#/$defs/loop"}, {"type": "string"}]},
    },
}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]


def reader(**other: Any) -> ReplyReader:
    return ReplyReader(KNOWN, **{"tools": TOOLS, **other})


def read(
    text: str, *, places: tuple[int, ...] = (), cut: bool = False, **other: Any
) -> dict[str, Any]:
    """The message that a text becomes when it comes in pieces that end at these places."""
    of = reader(**other)
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    parts = [part for a, b in pairwise([0, *ends]) for part in of.push(text[a:b])]
    said = message([*parts, *of.finish(cut=cut)], RequestId("r"))
    assert bool(said.get("tool_calls")) == of.called or other.get("calls_max") == 0
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in said["tool_calls"]] \
        if "tool_calls" in said else []  # fmt: skip
    return {"think": said["reasoning_content"], "text": said["content"], "calls": calls}


def form(name: str, *pairs: tuple[str, str], lines: bool = False) -> str:
    """A call as the family writes it, in one line or, as it did before, in several."""
    end = "\n" if lines else ""
    told = "".join(
        f"<arg_key>{key}</arg_key>{end}<arg_value>{value}</arg_value>{end}" for key, value in pairs
    )
    return f"<tool_call>{name}{end}{told}</tool_call>"


PLAIN: list[tuple[str, bool, str | None, str | None]] = [
    ("yes", False, None, "yes"),
    (" \nyes\n ", False, None, " \nyes\n "),
    ("", False, None, ""),
    (" \n", False, None, " \n"),
    ("<think>so</think>yes", False, "so", "yes"),
    ("\n<think>so\n </think>\n\nyes ", False, "so\n ", "yes "),
    ("so</think>yes", True, "so", "yes"),
    ("<think>so</think>yes", True, "so", "yes"),
    ("so", True, "so", None),
    ("<think>so", False, "so", None),
    ("</think>yes", True, None, "yes"),
    (" \n</think>yes", True, None, "yes"),
    (" \n", True, None, ""),
    ("yes</think>no", False, None, "yesno"),
    ("so</think>yes</think> no", True, "so", "yes no"),
    ("so <think> on</think>yes", True, "so <think> on", "yes"),
    ("what <think> means", False, None, "what <think> means"),
    ("a < b </thin", False, None, "a < b </thin"),
    ("so </thin", True, "so </thin", None),
]


@pytest.mark.parametrize(("text", "thinking", "think", "answer"), PLAIN)
@pytest.mark.parametrize("step", [1, 3, 99])
def test_reasoning_and_answer(
    text: str, thinking: bool, think: str | None, answer: str | None, step: int
) -> None:
    places = tuple(range(0, len(text), step))
    got = read(text, places=places, thinking=thinking)
    assert got == {"think": think, "text": answer, "calls": []}


CALLS: list[tuple[str, str | None, list[tuple[str, str]]]] = [
    (form("now"), None, [("now", "{}")]),
    (form("now", lines=True), None, [("now", "{}")]),
    (form("\n now ", ("a ", "1")), None, [("now", '{"a": 1}')]),
    (form("find", ("text", "1")), None, [("find", '{"text": "1"}')]),
    (form("find", ("text", ' "é\n'), lines=True), None, [("find", '{"text": " \\"é\\n"}')]),
    (form("other", ("text", "1")), None, [("other", '{"text": 1}')]),
    (
        form("find", ("count", " 1 "), ("deep", '{"a": [1.50]}'), ("x", "a b"), lines=True),
        None,
        [("find", '{"count": 1, "deep": {"a": [1.50]}, "x": "a b"}')],
    ),
    ("a \n" + form("f") + "\n" + form("g") + "\n", "a", [("f", "{}"), ("g", "{}")]),
    ("a" + form("f") + " b", "a b", [("f", "{}")]),
    ("<tool_call>f<tool_call>g</tool_call>", None, [("f", "{}"), ("g", "{}")]),
    ("<tool_call> </tool_call>yes", "yes", []),
    (form("", ("a", "1")) + form("f"), None, [("f", "{}")]),
    ("<tool_call>f<arg_key>a</tool_call>yes", "yes", [("f", "{}")]),
    ("<tool_call>f<arg_key>a<arg_value>1</arg_value></tool_call>", None, [("f", '{"a": 1}')]),
    (
        "<tool_call>f\n<arg_key>a</arg_key><arg_key>b</arg_key><arg_value>",
        None,
        [("f", '{"b": ""}')],
    ),
    (
        form("find", ("text", "</tool_call><think><arg_key>")),
        None,
        [("find", '{"text": "</tool_call><think><arg_key>"}')],
    ),
    ("<tool_call>find<arg_key>text</arg_key><arg_value>a", None, [("find", '{"text": "a"}')]),
    ("<tool_call>find", None, [("find", "{}")]),
]


@pytest.mark.parametrize(("text", "answer", "calls"), CALLS)
@pytest.mark.parametrize("step", [1, 4, 999])
def test_tool_calls(text: str, answer: str | None, calls: list[tuple[str, str]], step: int) -> None:
    got = read(text, places=tuple(range(0, len(text), step)))
    assert got == {"think": None, "text": answer, "calls": calls}
    if calls and text.startswith("<"):  # a call ends the reasoning as well
        after = read("so" + text, thinking=True)
        assert after == {"think": "so", "text": answer, "calls": calls}


def test_a_call_that_a_limit_cuts_stays_unfinished() -> None:
    whole = "<tool_call>find<arg_key>text</arg_key><arg_value>ab</arg_value></tool_call>"
    seen = [read(whole[:end], cut=True)["calls"] for end in range(len(whole) + 1)]
    arguments = [calls[0][1] for calls in seen if calls]
    assert all(b.startswith(a) for a, b in pairwise(arguments))
    assert seen[whole.index("<arg_key>")] == []  # more of the name may follow
    assert arguments[-2:] == ['{"text": "ab"', '{"text": "ab"}']


@pytest.mark.parametrize(("text", "thinking", "think", "answer"), PLAIN)
def test_a_limit_cuts_nothing_off_the_text(
    text: str, thinking: bool, think: str | None, answer: str | None
) -> None:
    assert read(text, thinking=thinking, cut=True) == {"think": think, "text": answer, "calls": []}


def test_only_what_was_offered_and_asked_for_is_read() -> None:
    text = "<think>so</think>a" + form("f") + form("g")
    assert read(text, calls_max=1)["calls"] == [("f", "{}")]
    assert read(text, tools=[]) == {"think": "so", "text": "a" + form("f") + form("g"), "calls": []}
    for known in ({}, {"<tool_call>": True, "</tool_call>": True}, {"<think>": True}):
        of = ReplyReader(known, tools=TOOLS, thinking=True)
        assert not of.reads
        assert message([*of.push(text), *of.finish(cut=False)], RequestId("r"))["content"] == text
    unsaid = dict.fromkeys(TAGS, False)
    of = ReplyReader(unsaid)
    assert message(of.push("what <think> means"), RequestId("r"))["content"] == "what  means"


def test_strings_and_names_are_told_as_they_come() -> None:
    of = reader()
    of.push("<tool_call>find<arg_key>text</arg_key><arg_value>")
    for letter in 'a"é':
        escaped = json.dumps(letter, ensure_ascii=False)[1:-1]
        assert of.push(letter) == [CallPiece(0, "", escaped)]
    assert reader().push("<tool_call>find\n") == [CallPiece(0, "find", "")]


VALUES: list[tuple[str, str, str]] = [
    ("text", "true", '"true"'),
    ("word", "1", '"1"'),
    ("name", "12", '"12"'),
    ("loop", "12", '"12"'),
    ("maybe", "null", "null"),
    ("maybe", "12", '"12"'),
    ("either", "12", "12"),
    ("either", "1.5", '"1.5"'),
    ("either", '"12"', '"\\"12\\""'),
    ("count", "12", "12"),
    ("count", "many", '"many"'),
    ("deep", '{"a": 1}', '{"a": 1}'),
    ("other", '"12"', '"12"'),
    ("other", "NaN", '"NaN"'),
    ("other", "1" * 5000, '"' + "1" * 5000 + '"'),
    ("other", "[" * 99999, '"' + "[" * 99999 + '"'),
    ("other", "", '""'),
]


@pytest.mark.parametrize(("key", "raw", "told"), VALUES)
def test_values_are_json_where_the_schema_lets_them(key: str, raw: str, told: str) -> None:
    assert value_json(raw, argument_types(TOOLS, "find", key)) == told


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.none(), max_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
WORDS = ("$ref", "type", "enum", "const", "anyOf", "oneOf", "allOf", "properties", "a", "string")
SCHEMAS = st.recursive(
    st.sampled_from([*WORDS, "#", "#/a", None, 1]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(schema=SCHEMAS, tool=SCHEMAS, value=NESTED)
def test_any_schema_is_survived(schema: Any, tool: Any, value: Any) -> None:
    raw = json.dumps(value)
    for tools in (
        [{"function": tool}],
        [{"function": {"name": "f", "parameters": schema}}],
        [{"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}],
    ):
        types = argument_types(tools, "f", "a")
        assert json.loads(value_json(raw, types)) in (value, raw)


def clean(text: str) -> bool:
    """Whether a text holds no tag, and nothing that becomes one beside a tag."""
    return not any(tag in f"<{text}" or tag in text for tag in TAGS) and "<" not in text[-13:]


TEXTS = st.text(st.sampled_from('ab"\\é日 \n<>/{}'), max_size=9).filter(clean)
NAMES = st.text("fg_", min_size=1, max_size=4)


@settings(deadline=None)
@given(
    think=TEXTS.filter(str.strip) | st.none(),
    answer=TEXTS.map(str.strip),
    calls=st.lists(st.tuples(NAMES, st.dictionaries(NAMES, NESTED, max_size=3)), max_size=3),
    lines=st.booleans(),
    places=st.lists(st.integers(0, 200), max_size=8),
)
def test_what_is_written_in_the_form_is_read_back(
    think: str | None,
    answer: str,
    calls: list[tuple[str, dict[str, Any]]],
    lines: bool,
    places: list[int],
) -> None:
    def value(of: Any) -> str:
        """As chat templates write it; a string that is no JSON goes without quotes."""
        bare = isinstance(of, str) and clean(of) and value_json(of, frozenset()) == json.dumps(of)
        return of if bare else json.dumps(of).replace("<", "\\u003c")

    text = "" if think is None else f"<think>{think}</think>"
    text += answer + "".join(
        form(name, *((key, value(of)) for key, of in given.items()), lines=lines)
        for name, given in calls
    )
    got = read(text, places=tuple(places))
    assert got["think"] == think
    assert got["text"] == (answer or (None if think or calls else ""))
    assert [(name, json.loads(given)) for name, given in got["calls"]] == calls


SOUP = st.lists(
    st.sampled_from([*sorted(TAGS), "find", "text", "count", "a", " ", "\n", "1", '"', "<", "</"])
    | st.text(max_size=3),
    max_size=24,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(SOUP, st.booleans(), st.booleans(), st.lists(st.integers(0, 120), max_size=9))
def test_pieces_do_not_matter(text: str, thinking: bool, cut: bool, places: list[int]) -> None:
    whole = read(text, thinking=thinking, cut=cut)
    assert read(text, places=tuple(places), thinking=thinking, cut=cut) == whole
    assert read(text, places=tuple(range(len(text))), thinking=thinking, cut=cut) == whole
    assert "</think>" not in (whole["text"] or "")
    assert "</think>" not in (whole["think"] or "")
    if not cut:
        assert all(isinstance(json.loads(told), dict) for _, told in whole["calls"])
