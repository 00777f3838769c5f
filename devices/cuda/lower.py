"""A recorded program as launches over a bucket of rows: first the layers, then the logits' part.

The program is the CPU's of one thread; what its ops mean is said in devices/program.py. A launch is
bound to its arrays when the bucket is lowered, so that running it again costs nothing to decide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...core.families.llama import Llama
from ...core.kernels.cuda.attend import attend_rows
from ...core.kernels.cuda.digest import add_digests
from ...core.kernels.cuda.embed import gather_rows
from ...core.kernels.cuda.glu import glu_rows
from ...core.kernels.cuda.linear import gated, linear
from ...core.kernels.cuda.norm import rmsnorm_q16
from ...core.kernels.cuda.planes import INPUTS
from ...core.kernels.cuda.poisoned import note_poisoned
from ...core.kernels.cuda.quantise import q16_rows
from ...core.kernels.cuda.rows import write_rows
from ...core.kernels.cuda.sampling import draw_rows
from ...core.kernels.digest import PARTS
from ..program import Op, Program
from .card import Array, Launch
from .gathering import Gather, alone
from .memory import CudaMemory, Placed

BLOCK = 16  # output columns of a packed block
Words = Sequence[int]  # an op's arguments


@dataclass(slots=True)
class Lowering:
    """One rank's program over its memory. gather: hands own columns to the other ranks.

    verify: maps look at their products.
    """

    program: Program
    family: Llama
    memory: CudaMemory
    first_head: int
    kv_heads: int
    samples: bool
    digests: bool
    gather: Gather = alone
    verify: bool = False
    _near: bool = False

    def near(self, rows: int) -> list[Launch]:
        """The ops over all rows, none of which sees more than NEAR rows."""
        self._near = True
        return [*self.gather.compare(), *self._launches(rows, selected=False)]

    def far(self, rows: int) -> list[Launch]:
        """The ops over all rows."""
        self._near = False
        return [*self.gather.compare(), *self._launches(rows, selected=False)]

    def head(self, rows: int) -> list[Launch]:
        """The ops over the rows that get logits: picked first, out of the last layer's."""
        x, m = self.program.x, self.memory
        source = self._floats(x.at, x.width, m.step.rows)
        pick = partial(
            gather_rows, self._stream, source, self._table("selected"), m.picked[:rows], rows
        )
        return [pick, *self._launches(rows, selected=True)]

    def _launches(self, rows: int, *, selected: bool) -> list[Launch]:
        found: list[Launch] = []
        for words in self.program.ops.tolist():
            code, *arguments, chosen = words
            if bool(chosen) != selected or code in (Op.MEET, Op.END):
                continue
            if code == Op.NORM:
                found += self.norm(arguments, rows, picked=selected)
            else:
                found += _LOWERED[Op(code)](self, arguments, rows)
        return found

    # --- where things stand --------------------------------------------------------------------

    @property
    def _stream(self) -> Any:
        return self.memory.card.stream

    def _floats(self, at: int, width: int, rows: int) -> Array:
        """A buffer of the step's rows [rows, width]."""
        return self.memory.floats[at : at + rows * width].reshape(rows, width)

    def _codes(self, width: int, rows: int) -> tuple[Array, Array]:
        codes = self.memory.codes[: rows * width].reshape(rows, width)
        return codes, self.memory.code_exponents[:rows]

    def _table(self, name: str) -> Array:
        return self.memory.step.views(self.memory.arrays["step"])[name]

    # --- ops -----------------------------------------------------------------------------------

    def norm(self, words: Words, rows: int, *, picked: bool) -> list[Launch]:
        """NORM: x, width, weight; of rows that get logits, the picked ones."""
        at, width, weight = words[:3]
        x, flags = self._floats(at, width, rows), self._table("flags")
        if picked:
            x, flags = self.memory.picked[:rows], self._table("picked_flags")
        w = self.memory.constants[weight : weight + width]
        codes, exponents = self._codes(width, rows)
        eps = np.float32(self.family.eps)
        return [partial(rmsnorm_q16, self._stream, x, w, eps, codes, exponents, flags, 0, rows)]

    def quantise(self, words: Words, rows: int) -> list[Launch]:
        """QUANTISE: x, width."""
        at, width = words[:2]
        codes, exponents = self._codes(width, rows)
        x, flags = self._floats(at, width, rows), self._table("flags")
        return [partial(q16_rows, self._stream, x, codes, exponents, flags, 0, rows)]

    def linear(self, words: Words, rows: int) -> list[Launch]:
        """LINEAR: width, weight, exponents, columns, y, y stride, y column, add."""
        width, weight, _, columns, y, stride, column, onto = words[:8]
        placed = self.memory.matrices[weight]
        pairs, exponents = self._pairs(width, rows)
        return [
            partial(
                linear, self._stream, pairs, exponents, placed.planes, placed.exponents,
                width // 2, rows, 0, columns // BLOCK, self.memory.floats[y:], stride, column,
                bool(onto), check=self._check(placed),
            )
        ]  # fmt: skip

    def _check(self, placed: Placed) -> tuple[Array, Array] | None:
        return placed.check if self.verify else None

    def _pairs(self, width: int, rows: int) -> tuple[Array, Array]:
        codes, exponents = self._codes(width, rows)
        return codes.reshape(rows * width).view(np.int32), exponents

    def gated(self, words: Words, rows: int) -> list[Launch]:
        """GATED: width, weight, exponents, columns, own, h, h stride, h column."""
        width, weight, _, columns, own, h, stride, column = words[:8]
        placed, floats = self.memory.matrices[weight], self.memory.floats
        pairs, exponents = self._pairs(width, rows)
        if width % INPUTS == 0:
            return [
                partial(
                    gated,
                    self._stream,
                    pairs,
                    exponents,
                    placed.planes,
                    placed.exponents,
                    width // 2,
                    rows,
                    columns // BLOCK,
                    floats[h:],
                    stride,
                    column,
                    check=self._check(placed),
                )
            ]
        both = partial(
            linear, self._stream, pairs, exponents, placed.planes, placed.exponents, width // 2,
            rows, 0, 2 * columns // BLOCK, floats[own:], 2 * columns, 0, False,
            check=self._check(placed),
        )  # fmt: skip
        halves, out = self._floats(own, 2 * columns, rows), self._floats(h, stride, rows)
        return [both, partial(glu_rows, self._stream, halves, columns, out, column, 0, rows)]

    def write(self, words: Words, rows: int) -> list[Launch]:
        """WRITE: qkv, width, layer."""
        at, width, layer = words[:3]
        m = self.memory
        if not self.kv_heads:
            return []
        return [
            partial(
                write_rows, self._stream, self._floats(at, width, rows), self._table("positions"),
                self._table("lanes"), self._table("tables"), m.cos, m.sin, *m.pages, layer,
                self.first_head, m.queries, m.query_exponents, self._table("row_sums"),
                self._table("flags"), 0, rows * self.kv_heads,
            )
        ]  # fmt: skip

    def attend(self, words: Words, rows: int) -> list[Launch]:
        """ATTEND: layer, o, o stride, o column."""
        layer, o, stride, column = words[:4]
        m, a = self.memory, self.family.attention
        scale = np.float32(1) / np.sqrt(np.float32(a.head_dim))
        queries, keys, values = (one.view(np.int32) for one in (m.queries, m.keys, m.values))
        if not self.kv_heads:
            return []
        return [
            partial(
                attend_rows, self._stream, queries, m.query_exponents, self._table("positions"),
                self._table("lanes"), self._table("tables"), keys, m.key_exponents, values,
                m.value_exponents, layer, scale, 0, rows, 0, self.kv_heads * a.group,
                self._floats(o, stride, rows), column, m.scores, self._near,
            )
        ]  # fmt: skip

    def check(self, words: Words, rows: int) -> list[Launch]:
        """CHECK: layer. Of all lanes and, once the last one's rows are written, of all layers.

        Rows stay as they were read; lanes without a run have no rows.
        """
        m, layers = self.memory, self.family.attention.layers
        runs, found = self._table("runs"), self._table("poisoned")
        # Of no heads there are no rows: what stands in for their arrays is never written.
        if not self.kv_heads or words[0] < layers - 1:
            return []
        return [
            partial(
                note_poisoned, self._stream, *m.pages, self._table("tables"), runs, m.step.lanes,
                0, (0, layers), found,
            )
        ]  # fmt: skip

    def gathered(self, words: Words, rows: int) -> list[Launch]:
        """GATHER: x, width, own first column, own last column."""
        at, width, first, last = words[:4]
        return self.gather.bind(self._floats(at, width, rows), first, last)

    def sum_logits(self, words: Words, rows: int) -> list[Launch]:
        """SUM_LOGITS: logits, width. Every rank has them all."""
        at, width = words[:2]
        if not self.digests:
            return []
        flat = self.memory.floats[at : at + rows * width].view(np.uint64)
        logits = flat.reshape(rows, width // 2)
        positions, sums = self._table("logit_positions"), self._table("logit_sums")
        return [
            partial(
                add_digests, self._stream, logits, PARTS["logits"], 0, 0, positions, 0, sums, 0,
                rows,
            )
        ]  # fmt: skip

    def sample(self, words: Words, rows: int) -> list[Launch]:
        """SAMPLE: logits, width. Rank 0 alone is asked for tokens."""
        at, width = words[:2]
        m = self.memory
        if not self.samples:
            return []
        return [
            partial(
                draw_rows, self._stream, self._table("draws"), self._table("whole"),
                self._table("bias_starts"), m.bias_ids, m.biases, m.penalty_counts, m.reply_counts,
                self._floats(at, width, rows), self._table("logit_positions"), m.z,
                m.draw_weights, self._table("tokens"), rows,
            )
        ]  # fmt: skip


_LOWERED: dict[Op, Callable[[Lowering, Words, int], list[Launch]]] = {
    Op.QUANTISE: Lowering.quantise,
    Op.LINEAR: Lowering.linear,
    Op.GATED: Lowering.gated,
    Op.WRITE: Lowering.write,
    Op.ATTEND: Lowering.attend,
    Op.CHECK: Lowering.check,
    Op.GATHER: Lowering.gathered,
    Op.SUM_LOGITS: Lowering.sum_logits,
    Op.SAMPLE: Lowering.sample,
}
