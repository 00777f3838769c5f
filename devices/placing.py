"""Where a recorded program finds its packed weights, its constants and its float buffers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..core.families.family import BLOCK, Family, Span
from ..core.ops import Floats

F = TypeVar("F", bound=Family)
Vector = tuple[str, int, int]  # a constant's name, and which of its elements: [first, last)


def padded(rows: int) -> int:
    """Rows of a tensor as the output columns of whole blocks."""
    return -(-rows // BLOCK) * BLOCK


@dataclass(frozen=True, slots=True)
class Matrix:
    """Packed weights of some tensors' own rows, side by side: where they begin in the arena.

    Each tensor begins a block of its own: zero rows with exponent 0 fill its last one up.
    """

    tensors: tuple[tuple[str, Span], ...]
    inputs: int
    at: int  # in int16
    exponents_at: int

    @property
    def columns(self) -> int:
        """Output columns, all tensors together, padding included."""
        return sum(padded(last - first) for _, (first, last) in self.tensors)


@dataclass(slots=True)
class Placing(Generic[F]):
    """What has been placed so far in the arenas of one rank; rows_most: rows of a step at most.

    logit_rows: those of them that get logits at most; 0 where any row may.
    floats, weights, exponents, constants: elements that are taken. matrices, vectors, buffers: what
    stands where.
    """

    family: F
    world: int
    rank: int
    rows_most: int
    logit_rows: int = field(default=0, kw_only=True)
    floats: int = field(default=0, kw_only=True)
    weights: int = field(default=0, kw_only=True)
    exponents: int = field(default=0, kw_only=True)
    constants: int = field(default=0, kw_only=True)
    matrices: dict[tuple[str, ...], Matrix] = field(default_factory=dict, kw_only=True)
    vectors: dict[Vector, int] = field(default_factory=dict, kw_only=True)
    buffers: dict[str, Floats] = field(default_factory=dict, kw_only=True)

    def packed(self, names: Sequence[str]) -> Matrix:
        """Some tensors' own rows, packed side by side."""
        key = tuple(names)
        if key not in self.matrices:
            shapes = self.family.tensors()
            tensors = tuple((n, self.family.columns(n, self.world, self.rank)) for n in names)
            matrix = Matrix(tensors, shapes[names[0]][1], self.weights, self.exponents)
            self.matrices[key] = matrix
            self.weights += matrix.columns * matrix.inputs
            self.exponents += matrix.columns
        return self.matrices[key]

    def constant(self, name: str, size: int) -> int:
        """Where a whole constant stands."""
        return self.constant_part(name, (0, size))

    def constant_part(self, name: str, span: Span) -> int:
        """Where some elements of a constant stand."""
        key = (name, *span)
        if key not in self.vectors:
            self.vectors[key] = self.constants
            self.constants += span[1] - span[0]
        return self.vectors[key]

    def buffer(self, name: str, width: int, rows: int = 0) -> Floats:
        """A buffer by name, of the step's rows or of no more than so many of them."""
        if name not in self.buffers:
            self.buffers[name] = Floats(self.floats, width)
            self.floats += (rows or self.rows_most) * width
        buffer = self.buffers[name]
        assert buffer.width == width, f"buffer {name!r} has {buffer.width} columns, not {width}"
        return buffer
