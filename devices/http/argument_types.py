"""Argument values of tool calls: plain text becomes JSON as the tool's schema has it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

Types = frozenset[str]  # of JSON Schema; empty: the schema does not say
TEXT = frozenset(("string",))


def value_json(raw: str, types: Types) -> str:
    """The JSON of a value that the model wrote without quotes around strings.

    What is JSON of a type that the schema allows stays as it is written; all else is a string.
    """
    try:
        value = json.loads(raw, parse_constant=no_json)
    except (ValueError, RecursionError):
        return quoted(raw)
    if "string" in types and not kinds(value) & types - TEXT:
        return quoted(raw)
    return raw.strip()


def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text, ensure_ascii=False)


def no_json(word: str) -> NoReturn:
    """NaN and infinities, which Python reads and JSON does not have."""
    raise ValueError(word)


def kinds(value: Any) -> Types:
    """The types that a schema may call a value by."""
    match value:
        case None:
            return frozenset(("null",))
        case bool():
            return frozenset(("boolean",))
        case int():
            return frozenset(("integer", "number"))
        case float():
            return frozenset(("number", "integer") if value.is_integer() else ("number",))
        case str():
            return TEXT
        case list():
            return frozenset(("array",))
        case _:
            return frozenset(("object",))


def argument_types(tools: Sequence[Mapping[str, Any]], name: str, key: str) -> Types:
    """The types that the named tool allows for an argument."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            return types_of(
                properties.get(key) if isinstance(properties, Mapping) else None, schema
            )
    return frozenset()


def types_of(schema: Any, root: Any) -> Types:
    """Every type that a schema allows; none where some way of it does not say. Each reference is
    followed once, so that schemas which contain themselves end."""
    todo, found, followed = [schema], set[str](), set[str]()
    while todo:
        one = todo.pop()
        if not isinstance(one, Mapping):
            return frozenset()
        ways = one.get("anyOf") or one.get("oneOf") or telling(one.get("allOf"))
        match one:
            case {"$ref": str() as reference}:
                if reference not in followed:
                    followed.add(reference)
                    todo.append(pointed(root, reference))
            case {"type": str() as word}:
                found.add(word)
            case {"type": list() as words}:
                found.update(word for word in words if isinstance(word, str))
            case {"enum": list() as values}:
                found.update(*map(kinds, values))
            case {"const": value}:
                found |= kinds(value)
            case _ if isinstance(ways, list) and ways:
                todo.extend(ways)
            case _:
                return frozenset()
    return frozenset(found)


def telling(ways: Any) -> list[Any]:
    """Those of allOf's schemas that name a type, where the others only narrow it."""
    words = ("$ref", "type", "enum", "const", "anyOf", "oneOf")
    named = ways if isinstance(ways, list) else []
    return [way for way in named if isinstance(way, Mapping) and any(word in way for word in words)]


def pointed(root: Any, reference: str) -> Any:
    """What a reference within the schema points to, None for any other."""
    here = root if reference.startswith("#") else None
    for step in reference.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        here = here.get(step) if isinstance(here, Mapping) else None
    return here
