"""Messages as chat templates expect them: text joined, reasoning apart, arguments as objects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")


class ChatError(ValueError):
    """Messages that cannot be written as a prompt; the message says why."""


def checked(at: int, message: Mapping[str, Any], *, thinks: bool = False) -> dict[str, Any]:
    """Message number `at` with a known role, its text parts joined. Raises ChatError.

    thinks: the model's vocabulary has `</think>`, so an assistant's text up to it is reasoning.
    """
    role = message.get("role")
    if role not in ROLES:
        raise ChatError(f"messages[{at}]: role is {role!r}, not one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(part_text(at, part) for part in content)
    told = {**message, "content": content}
    if role == "assistant" and message.get("tool_calls"):
        told["tool_calls"] = [called(at, call) for call in listed(at, message["tool_calls"])]
    if content is None and role == "assistant":
        if not (message.get("tool_calls") or isinstance(message.get("reasoning_content"), str)):
            raise ChatError(f"messages[{at}]: content is missing")
        told["content"] = ""  # templates that were not told of None write "None"
    elif content is None:
        raise ChatError(f"messages[{at}]: content is missing")
    elif not isinstance(content, str):
        raise ChatError(f"messages[{at}]: content is neither text nor a list of text parts")
    elif thinks and role == "assistant" and message.get("reasoning_content") is None:
        told |= parted(content)
    return told


def part_text(at: int, part: Any) -> str:
    """The text of one part of a message's content."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ChatError(f"messages[{at}]: only text parts are read")
    return text


def parted(content: str) -> dict[str, str]:
    """Reasoning and text of a reply that a client kept as one text."""
    reasoning, closed, rest = content.partition("</think>")
    if not closed:
        return {}
    return {"reasoning_content": reasoning.rpartition("<think>")[2], "content": rest}


def listed(at: int, calls: Any) -> Sequence[Any]:
    """The tool calls, which must be a list."""
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise ChatError(f"messages[{at}]: tool_calls is not a list")
    return calls


def called(at: int, call: Any) -> dict[str, Any]:
    """One tool call, its arguments as an object: clients send them as JSON text."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatError(f"messages[{at}]: a tool call names no function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise ChatError(f"messages[{at}]: the arguments of a tool call are not a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}
