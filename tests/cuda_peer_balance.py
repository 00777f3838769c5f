"""The balancing of a site's square as one Triton kernel, a program a row."""

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit  # type: ignore[untyped-decorator]
def balance_rows(c, out, eps, iters: tl.constexpr, n: tl.constexpr):  # type: ignore[no-untyped-def]
    """As cuda_peer_parts.balanced."""
    i = tl.arange(0, n)
    at = tl.program_id(0) * n * n + i[:, None] * n + i[None, :]
    x = tl.load(c + at)
    x = tl.exp(x - tl.max(x, 1)[:, None])
    x = x / tl.sum(x, 1)[:, None] + eps
    x = x / (tl.sum(x, 0)[None, :] + eps)
    for _ in range(iters - 1):
        x = x / (tl.sum(x, 1)[:, None] + eps)
        x = x / (tl.sum(x, 0)[None, :] + eps)
    tl.store(out + at, x)


def balanced(c: Any, eps: float, iters: int) -> Any:
    """Squares c [rows, n, n] float32 whose rows and columns sum to one, nearly."""
    given = c.contiguous()
    out = torch.empty_like(given)
    launch: Any = balance_rows
    launch[(given.shape[0],)](given, out, eps, iters, given.shape[1], num_warps=1)
    return out
