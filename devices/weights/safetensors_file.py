"""Rows of tensors in safetensors files, one file or sharded with an index."""

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from .checkpoint import BadModel, ModelNotFound, UnsupportedModel
from .mapped import Mapped

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # bf16: the high half of a float32
E4M3 = "F8_E4M3"
CODED = DTYPES | {E4M3: "u1"}  # codes that are values only beside their scales
ROWS_AT_ONCE = 1 << 16  # float32 values that are widened in one go


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: bytes [first, last) of a file."""

    file: Mapped
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int

    def view(self) -> NDArray[Any]:
        """The tensor as it is stored; bf16 as uint16."""
        data = self.file.bytes[self.first : self.last]
        return data.view(CODED[self.dtype]).reshape(self.shape)

    def let_go(self, first: int, last: int) -> None:
        """Rows [first, last) were read once."""
        row = (self.last - self.first) // self.shape[0]
        self.file.let_go(self.first + first * row, self.first + last * row)


def widen(dtype: str, stored: NDArray[Any]) -> NDArray[np.float32]:
    """Stored values as float32, each exactly."""
    if dtype != "BF16":
        return stored.astype(np.float32)
    bits = stored.astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(f"{path} is not there") from error
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        raise BadModel(f"{path}: not JSON: {error}") from error
    except OSError as error:
        raise ModelNotFound(f"{path}: {error.strerror}") from error
    if not isinstance(found, dict):
        raise BadModel(f"{path}: holds no JSON object")
    return found


def places(folder: Path, dtypes: Container[str] = DTYPES) -> dict[str, Place]:
    """Every tensor of a folder's safetensors files; of other dtypes than those it is refused."""
    if (folder / SINGLE).exists():
        return file_places(folder / SINGLE, dtypes)
    if not (folder / INDEX).exists():
        raise ModelNotFound(f"{folder}: there is neither {SINGLE} nor {INDEX}")
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict):
        raise BadModel(f"{folder / INDEX}: has no weight_map")
    files: dict[str, dict[str, Place]] = {}
    found: dict[str, Place] = {}
    for name, shard in index.items():
        # A shard is a file beside its index and nowhere else.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise BadModel(f"{folder / INDEX}: {name} names the file {shard!r}")
        if shard not in files:
            files[shard] = file_places(folder / shard, dtypes)
        if name not in files[shard]:
            raise BadModel(f"{folder / shard}: {name} is in the index and not in the file")
        found[name] = files[shard][name]
    return found


def file_places(path: Path, dtypes: Container[str] = DTYPES) -> dict[str, Place]:
    """Every tensor of one file; the library checks the header and its spans first."""
    try:
        there = path.exists()
    except OSError as error:  # a name that no file can have
        raise ModelNotFound(f"{path}: {error.strerror}") from error
    if not there:
        raise ModelNotFound(f"{path} is not there")
    try:
        with safe_open(path, framework="numpy") as opened:
            names = set(opened.keys())
    except (SafetensorError, OSError) as error:
        raise BadModel(f"{path}: {error}") from error
    file = Mapped(path)
    length = int.from_bytes(bytes(file.bytes[:8]), "little")
    header = json.loads(bytes(file.bytes[8 : 8 + length]))
    found: dict[str, Place] = {}
    for name in sorted(names):
        entry = header[name]
        if entry["dtype"] not in dtypes:
            known = ", ".join(dtype for dtype in CODED if dtype in dtypes)
            raise UnsupportedModel(f"{path}: {name} is {entry['dtype']}; read here: {known}")
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        found[name] = Place(file, entry["dtype"], tuple(entry["shape"]), first, last)
    return found
