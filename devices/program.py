"""A forward pass recorded once as a program: op codes over offsets into a rank's arenas."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..core.families.family import Span
from ..core.families.llama import Llama
from ..core.ops import Codes, Floats, Queries
from .placing import Matrix, Placing, Vector

ARGUMENTS = 10  # int64 words of an op: its code, what the code takes, 1 if over selected rows alone


class Op(IntEnum):
    """Codes of the program's ops; core/kernels/interpreter.py holds what each does."""

    NORM = 1  # x, width, weight
    QUANTISE = 2  # x, width
    LINEAR = 3  # width, weight, exponents, columns, y, y stride, y column, add
    GATED = 4  # width, weight, exponents, columns, own, h, h stride, h column
    WRITE = 5  # qkv, width, layer
    ATTEND = 6  # layer, o, o stride, o column
    CHECK = 7  # layer
    MEET = 8  # all items of the op before are done
    GATHER = 9  # x, width, own first column, own last column; all ranks meet
    SUM_LOGITS = 10  # logits, width
    SAMPLE = 11  # logits, width
    END = 12  # all ranks meet


@dataclass(slots=True)
class Program:
    """The ops [n, ARGUMENTS] of one rank and the sizes of the arenas that they speak of.

    floats, codes, code_rows: elements of the float32, int16 and exponent buffers.  weights,
    exponents, constants: elements of the packed weights, their exponents, the constants.  vectors:
    where each constant's own elements begin among them.  buffers: of floats, by name.
    """

    ops: NDArray[np.int64]
    floats: int
    codes: int
    code_rows: int
    weights: int
    exponents: int
    constants: int
    matrices: list[Matrix]
    vectors: dict[Vector, int]
    x: Floats
    logits: Floats
    buffers: dict[str, Floats] = field(default_factory=dict, kw_only=True)


@dataclass(slots=True)
class Recorder(Placing[Llama]):
    """The CPU's `Ops`: every call appends to the program of one rank. Nothing is computed here.

    threads: of this rank, each with its own region of codes, so that
    a single row may be quantised by every thread for itself.
    """

    threads: int
    checks: bool
    ops: list[list[int]] = field(default_factory=list)
    codes: int = 0
    code_rows: int = 0

    def embed(self) -> Floats:
        """Embedding rows stand in their buffer before the program begins."""
        return self.buffer("x", self.family.hidden)

    def normed(self, x: Floats, weight: str) -> Codes:
        """RMSNorm of each row, times a weight vector, quantised."""
        return self._normed(x, weight, selected=False)

    def quantised(self, x: Floats) -> Codes:
        """Each row as Q16."""
        codes = self._codes(x.width, selected=False)
        self._op(Op.QUANTISE, x.at, x.width)
        return codes

    def linear(self, x: Codes, matrices: Sequence[str]) -> Floats:
        """Own columns of several matrices side by side; not gathered."""
        matrix = self.packed(matrices)
        y = self.buffer("own columns", matrix.columns)
        self._linear(x, matrix, y, 0, add=False)
        self._op(Op.MEET)
        return y

    def add_linear(self, x: Codes, matrix: str, onto: Floats) -> None:
        """onto += W x: own columns are computed, then gathered."""
        own = self.family.columns(matrix, self.world, self.rank)
        self._linear(x, self.packed([matrix]), onto, own[0], add=True)
        self._gather(onto, own)

    def gated(self, x: Codes, gate: str, up: str) -> Floats:
        """silu(G x) * (U x): own columns are computed, then gathered."""
        first, last = own = self.family.columns(gate, self.world, self.rank)
        matrix = self.packed([gate, up])
        h = self.buffer("gated", self.family.tensors()[gate][0])
        g = self.buffer("own gate and up", 2 * (last - first))
        self._op(
            Op.GATED, x.width, matrix.at, matrix.exponents_at, last - first,
            g.at, h.at, h.width, first,
        )  # fmt: skip
        self._gather(h, own)
        return h

    def write_rows(self, qkv: Floats, layer: int) -> Queries:
        """Rotate query and key heads by position, quantise all, write the key and value rows."""
        self._op(Op.WRITE, qkv.at, qkv.width, layer)
        self._op(Op.MEET)
        if self.checks:
            self._op(Op.CHECK, layer)
        first, last = self.family.heads(self.world, self.rank)
        return Queries((last - first) * self.family.attention.group)

    def attend(self, queries: Queries, layer: int) -> Floats:
        """Each query head over the rows of its stream up to its own; all heads are gathered."""
        a = self.family.attention
        first, last = self.family.heads(self.world, self.rank)
        assert queries.heads == (last - first) * a.group
        o = self.buffer("attended", a.heads * a.head_dim)
        own = (first * a.group * a.head_dim, last * a.group * a.head_dim)
        self._op(Op.ATTEND, layer, o.at, o.width, own[0])
        self._gather(o, own)
        return o

    def head(self, x: Floats, norm: str, matrix: str) -> None:
        """Norm and matrix over the selected rows, gathered."""
        codes = self._normed(x, norm, selected=True)
        own = self.family.columns(matrix, self.world, self.rank)
        logits = self.buffer("logits", self.family.vocab, self.logit_rows)
        self._linear(codes, self.packed([matrix]), logits, own[0], add=False)
        self._gather(logits, own, selected=True)
        self._op(Op.SUM_LOGITS, logits.at, logits.width, selected=True)
        self._op(Op.SAMPLE, logits.at, logits.width, selected=True)

    def program(self) -> Program:
        """Record the family's forward pass and say what memory it needs."""
        self.family.forward(self)
        self._op(Op.END)
        return Program(
            ops=np.array(self.ops, np.int64),
            floats=self.floats,
            codes=self.codes,
            code_rows=self.code_rows,
            weights=self.weights,
            exponents=self.exponents,
            constants=self.constants,
            matrices=list(self.matrices.values()),
            vectors=self.vectors,
            x=self.buffers["x"],
            logits=self.buffers["logits"],
            buffers=self.buffers,
        )

    # --- pieces ----------------------------------------------------------------------------------

    def _op(self, op: Op, *arguments: int, selected: bool = False) -> None:
        assert len(arguments) <= ARGUMENTS - 2, (op, arguments)
        padding = [0] * (ARGUMENTS - 2 - len(arguments))
        self.ops.append([int(op), *arguments, *padding, int(selected)])

    def _gather(self, x: Floats, own: Span, *, selected: bool = False) -> None:
        self._op(Op.GATHER, x.at, x.width, *own, selected=selected)

    def _normed(self, x: Floats, weight: str, *, selected: bool) -> Codes:
        codes = self._codes(x.width, selected=selected)
        self._op(Op.NORM, x.at, x.width, self.constant(weight, x.width), selected=selected)
        return codes

    def _linear(self, x: Codes, matrix: Matrix, y: Floats, column: int, *, add: bool) -> None:
        assert x.width == matrix.inputs, (x.width, matrix)
        self._op(
            Op.LINEAR, x.width, matrix.at, matrix.exponents_at, matrix.columns,
            y.at, y.width, column, int(add), selected=x.selected,
        )  # fmt: skip

    def _codes(self, width: int, *, selected: bool) -> Codes:
        """One region serves all: codes are read by the very next op, before they are made anew."""
        need = self.threads * self.rows_most * width
        self.codes = max(self.codes, need)
        self.code_rows = max(self.code_rows, self.threads * self.rows_most)
        return Codes(0, width, selected)
