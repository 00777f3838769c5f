"""A GLM's forward pass recorded once as a program: op codes over offsets into a rank's arenas."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ...core.families.family import Span
from ...core.families.glm import Glm
from ...core.glm_ops import Digits, HeadNames, IndexNames, Rows
from ...core.ops import Floats
from ..program import Matrix, Program, Vector

ARGUMENTS = 15  # int64 words of an op: its code, what it takes, whose flags it raises, its row set


class GlmOp(IntEnum):
    """Codes of the program's ops; what each takes, core/kernels/glm_*.py say."""

    EMBED = 1
    NORM = 2
    NORM_FLOATS = 3
    QUANTISE = 4
    QUANTISE_SLOTS = 5
    QUANTISE_HEADS = 6
    LINEAR = 7
    LINEAR_HEADS = 8
    GATED = 9
    GATHER = 10
    ADD = 11
    HC_WEIGHTS = 12
    HC_READ = 13
    HC_WRITE = 14
    HC_MEAN = 15
    CONV = 16
    PREPARE = 17
    RECUR = 18
    HEAD_GATE = 19
    LATENT = 20
    KEY_NORM = 21
    POOL = 22
    SELECT = 23
    ATTEND = 24
    ROUTE = 25
    EXPERT_UP = 26
    EXPERT_DOWN = 27
    COMBINE = 28
    TAKE = 29
    SUM_LOGITS = 30
    SAMPLE = 31
    ACCEPT = 32
    NEXT = 33
    DRAFT = 34
    CHECK = 35
    END = 36


@dataclass(slots=True)
class GlmProgram(Program):
    """turns: counters that threads take items from.  ones: where a vector of ones stands."""

    turns: int
    widest: int
    ones: int


@dataclass(slots=True)
class GlmRecorder:
    """The CPU's `GlmOps`: every call appends to the program of one rank. Nothing is computed here.

    rows: most rows of a step.  checks: look at latent rows and keys before they are read.
    exponents_of: the pooled keys' static exponent of each cache.
    """

    family: Glm
    world: int
    rank: int
    rows_most: int
    checks: bool
    exponents_of: Sequence[int]
    ops: list[list[int]] = field(default_factory=list)
    floats: int = 0
    codes: int = 0
    code_rows: int = 0
    weights: int = 0
    exponents: int = 0
    constants: int = 0
    turns: int = 0
    set: Rows = Rows.ALL
    spare: bool = False  # the drafter's flags are nobody's
    ones: int = 0
    matrices: dict[tuple[str, ...], Matrix] = field(default_factory=dict)
    vectors: dict[Vector, int] = field(default_factory=dict)
    buffers: dict[str, Floats] = field(default_factory=dict)
    digits: dict[str, Digits] = field(default_factory=dict)
    drawn: int = 0

    # --- streams -----------------------------------------------------------------------------

    def embed_streams(self) -> Floats:
        """Embedding rows of the batch's tokens, once for every stream."""
        s = self.family.sizes
        self.ones = self.constants
        self.constants += s.hc * s.hidden
        x = self._floats("streams", s.hc * s.hidden)
        self._op(GlmOp.EMBED, x.at)
        return x

    def site(self, x: Floats, name: str) -> Floats:
        """The mixing weights of one hyper-connection site."""
        s = self.family.sizes
        codes = self._digits("wide", x.width)
        self._op(GlmOp.NORM, x.at, x.width, self.ones, codes.at, codes.exponents_at)
        m = self.linear(codes, [name + "_fn"], "site maps")
        site = self._floats("site", s.hc * (s.hc + 2))
        base, scale = self._vector(name + "_base", site.width), self._vector(name + "_scale", 3)
        self._op(GlmOp.HC_WEIGHTS, m.at, m.width, base, scale, site.at)
        return site

    def read(self, x: Floats, site: Floats) -> Floats:
        """One row out of the streams."""
        u = self._floats("u", self.family.hidden)
        self._op(GlmOp.HC_READ, x.at, site.at, u.at)
        return u

    def write(self, x: Floats, site: Floats, y: Floats) -> None:
        """Mix the streams and put a row back into them."""
        self._op(GlmOp.HC_WRITE, x.at, site.at, y.at)

    def mean(self, x: Floats) -> Floats:
        """The mean of the streams."""
        h = self._floats("u", self.family.hidden)
        self._op(GlmOp.HC_MEAN, x.at, h.at)
        return h

    # --- rows --------------------------------------------------------------------------------

    def normed(self, x: Floats, weight: str) -> Digits:
        """RMSNorm of each row, times a weight vector, quantised."""
        codes = self._digits("row", x.width)
        at = self._vector(weight, x.width)
        self._op(GlmOp.NORM, x.at, x.width, at, codes.at, codes.exponents_at)
        return codes

    def normed_floats(self, x: Floats, weight: str, out: str) -> Floats:
        """RMSNorm of each row, times a weight vector, into a buffer of that name."""
        y = self._floats(out, x.width)
        self._norm_floats(x, weight, y, 0)
        return y

    def joined(self, first: Floats, second: Floats, norms: tuple[str, str]) -> Digits:
        """Two normed rows side by side, quantised."""
        both = self._floats("joined", first.width + second.width)
        self._norm_floats(first, norms[0], both, 0)
        self._norm_floats(second, norms[1], both, first.width)
        return self.quantised(both)

    def quantised(self, x: Floats) -> Digits:
        """Each row as Q16."""
        codes = self._digits("wide", x.width)
        self._op(GlmOp.QUANTISE, x.at, x.width, 1, codes.at, codes.exponents_at)
        return codes

    def linear(self, x: Digits, matrices: Sequence[str], out: str) -> Floats:
        """Own columns of several matrices side by side; not gathered."""
        matrix = self._matrix(matrices)
        y = self._floats(out, matrix.columns)
        self._linear(x, matrix, y, 0, add=False)
        return y

    def gathered(self, x: Digits, matrix: str, out: str) -> Floats:
        """W x: own columns are computed, then gathered."""
        y = self._floats(out, self.family.tensors()[matrix][0])
        own = self.family.columns(matrix, self.world, self.rank)
        self._linear(x, self._matrix([matrix]), y, own[0], add=False)
        self._gather(y, own)
        return y

    def add_gathered(self, x: Digits, matrix: str, onto: Floats) -> None:
        """onto += W x: own columns are computed, then gathered."""
        own = self.family.columns(matrix, self.world, self.rank)
        self._linear(x, self._matrix([matrix]), onto, own[0], add=True)
        self._gather(onto, own)

    def add(self, onto: Floats, y: Floats) -> None:
        """onto += y."""
        self._op(GlmOp.ADD, onto.at, y.at, onto.width)

    # --- units -------------------------------------------------------------------------------

    def dense(self, x: Digits, at: str) -> Floats:
        """The gated unit below a name, gathered."""
        return self.gathered(self._gated(x, at, "inner"), at + "down_proj.weight", "y")

    def experts(self, x: Digits, at: str) -> Floats:
        """The routed experts and the shared one below a name; gathered."""
        s, hidden = self.family.sizes, self.family.hidden
        m = self.linear(x, [at + "gate.weight"], "router")
        bias = self._vector(at + "gate.e_score_correction_bias", s.experts)
        self._op(GlmOp.ROUTE, m.at, m.width, bias)
        inner = self._floats("slots inner", s.experts_per_token * s.expert_inner)
        gates = [
            self._matrix([f"{at}experts.{e}.gate_proj.weight", f"{at}experts.{e}.up_proj.weight"])
            for e in range(s.experts)
        ]
        own = self.family.columns(f"{at}experts.0.gate_proj.weight", self.world, self.rank)
        self._op(
            GlmOp.EXPERT_UP, x.at, x.exponents_at, x.width, gates[0].at, gates[0].exponents_at,
            own[1] - own[0], inner.at, s.expert_inner, own[0],
        )  # fmt: skip
        each = s.experts_per_token
        self._op(GlmOp.GATHER, inner.at, s.expert_inner, *own, each)
        codes = self._digits("slots", s.experts_per_token * s.expert_inner, each)
        self._op(
            GlmOp.QUANTISE_SLOTS, inner.at, s.expert_inner, codes.at, codes.exponents_at
        )  # fmt: skip
        downs = [self._matrix([f"{at}experts.{e}.down_proj.weight"]) for e in range(s.experts)]
        out = self.family.columns(f"{at}experts.0.down_proj.weight", self.world, self.rank)
        parts = self._floats("slots out", each * hidden)
        self._op(
            GlmOp.EXPERT_DOWN, codes.at, codes.exponents_at, s.expert_inner, downs[0].at,
            downs[0].exponents_at, out[1] - out[0], parts.at, hidden, out[0],
        )  # fmt: skip
        shared = self._floats("shared", hidden)
        unit = self._gated(x, at + "shared_experts.", "shared inner")
        self._linear(
            unit, self._matrix([at + "shared_experts.down_proj.weight"]), shared, out[0], add=False
        )
        y = self._floats("y", hidden)
        self._op(GlmOp.COMBINE, parts.at, shared.at, y.at, hidden, *out)
        self._gather(y, out)
        return y

    # --- mixers ------------------------------------------------------------------------------

    def convolved(self, qkv: Floats, names: HeadNames, layer: int) -> Floats:
        """The short causal convolution of own q, k and v columns, and its unit."""
        s = self.family.sizes
        first, last = self.family.kda_heads(self.world, self.rank)
        span = (first * s.kda_dim * s.taps, last * s.kda_dim * s.taps)
        taps = [self._span(name, span) for name in names.taps]
        y = self._floats("mixed", qkv.width)
        self._op(GlmOp.CONV, qkv.at, qkv.width, taps[0], s.taps, layer, y.at)
        return y

    def recur(
        self, qkv: Floats, steps: Floats, beta: Floats, gate: Floats, names: HeadNames, layer: int
    ) -> Floats:
        """The recurrence of own heads, its norm and its gate; all heads are gathered."""
        s = self.family.sizes
        first, last = self.family.kda_heads(self.world, self.rank)
        own, dim = last - first, s.kda_dim
        q, k, a, o = (self._floats(f"recurrent {n}", own * dim) for n in "qkao")
        strength = self._floats("strength", own)
        self._op(
            GlmOp.PREPARE, qkv.at, steps.at, steps.width,
            self._span(names.steps, (first * dim, last * dim)),
            self._span(names.decay, (first, last)),
            beta.at, beta.width, q.at, k.at, a.at, strength.at,
        )  # fmt: skip
        self._op(GlmOp.RECUR, q.at, k.at, qkv.at, a.at, strength.at, layer, o.at)
        out = self._floats("recurrent out", s.kda_heads * dim)
        norm = self._vector(names.norm, dim)
        self._op(
            GlmOp.HEAD_GATE, o.at, gate.at, gate.width, norm, out.at, out.width, first * dim
        )  # fmt: skip
        self._gather(out, (first * dim, last * dim))
        return out

    def write_latents(self, x: Floats, cache: int) -> None:
        """Normalise the latent rows and put them into their pages."""
        self._op(GlmOp.LATENT, x.at, x.width, cache)

    def pool_keys(self, key: Floats, gate: Floats, names: IndexNames, cache: int) -> None:
        """Keep the raw keys, and put the key of every pool that is whole now into its page."""
        s = self.family.sizes
        normed = self._floats("index key normed", s.index_dim)
        w, b = self._vector(names.weight, s.index_dim), self._vector(names.bias, s.index_dim)
        self._op(GlmOp.KEY_NORM, key.at, key.width, w, b, normed.at)
        slots = self._vector(names.slots, s.kpool * s.index_dim)
        exponent = self.exponents_of[cache]
        self._op(GlmOp.POOL, normed.at, gate.at, gate.width, slots, cache, exponent)
        if self.checks and self.set is Rows.ALL:
            self._op(GlmOp.CHECK, cache)

    def select(self, queries: Floats, weights: Floats, cache: int) -> None:
        """Choose the pools that each row reads."""
        s = self.family.sizes
        codes = self._digits("asks", queries.width, s.index_heads)
        self._op(
            GlmOp.QUANTISE, queries.at, s.index_dim, s.index_heads, codes.at, codes.exponents_at
        )  # fmt: skip
        self._op(
            GlmOp.SELECT, codes.at, codes.exponents_at, weights.at, weights.width, cache,
            self.exponents_of[cache], self._turn(),
        )  # fmt: skip

    def attended(self, queries: Floats, at: str, cache: int) -> Floats:
        """Each own query head over the chosen rows, by the absorbed maps; gathered."""
        s = self.family.sizes
        first, last = self.family.heads(self.world, self.rank)
        own = last - first
        codes = self._digits("heads", own * s.nope, own)
        self._op(
            GlmOp.QUANTISE_HEADS, queries.at, queries.width, own, s.nope,
            codes.at, codes.exponents_at,
        )  # fmt: skip
        absorbed = self._floats("absorbed", own * s.latent)
        self._heads(codes, at + "absorbed_k.weight", own, s.nope, s.latent, absorbed, 0)
        wide = self._digits("absorbed", own * s.latent, own)
        self._op(GlmOp.QUANTISE, absorbed.at, s.latent, own, wide.at, wide.exponents_at)
        read = self._floats("read", own * s.latent)
        self._op(GlmOp.ATTEND, wide.at, wide.exponents_at, cache, read.at, self._turn())
        self._op(
            GlmOp.QUANTISE_HEADS, read.at, read.width, own, s.latent, wide.at, wide.exponents_at
        )  # fmt: skip
        out = self._floats("attended", s.heads * s.value_dim)
        self._heads(
            wide, at + "absorbed_v.weight", own, s.latent, s.value_dim, out, first * s.value_dim
        )
        self._gather(out, (first * s.value_dim, last * s.value_dim))
        return out

    # --- tokens ------------------------------------------------------------------------------

    def head(self, x: Floats, matrix: str) -> None:
        """The selected rows' logits, gathered; their sums; their samples; what is kept."""
        self.set, self.spare = Rows.SELECTED, True
        logits = self._logits(self._taken(x), matrix)
        self._op(GlmOp.SUM_LOGITS, logits.at, logits.width)
        self._op(GlmOp.SAMPLE, logits.at, logits.width, self._turn())
        self.set = Rows.ALL
        self._op(GlmOp.ACCEPT)

    def next_embedded(self) -> Floats:
        """The embedding row of the token after each row, zero for position 0."""
        x = self._floats("next", self.family.hidden)
        self._op(GlmOp.NEXT, x.at)
        return x

    def draft(self, x: Floats, matrix: str) -> Floats:
        """Draw a draft after each drafting row; those rows of `x`."""
        first = self.set is Rows.ALL
        self.set = Rows.DRAFTED
        rows = self._taken(x) if first else x
        logits = self._logits(rows, matrix)
        self._op(GlmOp.DRAFT, logits.at, logits.width, self.drawn)
        self.drawn += 1
        return rows

    def rows(self, rows: Rows) -> None:
        """The calls that follow compute this row set."""
        self.set = rows

    def program(self) -> GlmProgram:
        """Record the family's forward pass and say what memory it needs."""
        self.family.forward(self)
        self.set = Rows.ALL
        self._op(GlmOp.END)
        return GlmProgram(
            ops=np.array(self.ops, np.int64),
            floats=self.floats,
            codes=self.codes,
            code_rows=self.code_rows,
            weights=self.weights,
            exponents=self.exponents,
            constants=self.constants,
            matrices=list(self.matrices.values()),
            vectors=self.vectors,
            x=self.buffers["streams"],
            logits=self.buffers["logits"],
            turns=self.turns,
            widest=max(buffer.width for buffer in self.buffers.values()),
            ones=self.ones,
        )

    # --- pieces ------------------------------------------------------------------------------

    def _op(self, op: GlmOp, *arguments: int) -> None:
        room = ARGUMENTS - 3
        assert len(arguments) <= room, (op, arguments)
        padding = [0] * (room - len(arguments))
        self.ops.append([int(op), *arguments, *padding, int(self.spare), int(self.set)])

    def _turn(self) -> int:
        self.turns += 1
        return self.turns - 1

    def _gather(self, x: Floats, own: Span) -> None:
        self._op(GlmOp.GATHER, x.at, x.width, *own, 1)

    def _norm_floats(self, x: Floats, weight: str, y: Floats, column: int) -> None:
        at = self._vector(weight, x.width)
        self._op(GlmOp.NORM_FLOATS, x.at, x.width, at, y.at, y.width, column)

    def _gated(self, x: Digits, at: str, out: str) -> Digits:
        """Own inner columns of the gated unit below a name, gathered and quantised."""
        gate, up = at + "gate_proj.weight", at + "up_proj.weight"
        own = self.family.columns(gate, self.world, self.rank)
        matrix, h = self._matrix([gate, up]), self._floats(out, self.family.tensors()[gate][0])
        self._op(
            GlmOp.GATED, x.at, x.exponents_at, x.width, matrix.at, matrix.exponents_at,
            own[1] - own[0], h.at, h.width, own[0],
        )  # fmt: skip
        self._gather(h, own)
        return self.quantised(h)

    def _taken(self, x: Floats) -> Floats:
        y = self._floats(f"taken {int(self.set)}", x.width)
        self._op(GlmOp.TAKE, x.at, x.width, y.at)
        return y

    def _logits(self, x: Floats, matrix: str) -> Floats:
        codes = self.quantised(x)
        logits = self._floats(
            "logits" if self.set is Rows.SELECTED else "draft logits", self.family.vocab
        )
        own = self.family.columns(matrix, self.world, self.rank)
        self._linear(codes, self._matrix([matrix]), logits, own[0], add=False)
        self._gather(logits, own)
        return logits

    def _linear(self, x: Digits, matrix: Matrix, y: Floats, column: int, *, add: bool) -> None:
        assert x.width == matrix.inputs, (x.width, matrix)
        self._op(
            GlmOp.LINEAR, x.at, x.exponents_at, x.width, matrix.at, matrix.exponents_at,
            matrix.columns, y.at, y.width, column, int(add),
        )  # fmt: skip

    def _heads(
        self, x: Digits, name: str, heads: int, width: int, columns: int, y: Floats, column: int
    ) -> None:
        matrix = self._matrix([name])
        assert matrix.inputs == width and matrix.columns == heads * columns, (matrix, heads)
        self._op(
            GlmOp.LINEAR_HEADS, x.at, x.exponents_at, width, heads, matrix.at,
            matrix.exponents_at, columns, y.at, y.width, column,
        )  # fmt: skip

    def _matrix(self, names: Sequence[str]) -> Matrix:
        key = tuple(names)
        if key not in self.matrices:
            shapes = self.family.tensors()
            tensors = tuple((n, self.family.columns(n, self.world, self.rank)) for n in names)
            matrix = Matrix(tensors, shapes[names[0]][1], self.weights, self.exponents)
            self.matrices[key] = matrix
            self.weights += matrix.columns * matrix.inputs
            self.exponents += matrix.columns
        return self.matrices[key]

    def _vector(self, name: str, size: int) -> int:
        return self._span(name, (0, size))

    def _span(self, name: str, span: Span) -> int:
        key = (name, *span)
        if key not in self.vectors:
            self.vectors[key] = self.constants
            self.constants += span[1] - span[0]
        return self.vectors[key]

    def _floats(self, name: str, width: int) -> Floats:
        """A buffer by name; buffers of one name and another width stand apart."""
        key = (
            f"{name} {width}"
            if name in self.buffers and self.buffers[name].width != width
            else name
        )
        if key not in self.buffers:
            self.buffers[key] = Floats(self.floats, width)
            self.floats += self.rows_most * width
        return self.buffers[key]

    def _digits(self, name: str, width: int, each: int = 1) -> Digits:
        """A buffer of digits by name: `width` in all for a row, `each` exponents."""
        key = f"{name} {width} {each}"
        if key not in self.digits:
            self.digits[key] = Digits(self.codes, self.code_rows, width)
            self.codes += self.rows_most * width
            self.code_rows += self.rows_most * each
        return self.digits[key]
