# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
"""The glm5_next text model and its draft head in torch, written for training on whole rows."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from compiled import fused
from delta import gates, kda
from torch import Tensor, nn

EPS = 1e-5
PREFIX = "model.language_model."
half = torch.bfloat16  # of matrix products; tests set float32


def config_of(path: Path) -> SimpleNamespace:
    """The text part of config.json."""
    return SimpleNamespace(**json.loads(path.read_text())["text_config"])


def mul(x: Tensor, weight: Tensor) -> Tensor:
    """Matrix product in `half`, float32 out."""
    return F.linear(x.to(half), weight.to(half)).float()


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """RMSNorm, without a weight where there is none."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return y if weight is None else y * weight


def streams_in(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor) -> Any:
    """x [rows, 4, D] -> what a layer reads [rows, D], and the weights that write it back."""
    n = x.shape[1]
    m = F.linear(rms(x.flatten(1)), fn).T
    pre = torch.sigmoid(m[:n] * scale[0] + base[:n, None]) + 1e-6
    post = 2 * torch.sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n, None])
    c = (m[2 * n :] * scale[2] + base[2 * n :, None]).view(n, n, -1).softmax(1) + 1e-6
    c = c / (c.sum(0, keepdim=True) + 1e-6)
    for _ in range(19):
        c = c / (c.sum(1, keepdim=True) + 1e-6)
        c = c / (c.sum(0, keepdim=True) + 1e-6)
    u = (pre.T[:, :, None] * x).sum(1)
    return rms(u, norm), post, c


def streams_out(x: Tensor, y: Tensor, post: Tensor, c: Tensor) -> Tensor:
    """The four streams mixed, and y added to each."""
    mixed = torch.einsum("mnr,rmd->rnd", c, x)
    return mixed + post.T[:, :, None] * y[:, None]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The clamped gate times the clamped other half."""
    return F.silu(gate.clamp(max=10.0)) * up.clamp(-10.0, 10.0)


class Weight(nn.Module):
    """One named weight: a matrix [out, in], or a norm's ones."""

    def __init__(self, *shape: int, std: float | None = None) -> None:
        super().__init__()
        spread = shape[-1] ** -0.5 if std is None else std
        self.weight = nn.Parameter(
            torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * spread
        )


class Linear(nn.Module):
    """Kimi delta attention: a decaying state per head, written by the delta rule."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        lin = c.linear_attn_config
        self.heads, d = lin["num_heads"], lin["head_dim"]
        n, D = self.heads * d, c.hidden_size
        for name in "qkv":
            setattr(self, f"{name}_proj", Weight(n, D))
            setattr(self, f"{name}_conv1d", Weight(n, 1, lin["short_conv_kernel_size"], std=0.3))
        self.f_a_proj, self.f_b_proj = Weight(d, D), Weight(n, d, std=0.02)
        self.g_a_proj, self.g_b_proj = Weight(d, D), Weight(n, d, std=0.02)
        self.b_proj, self.o_norm = Weight(self.heads, D), Weight(d)
        self.o_proj = Weight(D, n, std=0.25 * n**-0.5)
        self.A_log = nn.Parameter(torch.zeros(self.heads))
        self.dt_bias = nn.Parameter(-7.0 * torch.rand(n))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raw = [mul(x, getattr(self, f"{name}_proj").weight) for name in "qkv"]
        f = mul(mul(x, self.f_a_proj.weight), self.f_b_proj.weight)
        w = [getattr(self, f"{name}_conv1d").weight for name in "qkv"]
        w += [self.dt_bias, self.A_log]
        o = kda(*fused(gates)(*raw, f, mul(x, self.b_proj.weight), w, self.heads))
        gate = mul(mul(x, self.g_a_proj.weight), self.g_b_proj.weight)
        o = rms(o, self.o_norm.weight).flatten(-2) * torch.sigmoid(gate)
        return mul(o, self.o_proj.weight), x.new_zeros(())


class Indexer(nn.Module):
    """Scores pools of four tokens; it learns where attention looks, and only from that."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.heads, self.pool, d = c.index_n_heads, c.index_kpool, c.index_head_dim
        self.wq_b, self.wk = Weight(self.heads * d, c.q_lora_rank), Weight(d, c.hidden_size)
        self.k_norm = nn.LayerNorm(d, eps=1e-6)
        self.weights_proj = Weight(self.heads, c.hidden_size)
        self.index_kpool_compress_gate = nn.Parameter(0.02 * torch.randn(d, c.hidden_size))
        self.index_kpool_compress_ape = nn.Parameter(torch.zeros(self.pool, d))

    def forward(self, x: Tensor, qr: Tensor) -> Tensor:
        """[B, T, D] -> scores [B, T, T // 4]."""
        k = self.k_norm(mul(x, self.wk.weight)).unflatten(1, (-1, self.pool))
        a = mul(x, self.index_kpool_compress_gate).unflatten(1, (-1, self.pool))
        pooled = ((a + self.index_kpool_compress_ape).softmax(2) * k).sum(2)
        d = k.shape[-1]
        q = mul(qr, self.wq_b.weight).unflatten(-1, (self.heads, d)).flatten(1, 2)
        hits = torch.relu((q @ pooled.transpose(1, 2)) * d**-0.5).unflatten(1, (-1, self.heads))
        w = mul(x, self.weights_proj.weight) * self.heads**-0.5
        return (hits * w[..., None]).sum(2)


class Sparse(nn.Module):
    """Latent attention over the best pools; no positions."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.heads, self.d, self.keep = c.num_attention_heads, c.qk_nope_head_dim, c.index_topk
        n, D = self.heads * self.d, c.hidden_size
        self.q_a_proj, self.q_a_layernorm = Weight(c.q_lora_rank, D), Weight(c.q_lora_rank)
        self.q_b_proj = Weight(n, c.q_lora_rank)
        self.kv_a_proj_with_mqa = Weight(c.kv_lora_rank, D)
        self.kv_a_layernorm = Weight(c.kv_lora_rank)
        self.kv_b_proj = Weight(2 * n, c.kv_lora_rank)
        self.o_proj = Weight(D, n, std=0.25 * n**-0.5)
        self.indexer = Indexer(c)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        qr = rms(mul(x, self.q_a_proj.weight), self.q_a_layernorm.weight)
        q = mul(qr, self.q_b_proj.weight).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        row = rms(mul(x, self.kv_a_proj_with_mqa.weight), self.kv_a_layernorm.weight)
        kv = mul(row, self.kv_b_proj.weight).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = kv.split(self.d, -1)
        scores = self.indexer(x.detach(), qr.detach())
        logits = (q.to(half) @ k.to(half).transpose(-1, -2)).float() * self.d**-0.5
        p, loss = fused(chosen)(logits, scores, self.keep, self.indexer.pool)
        o = (p.to(half) @ v.to(half)).float().transpose(1, 2).flatten(-2)
        return mul(o, self.o_proj.weight), loss


def chosen(logits: Tensor, scores: Tensor, keep: int, pool: int) -> tuple[Tensor, Tensor]:
    """Attention over the chosen tokens, and how far the scores are from where it looks."""
    t = torch.arange(logits.shape[-1], device=logits.device)
    whole = t[:, None] >= t[pool - 1 :: pool]  # [T, P]: the pool's last token is there
    seen = t[:, None] >= t
    fixed = seen & (t >= ((t + 1) // pool * pool)[:, None])  # the unfinished pool
    low = scores.masked_fill(~whole, -math.inf)
    some = low.detach().topk(min(keep // pool, low.shape[-1]), -1).indices
    picked = torch.zeros_like(low, dtype=torch.bool).scatter(-1, some, True) & whole
    allowed = picked.repeat_interleave(pool, -1) | fixed
    with torch.no_grad():
        dense = logits.masked_fill(~seen, -math.inf).softmax(-1).mean(1)
        goal = dense.unflatten(-1, (-1, pool)).sum(-1) * whole
        goal = goal / (goal.sum(-1, keepdim=True) + 1e-6)
    guess = scores.masked_fill(~whole, -1e4).log_softmax(-1)
    loss = -(goal * guess).sum(-1).mean()
    return logits.masked_fill(~allowed[:, None], -math.inf).softmax(-1), loss


class Mlp(nn.Module):
    """A gated MLP of `inner` columns."""

    def __init__(self, D: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = Weight(inner, D), Weight(inner, D)
        self.down_proj = Weight(D, inner, std=0.25 * inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        inner = fused(swiglu)(mul(x, self.gate_proj.weight), mul(x, self.up_proj.weight))
        return mul(inner, self.down_proj.weight)


class Router(Weight):
    """Scores experts; its bias only balances who is picked."""

    def __init__(self, experts: int, D: int) -> None:
        super().__init__(experts, D)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))


class Moe(nn.Module):
    """All experts side by side as one wide MLP, those not chosen times zero."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.count, self.top = c.n_routed_experts, c.num_experts_per_tok
        D, inner = c.hidden_size, c.moe_intermediate_size
        self.factor = c.routed_scaling_factor
        self.gate = Router(self.count, D)
        self.experts = Mlp(D, self.count * inner)
        nn.init.normal_(self.experts.down_proj.weight, std=0.25 * inner**-0.5)
        self.shared_experts = Mlp(D, inner)
        self.rate = 0.0  # of the balance; training sets it

    def forward(self, x: Tensor) -> Tensor:
        gate, up = mul(x, self.experts.gate_proj.weight), mul(x, self.experts.up_proj.weight)
        bias = self.gate.e_score_correction_bias
        inner, load = fused(routed)(x, self.gate.weight, bias, gate, up, self.top, self.factor)
        if self.training:
            with torch.no_grad():
                bias.add_(self.rate * torch.sign(load.mean() - load))
        return mul(inner, self.experts.down_proj.weight) + self.shared_experts(x)


def routed(
    x: Tensor, router: Tensor, bias: Tensor, gate: Tensor, up: Tensor, top: int, factor: float
) -> tuple[Tensor, Tensor]:
    """Inner columns times their expert's weight, and each expert's share of the picks."""
    s = torch.sigmoid(F.linear(x, router))
    picked = torch.zeros_like(s).scatter(-1, (s + bias).topk(top, -1).indices, 1.0)
    w = s * picked
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * factor
    inner = swiglu(gate, up).unflatten(-1, (len(bias), -1)) * w[..., None]
    return inner.flatten(-2), picked.flatten(0, -2).mean(0)


class Layer(nn.Module):
    """One layer of the trunk, or the draft head (the layer after the last)."""

    def __init__(self, c: SimpleNamespace, at: int) -> None:
        super().__init__()
        D, n = c.hidden_size, c.hc_mult
        self.input_layernorm, self.post_attention_layernorm = Weight(D), Weight(D)
        draft = at == c.num_hidden_layers
        linear = not draft and c.layer_types[at] == "linear_attention"
        self.self_attn = Linear(c) if linear else Sparse(c)
        sparse = draft or c.mlp_layer_types[at] == "sparse"
        self.mlp = Moe(c) if sparse else Mlp(D, c.intermediate_size)
        if draft:
            self.eh_proj, self.enorm, self.hnorm = Weight(D, 2 * D), Weight(D), Weight(D)
            self.shared_head = nn.Module()
            self.shared_head.norm = Weight(D)
            return
        for site, turn in (("attn", 2 * at), ("ffn", 2 * at + 1)):
            base = torch.zeros(2 * n + n * n)
            base[:n] = -2.0
            base[turn % n] = 2.0
            base[2 * n :] = 4.0 * torch.eye(n).flatten()
            self.register_parameter(
                f"hc_{site}_fn", nn.Parameter(0.02 * torch.randn(len(base), n * D))
            )
            self.register_parameter(f"hc_{site}_base", nn.Parameter(base))
            self.register_parameter(f"hc_{site}_scale", nn.Parameter(torch.full((3,), 0.3)))

    def forward(self, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """x [rows * T, 4, D]."""
        norms = (self.input_layernorm.weight, self.post_attention_layernorm.weight)
        u, post, c = fused(streams_in)(
            x, self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale, norms[0]
        )
        y, loss = self.self_attn(u.unflatten(0, (rows, -1)))
        x = fused(streams_out)(x, y.flatten(0, 1), post, c)
        u, post, c = fused(streams_in)(
            x, self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale, norms[1]
        )
        return fused(streams_out)(x, self.mlp(u), post, c), loss

    def draft(self, e: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """e: embeddings of the next tokens.  h: normed rows.  -> the head's normed rows."""
        both = torch.cat([rms(e, self.enorm.weight), rms(h, self.hnorm.weight)], -1)
        x = mul(both, self.eh_proj.weight)
        y, loss = self.self_attn(rms(x, self.input_layernorm.weight))
        x = x + y
        x = x + self.mlp(rms(x, self.post_attention_layernorm.weight))
        return rms(x, self.shared_head.norm.weight), loss


class Net(nn.Module):
    """The trunk, the draft head, and the embedding and head that both share."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.streams = c.hc_mult
        self.embed_tokens = Weight(c.vocab_size, c.hidden_size, std=0.1)
        self.layers = nn.ModuleList(Layer(c, at) for at in range(c.num_hidden_layers + 1))
        self.norm = Weight(c.hidden_size)
        self.lm_head = Weight(c.vocab_size, c.hidden_size, std=0.02)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> final normed rows [B, T, D], and the indexers' loss."""
        x = self.embed_tokens.weight[ids.flatten()]
        x, loss = x[:, None].expand(-1, self.streams, -1), x.new_zeros(())
        for layer in self.layers[:-1]:
            x, add = layer(x, len(ids))
            loss = loss + add
        return rms(x.mean(1), self.norm.weight).unflatten(0, ids.shape), loss

    def draft(self, next_ids: Tensor, h: Tensor, first: bool) -> tuple[Tensor, Tensor]:
        """The draft head's rows; the first row's embedding is zero in the `first` step."""
        e = self.embed_tokens.weight[next_ids]
        if first:
            e = torch.cat([torch.zeros_like(e[:, :1]), e[:, 1:]], 1)
        return self.layers[-1].draft(e, h)

    def logits(self, h: Tensor) -> Tensor:
        return mul(h, self.lm_head.weight)

    def official(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor under its official name; experts apart."""
        for name, value in self.state_dict().items():
            name = name if name.startswith("lm_head") else PREFIX + name
            if ".experts." not in name:
                yield name, value
                continue
            before, after = name.split(".experts.")
            count = self.layers[-1].mlp.count
            for at, part in enumerate(value.chunk(count, 1 if "down" in after else 0)):
                yield f"{before}.experts.{at}.{after}", part
