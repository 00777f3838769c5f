"""Parts of the GLM's interpreter that mix rows: the recurrence, selected attention, experts."""

import numpy as np

from .clamped import clamped_rows
from .conv import conv_rows
from .digest import PARTS
from .glm_common import (
    BLOCK,
    codes_at,
    constants_at,
    floats_at,
    gated_blocks,
    pairs_at,
)
from .glm_memory import (
    ATTENDING,
    CODE_EXPONENTS,
    CODES,
    CONV_RING,
    COUNTS,
    EXPERT_CODES,
    EXPERT_EXPONENTS,
    EXPERT_FLOATS,
    EXPERTS,
    INDEX_RING,
    KEYS,
    LATENT,
    ORDER,
    PICKED,
    SCORES,
    SHARES,
    STARTS,
    STATES,
    TURNS,
    WEIGHT_EXPONENTS,
    WEIGHTS,
    WORK,
)
from .kda import kda_gate, kda_prepare, kda_rows
from .latent import latent_rows
from .latent_attend import latent_attend
from .layernorm import layernorm_rows
from .linear import linear
from .places import (
    f32_2,
    f32_3,
    f32_4,
    f32_5,
    f32_6,
    i8_1,
    i8_2,
    i16_1,
    i16_2,
    i16_4,
    i32_2,
    i64_1,
    i64_2,
)
from .pools import pool_rows
from .registry import inner
from .route import combine_rows, group_rows, route_rows
from .select import select_rows
from .team import fetch_add
from .turns import part_of
from .words import first_poisoned_paged

i32, i64 = np.int32, np.int64
ROWS_AT_ONCE = 4  # whose pools are scored together, so that a pool's key is packed once for all
ROWS_PART, KEYS_PART, DRAFTS_PART = PARTS["rows"], PARTS["keys"], PARTS["drafts"]


@inner
def run_conv(memory, party, runs, op, rows):
    """CONV: raw, stride, taps, taps a channel, layer, y. Threads split the channels."""
    ring = f32_4(memory, CONV_RING)[op[5]]
    wide = ring.shape[2]
    raw, y = floats_at(memory, op[1], rows, op[2]), floats_at(memory, op[6], rows, wide)
    taps = constants_at(memory, op[3], wide * op[4]).reshape(wide, op[4])
    first, last = part_of(wide, party.thread, party.threads)
    conv_rows(raw, 0, taps, ring, runs, y, first, last)


@inner
def run_prepare(memory, party, op, rows, flags):
    """PREPARE: mixed, f, f stride, steps, decay, beta, beta stride, q, k, a, beta out."""
    heads, dim = party.kda_heads, party.kda_dim
    wide = heads * dim
    first, last = part_of(rows, party.thread, party.threads)
    kda_prepare(
        floats_at(memory, op[1], rows, 3 * wide), floats_at(memory, op[2], rows, op[3]), 0,
        constants_at(memory, op[4], wide), constants_at(memory, op[5], heads), party.bound,
        floats_at(memory, op[6], rows, op[7]), 0, floats_at(memory, op[8], rows, wide),
        floats_at(memory, op[9], rows, wide), floats_at(memory, op[10], rows, wide),
        floats_at(memory, op[11], rows, heads), flags, first * heads, last * heads,
    )  # fmt: skip


@inner
def run_recur(memory, party, runs, op, rows):
    """RECUR: q, k, mixed, a, beta, layer, o. Threads split the heads of each run."""
    heads, dim = party.kda_heads, party.kda_dim
    wide = heads * dim
    q, k = floats_at(memory, op[1], rows, wide), floats_at(memory, op[2], rows, wide)
    mixed, a = floats_at(memory, op[3], rows, 3 * wide), floats_at(memory, op[4], rows, wide)
    beta, o = floats_at(memory, op[5], rows, heads), floats_at(memory, op[7], rows, wide)
    first, last = part_of(len(runs) * heads, party.thread, party.threads)
    states, work = f32_6(memory, STATES)[op[6]], f32_3(memory, WORK)[party.thread]
    kda_rows(q, k, mixed, a, beta, states, runs, o, work, first, last)


@inner
def run_head_gate(memory, party, op, rows, flags):
    """HEAD_GATE: o, gate, gate stride, weight, out, out stride, out column."""
    heads, dim = party.kda_heads, party.kda_dim
    o, gate = floats_at(memory, op[1], rows, heads * dim), floats_at(memory, op[2], rows, op[3])
    out, w = floats_at(memory, op[5], rows, op[6]), constants_at(memory, op[4], dim)
    first, last = part_of(rows, party.thread, party.threads)
    kda_gate(o, gate, 0, w, party.eps, out, op[7], flags, first * heads, last * heads)


@inner
def run_latent(memory, party, positions, lanes, tables, op, rows, sums, flags):
    """LATENT: x, stride, cache."""
    x, cache = floats_at(memory, op[1], rows, op[2]), op[3]
    part, layer = (ROWS_PART, cache) if cache < party.trunk_caches else (DRAFTS_PART, i64(0))
    first, last = part_of(rows, party.thread, party.threads)
    latent_rows(
        x, 0, party.latent, party.eps, party.latent_exponent, positions, lanes, tables,
        i16_4(memory, LATENT)[cache], part, layer, sums, flags, first, last,
    )  # fmt: skip


@inner
def run_key_norm(memory, party, op, rows, flags):
    """KEY_NORM: x, width, weight, bias, y."""
    x, y = floats_at(memory, op[1], rows, op[2]), floats_at(memory, op[5], rows, op[2])
    w, b = constants_at(memory, op[3], op[2]), constants_at(memory, op[4], op[2])
    first, last = part_of(rows, party.thread, party.threads)
    layernorm_rows(x, w, b, party.index_eps, y, flags, first, last)


@inner
def run_pool(memory, party, runs, tables, op, rows, sums):
    """POOL: key, gate, gate stride, slots, cache, exponent. Threads split the runs."""
    cache, dim = op[5], party.index_dim
    part, layer = (KEYS_PART, cache) if cache < party.trunk_caches else (DRAFTS_PART, i64(1))
    ape = constants_at(memory, op[4], party.kpool * dim).reshape(party.kpool, dim)
    first, last = part_of(len(runs), party.thread, party.threads)
    pool_rows(
        floats_at(memory, op[1], rows, dim), floats_at(memory, op[2], rows, op[3]), 0, ape, op[6],
        f32_5(memory, INDEX_RING)[cache], runs, tables, i16_4(memory, KEYS)[cache], party.page_rows,
        part, layer, sums, first, last,
    )  # fmt: skip


@inner
def run_select(memory, party, positions, lanes, tables, op, rows):
    """SELECT: codes, exponents, weights, stride, cache, exponent, turn. Rows as they come free."""
    wide = party.index_heads * party.index_dim
    qi = i16_1(memory, CODES)[op[1] : op[1] + rows * wide].reshape(rows, wide)
    ei = i8_1(memory, CODE_EXPONENTS)[op[2] : op[2] + rows * party.index_heads].reshape(
        rows, party.index_heads
    )
    w = floats_at(memory, op[3], rows, op[4])
    each = ROWS_AT_ONCE if rows >= 2 * ROWS_AT_ONCE * party.threads else 1
    row = fetch_add(i64_1(memory, TURNS), op[7], each)
    while row < rows:
        select_rows(
            qi, ei, w, 0, party.index_scale, i16_4(memory, KEYS)[op[5]], op[6], positions, lanes,
            tables, party.page_rows, party.kpool, party.most, i32_2(memory, PICKED),
            i64_1(memory, COUNTS), f32_2(memory, SCORES)[party.thread], row, min(row + each, rows),
        )  # fmt: skip
        row = fetch_add(i64_1(memory, TURNS), op[7], each)


@inner
def run_attend(memory, party, positions, lanes, tables, op, rows):
    """ATTEND: codes, exponents, cache, out, turn. Rows as threads come free."""
    heads, latent = party.heads, party.latent
    blocks = (heads + BLOCK - 1) // BLOCK
    q = i16_1(memory, CODES)[op[1] : op[1] + rows * heads * latent].reshape(rows, heads * latent)
    eq = i8_1(memory, CODE_EXPONENTS)[op[2] : op[2] + rows * heads].reshape(rows, heads)
    out = floats_at(memory, op[4], rows, heads * latent)
    row = fetch_add(i64_1(memory, TURNS), op[5], 1)
    while row < rows:
        latent_attend(
            q, eq, positions, lanes, tables, i16_4(memory, LATENT)[op[3]], party.latent_exponent,
            party.page_rows, party.kpool, i32_2(memory, PICKED), i64_1(memory, COUNTS),
            party.attend_scale, out, i64_2(memory, ATTENDING)[party.thread],
            row * blocks, (row + 1) * blocks,
        )  # fmt: skip
        row = fetch_add(i64_1(memory, TURNS), op[5], 1)


@inner
def run_route(memory, party, op, rows):
    """ROUTE: m, stride, bias. One thread: rows are few and short."""
    if party.thread == 0:
        m = floats_at(memory, op[1], rows, op[2])
        bias = constants_at(memory, op[3], party.expert_count)
        experts, shares = i64_2(memory, EXPERTS)[:rows], f32_2(memory, SHARES)[:rows]
        route_rows(m, bias, party.chosen, party.routed_scale, experts, shares, 0, rows)
        group_rows(experts, i64_1(memory, ORDER)[: rows * party.chosen], i64_1(memory, STARTS))


@inner
def gather_codes(memory, party, codes, exponents, first, last):
    """The digits of the rows behind some slots, side by side in the thread's own scratch."""
    width = codes.shape[1]
    mine = i16_2(memory, EXPERT_CODES)[party.thread]
    own = i8_2(memory, EXPERT_EXPONENTS)[party.thread]
    for slot in range(first, last):
        row = i64_1(memory, ORDER)[slot] // party.chosen
        at = (slot - first) * width
        for column in range(width):
            mine[at + column] = codes[row, column]
        own[slot - first] = exponents[row]
    return mine[: (last - first) * width].view(i32), own


@inner
def run_expert_up(memory, party, op, rows):
    """EXPERT_UP: codes, exponents, width, weight, its exponents, columns, h, h stride, h column.

    Slots stand in the order of their experts; threads split the columns of each.
    """
    width, columns = op[3], op[6]
    codes, exponents = codes_at(memory, op[1], op[2], rows, width)
    h = floats_at(memory, op[7], rows * party.chosen, op[8])
    both = f32_2(memory, EXPERT_FLOATS)[party.thread]
    for expert in range(party.expert_count):
        first, last = i64_1(memory, STARTS)[expert], i64_1(memory, STARTS)[expert + 1]
        if first == last:
            continue
        pairs, own = gather_codes(memory, party, codes, exponents, first, last)
        w_at = op[4] + expert * 2 * columns * width
        skip, mine = gated_blocks(
            memory, party, pairs, own, width, last - first, w_at, op[5] + expert * 2 * columns,
            columns, both,
        )  # fmt: skip
        if mine > 0:
            side = both[: (last - first) * 2 * mine].reshape(last - first, 2 * mine)
            clamped_rows(side, mine, party.limit, h[first:last], op[9] + skip, 0, last - first)


@inner
def run_expert_down(memory, party, op, rows):
    """EXPERT_DOWN: codes, exponents, width, weight, its exponents, columns, parts, stride, column.

    parts [rows * chosen, stride]: own columns of each slot, in the order of the slots' numbers.
    """
    width, columns = op[3], op[6]
    slots = rows * party.chosen
    parts = floats_at(memory, op[7], slots, op[8])
    first_block, last_block = part_of(columns // BLOCK, party.thread, party.threads)
    low, mine = first_block * BLOCK, (last_block - first_block) * BLOCK
    out = f32_2(memory, EXPERT_FLOATS)[party.thread]
    for expert in range(party.expert_count):
        first, last = i64_1(memory, STARTS)[expert], i64_1(memory, STARTS)[expert + 1]
        if first == last or mine == 0:
            continue
        pairs, exponents = pairs_at(
            memory, op[1] + first * width, op[2] + first, last - first, width
        )
        linear(
            pairs, exponents, i16_1(memory, WEIGHTS)[op[4] + expert * columns * width :],
            i8_1(memory, WEIGHT_EXPONENTS)[op[5] + expert * columns :], width // 2, last - first,
            first_block, last_block, out, mine, -low, False,
        )  # fmt: skip
        for slot in range(first, last):
            to, at = i64_1(memory, ORDER)[slot], (slot - first) * mine
            for column in range(mine):
                parts[to, op[9] + low + column] = out[at + column]


@inner
def run_combine(memory, party, op, rows):
    """COMBINE: parts, shared, y, width, own first column, own last column."""
    first, last = part_of(rows, party.thread, party.threads)
    width = op[4]
    parts = floats_at(memory, op[1], rows * party.chosen, width)
    shared, y = floats_at(memory, op[2], rows, width), floats_at(memory, op[3], rows, width)
    combine_rows(parts, f32_2(memory, SHARES)[:rows], shared, y, op[5], op[6], first, last)


@inner
def run_check(memory, step, party, op):
    """CHECK: cache. The first poisoned row that a run is about to read; threads split the runs."""
    cache = op[1]
    for run in range(party.thread, len(step.runs), party.threads):
        lane, seen = step.runs[run, 0], step.runs[run, 2] + step.runs[run, 3]
        table = step.tables[lane]
        found = first_poisoned_paged(i16_4(memory, LATENT), table, 0, seen, 1, cache, cache + 1, 0)
        step.poisoned[run] = min(step.poisoned[run], found)
        pools = seen // party.kpool
        found = first_poisoned_paged(
            i16_4(memory, KEYS), table, 0, pools, party.kpool, cache, cache + 1, 0
        )
        step.poisoned[run] = min(step.poisoned[run], found)
