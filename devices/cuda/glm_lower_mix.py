"""How the GLM's mixers and experts become launches: recurrence, selected attention, routing."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...core.kernels.cuda.conv import conv_rows
from ...core.kernels.cuda.experts import expert_down, expert_up, list_busy
from ...core.kernels.cuda.experts_plain import plain_down, plain_up
from ...core.kernels.cuda.glm_rows import repeat_rows
from ...core.kernels.cuda.kda import kda_gate, kda_prepare
from ...core.kernels.cuda.kda_recurrence import kda_rows
from ...core.kernels.cuda.latent import latent_rows
from ...core.kernels.cuda.latent_attend import latent_attend
from ...core.kernels.cuda.latent_split import attend_split, fits
from ...core.kernels.cuda.layernorm import layernorm_rows
from ...core.kernels.cuda.planes import INPUTS
from ...core.kernels.cuda.poisoned_runs import note_poisoned_runs
from ...core.kernels.cuda.pools import pool_rows
from ...core.kernels.cuda.route import combine_rows, group_rows, route_rows
from ...core.kernels.cuda.select import select_rows
from ...core.kernels.digest import PARTS
from ..glm.layout import GlmOp
from .card import Launch
from .glm_here import BLOCK, Here, Words
from .glm_memory import BAND

EXACT = 2  # rows up to which no bucket has room for more than were asked for


def convolved(here: Here, words: Words) -> list[Launch]:
    """CONV: raw, stride, taps, taps a channel, layer, y."""
    at, stride, taps, many, layer, to = words[:6]
    ring = here.memory.arrays["conv_ring"][layer]
    wide = ring.shape[2]
    raw, y = here.floats(at, stride), here.floats(to, wide)
    weights = here.constants(taps, wide, many)
    return [partial(conv_rows, here.stream, raw, 0, weights, ring, here.runs, y, 0, wide)]


def prepared(here: Here, words: Words) -> list[Launch]:
    """PREPARE: mixed, f, f stride, steps, decay, beta, beta stride, q, k, a, beta out."""
    mixed, f, f_stride, steps, decay, b, b_stride, q, k, a, beta = words[:11]
    heads = here.party.kda_heads
    wide = heads * here.party.kda_dim
    return [
        partial(
            kda_prepare, here.stream, here.floats(mixed, 3 * wide), here.floats(f, f_stride), 0,
            here.constants(steps, wide), here.constants(decay, heads), here.party.bound,
            here.floats(b, b_stride), 0, here.floats(q, wide), here.floats(k, wide),
            here.floats(a, wide), here.floats(beta, heads), here.flags, 0, here.rows * heads,
        )
    ]  # fmt: skip


def recurrent(here: Here, words: Words) -> list[Launch]:
    """RECUR: q, k, mixed, a, beta, layer, o."""
    q, k, mixed, a, beta, layer, o = words[:7]
    heads = here.party.kda_heads
    wide = heads * here.party.kda_dim
    states, runs = here.memory.arrays["states"][layer], here.runs
    return [
        partial(
            kda_rows, here.stream, here.floats(q, wide), here.floats(k, wide),
            here.floats(mixed, 3 * wide), here.floats(a, wide), here.floats(beta, heads), states,
            runs, here.floats(o, wide), 0, runs.shape[0] * heads,
        )
    ]  # fmt: skip


def gated_heads(here: Here, words: Words) -> list[Launch]:
    """HEAD_GATE: o, gate, gate stride, weight, out, out stride, out column."""
    o, gate, stride, weight, out, out_stride, column = words[:7]
    heads, dim = here.party.kda_heads, here.party.kda_dim
    return [
        partial(
            kda_gate, here.stream, here.floats(o, heads * dim), here.floats(gate, stride), 0,
            here.constants(weight, dim), here.party.eps, here.floats(out, out_stride), column,
            here.flags, 0, here.rows * heads,
        )
    ]  # fmt: skip


def latents(here: Here, words: Words) -> list[Launch]:
    """LATENT: x, stride, cache."""
    at, stride, cache = words[:3]
    party, m = here.party, here.memory
    part, layer = ("rows", cache) if cache < party.trunk_caches else ("drafts", 0)
    return [
        partial(
            latent_rows, here.stream, here.floats(at, stride), 0, party.latent, party.eps,
            party.latent_exponent, here.positions, here.lanes, m.tables["tables"],
            m.arrays["latent"][cache], PARTS[part], layer, here.sums("row_sums", cache),
            here.flags, 0, here.rows,
        )
    ]  # fmt: skip


def key_norm(here: Here, words: Words) -> list[Launch]:
    """KEY_NORM: x, width, weight, bias, y."""
    at, width, weight, bias, to = words[:5]
    return [
        partial(
            layernorm_rows, here.stream, here.floats(at, width), here.constants(weight, width),
            here.constants(bias, width), here.party.index_eps, here.floats(to, width), here.flags,
            0, here.rows,
        )
    ]  # fmt: skip


def pooled(here: Here, words: Words) -> list[Launch]:
    """POOL: key, gate, gate stride, slots, cache, exponent."""
    key, gate, stride, slots, cache, exponent = words[:6]
    party, m, runs = here.party, here.memory, here.runs
    part, layer = ("keys", cache) if cache < party.trunk_caches else ("drafts", 1)
    return [
        partial(
            pool_rows, here.stream, here.floats(key, party.index_dim), here.floats(gate, stride),
            0, here.constants(slots, party.kpool, party.index_dim), exponent,
            m.arrays["index_ring"][cache], runs, m.tables["tables"], m.arrays["keys"][cache],
            party.page_rows, PARTS[part], layer, here.sums("key_sums", cache), 0, runs.shape[0],
        )
    ]  # fmt: skip


def selected(here: Here, words: Words) -> list[Launch]:
    """SELECT: codes, exponents, weights, stride, cache, exponent; so many rows at a time."""
    codes, exponents_at, weights, stride, cache, exponent = words[:6]
    party, arrays = here.party, here.memory.arrays
    heads, dim = party.index_heads, party.index_dim
    qi, ei = here.codes(codes, exponents_at, dim, heads)
    given = (
        qi.reshape(here.rows, heads * dim), ei.reshape(here.rows, heads),
        here.floats(weights, stride), 0, party.index_scale, arrays["keys"][cache], exponent,
        here.positions, here.lanes, here.memory.tables["tables"], party.page_rows, party.kpool,
        party.most, arrays["picked"], arrays["counts"], arrays["pool_scores"],
    )  # fmt: skip
    return [partial(select_rows, here.stream, *given, *span) for span in bands(here.rows)]


def bands(rows: int) -> list[tuple[int, int]]:
    """(first, last) rows of launches that share scratch for BAND rows."""
    return [(first, min(first + BAND, rows)) for first in range(0, rows, BAND)]


def attended(here: Here, words: Words) -> list[Launch]:
    """ATTEND: codes, exponents, cache, out; so many rows at a time."""
    codes, exponents_at, cache, to = words[:4]
    party, arrays, rows = here.party, here.memory.arrays, here.rows
    heads, width = party.heads, party.latent
    q, eq = here.codes(codes, exponents_at, width, heads)
    given = (
        q.reshape(rows, heads * width), eq.reshape(rows, heads), here.positions, here.lanes,
        here.memory.tables["tables"], arrays["latent"][cache], party.latent_exponent,
        party.page_rows, party.kpool, arrays["picked"], arrays["counts"], party.attend_scale,
        here.floats(to, heads * width),
    )  # fmt: skip
    if fits(width):
        names = ("scores", "tops", "sums", "weights")
        scratch = tuple(arrays["attend_" + name] for name in names)
        return [partial(attend_split, here.stream, *given, scratch, *span) for span in bands(rows)]
    blocks = -(-heads // BLOCK)
    return [partial(latent_attend, here.stream, *given, 0, rows * blocks)]


def checked(here: Here, words: Words) -> list[Launch]:
    """CHECK: cache."""
    cache, m, runs = words[0], here.memory, here.runs
    tables, found = m.tables["tables"], m.tables["poisoned"][: runs.shape[0]]
    return [
        partial(note_poisoned_runs, here.stream, m.arrays[name], cache, step, runs, tables, found)
        for name, step in (("latent", 1), ("keys", here.party.kpool))
    ]


def routed(here: Here, words: Words) -> list[Launch]:
    """ROUTE: m, stride, bias."""
    at, stride, bias = words[:3]
    party, arrays, rows = here.party, here.memory.arrays, here.rows
    slots = rows * party.chosen
    experts, order = arrays["experts"][:rows], arrays["order"][:slots]
    starts, busy = arrays["starts"], arrays["busy"][: min(party.expert_count, slots)]
    repeat = partial(repeat_rows, here.stream, experts, here.memory.tables["have"], int(here.set))
    return [
        partial(
            route_rows, here.stream, here.floats(at, stride),
            here.constants(bias, party.expert_count), party.chosen, party.routed_scale, experts,
            arrays["shares"], 0, rows,
        ),
        *([repeat] if rows > EXACT else []),
        partial(group_rows, here.stream, experts, order, starts),
        partial(list_busy, here.stream, starts, busy),
    ]  # fmt: skip


def expert_maps_up(here: Here, words: Words) -> list[Launch]:
    """EXPERT_UP: codes, exponents, width, weight, its exponents, columns, h, h stride, h column."""
    codes, exponents_at, width, weight, _, columns, h, stride, column = words[:9]
    party, arrays = here.party, here.memory.arrays
    slots, blocks = here.rows * party.chosen, columns // BLOCK
    pairs, exponents = here.pairs(codes, exponents_at, width)
    planes, plane_exponents = _experts(here, weight)
    order, out = arrays["order"][:slots], here.after(h)
    maps = (pairs, exponents, planes, plane_exponents, width // 2)
    if width % INPUTS:
        experts = arrays["experts"][: here.rows]
        return [
            partial(
                plain_up, here.stream, *maps, experts, order, party.chosen, blocks, party.limit,
                out, stride, column, check=here.check(weight),
            )
        ]  # fmt: skip
    busy = arrays["busy"][: min(party.expert_count, slots)]
    return [
        partial(
            expert_up, here.stream, *maps, busy, order, arrays["starts"], party.chosen, blocks,
            party.limit, out, stride, column, check=here.check(weight),
        )
    ]  # fmt: skip


def expert_maps_down(here: Here, words: Words) -> list[Launch]:
    """EXPERT_DOWN: codes, exponents, width, weight, exponents, columns, parts, stride, column."""
    codes, exponents_at, width, weight, _, columns, parts, stride, column = words[:9]
    party, arrays = here.party, here.memory.arrays
    slots, blocks = here.rows * party.chosen, columns // BLOCK
    pairs, exponents = here.pairs(codes, exponents_at, width, party.chosen)
    planes, plane_exponents = _experts(here, weight)
    order, out = arrays["order"][:slots], here.after(parts)
    maps = (pairs, exponents, planes, plane_exponents, width // 2)
    if width % INPUTS:
        experts = arrays["experts"][: here.rows]
        return [
            partial(
                plain_down, here.stream, *maps, experts, order, party.chosen, blocks, out, stride,
                column, check=here.check(weight),
            )
        ]  # fmt: skip
    busy = arrays["busy"][: min(party.expert_count, slots)]
    return [
        partial(
            expert_down, here.stream, *maps, busy, order, arrays["starts"], blocks, out, stride,
            column, check=here.check(weight),
        )
    ]  # fmt: skip


def _experts(here: Here, weight: int) -> tuple[np.ndarray, np.ndarray]:
    """Planes and exponents of all experts' maps, of which the first begins there."""
    first, arrays = here.memory.matrices[weight], here.memory.arrays
    return arrays["planes"][first.at :], arrays["weight_exponents"][first.matrix.exponents_at :]


def combined(here: Here, words: Words) -> list[Launch]:
    """COMBINE: parts, shared, y, width, own first column, own last column."""
    parts, shared, to, width, first, last = words[:6]
    chosen, shares = here.party.chosen, here.memory.arrays["shares"]
    return [
        partial(
            combine_rows, here.stream, here.floats(parts, width, chosen), shares,
            here.floats(shared, width), here.floats(to, width), first, last, 0, here.rows,
        )
    ]  # fmt: skip


MIXED: dict[GlmOp, Callable[[Here, Words], list[Launch]]] = {
    GlmOp.CONV: convolved,
    GlmOp.PREPARE: prepared,
    GlmOp.RECUR: recurrent,
    GlmOp.HEAD_GATE: gated_heads,
    GlmOp.LATENT: latents,
    GlmOp.KEY_NORM: key_norm,
    GlmOp.POOL: pooled,
    GlmOp.SELECT: selected,
    GlmOp.ATTEND: attended,
    GlmOp.CHECK: checked,
    GlmOp.ROUTE: routed,
    GlmOp.EXPERT_UP: expert_maps_up,
    GlmOp.EXPERT_DOWN: expert_maps_down,
    GlmOp.COMBINE: combined,
}
