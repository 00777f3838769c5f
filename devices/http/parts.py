"""The parts of a chat reply (reasoning, text, tool calls) and how OpenAI's clients read them."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...events.ids import RequestId


class Reasoning(NamedTuple):
    """More of what the model thought."""

    text: str


class Content(NamedTuple):
    """More of the answer."""

    text: str


class CallPiece(NamedTuple):
    """More of tool call number `at`: its name comes first and whole, then its arguments."""

    at: int
    name: str
    arguments: str


Part = Reasoning | Content | CallPiece


def call_id(request: RequestId, index: int) -> str:
    """The same call of the same request always has the same name."""
    told = f"{request}/{index}".encode()
    return f"call_{hashlib.blake2b(told, digest_size=12).hexdigest()}"


def delta(parts: Sequence[Part], request: RequestId) -> dict[str, Any]:
    """The parts as one delta of a stream; what is not in them is not in it."""
    said: dict[str, Any] = {}
    reasoning, content = texts(parts)
    if reasoning:
        said["reasoning_content"] = reasoning
    if content:
        said["content"] = content
    calls = [call(piece, request) for piece in merged(parts)]
    if calls:
        said["tool_calls"] = calls
    return said


def call(piece: CallPiece, request: RequestId) -> dict[str, Any]:
    """One entry of tool_calls in a delta; only a call's first has id, type and name."""
    function = {"arguments": piece.arguments}
    if not piece.name:
        return {"index": piece.at, "function": function}
    return {
        "index": piece.at,
        "id": call_id(request, piece.at),
        "type": "function",
        "function": {"name": piece.name, **function},
    }


def message(parts: Sequence[Part], request: RequestId) -> dict[str, Any]:
    """A whole reply as an assistant's message; content is null where only other parts are."""
    reasoning, content = texts(parts)
    calls = [call(piece, request) for piece in merged(parts)]
    for entry in calls:
        del entry["index"]
    only_others = not content and (calls or reasoning)
    said = {
        "role": "assistant",
        "content": None if only_others else content,
        "reasoning_content": reasoning or None,
    }
    return {**said, "tool_calls": calls} if calls else said


def texts(parts: Sequence[Part]) -> tuple[str, str]:
    """Reasoning and answer."""
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return reasoning, "".join(part.text for part in parts if isinstance(part, Content))


def merged(parts: Sequence[Part]) -> list[CallPiece]:
    """The pieces of tool calls, those of one call as one."""
    calls: dict[int, tuple[str, list[str]]] = {}
    for part in parts:
        if isinstance(part, CallPiece):
            name, arguments = calls.setdefault(part.at, (part.name, []))
            assert name == part.name or not part.name, f"call {part.at} is named twice"
            arguments.append(part.arguments)
    return [CallPiece(at, name, "".join(told)) for at, (name, told) in calls.items()]
