"""The one byte form of commands and facts: canonical JSON, and a decoder that takes nothing else.

Fields stand in declared order, keys of maps ascend, no spaces, integers within int64. Fields marked
`Large` are a list in place, or `{"content":name}` where the caller keeps their bytes elsewhere.
"""

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from .commands import AnyCommand, DeviceDone
from .errors import BrokenRecord
from .facts import RESERVED, AnyFact, StepClosed
from .records import INT64_MAX, Large, Record, known

Resolver = Callable[[str], bytes]  # a content row's name to its bytes; KeyError where it is missing

_KIND = re.compile(rb'\{"kind":"([a-z_]+)"')
_LONG_INT = re.compile(rb"[:,\[]-?[0-9]{19}")  # whatever may not fit int64; some strings as well
_AS_ZERO = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_LONG_RUN = b"0" * 19  # in a body whose digits are all zero: a search for these is quick


def encode(record: Record, content: dict[str, bytes] | None = None) -> bytes:
    """The bytes of a record; given `content`, large fields go there and leave their names."""
    kind, references = type(record), {}
    if content is not None and (large := _LARGE[kind]):
        for field in large:
            data = _packed(record, field)
            references[field] = content_name(data)
            content[references[field]] = data
        record = known(kind, **(record.__dict__ | dict.fromkeys(large, ())))
    for path in _MAPS[kind]:
        record = _in_order(record, path)
    try:
        body = record.__pydantic_serializer__.to_json(record, warnings="error")
    except PydanticSerializationError as error:
        raise BrokenRecord(f"{record!r} has no byte form: {error}") from None
    for field, name in references.items():
        empty = b'"%s":[]' % field.encode()
        assert body.count(empty) == 1, f"{body!r} does not hold {empty!r} once"
        body = body.replace(empty, b'"%s":{"content":"%s"}' % (field.encode(), name.encode()))
    if _LONG_RUN in body.translate(_AS_ZERO) and _LONG_INT.search(body) is not None:
        _check_int64(json.loads(body), body)
    return body


def decode_fact(body: bytes, resolve: Resolver | None = None) -> AnyFact:
    """The fact whose only bytes these are; without `resolve` its large fields stand in place."""
    return cast(AnyFact, _decode(_FACTS, "fact", body, resolve))


def decode_command(body: bytes, resolve: Resolver | None = None) -> AnyCommand:
    """The command whose only bytes these are; a `DeviceDone` comes without digests and book."""
    return cast(AnyCommand, _decode(_COMMANDS, "command", body, resolve))


def fill_outcome(done: DeviceDone, closed: StepClosed) -> DeviceDone:
    """An outcome as it was given: the tape keeps its sums once, in the step's `StepClosed`."""
    assert done.step == closed.step, f"the outcome of step {done.step}, sums of step {closed.step}"
    return done.model_copy(update={"digests": closed.digests, "book": closed.book})


def content_name(data: bytes) -> str:
    """The name of a content or blob row: 32 hex digits that depend on its bytes alone."""
    return blake2b(data, digest_size=16).hexdigest()


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as int32 little-endian."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of `pack_ids`."""
    packed = array("i")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def _packed(record: Record, field: str) -> bytes:
    try:
        return pack_ids(getattr(record, field))
    except (OverflowError, TypeError) as error:
        raise BrokenRecord(f"{field} of {type(record).__name__} is not int32: {error}") from None


def _decode(
    side: Mapping[str, type[Record]], what: str, body: bytes, resolve: Resolver | None
) -> Record:
    found = _KIND.match(body)
    if found is None:
        raise BrokenRecord(f"not a {what}: it does not begin with a kind: {_short(body)}")
    kind = found[1].decode()
    if kind in RESERVED:
        raise BrokenRecord(f"{kind} is reserved: this build reads tapes of one segment")
    model = side.get(kind)
    if model is None:
        raise BrokenRecord(f"unknown kind of {what}: {kind}")
    bare, large = (body, {}) if resolve is None else _taken_out(model, body, resolve)
    try:
        record: Record = model.__pydantic_validator__.validate_json(bare)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise BrokenRecord(f"{kind}: {at}: {first['msg']}: {_short(body)}") from None
    same = encode(record) == bare
    if large:
        record = known(model, **(record.__dict__ | {f: ids for f, (ids, _) in large.items()}))
    if not (same and all(named for _, named in large.values())):
        again = encode(record, None if resolve is None else {})
        raise BrokenRecord(f"{kind}: {_short(body)} is not its canonical form {_short(again)}")
    return record


def _taken_out(
    model: type[Record], body: bytes, resolve: Resolver
) -> tuple[bytes, dict[str, tuple[tuple[int, ...], bool]]]:
    """The body with an empty list for every reference to a content row, and what stood there.

    By field its ids, and whether the row is named by them.
    """
    found: dict[str, tuple[tuple[int, ...], bool]] = {}
    for field in _LARGE[model]:
        place = _REFERENCES[field].search(body)
        if place is None:
            raise BrokenRecord(f"{field} does not name a content row: {_short(body)}")
        name = place[1].decode()
        try:
            data = resolve(name)
            found[field] = tuple(unpack_ids(data)), content_name(data) == name
        except KeyError:
            raise BrokenRecord(f"content row {name} is missing") from None
        except ValueError as error:
            raise BrokenRecord(f"content row {name}: {error}") from None
        body = b'%s"%s":[]%s' % (body[: place.start()], field.encode(), body[place.end() :])
    return body, found


def _in_order(record: Record, path: tuple[str, ...]) -> Record:
    """The record with a map as a dict of ascending keys, so that equal records have equal bytes."""
    value: Any = record
    for field in path:
        value = getattr(value, field)
    if type(value) is dict and [*value] == sorted(value):
        return record
    return _put(record, path, dict(sorted(value.items())))


def _put(record: Record, path: tuple[str, ...], value: Any) -> Record:
    field, *rest = path
    if rest:
        value = _put(getattr(record, field), tuple(rest), value)
    return known(type(record), **(record.__dict__ | {field: value}))


def _check_int64(value: Any, body: bytes) -> None:
    if isinstance(value, int) and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise BrokenRecord(f"{value} does not fit int64: {_short(body)}")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _check_int64(part, body)


def _short(body: bytes) -> str:
    text = body.decode(errors="backslashreplace")
    return text if len(text) <= 200 else f"{text[:200]}... ({len(body)} bytes)"


class _LargeFields(dict[type[Record], tuple[str, ...]]):
    """By record class, the fields marked `Large`."""

    def __missing__(self, model: type[Record]) -> tuple[str, ...]:
        self[model] = tuple(
            name
            for name, field in model.model_fields.items()
            if any(isinstance(mark, Large) for mark in field.metadata)
        )
        return self[model]


class _MapFields(dict[type[Record], tuple[tuple[str, ...], ...]]):
    """By record class, the ways to the maps that are written: a field, or fields of its fields."""

    def __missing__(self, model: type[Record]) -> tuple[tuple[str, ...], ...]:
        self[model] = tuple(
            (name, *rest)
            for name, field in model.model_fields.items()
            if not field.exclude
            for rest in self._below(field.annotation)
        )
        return self[model]

    def _below(self, annotation: Any) -> tuple[tuple[str, ...], ...]:
        if isinstance(annotation, type) and issubclass(annotation, Record):
            return self[annotation]
        return ((),) if get_origin(annotation) in (dict, Mapping) else ()


class _References(dict[str, "re.Pattern[bytes]"]):
    """By name of a field, what stands there in place of its ids."""

    def __missing__(self, field: str) -> "re.Pattern[bytes]":
        self[field] = re.compile(rb'"%s":\{"content":"([0-9a-f]{32})"\}' % field.encode())
        return self[field]


_LARGE = _LargeFields()
_REFERENCES = _References()
_MAPS = _MapFields()
_FACTS = {model.model_fields["kind"].default: model for model in get_args(AnyFact)}
_COMMANDS = {model.model_fields["kind"].default: model for model in get_args(AnyCommand)}
