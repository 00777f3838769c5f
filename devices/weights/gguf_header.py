"""The header of a GGUF file: its settings and where each tensor lies; every length is checked."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import BadModel, UnsupportedModel
from .mapped import Mapped

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# The value types of the format by number: uint8, int8, ..., bool, (string, array), uint64, ...
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
MOST_AXES = 4
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies. shape: output rows first; kind: the block type's number.

    first, bytes: position in the file; row_bytes: bytes of one row (of the last axis).
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    first: int
    bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """settings: scalars, strings, numeric arrays (NumPy) and lists of strings as `Strings`."""

    file: Mapped
    settings: dict[str, Any]
    tensors: dict[str, Tensor]

    def strings(self, key: str) -> list[str]:
        """A list of strings, decoded when asked for."""
        found = self.settings.get(key)
        if not isinstance(found, Strings):
            raise BadModel(f"{self.file.path}: {key} is missing or is no list of strings")
        return found.read()


class Cursor:
    """Walks a file's bytes and never past their end."""

    def __init__(self, file: Mapped) -> None:
        self.file = file
        self.at = 0

    def fail(self, what: str) -> BadModel:
        """An error that names the file and the byte."""
        return BadModel(f"{self.file.path}: {what} (byte {self.at} of {self.file.size})")

    def take(self, length: int) -> memoryview:
        """The next bytes."""
        if length > self.file.size - self.at:
            raise self.fail(f"the file ends before {length} more bytes of its header")
        taken = memoryview(self.file.map)[self.at : self.at + length]
        self.at += length
        return taken

    def number(self, dtype: str) -> Any:
        """One number of the format's value types, as Python's."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize), dtype)[0].item()

    def text(self) -> str:
        """A length and that many bytes of UTF-8."""
        raw = bytes(self.take(self.number("<u8")))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fail("a name or value in the header is not UTF-8") from error

    def skip_strings(self, count: int) -> None:
        """Walk over strings without reading them: this loop is most of a header's time."""
        data, at, last = self.file.map, self.at, self.file.size - LENGTH.size
        read = LENGTH.unpack_from
        for _ in range(count):
            if at > last:
                raise self.fail("the file ends within a list of strings")
            at += LENGTH.size + read(data, at)[0]
        if at > self.file.size:
            raise self.fail("the file ends within a list of strings")
        self.at = at

    def value(self, kind: int) -> Any:
        """A setting's value."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise self.fail(f"value type {kind} is not one of the format's")
        return self.number(SCALARS[kind])

    def array(self) -> Any:
        """A list of one value type; lists of lists are not used by any model."""
        kind, count = self.number("<u4"), self.number("<u8")
        if kind == STRING:
            strings = Strings(self.file, self.at, count)
            self.skip_strings(count)
            return strings
        if kind not in SCALARS:
            raise self.fail(f"a list of value type {kind} is not known here")
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


@dataclass(frozen=True, slots=True)
class Strings:
    """A list of strings that was walked over, and is decoded only when asked for."""

    file: Mapped
    first: int
    count: int

    def read(self) -> list[str]:
        """The strings; bounds were checked while walking over them."""
        data, at, found = self.file.map, self.first, list[str]()
        for _ in range(self.count):
            (length,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size
            try:
                found.append(data[at : at + length].decode())
            except UnicodeDecodeError as error:
                raise BadModel(f"{self.file.path}: the string at byte {at} is not UTF-8") from error
            at += length
        return found


def read_header(path: Path, blocks: Callable[[int], tuple[int, int] | None]) -> Header:
    """Read settings and tensor places; blocks(kind): a block type's values and bytes."""
    cursor = Cursor(Mapped(path))
    magic = bytes(cursor.take(min(4, cursor.file.size)))
    if magic != MAGIC:
        raise cursor.fail(f"not a GGUF file: it begins with {magic!r}")
    version = cursor.number("<u4")
    if version not in VERSIONS:
        raise UnsupportedModel(f"{path}: GGUF version {version}; versions 2 and 3 are read here")
    tensor_count, setting_count = cursor.number("<u8"), cursor.number("<u8")
    settings: dict[str, Any] = {}
    for _ in range(setting_count):
        key = cursor.text()
        if key in settings:
            raise cursor.fail(f"the setting {key!r} stands twice")
        settings[key] = cursor.value(cursor.number("<u4"))
    places = [place(cursor, blocks) for _ in range(tensor_count)]
    return Header(cursor.file, settings, settle(cursor, settings, places))


def place(cursor: Cursor, blocks: Callable[[int], tuple[int, int] | None]) -> Tensor:
    """One tensor's entry; its position is still relative to the end of the header."""
    name, axes = cursor.text(), cursor.number("<u4")
    if not 1 <= axes <= MOST_AXES:
        raise cursor.fail(f"{name} has {axes} axes")
    # The format lists the fastest axis first.
    shape = tuple(cursor.number("<u8") for _ in range(axes))[::-1]
    kind, first = cursor.number("<u4"), cursor.number("<u8")
    block = blocks(kind)
    if block is None:
        raise UnsupportedModel(f"{cursor.file.path}: {name} has block type {kind}, not read here")
    values, size = block
    if min(shape) < 1 or shape[-1] % values:
        raise cursor.fail(f"{name} has shape {shape}, rows are no whole blocks of {values}")
    row_bytes = shape[-1] // values * size
    rows = 1
    for axis in shape[:-1]:
        rows *= axis
    return Tensor(name, shape, kind, first, rows * row_bytes, row_bytes)


def settle(cursor: Cursor, settings: dict[str, Any], places: list[Tensor]) -> dict[str, Tensor]:
    """Tensors by name, with positions in the file."""
    alignment = settings.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, not a power of two")
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for tensor in places:
        first, size = base + tensor.first, tensor.bytes
        if tensor.name in tensors:
            raise cursor.fail(f"the tensor {tensor.name} stands twice")
        if first + size > cursor.file.size:
            raise cursor.fail(f"{tensor.name} ends at byte {first + size}, after the file's end")
        tensors[tensor.name] = Tensor(
            tensor.name, tensor.shape, tensor.kind, first, size, tensor.row_bytes
        )
    return tensors


def block_bytes(header: Header, tensor: Tensor) -> NDArray[np.uint8]:
    """A tensor's bytes: uint8 [rows, row_bytes]."""
    data = header.file.bytes[tensor.first : tensor.first + tensor.bytes]
    return data.reshape(-1, tensor.row_bytes)
