"""From files to packed Q16 weights: a tensor is read and quantised once, packed for its ranks."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..core.digests import Pair, add_pairs, pair_hex
from ..core.families.family import BLOCK, Family
from ..core.kernels.digest import PARTS, digest_rows
from ..core.kernels.pack import aligned, pack
from ..core.kernels.quantise import q16_rows
from .program import Program
from .weights.checkpoint import BadModel, Checkpoint

ROWS_AT_ONCE = 512  # float32 rows in flight a thread: what loading needs beside the weights

Progress = Callable[[int, int], None]  # (parameters done, parameters in all)


@dataclass(slots=True)
class Weights:
    """One rank's packed matrices int16, their exponents int8 and its norm vectors float32, flat."""

    packed: NDArray[np.int16]
    exponents: NDArray[np.int8]
    constants: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where own rows [first, last) of a tensor go: a rank's arena, `at` counts packed columns."""

    rank: int
    first: int
    last: int
    packed_at: int
    exponents_at: int


def load_weights(
    checkpoint: Checkpoint,
    family: Family,
    programs: Sequence[Program],
    threads: int,
    progress: Progress,
) -> tuple[list[Weights], str]:
    """Every rank's weights, and the model digest as 32 hex digits; programs are in rank order."""
    _refuse_other_shapes(checkpoint, family)
    weights = [
        Weights(
            aligned(program.weights, np.int16),
            np.zeros(program.exponents, np.int8),
            np.zeros(program.constants, np.float32),
        )
        for program in programs
    ]
    places = _places(programs)
    shapes = family.tensors()
    total = sum(math.prod(shape) for shape in shapes.values() if len(shape) == 2)
    loader = _Loader(checkpoint, shapes, weights, places, progress, total)
    for program, mine in zip(programs, weights, strict=True):
        for name, at in program.vectors.items():
            vector = checkpoint.vector(name)
            mine.constants[at : at + len(vector)] = vector
    with ThreadPoolExecutor(threads) as pool:
        sums = list(pool.map(loader.load, loader.pieces()))
    return weights, pair_hex(add_pairs(*sums))


def _refuse_other_shapes(checkpoint: Checkpoint, family: Family) -> None:
    have = set(checkpoint.names())
    for name, shape in family.tensors().items():
        if name not in have:
            raise BadModel(f"{checkpoint.name} has no tensor {name}")
        if tuple(checkpoint.shape(name)) != shape:
            raise BadModel(
                f"{checkpoint.name}: {name} is {tuple(checkpoint.shape(name))}, expected {shape}"
            )


def _places(programs: Sequence[Program]) -> dict[str, list[_Place]]:
    """Where each tensor's rows go, over all ranks."""
    places: dict[str, list[_Place]] = {}
    for rank, program in enumerate(programs):
        for matrix in program.matrices:
            packed, exponents = matrix.at, matrix.exponents_at
            for name, (first, last) in matrix.tensors:
                place = _Place(rank, first, last, packed, exponents)
                places.setdefault(name, []).append(place)
                packed += (last - first) * matrix.inputs
                exponents += last - first
    return places


@dataclass(slots=True)
class _Loader:
    checkpoint: Checkpoint
    shapes: dict[str, tuple[int, ...]]
    weights: list[Weights]
    places: dict[str, list[_Place]]
    progress: Progress
    total: int
    done: int = 0
    lock: Lock = field(default_factory=Lock)

    def pieces(self) -> list[tuple[int, str, int, int]]:
        """(index, tensor, first row, last row) of all work; the index is its digest's layer."""
        found = []
        for index, name in enumerate(sorted(self.shapes)):
            shape = self.shapes[name]
            rows = shape[0] if len(shape) == 2 else 1
            for first in range(0, rows, ROWS_AT_ONCE):
                found.append((index, name, first, min(rows, first + ROWS_AT_ONCE)))
        return found

    def load(self, piece: tuple[int, str, int, int]) -> Pair:
        """Read, quantise, pack and digest some rows of a tensor."""
        index, name, first, last = piece
        if len(self.shapes[name]) == 1:
            vector = self.checkpoint.vector(name)
            return self._digest(np.ascontiguousarray(vector)[None].view(np.uint64), index, 0, 0)
        rows = self.checkpoint.rows(name, first, last)
        count, width = rows.shape
        codes = np.empty((count, width), np.int16)
        exponents = np.empty(count, np.int8)
        flags = np.zeros(count, np.uint8)
        q16_rows(rows, codes, exponents, flags, 0, count)
        if flags.any():
            row = first + int(flags.argmax())
            raise BadModel(f"{self.checkpoint.name}: {name} row {row} holds what is no number")
        for place in self.places.get(name, ()):
            self._put(place, first, codes, exponents)
        with self.lock:
            self.done += rows.size
            self.progress(self.done, self.total)
        words = exponents.astype(np.int64)[:, None].view(np.uint64)
        return add_pairs(
            self._digest(codes.view(np.uint64), index, first, 0),
            self._digest(words, index, first, width // 4),
        )

    def _put(
        self, place: _Place, first: int, codes: NDArray[np.int16], exponents: NDArray[np.int8]
    ) -> None:
        """Pack the rows of a piece that are a rank's own; both are cut in whole blocks."""
        low, high = max(first, place.first), min(first + len(codes), place.last)
        if low >= high:
            return
        mine = self.weights[place.rank]
        width = codes.shape[1]
        assert (low - place.first) % BLOCK == 0 and (high - low) % BLOCK == 0, place
        at = place.packed_at + (low - place.first) * width
        pack(codes[low - first : high - first], mine.packed[at : at + (high - low) * width])
        at = place.exponents_at + low - place.first
        mine.exponents[at : at + high - low] = exponents[low - first : high - first]

    def _digest(self, words: NDArray[np.uint64], index: int, first: int, column: int) -> Pair:
        """The sum over rows of a tensor's piece."""
        count = len(words)
        sums = np.zeros((count, 2), np.uint64)
        positions = np.arange(first, first + count)
        digest_rows(words, PARTS["weights"], index, 0, positions, column, sums, 0, count)
        total = sums.sum(axis=0, dtype=np.uint64)
        return int(total[0]), int(total[1])
