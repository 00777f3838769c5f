"""The GLM family (glm5_next): recurrent and sparse layers, experts, a drafter, mixed streams."""

from collections.abc import Mapping
from typing import Any

from ...events.records import FamilyRules
from ..glm_ops import Digits, GlmOps, HeadNames, IndexNames, Rows
from ..ops import Floats
from .family import BLOCK, Choices, Span, UnsupportedShape, share, share_blocks
from .glm_config import GlmSizes, glm_sizes
from .glm_tensors import read_tensors

PAGE_ROWS = 512
GRID_ROWS = 2048  # marks on the grid of engines whose chunks decide bits
GRID_LEAST, GRID_GAP = 4096, 256  # tokens of a prompt that is kept there, and between its marks
MOST_DRAFTS = 4
SUM_BYTES = 16  # a page's running digest, for each part

MODEL = "model.language_model."
EMBEDDING = MODEL + "embed_tokens.weight"
NORM = MODEL + "norm.weight"
HEAD = "lm_head.weight"
BY_HEAD = ("q_proj", "k_proj", "v_proj", "b_proj", "f_b_proj", "g_b_proj", "q_b_proj")
WHOLE = ("f_a_proj", "g_a_proj", "q_a_proj", "kv_a_proj_with_mqa", "gate")


_OWN = Choices()


class Glm:
    """A GLM's sizes, its weights by their names, its cut over ranks and its forward pass."""

    def __init__(self, config: dict[str, Any], choices: Choices = _OWN) -> None:
        self.sizes: GlmSizes = glm_sizes(config)
        page_rows = choices.page_rows or PAGE_ROWS
        drafts = self.sizes.mtp if choices.drafts < 0 else choices.drafts
        self.choices = Choices(page_rows, choices.mark_rows or page_rows, drafts)
        self.hidden, self.vocab = self.sizes.hidden, self.sizes.vocab
        self.eps, self.context = self.sizes.eps, self.sizes.context
        self._shapes = read_tensors(self.sizes)
        kinds = self.sizes.layer_kinds
        self.recurrent = [layer for layer, kind in enumerate(kinds) if kind == "kda"]
        self.sparse = [layer for layer, kind in enumerate(kinds) if kind == "dsa"]
        self._refuse_what_cannot_be_cut()

    def _refuse_what_cannot_be_cut(self) -> None:
        s, c = self.sizes, self.choices
        blocks = {
            "hidden_size": s.hidden,
            "intermediate_size": s.inner,
            "moe_intermediate_size": s.expert_inner,
            "vocab_size": s.vocab,
            "q_lora_rank": s.q_rank,
            "kv_lora_rank": s.latent,
            "v_head_dim": s.value_dim,
            "index_head_dim": s.index_dim,
            "linear_attn_config.head_dim": s.kda_dim,
        }
        for key, size in blocks.items():
            if size % BLOCK:
                raise UnsupportedShape(f"{key} is {size}, it must be a multiple of {BLOCK}")
        if s.nope % 4:
            raise UnsupportedShape(f"qk_nope_head_dim is {s.nope}, it must be a multiple of 4")
        if c.page_rows % s.kpool:
            raise UnsupportedShape(
                f"pages of {c.page_rows} rows cut pools of index_kpool {s.kpool}"
            )
        if c.mark_rows % c.page_rows:
            raise UnsupportedShape(f"marks at {c.mark_rows} rows cut pages of {c.page_rows}")
        if not 0 <= c.drafts <= (MOST_DRAFTS if s.mtp else 0):
            most = f"0 to {MOST_DRAFTS}" if s.mtp else "0: the model has no MTP layer"
            raise UnsupportedShape(f"--mtp-drafts {c.drafts}: it must be {most}")

    @property
    def caches(self) -> int:
        """Latent caches: one a sparse layer, and the drafter's last."""
        return len(self.sparse) + (1 if self.choices.drafts else 0)

    def rules(self) -> FamilyRules:
        """Pages of 512 rows, copies at marks, the drafter one token ahead.

        On the grid short prompts are not kept: one of a cell or two comes back for little.
        """
        c = self.choices
        least, gap = (GRID_LEAST, GRID_GAP) if c.mark_rows == GRID_ROWS else (0, 0)
        drafts = ("drafts",) if c.drafts else ()
        return FamilyRules(
            page_rows=c.page_rows,
            mark_rows=c.mark_rows,
            lookahead=1,
            drafts=c.drafts,
            snapshots=True,
            finish_marks=False,
            min_prompt=least,
            min_gap=gap,
            vocab=self.vocab,
            parts=("rows", "keys", "states", "rings", *drafts, "logits", "tokens"),
            split=("states", "rings"),
        )

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Every weight that the forward pass reads, by name; matrices are [output, input]."""
        return self._shapes

    def refuse_world(self, world: int) -> None:
        """Refuse more ranks than heads. Raises UnsupportedShape."""
        most = min(self.sizes.heads, self.sizes.kda_heads)
        if world > most:
            raise UnsupportedShape(f"{world} ranks share {most} heads: serve --tp {most} at most")

    def heads(self, world: int, rank: int) -> Span:
        """The attention heads of a rank."""
        return share(self.sizes.heads, world, rank)

    def kda_heads(self, world: int, rank: int) -> Span:
        """The recurrent heads of a rank."""
        return share(self.sizes.kda_heads, world, rank)

    def columns(self, name: str, world: int, rank: int) -> Span:
        """Columns of heads follow their head, small shared maps are whole, all others are cut."""
        rows = self.tensors()[name][0]
        leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if ".indexer." in name or leaf in WHOLE or leaf.startswith("hc_"):
            return 0, rows
        if "absorbed" in leaf or leaf == "q_b_proj":
            first, last = self.heads(world, rank)
            each = rows // self.sizes.heads
            return first * each, last * each
        if leaf in BY_HEAD:
            first, last = self.kda_heads(world, rank)
            each = rows // self.sizes.kda_heads
            return first * each, last * each
        return share_blocks(rows, world, rank)

    def page_bytes(self, world: int, rank: int) -> int:
        """Latent rows and pooled keys of every cache, and the page's digests."""
        s, rows = self.sizes, self.choices.page_rows
        return self.caches * 2 * (rows * s.latent + rows // s.kpool * s.index_dim) + 3 * SUM_BYTES

    # --- the forward pass ------------------------------------------------------------------------

    def forward(self, ops: GlmOps) -> None:
        """One pass over a batch of rows, then the drafter over the same rows and its own drafts."""
        x = ops.embed_streams()
        for layer in range(self.sizes.layers):
            at = f"{MODEL}layers.{layer}."
            site = ops.site(x, at + "hc_attn")
            u = ops.normed(ops.read(x, site), at + "input_layernorm.weight")
            ops.write(x, site, self._mixer(ops, u, layer, at + "self_attn."))
            site = ops.site(x, at + "hc_ffn")
            u = ops.normed(ops.read(x, site), at + "post_attention_layernorm.weight")
            ops.write(x, site, self._unit(ops, u, layer, at + "mlp."))
        h = ops.normed_floats(ops.mean(x), NORM, "trunk")
        ops.head(h, HEAD)
        if self.choices.drafts:
            self._draft(ops, h)

    def _mixer(self, ops: GlmOps, u: Digits, layer: int, at: str) -> Floats:
        if self.sizes.layer_kinds[layer] == "kda":
            return self._recurrent(ops, u, self.recurrent.index(layer), at)
        o = self._sparse(ops, u, self.sparse.index(layer), at)
        return ops.gathered(ops.quantised(o), at + "o_proj.weight", "y")

    def _unit(self, ops: GlmOps, u: Digits, layer: int, at: str) -> Floats:
        if self.sizes.mlp_kinds[layer] == "sparse":
            return ops.experts(u, at)
        return ops.dense(u, at)

    def _recurrent(self, ops: GlmOps, u: Digits, layer: int, at: str) -> Floats:
        """Gated delta rule with a decay for each key channel, after a short convolution."""
        names = HeadNames(
            taps=(at + "q_conv1d.weight", at + "k_conv1d.weight", at + "v_conv1d.weight"),
            steps=at + "dt_bias",
            decay=at + "decay",
            norm=at + "o_norm.weight",
        )
        qkv = ops.linear(u, [at + f"{m}_proj.weight" for m in "qkv"], "qkv")
        beta = ops.linear(u, [at + "b_proj.weight"], "beta")
        low = ops.linear(u, [at + "f_a_proj.weight"], "f low")
        gate_low = ops.linear(u, [at + "g_a_proj.weight"], "g low")
        steps = ops.linear(ops.quantised(low), [at + "f_b_proj.weight"], "steps")
        gate = ops.linear(ops.quantised(gate_low), [at + "g_b_proj.weight"], "gate")
        mixed = ops.convolved(qkv, names, layer)
        o = ops.recur(mixed, steps, beta, gate, names, layer)
        return ops.gathered(ops.quantised(o), at + "o_proj.weight", "y")

    def _sparse(self, ops: GlmOps, u: Digits, cache: int, at: str) -> Floats:
        """Attention over the latent rows that the indexer chooses; every head's values."""
        index = at + "indexer."
        ops.write_latents(ops.linear(u, [at + "kv_a_proj_with_mqa.weight"], "latent"), cache)
        key = ops.linear(u, [index + "wk.weight"], "index key")
        gate = ops.linear(u, [index + "index_kpool_compress_gate"], "index gate")
        weights = ops.linear(u, [index + "weights_proj.weight"], "index weights")
        names = IndexNames(
            index + "k_norm.weight", index + "k_norm.bias", index + "index_kpool_compress_ape"
        )
        ops.pool_keys(key, gate, names, cache)
        low = ops.linear(u, [at + "q_a_proj.weight"], "q low")
        qr = ops.normed(low, at + "q_a_layernorm.weight")
        q = ops.linear(qr, [at + "q_b_proj.weight"], "q")
        ops.select(ops.linear(qr, [index + "wq_b.weight"], "index query"), weights, cache)
        return ops.attended(q, at, cache)

    def _draft(self, ops: GlmOps, h: Floats) -> None:
        """The drafter over all rows, with the token after each; then over its own drafts."""
        ops.rows(Rows.ALL)
        h = self._drafter(ops, h)
        for more in range(self.choices.drafts):
            h = ops.draft(h, HEAD)
            ops.rows(Rows.DRAFTED)
            if more + 1 < self.choices.drafts:
                h = self._drafter(ops, h)

    def _drafter(self, ops: GlmOps, h: Floats) -> Floats:
        at = f"{MODEL}layers.{self.sizes.layers}."
        both = ops.joined(ops.next_embedded(), h, (at + "enorm.weight", at + "hnorm.weight"))
        x = ops.gathered(both, at + "eh_proj.weight", "x drafter")
        o = self._sparse(
            ops, ops.normed(x, at + "input_layernorm.weight"), len(self.sparse), at + "self_attn."
        )
        ops.add_gathered(ops.quantised(o), at + "self_attn.o_proj.weight", onto=x)
        ops.add(x, ops.experts(ops.normed(x, at + "post_attention_layernorm.weight"), at + "mlp."))
        return ops.normed_floats(x, at + "shared_head.norm.weight", "drafter")
