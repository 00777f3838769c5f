"""The llama family: grouped-query attention with rotary positions, gated units, RMSNorm."""

from typing import Any

from ...events.records import FamilyRules
from ..ops import Ops
from .family import BLOCK, Attention, Choices, Span, UnsupportedShape, share, share_blocks

PAGE_ROWS = 32
SUM_BYTES = 16  # a page's running digest

LAYER = "model.layers.{}."
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


_OWN = Choices()


class Llama:
    """A llama's sizes, its weights by their names, its cut over ranks and its forward pass."""

    def __init__(self, config: dict[str, Any], choices: Choices = _OWN) -> None:
        if choices.drafts > 0:
            raise UnsupportedShape(
                f"{choices.drafts} drafts a round: a llama drafts none, 0 would do"
            )
        if choices.mark_rows not in (0, PAGE_ROWS) or choices.page_rows not in (0, PAGE_ROWS):
            raise UnsupportedShape(f"a llama's pages and marks are {PAGE_ROWS} rows")
        heads = int(config["num_attention_heads"])
        self.hidden = int(config["hidden_size"])
        self.inner = int(config["intermediate_size"])
        self.vocab = int(config["vocab_size"])
        self.eps = float(config["rms_norm_eps"])
        self.tied = bool(config["tie_word_embeddings"])
        self.attention = Attention(
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config.get("head_dim") or self.hidden // heads),
            context=int(config["max_position_embeddings"]),
            theta=float(config["rope_theta"]),
        )
        self.context = self.attention.context
        self._refuse_what_blocks_cannot_cut()

    def _refuse_what_blocks_cannot_cut(self) -> None:
        sizes = {
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "vocab_size": self.vocab,
            "head_dim": self.attention.head_dim,
        }
        for key, size in sizes.items():
            if size % BLOCK:
                raise UnsupportedShape(f"{key} is {size}, it must be a multiple of {BLOCK}")
        if self.attention.heads % self.attention.kv_heads:
            raise UnsupportedShape(
                f"num_attention_heads is {self.attention.heads}, it must be a multiple of"
                f" num_key_value_heads, {self.attention.kv_heads}"
            )

    def rules(self) -> FamilyRules:
        """Pages of 32 rows, a mark at every page, states that are pages alone."""
        return FamilyRules(
            page_rows=PAGE_ROWS,
            mark_rows=PAGE_ROWS,
            lookahead=0,
            drafts=0,
            snapshots=False,
            finish_marks=True,
            min_prompt=0,
            min_gap=0,
            vocab=self.vocab,
            parts=("rows", "marks", "logits", "tokens"),
            split=("rows", "marks"),
        )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight by name: matrices [output, input], norms [hidden]."""
        a, d, f = self.attention, self.hidden, self.inner
        q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (self.vocab, d), NORM: (d,)}
        for layer in range(a.layers):
            at = LAYER.format(layer)
            shapes[at + "input_layernorm.weight"] = (d,)
            shapes[at + "self_attn.q_proj.weight"] = (q, d)
            shapes[at + "self_attn.k_proj.weight"] = (kv, d)
            shapes[at + "self_attn.v_proj.weight"] = (kv, d)
            shapes[at + "self_attn.o_proj.weight"] = (d, q)
            shapes[at + "post_attention_layernorm.weight"] = (d,)
            shapes[at + "mlp.gate_proj.weight"] = (f, d)
            shapes[at + "mlp.up_proj.weight"] = (f, d)
            shapes[at + "mlp.down_proj.weight"] = (d, f)
        if not self.tied:
            shapes[HEAD] = (self.vocab, d)
        return shapes

    def heads(self, world: int, rank: int) -> Span:
        """The KV heads of a rank; a rank past the heads works on columns alone."""
        return share(self.attention.kv_heads, world, rank)

    def columns(self, name: str, world: int, rank: int) -> Span:
        """Query, key and value columns follow the heads; all others are cut in blocks."""
        first, last = self.heads(world, rank)
        a = self.attention
        if name.endswith(".q_proj.weight"):
            return first * a.group * a.head_dim, last * a.group * a.head_dim
        if name.endswith((".k_proj.weight", ".v_proj.weight")):
            return first * a.head_dim, last * a.head_dim
        return share_blocks(self.tensors()[name][0], world, rank)

    def page_bytes(self, world: int, rank: int) -> int:
        """Rows of K and V of a rank's heads, an exponent each, and the page's digest."""
        first, last = self.heads(world, rank)
        row = 2 * (2 * self.attention.head_dim + 1)
        return PAGE_ROWS * self.attention.layers * (last - first) * row + SUM_BYTES

    def forward(self, ops: Ops) -> None:
        """One pass over a batch of rows, each at its own position of its own stream."""
        x = ops.embed()
        for layer in range(self.attention.layers):
            at = LAYER.format(layer)
            h = ops.normed(x, at + "input_layernorm.weight")
            qkv = ops.linear(h, [at + f"self_attn.{m}_proj.weight" for m in "qkv"])
            q = ops.write_rows(qkv, layer)
            o = ops.quantised(ops.attend(q, layer))
            ops.add_linear(o, at + "self_attn.o_proj.weight", onto=x)
            h = ops.normed(x, at + "post_attention_layernorm.weight")
            g = ops.gated(h, at + "mlp.gate_proj.weight", at + "mlp.up_proj.weight")
            ops.add_linear(ops.quantised(g), at + "mlp.down_proj.weight", onto=x)
        ops.head(x, NORM, EMBEDDING if self.tied else HEAD)
