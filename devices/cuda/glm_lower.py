"""A GLM's recorded program as launches: segments of one row set each, lowered for a bucket of rows.

The program is the CPU's; what its ops mean is said in core/kernels/glm_*.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from ...core.glm_ops import Rows
from ...core.kernels.cuda.clamped import clamped_rows
from ...core.kernels.cuda.glm_rows import add_rows, q16_each, q16_heads, q16_slots
from ...core.kernels.cuda.linear import gated as gated_maps
from ...core.kernels.cuda.linear import linear
from ...core.kernels.cuda.linear_heads import linear_heads
from ...core.kernels.cuda.norm import rmsnorm_q16, rmsnorm_rows
from ...core.kernels.cuda.planes import INPUTS
from ...core.kernels.cuda.quantise import q16_rows
from ...core.kernels.cuda.streams import hc_mean, hc_read, hc_weights, hc_write
from ...core.kernels.glm_memory import GlmParty
from ..glm.layout import GlmOp
from ..glm.program import GlmProgram
from .card import Array, Launch
from .gathering import Gather, alone
from .glm_here import BLOCK, Here, Words
from .glm_lower_mix import MIXED
from .glm_lower_tokens import TOKENS
from .glm_memory import GlmCudaMemory
from .glm_pairs import paired

Op = Callable[[Here, Words], list[Launch]]


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops over one row set, one after another; first: the step's."""

    set: Rows
    ops: tuple[tuple[int, ...], ...]
    first: bool


@dataclass(frozen=True, slots=True)
class GlmLowering:
    """One rank's program over its memory. samples: tokens are drawn on this rank.

    verify: maps look at their products.
    """

    program: GlmProgram
    memory: GlmCudaMemory
    party: GlmParty
    samples: bool = True
    gather: Gather = alone
    verify: bool = False

    def segments(self) -> list[Segment]:
        """The layers; the rows that get logits; what is kept and the drafter; its own drafts.

        The last two only where the model drafts: otherwise every row is kept.
        """
        ops = [tuple(words) for words in self.program.ops.tolist()]
        drafting = self.party.drafting
        kept = [
            words for words in ops
            if words[0] != GlmOp.END and (words[0] != GlmOp.ACCEPT or drafting)
        ]  # fmt: skip
        found = groupby(kept, key=lambda words: words[-1])
        return [Segment(Rows(s), tuple(one), at == 0) for at, (s, one) in enumerate(found)]

    def launches(self, segment: Segment, rows: int) -> list[Launch]:
        """A segment's launches for a bucket of rows."""
        found: list[Launch] = self.gather.compare() if segment.first else []
        for one in self.together(segment.ops, segment.set, rows):
            found += one
        return found

    def together(
        self, ops: Sequence[tuple[int, ...]], rows_of: Rows, rows: int
    ) -> Iterator[list[Launch]]:
        """Each op's launches, or those that do it and the next one."""
        at = 0
        while at < len(ops):
            here, both = self._here(ops[at], rows_of, rows), list[Launch]()
            if at + 1 < len(ops):
                both = paired(here, self.program.ones, *ops[at : at + 2])
            yield both or self.lowered(ops[at], rows_of, rows)
            at += 2 if both else 1

    def lowered(self, words: tuple[int, ...], rows_of: Rows, rows: int) -> list[Launch]:
        """One op's launches."""
        return LOWERED[GlmOp(words[0])](self._here(words, rows_of, rows), words[1:])

    def _here(self, words: tuple[int, ...], rows_of: Rows, rows: int) -> Here:
        arrays, spare = self.memory.arrays, words[-2] != 0
        flags = arrays["spare_flags"] if spare else self.memory.tables["flags"]
        return Here(
            self.memory, self.party, self.gather, self.samples, rows_of, rows, flags, self.verify
        )


# --- ops whose rows do not know where they stand -------------------------------------------------


def norm(here: Here, words: Words) -> list[Launch]:
    """NORM: x, width, weight, codes, exponents."""
    at, width, weight, codes_at, exponents_at = words[:5]
    codes, exponents = here.codes(codes_at, exponents_at, width)
    x, w = here.floats(at, width), here.constants(weight, width)
    return [
        partial(
            rmsnorm_q16, here.stream, x, w, here.party.eps, codes, exponents, here.flags, 0,
            here.rows,
        )
    ]  # fmt: skip


def norm_floats(here: Here, words: Words) -> list[Launch]:
    """NORM_FLOATS: x, width, weight, y, y stride, y column."""
    at, width, weight, to, stride, column = words[:6]
    x, y, w = here.floats(at, width), here.floats(to, stride), here.constants(weight, width)
    return [
        partial(
            rmsnorm_rows, here.stream, x, w, here.party.eps, y, column, here.flags, 0, here.rows
        )
    ]


def quantise(here: Here, words: Words) -> list[Launch]:
    """QUANTISE: x, width, each, codes, exponents."""
    at, width, each, codes_at, exponents_at = words[:5]
    x = here.floats(at, width, each)
    codes, exponents = here.codes(codes_at, exponents_at, width, each)
    if each == 1:
        return [partial(q16_rows, here.stream, x, codes, exponents, here.flags, 0, here.rows)]
    return [partial(q16_each, here.stream, x, each, codes, exponents, here.flags)]


def quantise_slots(here: Here, words: Words) -> list[Launch]:
    """QUANTISE_SLOTS: x, width, codes, exponents."""
    at, width, codes_at, exponents_at = words[:4]
    chosen = here.party.chosen
    x = here.floats(at, width, chosen)
    codes, exponents = here.codes(codes_at, exponents_at, width, chosen)
    order = here.memory.arrays["order"][: here.rows * chosen]
    return [partial(q16_slots, here.stream, x, order, chosen, codes, exponents, here.flags)]


def quantise_heads(here: Here, words: Words) -> list[Launch]:
    """QUANTISE_HEADS: x, stride, heads, width, codes, exponents."""
    at, stride, heads, width, codes_at, exponents_at = words[:6]
    codes, exponents = here.codes(codes_at, exponents_at, width, heads)
    x = here.floats(at, stride)
    return [partial(q16_heads, here.stream, x, heads, width, codes, exponents, here.flags)]


def mapped(here: Here, words: Words) -> list[Launch]:
    """LINEAR: codes, exponents, width, weight, its exponents, columns, y, stride, column, add."""
    codes, exponents_at, width, weight, _, columns, y, stride, column, onto = words[:10]
    placed = here.memory.matrices[weight]
    pairs, exponents = here.pairs(codes, exponents_at, width)
    return [
        partial(
            linear, here.stream, pairs, exponents, placed.planes, placed.exponents, width // 2,
            here.rows, 0, columns // BLOCK, here.after(y), stride, column, bool(onto),
            check=here.check(weight),
        )
    ]  # fmt: skip


def mapped_heads(here: Here, words: Words) -> list[Launch]:
    """LINEAR_HEADS: codes, exponents, width, heads, weight, its exponents, columns, y, stride,
    column.
    """
    codes, exponents_at, width, heads, weight, _, columns, y, stride, column = words[:10]
    placed = here.memory.matrices[weight]
    pairs, exponents = here.pairs(codes, exponents_at, width, heads)
    return [
        partial(
            linear_heads, here.stream, pairs, exponents, placed.planes, placed.exponents,
            width // 2, here.rows, heads, columns, here.after(y), stride, column,
            check=here.check(weight),
        )
    ]  # fmt: skip


def gated(here: Here, words: Words) -> list[Launch]:
    """GATED: codes, exponents, width, weight, its exponents, columns, h, h stride, h column."""
    codes, exponents_at, width, weight, _, columns, h, stride, column = words[:9]
    placed, rows = here.memory.matrices[weight], here.rows
    pairs, exponents = here.pairs(codes, exponents_at, width)
    both, limit = here.memory.arrays["both"][: rows * 2 * columns], here.party.limit
    if not columns:
        return []
    if width % INPUTS == 0:
        return [
            partial(
                gated_maps,
                here.stream,
                pairs,
                exponents,
                placed.planes,
                placed.exponents,
                width // 2,
                rows,
                columns // BLOCK,
                here.after(h),
                stride,
                column,
                limit,
                check=here.check(weight),
            )
        ]
    maps = partial(
        linear, here.stream, pairs, exponents, placed.planes, placed.exponents, width // 2, rows,
        0, 2 * columns // BLOCK, both, 2 * columns, 0, False, check=here.check(weight),
    )  # fmt: skip
    halves, out = both.reshape(rows, 2 * columns), here.floats(h, stride)
    return [maps, partial(clamped_rows, here.stream, halves, columns, limit, out, column, 0, rows)]


def gathered(here: Here, words: Words) -> list[Launch]:
    """GATHER: x, width, own first column, own last column, each."""
    at, width, first, last, each = words[:5]
    return here.gather.bind(here.floats(at, width, each), first, last)


def added(here: Here, words: Words) -> list[Launch]:
    """ADD: onto, y, width."""
    onto, y, width = words[:3]
    return [partial(add_rows, here.stream, here.floats(onto, width), here.floats(y, width))]


# --- the streams ---------------------------------------------------------------------------------


def site_weights(here: Here, words: Words) -> list[Launch]:
    """HC_WEIGHTS: m, stride, base, scale, site."""
    at, stride, base, scale, site = words[:5]
    party = here.party
    wide = party.streams * (party.streams + 2)
    m, out = here.floats(at, stride), here.floats(site, wide)
    return [
        partial(
            hc_weights, here.stream, m, here.constants(base, wide), here.constants(scale, 3),
            party.hc_eps, party.hc_rounds, out, 0, here.rows,
        )
    ]  # fmt: skip


def site_read(here: Here, words: Words) -> list[Launch]:
    """HC_READ: x, site, u."""
    x, site, u = _streams(here, words[0]), _site(here, words[1]), _row(here, words[2])
    return [partial(hc_read, here.stream, x, site, u, 0, here.rows)]


def site_write(here: Here, words: Words) -> list[Launch]:
    """HC_WRITE: x, site, y."""
    x, site, y = _streams(here, words[0]), _site(here, words[1]), _row(here, words[2])
    return [partial(hc_write, here.stream, x, site, y, 0, here.rows)]


def stream_mean(here: Here, words: Words) -> list[Launch]:
    """HC_MEAN: x, h."""
    x, h = _streams(here, words[0]), _row(here, words[1])
    return [partial(hc_mean, here.stream, x, here.party.streams, h, 0, here.rows)]


def _streams(here: Here, at: int) -> Array:
    return here.floats(at, here.party.streams * here.party.hidden)


def _site(here: Here, at: int) -> Array:
    return here.floats(at, here.party.streams * (here.party.streams + 2))


def _row(here: Here, at: int) -> Array:
    return here.floats(at, here.party.hidden)


LOWERED: dict[GlmOp, Op] = {
    GlmOp.NORM: norm,
    GlmOp.NORM_FLOATS: norm_floats,
    GlmOp.QUANTISE: quantise,
    GlmOp.QUANTISE_SLOTS: quantise_slots,
    GlmOp.QUANTISE_HEADS: quantise_heads,
    GlmOp.LINEAR: mapped,
    GlmOp.LINEAR_HEADS: mapped_heads,
    GlmOp.GATED: gated,
    GlmOp.GATHER: gathered,
    GlmOp.ADD: added,
    GlmOp.HC_WEIGHTS: site_weights,
    GlmOp.HC_READ: site_read,
    GlmOp.HC_WRITE: site_write,
    GlmOp.HC_MEAN: stream_mean,
    **MIXED,
    **TOKENS,
}
