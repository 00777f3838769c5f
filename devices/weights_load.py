"""From files to packed Q16 weights: a tensor is read and quantised once, packed for its ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
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
from .placing import padded
from .program import Program
from .weights.checkpoint import BadModel, Checkpoint

ROWS_AT_ONCE = 512  # float32 rows in flight a thread: what loading needs beside the weights
LAYER_BITS = 12  # of a digest's place: a tensor's index past them stands in the place's head

Progress = Callable[[int, int], None]  # (parameters done, parameters in all)


@dataclass(slots=True)
class Weights:
    """One rank's packed matrices int16, their exponents int8 and its constants float32, flat."""

    packed: NDArray[np.int16]
    exponents: NDArray[np.int8]
    constants: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where own rows [first, last) of a tensor go in a rank's arena; they begin a block there."""

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
        for (name, first, last), at in program.vectors.items():
            mine.constants[at : at + last - first] = checkpoint.vector(name)[first:last]
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
                packed += padded(last - first) * matrix.inputs
                exponents += padded(last - first)
    return places


@dataclass(slots=True)
class _Loader:
    checkpoint: Checkpoint
    shapes: Mapping[str, tuple[int, ...]]
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
            return self._digest(_words(self.checkpoint.vector(name)), index, 0, 0)
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
        """Pack the rows of a piece that are a rank's own; a cut may part a block of 16."""
        low, high = max(first, place.first), min(first + len(codes), place.last)
        if low >= high:
            return
        mine = self.weights[place.rank]
        width, column = codes.shape[1], low - place.first
        at = place.exponents_at + column
        mine.exponents[at : at + high - low] = exponents[low - first : high - first]
        codes = codes[low - first : high - first]
        begun = min(-column % BLOCK, len(codes))  # rows for a block that another piece began
        whole = (len(codes) - begun) // BLOCK * BLOCK
        blocks = mine.packed[place.packed_at :]
        self._part(blocks, column, codes[:begun])
        at = (column + begun) * width
        if whole:
            pack(codes[begun : begun + whole], blocks[at : at + whole * width])
        self._part(blocks, column + begun + whole, codes[begun + whole :])

    def _part(self, packed: NDArray[np.int16], column: int, codes: NDArray[np.int16]) -> None:
        """Rows [n, K] of one block, from a column on, as [K / 2][16][2] has them."""
        if len(codes):
            at, width = column // BLOCK * BLOCK, codes.shape[1]
            block = packed[at * width : (at + BLOCK) * width].reshape(-1, BLOCK, 2)
            lanes = block[:, column - at : column - at + len(codes)]
            lanes[:] = codes.reshape(len(codes), -1, 2).swapaxes(0, 1)

    def _digest(self, words: NDArray[np.uint64], index: int, first: int, column: int) -> Pair:
        """The sum over rows of a tensor's piece."""
        count = len(words)
        sums = np.zeros((count, 2), np.uint64)
        positions = np.arange(first, first + count)
        head, layer = divmod(index, 1 << LAYER_BITS)
        digest_rows(words, PARTS["weights"], layer, head, positions, column, sums, 0, count)
        total = sums.sum(axis=0, dtype=np.uint64)
        return int(total[0]), int(total[1])


def _words(vector: NDArray[np.float32]) -> NDArray[np.uint64]:
    """A constant as digest words [1, n]: two values a word, a zero after an odd last one."""
    words = np.zeros(-(-len(vector) // 2), np.uint64)
    words.view(np.float32)[: len(vector)] = vector
    return words[None]
