"""A GLM's forward pass recorded once as a program: op codes over offsets into a rank's arenas."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.glm_ops import Digits, HeadNames, IndexNames, Rows
from ...core.ops import Floats
from ..program import Program
from .layout import GlmLayout, GlmOp


@dataclass(slots=True)
class GlmProgram(Program):
    """turns: counters that threads take items from.  ones: where a vector of ones stands.

    digits: buffers of digits.
    """

    turns: int
    widest: int
    ones: int
    digits: list[Digits] = field(default_factory=list, kw_only=True)


class GlmRecorder(GlmLayout):
    """The CPU's `GlmOps`: every call appends to one rank's program. Nothing is computed here."""

    # --- streams -----------------------------------------------------------------------------

    def embed_streams(self) -> Floats:
        """Embedding rows of the batch's tokens, once for every stream."""
        s = self.family.sizes
        self.ones = self.constants
        self.constants += s.hc * s.hidden
        x = self.buffer("streams", s.hc * s.hidden)
        self.emit(GlmOp.EMBED, x.at)
        return x

    def site(self, x: Floats, name: str) -> Floats:
        """The mixing weights of one hyper-connection site."""
        s = self.family.sizes
        codes = self.digits_at("wide", x.width)
        self.emit(GlmOp.NORM, x.at, x.width, self.ones, codes.at, codes.exponents_at)
        m = self.linear(codes, [name + "_fn"], "site maps")
        site = self.buffer("site", s.hc * (s.hc + 2))
        base, scale = self.constant(name + "_base", site.width), self.constant(name + "_scale", 3)
        self.emit(GlmOp.HC_WEIGHTS, m.at, m.width, base, scale, site.at)
        return site

    def read(self, x: Floats, site: Floats) -> Floats:
        """One row out of the streams."""
        u = self.buffer("u", self.family.hidden)
        self.emit(GlmOp.HC_READ, x.at, site.at, u.at)
        return u

    def write(self, x: Floats, site: Floats, y: Floats) -> None:
        """Mix the streams and put a row back into them."""
        self.emit(GlmOp.HC_WRITE, x.at, site.at, y.at)

    def mean(self, x: Floats) -> Floats:
        """The mean of the streams."""
        h = self.buffer("u", self.family.hidden)
        self.emit(GlmOp.HC_MEAN, x.at, h.at)
        return h

    # --- rows --------------------------------------------------------------------------------

    def normed(self, x: Floats, weight: str) -> Digits:
        """RMSNorm of each row, times a weight vector, quantised."""
        codes = self.digits_at("row", x.width)
        at = self.constant(weight, x.width)
        self.emit(GlmOp.NORM, x.at, x.width, at, codes.at, codes.exponents_at)
        return codes

    def normed_floats(self, x: Floats, weight: str, out: str) -> Floats:
        """RMSNorm of each row, times a weight vector, into a buffer of that name."""
        y = self.buffer(out, x.width)
        self._norm_floats(x, weight, y, 0)
        return y

    def joined(self, first: Floats, second: Floats, norms: tuple[str, str]) -> Digits:
        """Two normed rows side by side, quantised."""
        both = self.buffer("joined", first.width + second.width)
        self._norm_floats(first, norms[0], both, 0)
        self._norm_floats(second, norms[1], both, first.width)
        return self.quantised(both)

    def quantised(self, x: Floats) -> Digits:
        """Each row as Q16."""
        codes = self.digits_at("wide", x.width)
        self.emit(GlmOp.QUANTISE, x.at, x.width, 1, codes.at, codes.exponents_at)
        return codes

    def linear(self, x: Digits, matrices: Sequence[str], out: str) -> Floats:
        """Own columns of several matrices side by side; not gathered."""
        matrix = self.packed(matrices)
        y = self.buffer(out, matrix.columns)
        self.multiply(x, matrix, y, 0, add=False)
        return y

    def gathered(self, x: Digits, matrix: str, out: str) -> Floats:
        """W x: own columns are computed, then gathered."""
        y = self.buffer(out, self.family.tensors()[matrix][0])
        own = self.family.columns(matrix, self.world, self.rank)
        self.multiply(x, self.packed([matrix]), y, own[0], add=False)
        self.gather(y, own)
        return y

    def add_gathered(self, x: Digits, matrix: str, onto: Floats) -> None:
        """onto += W x: own columns are computed, then gathered."""
        own = self.family.columns(matrix, self.world, self.rank)
        self.multiply(x, self.packed([matrix]), onto, own[0], add=True)
        self.gather(onto, own)

    def add(self, onto: Floats, y: Floats) -> None:
        """onto += y."""
        self.emit(GlmOp.ADD, onto.at, y.at, onto.width)

    # --- units -------------------------------------------------------------------------------

    def dense(self, x: Digits, at: str) -> Floats:
        """The gated unit below a name, gathered."""
        return self.gathered(self._gated(x, at, "inner"), at + "down_proj.weight", "y")

    def experts(self, x: Digits, at: str) -> Floats:
        """The routed experts and the shared one below a name; gathered."""
        s, hidden = self.family.sizes, self.family.hidden
        m = self.linear(x, [at + "gate.weight"], "router")
        bias = self.constant(at + "gate.e_score_correction_bias", s.experts)
        self.emit(GlmOp.ROUTE, m.at, m.width, bias)
        inner = self.buffer("slots inner", s.experts_per_token * s.expert_inner)
        gates = [
            self.packed([f"{at}experts.{e}.gate_proj.weight", f"{at}experts.{e}.up_proj.weight"])
            for e in range(s.experts)
        ]
        own = self.family.columns(f"{at}experts.0.gate_proj.weight", self.world, self.rank)
        self.emit(
            GlmOp.EXPERT_UP, x.at, x.exponents_at, x.width, gates[0].at, gates[0].exponents_at,
            own[1] - own[0], inner.at, s.expert_inner, own[0],
        )  # fmt: skip
        each = s.experts_per_token
        self.emit(GlmOp.GATHER, inner.at, s.expert_inner, *own, each)
        codes = self.digits_at("slots", s.experts_per_token * s.expert_inner, each)
        self.emit(
            GlmOp.QUANTISE_SLOTS, inner.at, s.expert_inner, codes.at, codes.exponents_at
        )  # fmt: skip
        downs = [self.packed([f"{at}experts.{e}.down_proj.weight"]) for e in range(s.experts)]
        out = self.family.columns(f"{at}experts.0.down_proj.weight", self.world, self.rank)
        parts = self.buffer("slots out", each * hidden)
        self.emit(
            GlmOp.EXPERT_DOWN, codes.at, codes.exponents_at, s.expert_inner, downs[0].at,
            downs[0].exponents_at, out[1] - out[0], parts.at, hidden, out[0],
        )  # fmt: skip
        shared = self.buffer("shared", hidden)
        unit = self._gated(x, at + "shared_experts.", "shared inner")
        self.multiply(
            unit, self.packed([at + "shared_experts.down_proj.weight"]), shared, out[0], add=False
        )
        y = self.buffer("y", hidden)
        self.emit(GlmOp.COMBINE, parts.at, shared.at, y.at, hidden, *out)
        self.gather(y, out)
        return y

    # --- mixers ------------------------------------------------------------------------------

    def convolved(self, qkv: Floats, names: HeadNames, layer: int) -> Floats:
        """The short causal convolution of own q, k and v columns, and its unit."""
        s = self.family.sizes
        first, last = self.family.kda_heads(self.world, self.rank)
        span = (first * s.kda_dim * s.taps, last * s.kda_dim * s.taps)
        taps = [self.constant_part(name, span) for name in names.taps]
        y = self.buffer("mixed", qkv.width)
        self.emit(GlmOp.CONV, qkv.at, qkv.width, taps[0], s.taps, layer, y.at)
        return y

    def recur(
        self, qkv: Floats, steps: Floats, beta: Floats, gate: Floats, names: HeadNames, layer: int
    ) -> Floats:
        """The recurrence of own heads, its norm and its gate; all heads are gathered."""
        s = self.family.sizes
        first, last = self.family.kda_heads(self.world, self.rank)
        own, dim = last - first, s.kda_dim
        q, k, a, o = (self.buffer(f"recurrent {n}", own * dim) for n in "qkao")
        strength = self.buffer("strength", own)
        self.emit(
            GlmOp.PREPARE, qkv.at, steps.at, steps.width,
            self.constant_part(names.steps, (first * dim, last * dim)),
            self.constant_part(names.decay, (first, last)),
            beta.at, beta.width, q.at, k.at, a.at, strength.at,
        )  # fmt: skip
        self.emit(GlmOp.RECUR, q.at, k.at, qkv.at, a.at, strength.at, layer, o.at)
        out = self.buffer("recurrent out", s.kda_heads * dim)
        norm = self.constant(names.norm, dim)
        self.emit(
            GlmOp.HEAD_GATE, o.at, gate.at, gate.width, norm, out.at, out.width, first * dim
        )  # fmt: skip
        self.gather(out, (first * dim, last * dim))
        return out

    def write_latents(self, x: Floats, cache: int) -> None:
        """Normalise the latent rows and put them into their pages."""
        self.emit(GlmOp.LATENT, x.at, x.width, cache)

    def pool_keys(self, key: Floats, gate: Floats, names: IndexNames, cache: int) -> None:
        """Keep the raw keys, and put the key of every pool that is whole now into its page."""
        s = self.family.sizes
        normed = self.buffer("index key normed", s.index_dim)
        w, b = self.constant(names.weight, s.index_dim), self.constant(names.bias, s.index_dim)
        self.emit(GlmOp.KEY_NORM, key.at, key.width, w, b, normed.at)
        slots = self.constant(names.slots, s.kpool * s.index_dim)
        exponent = self.exponents_of[cache]
        self.emit(GlmOp.POOL, normed.at, gate.at, gate.width, slots, cache, exponent)
        if self.checks and self.set is Rows.ALL:
            self.emit(GlmOp.CHECK, cache)

    def select(self, queries: Floats, weights: Floats, cache: int) -> None:
        """Choose the pools that each row reads."""
        s = self.family.sizes
        codes = self.digits_at("asks", queries.width, s.index_heads)
        self.emit(
            GlmOp.QUANTISE, queries.at, s.index_dim, s.index_heads, codes.at, codes.exponents_at
        )  # fmt: skip
        self.emit(
            GlmOp.SELECT, codes.at, codes.exponents_at, weights.at, weights.width, cache,
            self.exponents_of[cache], self.next_turn(),
        )  # fmt: skip

    def attended(self, queries: Floats, at: str, cache: int) -> Floats:
        """Each own query head over the chosen rows, by the absorbed maps; gathered."""
        s = self.family.sizes
        first, last = self.family.heads(self.world, self.rank)
        own = last - first
        codes = self.digits_at("heads", own * s.nope, own)
        self.emit(
            GlmOp.QUANTISE_HEADS, queries.at, queries.width, own, s.nope,
            codes.at, codes.exponents_at,
        )  # fmt: skip
        absorbed = self.buffer("absorbed", own * s.latent)
        self._heads(codes, at + "absorbed_k.weight", own, s.nope, s.latent, absorbed, 0)
        wide = self.digits_at("absorbed", own * s.latent, own)
        self.emit(GlmOp.QUANTISE, absorbed.at, s.latent, own, wide.at, wide.exponents_at)
        read = self.buffer("read", own * s.latent)
        self.emit(GlmOp.ATTEND, wide.at, wide.exponents_at, cache, read.at, self.next_turn())
        self.emit(
            GlmOp.QUANTISE_HEADS, read.at, read.width, own, s.latent, wide.at, wide.exponents_at
        )  # fmt: skip
        out = self.buffer("attended", s.heads * s.value_dim)
        self._heads(
            wide, at + "absorbed_v.weight", own, s.latent, s.value_dim, out, first * s.value_dim
        )
        self.gather(out, (first * s.value_dim, last * s.value_dim))
        return out

    # --- tokens ------------------------------------------------------------------------------

    def head(self, x: Floats, matrix: str) -> None:
        """The selected rows' logits, gathered; their sums; their samples; what is kept."""
        self.set, self.spare = Rows.SELECTED, True
        logits = self._logits(self._taken(x), matrix)
        self.emit(GlmOp.SUM_LOGITS, logits.at, logits.width)
        self.emit(GlmOp.SAMPLE, logits.at, logits.width, self.next_turn())
        self.set = Rows.ALL
        self.emit(GlmOp.ACCEPT)

    def next_embedded(self) -> Floats:
        """The embedding row of the token after each row, zero for position 0."""
        x = self.buffer("next", self.family.hidden)
        self.emit(GlmOp.NEXT, x.at)
        return x

    def draft(self, x: Floats, matrix: str) -> Floats:
        """Draw a draft after each drafting row; those rows of `x`."""
        first = self.set is Rows.ALL
        self.set = Rows.DRAFTED
        rows = self._taken(x) if first else x
        logits = self._logits(rows, matrix)
        self.emit(GlmOp.DRAFT, logits.at, logits.width, self.drawn)
        self.drawn += 1
        return rows

    def rows(self, rows: Rows) -> None:
        """The calls that follow compute this row set."""
        self.set = rows

    def program(self) -> GlmProgram:
        """Record the family's forward pass and say what memory it needs."""
        self.family.forward(self)
        self.set = Rows.ALL
        self.emit(GlmOp.END)
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
            buffers=self.buffers,
            digits=list(self.digits.values()),
        )

    # --- pieces ------------------------------------------------------------------------------

    def _norm_floats(self, x: Floats, weight: str, y: Floats, column: int) -> None:
        at = self.constant(weight, x.width)
        self.emit(GlmOp.NORM_FLOATS, x.at, x.width, at, y.at, y.width, column)

    def _gated(self, x: Digits, at: str, out: str) -> Digits:
        """Own inner columns of the gated unit below a name, gathered and quantised."""
        gate, up = at + "gate_proj.weight", at + "up_proj.weight"
        own = self.family.columns(gate, self.world, self.rank)
        matrix, h = self.packed([gate, up]), self.buffer(out, self.family.tensors()[gate][0])
        self.emit(
            GlmOp.GATED, x.at, x.exponents_at, x.width, matrix.at, matrix.exponents_at,
            own[1] - own[0], h.at, h.width, own[0],
        )  # fmt: skip
        self.gather(h, own)
        return self.quantised(h)

    def _taken(self, x: Floats) -> Floats:
        y = self.buffer(f"taken {int(self.set)}", x.width)
        self.emit(GlmOp.TAKE, x.at, x.width, y.at)
        return y

    def _logits(self, x: Floats, matrix: str) -> Floats:
        codes = self.quantised(x)
        name = "logits" if self.set is Rows.SELECTED else "draft logits"
        logits = self.buffer(name, self.family.vocab, self.logit_rows)
        own = self.family.columns(matrix, self.world, self.rank)
        self.multiply(codes, self.packed([matrix]), logits, own[0], add=False)
        self.gather(logits, own)
        return logits

    def _heads(
        self, x: Digits, name: str, heads: int, width: int, columns: int, y: Floats, column: int
    ) -> None:
        matrix = self.packed([name])
        assert matrix.inputs == width and matrix.columns == heads * columns, (matrix, heads)
        self.emit(
            GlmOp.LINEAR_HEADS, x.at, x.exponents_at, width, heads, matrix.at,
            matrix.exponents_at, columns, y.at, y.width, column,
        )  # fmt: skip
