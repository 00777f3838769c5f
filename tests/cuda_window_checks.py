"""Sampled rows of long windows: what they choose and attend, against the meaning on the host.

The rows that a sampled one reads are gathered on the card into one page of their own.
"""

from typing import Any

import numpy as np
from numba import cuda as numba_cuda
from numpy.typing import NDArray

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda.embed import gather_rows
from kvtape.core.kernels.cuda.planes import OUTPUTS
from kvtape.core.kernels.latent_attend import latent_attend_meaning
from kvtape.core.kernels.select import select_meaning
from kvtape.devices.glm.layout import GlmOp

from .cuda_real_checks import digits, of_rows, run_until, sampled_rows, strided
from .cuda_real_rig import LATENT, RealRig

cuda: Any = numba_cuda
NO_LANE, ONE_PAGE = np.zeros(1, np.int64), np.zeros((1, 1), np.int32)


def gathered(rig: RealRig, arena: Any, places: NDArray[np.int64]) -> NDArray[np.int16]:
    """Rows of an arena [pages, rows, width] by their places, as one page [1, n, width]."""
    pages, rows, width = arena.shape
    out = cuda.to_device(np.zeros((len(places), width), np.int16))
    flat, ids = arena.reshape(pages * rows, width), cuda.to_device(places)
    gather_rows(rig.card.stream, flat, ids, out, len(places))
    rig.card.wait()
    found: NDArray[np.int16] = out.copy_to_host()
    return found[None]


def placed(table: NDArray[np.int32], at: NDArray[np.int64], per_page: int) -> NDArray[np.int64]:
    """Where rows stand in an arena that has `per_page` of them on a page."""
    return table[at // per_page].astype(np.int64) * per_page + at % per_page


def selected(rig: RealRig, bucket: int, rows: int) -> bool:
    """Pools that sampled rows choose."""
    words, party = rig.of(GlmOp.SELECT, -1), rig.lowering.party
    codes, exponents_at, weights, stride, cache, exponent = words[1:7]
    run_until(rig, words, bucket)
    heads, dim = party.index_heads, party.index_dim
    q, eq = digits(rig, codes, exponents_at, dim, bucket * heads)
    q, eq = q.reshape(bucket, heads * dim), eq.reshape(bucket, heads)
    arrays, w = rig.memory.arrays, strided(rig, weights, bucket, stride)
    made, counts = rig.host(arrays["picked"][:bucket]), rig.host(arrays["counts"][:bucket])
    per_page = party.page_rows // party.kpool
    for row in sampled_rows(rows).tolist():
        positions, lanes, tables = of_rows(rig, [row])
        pools = np.arange((positions[0] + 1) // party.kpool)
        keys = gathered(rig, arrays["keys"][cache], placed(tables[lanes[0]], pools, per_page))
        picked, count = np.zeros((1, party.most), np.int32), np.zeros(1, np.int64)
        select_meaning(
            q[[row]], eq[[row]], w[[row]], 0, party.index_scale, keys, exponent, positions,
            NO_LANE, ONE_PAGE, len(pools) * party.kpool, party.kpool, party.most, picked, count,
            0, 1,
        )  # fmt: skip
        kept = int(count[0])
        want, have = picked[0, :kept].copy(), made[row, :kept].copy()
        if counts[row] != kept or not registry.same_bits(want, have):
            return False
    return True


def attended(rig: RealRig, bucket: int, rows: int) -> bool:
    """Attention of sampled rows over what they have chosen."""
    words, party = rig.of(GlmOp.ATTEND, -1), rig.lowering.party
    codes, exponents_at, cache, to = words[1:5]
    run_until(rig, words, bucket)
    heads, width = party.heads, party.latent
    q, eq = digits(rig, codes, exponents_at, width, bucket * heads)
    q, eq = q.reshape(bucket, heads * width), eq.reshape(bucket, heads)
    arrays, made = rig.memory.arrays, strided(rig, to, bucket, heads * width)
    picked, counts = rig.host(arrays["picked"][:bucket]), rig.host(arrays["counts"][:bucket])
    inside = np.arange(party.kpool)
    for row in sampled_rows(rows).tolist():
        positions, lanes, tables = of_rows(rig, [row])
        own, count = picked[row, : counts[row]].astype(np.int64), counts[[row]]
        last = int(positions[0])
        tail = np.arange((last + 1) // party.kpool * party.kpool, last + 1)
        at = np.concatenate([(own[:, None] * party.kpool + inside).reshape(-1), tail])
        table = tables[lanes[0]]
        latent = gathered(rig, arrays["latent"][cache], placed(table, at, party.page_rows))
        want = np.zeros((1, heads * width), np.float32)
        latent_attend_meaning(
            q[[row]], eq[[row]], np.array([len(at) - 1]), NO_LANE, ONE_PAGE, latent, LATENT,
            len(at), party.kpool, np.arange(len(own), dtype=np.int32)[None], count,
            party.attend_scale, want, 0, -(-heads // OUTPUTS),
        )  # fmt: skip
        if not registry.same_bits(want[0], made[row].copy()):
            return False
    return True
