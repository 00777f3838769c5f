"""What stands between a peer's matrix products: torch functions, compiled where that is asked."""

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import torch.nn.functional as F  # pyright: ignore[reportMissingImports]

from kvtape.core.families.glm_config import GlmSizes

Tensor = Any
Balance = Callable[[Tensor, float, int], Tensor]


def balanced(c: Tensor, eps: float, iters: int) -> Tensor:
    """Squares c [rows, n, n] whose rows and columns sum to one, nearly."""
    c = c.softmax(2) + eps
    c = c / (c.sum(1, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(2, keepdim=True) + eps)
        c = c / (c.sum(1, keepdim=True) + eps)
    return c


class Parts:
    """The functions, each by itself. compiled: by torch. balance: a kernel of the caller's."""

    def __init__(self, *, compiled: bool, balance: Balance = balanced) -> None:
        self._balance = balance
        for name in PLAIN:
            plain = globals()[name]
            setattr(self, name, torch.compile(plain) if compiled else plain)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def site(
        self, m: Tensor, base: Tensor, scale: Tensor, s: GlmSizes
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(what reads [rows, n], what writes [rows, n], the mix [rows, n, n]) of a site."""
        n = s.hc
        pre, post, square = self.weights(m, base, scale, n, s.hc_eps)
        return pre, post, self._balance(square, s.hc_eps, s.hc_iters)


def weights(
    m: Tensor, base: Tensor, scale: Tensor, n: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A site's numbers before they are balanced."""
    pre = (m[:, :n] * scale[0] + base[:n]).sigmoid() + eps
    post = 2 * (m[:, n : 2 * n] * scale[1] + base[n : 2 * n]).sigmoid()
    return pre, post, (m[:, 2 * n :] * scale[2] + base[2 * n :]).view(-1, n, n)


def written(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Streams x [rows, n, hidden] mixed, and y put into each."""
    mixed = torch.stack([
        sum(comb[:, m, i, None] * x[:, m] for m in range(x.shape[1])) + post[:, i, None] * y
        for i in range(x.shape[1])
    ], 1)  # fmt: skip
    return mixed.to(x.dtype)


def unit(both: Tensor, limit: float) -> Tensor:
    """The clamped gated unit of both maps side by side."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def routed(m: Tensor, bias: Tensor, k: int, scale: float) -> tuple[Tensor, Tensor]:
    """(ids [rows, k], weights [rows, k]) of the experts of each row."""
    scores = m.float().sigmoid()
    ids = (scores + bias).topk(k, 1).indices
    chosen = scores.gather(1, ids)
    return ids, chosen / (chosen.sum(1, keepdim=True) + 1e-20) * scale


def convolved(ring: Tensor, mixed: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """(a row's convolution before its unit, the ring after it)."""
    window = torch.cat([ring, mixed.unsqueeze(1)], 1)
    return (window.float() * taps.t()).sum(1), window[:, 1:]


def convolved_all(before: Tensor, taps: Tensor) -> Tensor:
    """The convolution of all rows but the first of `before`, which stand for the ring."""
    many = taps.shape[1]
    rows = before.shape[0] - many + 1
    return sum(before[j : j + rows].float() * taps[:, j] for j in range(many))


def prepared(
    y: Tensor, steps: Tensor, beta: Tensor, dt: Tensor, decay: Tensor, bound: float, heads: int,
    dim: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(q, k, v, the decays' logarithms, strengths) of rows after their convolution; float32."""
    q, k, v = F.silu(y.float()).view(-1, 3, heads, dim).unbind(1)
    q = q * torch.rsqrt(q.square().sum(2, keepdim=True) + 1e-6) * dim**-0.5
    k = k * torch.rsqrt(k.square().sum(2, keepdim=True) + 1e-6)
    g = bound * (decay * (steps.float() + dt).view(-1, heads, dim)).sigmoid()
    return q, k, v, g, beta.float().sigmoid()


def recurred(
    states: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """(o, the states after) of a row a lane; states [lanes, heads, dim, dim]."""
    states = states * g.exp().unsqueeze(3)
    new = strength.unsqueeze(2) * (v - (states * k.unsqueeze(3)).sum(2))
    states = states + k.unsqueeze(3) * new.unsqueeze(2)
    return (states * q.unsqueeze(3)).sum(2), states


def gated(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Each head's norm and gate."""
    normed = o * torch.rsqrt(o.square().mean(2, keepdim=True) + eps) * weight
    return (normed * gate.float().sigmoid()).to(gate.dtype)


def pooled(ring: Tensor, slots: Tensor) -> Tensor:
    """Keys of pools [pools, kpool, 2, width], each slot's key beside its gate."""
    shares = (ring[:, :, 1].float() + slots.float()).softmax(1)
    return (shares * ring[:, :, 0].float()).sum(1).to(ring.dtype)


def scored(products: Tensor, weights: Tensor, scale: float) -> Tensor:
    """Scores of pools [lanes, pools] from the index heads' products."""
    return (weights.float().unsqueeze(2) * scale * products.float().relu()).sum(1)


PLAIN = (
    "weights", "written", "unit", "routed", "convolved", "convolved_all", "prepared", "recurred",
    "gated", "pooled", "scored",
)  # fmt: skip
