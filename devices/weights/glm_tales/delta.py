# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
"""The gated delta rule over whole rows, in chunks that a scan of states links."""

from typing import Any

import torch
import torch.nn.functional as F
from compiled import fused
from torch import Tensor

CHUNK = 16  # tokens; the decay over one is at least e^-80, which float32 holds


class Scan(torch.autograd.Function):
    """S[0] = 0, S[n + 1] = M[n] S[n] + B[n]: the state at the start of every chunk."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, b: Tensor) -> Tensor:
        s = torch.empty_like(b)
        s[0].zero_()
        for n in range(len(m) - 1):
            torch.baddbmm(b[n], m[n], s[n], out=s[n + 1])
        ctx.save_for_backward(m, s)
        return s

    @staticmethod
    def backward(ctx: Any, ds: Tensor) -> tuple[Tensor, Tensor]:
        m, s = ctx.saved_tensors
        a = torch.empty_like(ds)  # a[n]: the loss by S[n + 1]
        a[-1].zero_()
        mt = m.transpose(-1, -2)
        for n in range(len(m) - 2, -1, -1):
            torch.baddbmm(ds[n + 1], mt[n + 1], a[n + 1], out=a[n])
        return a @ s.transpose(-1, -2), a


def chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
    """[B, T, H, d] -> what links the chunks (M, B) and what each adds on its own."""
    b, t, h, d = q.shape
    q, k, v, g = (
        x.view(b, t // CHUNK, CHUNK, h, d).permute(1, 0, 3, 2, 4).reshape(-1, b * h, CHUNK, d)
        for x in (q, k, v, g)
    )
    beta = beta.view(b, t // CHUNK, CHUNK, h).permute(1, 0, 3, 2).reshape(-1, b * h, CHUNK, 1)
    g = g.cumsum(-2)
    last, middle = g[..., -1:, :], g[..., CHUNK // 2 - 1 : CHUNK // 2, :]
    down, up = (g - middle).exp(), (middle - g).exp()
    keys = (k * up).transpose(-1, -2)
    a = ((k * down * beta) @ keys).tril(-1)
    one = torch.eye(CHUNK, device=q.device)
    a2 = a @ a
    a4 = a2 @ a2
    inverse = (one - a) @ (one + a2) @ (one + a4) @ (one + a4 @ a4)  # a^16 = 0
    seen = ((q * down) @ keys).tril()
    u, w = inverse @ (v * beta), inverse @ (k * g.exp() * beta)
    kept = (k * (last - g).exp()).transpose(-1, -2)
    m = torch.diag_embed(last[..., 0, :].exp()) - kept @ w
    return m, kept @ u, q * g.exp(), seen, u, w


def chunks_out(s: Tensor, q: Tensor, seen: Tensor, u: Tensor, w: Tensor, rows: int) -> Tensor:
    """[B, T, H, d] from the state at the start of every chunk."""
    o = q @ s + seen @ (u - w @ s)
    n, bh, c, d = o.shape
    return o.view(n, rows, bh // rows, c, d).permute(1, 0, 3, 2, 4).reshape(rows, n * c, -1, d)


def kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The delta rule over [B, T, H, d]; g: log decay, beta: [B, T, H]."""
    m, b, *own = fused(chunks)(q, k, v, g, beta)
    return fused(chunks_out)(Scan.apply(m, b), *own, len(q))


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """Short causal convolution of [B, T, C], then SiLU."""
    taps, t = weight.shape[-1], x.shape[1]
    x = F.pad(x, (0, 0, taps - 1, 0))
    return F.silu(sum(x[:, j : j + t] * weight[:, 0, j] for j in range(taps)))


def gates(q: Tensor, k: Tensor, v: Tensor, f: Tensor, b: Tensor, w: Any, heads: int) -> Any:
    """What the recurrence reads, [B, T, H, d], from the raw projections."""
    q, k, v = (convolved(x, c) for x, c in zip((q, k, v), w[:3], strict=True))
    q, k, v, f = (x.unflatten(-1, (heads, -1)) for x in (q, k, v, f + w[3]))
    q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    g = -5.0 * torch.sigmoid(w[4].exp()[:, None] * f)
    return q * q.shape[-1] ** -0.5, k, v, g, torch.sigmoid(b)
