"""Parts of the GLM's interpreter that every layer uses: norms, digits, linear maps, gathers."""

import numpy as np

from .clamped import clamped_rows
from .copy import copy_columns
from .glm_memory import (
    CODE_EXPONENTS,
    CODES,
    CONSTANTS,
    EXPERT_FLOATS,
    FLOATS,
    ORDER,
    TEAM,
    WEIGHT_EXPONENTS,
    WEIGHTS,
)
from .linear import linear
from .norm import rmsnorm_q16, rmsnorm_rows
from .places import f32_1, f32_2, i8_1, i16_1, i64_1
from .quantise import q16_rows
from .registry import inner
from .scalars import add
from .streams import hc_mean, hc_read, hc_weights, hc_write
from .team import meet
from .turns import part_of

i32, i64 = np.int32, np.int64
BLOCK = 16


@inner
def floats_at(memory, at, rows, width):
    """A float buffer [rows, width]."""
    return f32_1(memory, FLOATS)[at : at + rows * width].reshape(rows, width)


@inner
def codes_at(memory, at, exponents_at, rows, width):
    """A buffer of digits [rows, width] int16 and its exponents [rows] int8."""
    codes = i16_1(memory, CODES)[at : at + rows * width].reshape(rows, width)
    return codes, i8_1(memory, CODE_EXPONENTS)[exponents_at : exponents_at + rows]


@inner
def pairs_at(memory, at, exponents_at, rows, width):
    """The same digits as int32 pairs [rows * width / 2], and their exponents."""
    pairs = i16_1(memory, CODES)[at : at + rows * width].view(i32)
    return pairs, i8_1(memory, CODE_EXPONENTS)[exponents_at : exponents_at + rows]


@inner
def constants_at(memory, at, size):
    """A constant [size] float32."""
    return f32_1(memory, CONSTANTS)[at : at + size]


@inner
def run_norm(memory, party, op, rows, flags):
    """NORM: x, width, weight, codes, exponents."""
    x = floats_at(memory, op[1], rows, op[2])
    codes, exponents = codes_at(memory, op[4], op[5], rows, op[2])
    first, last = part_of(rows, party.thread, party.threads)
    w = constants_at(memory, op[3], op[2])
    rmsnorm_q16(x, w, party.eps, codes, exponents, flags, first, last)


@inner
def run_norm_floats(memory, party, op, rows, flags):
    """NORM_FLOATS: x, width, weight, y, y stride, y column."""
    x, y = floats_at(memory, op[1], rows, op[2]), floats_at(memory, op[4], rows, op[5])
    first, last = part_of(rows, party.thread, party.threads)
    rmsnorm_rows(x, constants_at(memory, op[3], op[2]), party.eps, y, op[6], flags, first, last)


@inner
def run_quantise(memory, party, op, rows, flags):
    """QUANTISE: x, width, each, codes, exponents. A row of the set is `each` rows of digits."""
    width, each = op[2], op[3]
    x = floats_at(memory, op[1], rows * each, width)
    codes, exponents = codes_at(memory, op[4], op[5], rows * each, width)
    first, last = part_of(rows, party.thread, party.threads)
    for row in range(first, last):
        for at in range(row * each, (row + 1) * each):
            q16_rows(
                x[at : at + 1], codes[at : at + 1], exponents[at : at + 1],
                flags[row : row + 1], 0, 1,
            )  # fmt: skip


@inner
def run_quantise_slots(memory, party, op, rows, flags):
    """QUANTISE_SLOTS: x, width, codes, exponents. Rows in the order of the routed experts."""
    slots = rows * party.chosen
    x = floats_at(memory, op[1], slots, op[2])
    codes, exponents = codes_at(memory, op[3], op[4], slots, op[2])
    first, last = part_of(slots, party.thread, party.threads)
    for slot in range(first, last):
        row = i64_1(memory, ORDER)[slot] // party.chosen
        q16_rows(
            x[slot : slot + 1], codes[slot : slot + 1], exponents[slot : slot + 1],
            flags[row : row + 1], 0, 1,
        )  # fmt: skip


@inner
def run_quantise_heads(memory, party, op, rows, flags):
    """QUANTISE_HEADS: x, stride, heads, width, codes, exponents. Rows of a head together."""
    stride, heads, width = op[2], op[3], op[4]
    x = floats_at(memory, op[1], rows, stride)
    codes, exponents = codes_at(memory, op[5], op[6], heads * rows, width)
    first, last = part_of(rows, party.thread, party.threads)
    for row in range(first, last):
        for head in range(heads):
            at = head * rows + row
            one = x[row, head * width : (head + 1) * width].reshape(1, width)
            q16_rows(
                one, codes[at : at + 1], exponents[at : at + 1], flags[row : row + 1], 0, 1
            )  # fmt: skip


@inner
def run_linear(memory, party, op, rows):
    """LINEAR: codes, exponents, width, weight, its exponents, columns, y, stride, column, add."""
    width, w_at, e_at, blocks = op[3], op[4], op[5], op[6] // BLOCK
    pairs, exponents = pairs_at(memory, op[1], op[2], rows, width)
    first, last = part_of(blocks, party.thread, party.threads)
    w, ew = i16_1(memory, WEIGHTS)[w_at:], i8_1(memory, WEIGHT_EXPONENTS)[e_at:]
    linear(
        pairs, exponents, w, ew, width // 2, rows,
        first, last, f32_1(memory, FLOATS)[op[7] :], op[8], op[9], op[10] != 0,
    )  # fmt: skip


@inner
def run_linear_heads(memory, party, op, rows):
    """LINEAR_HEADS: codes, exponents, width, heads, weight, its exponents, columns, y, stride,
    column. A head's digits stand together, and its columns of y behind those of the head before.
    """
    width, heads, columns = op[3], op[4], op[7]
    blocks = columns // BLOCK
    first, last = part_of(heads * blocks, party.thread, party.threads)
    for item in range(first, last):
        head, block = item // blocks, item % blocks
        pairs, exponents = pairs_at(
            memory, op[1] + head * rows * width, op[2] + head * rows, rows, width
        )
        linear(
            pairs, exponents, i16_1(memory, WEIGHTS)[op[5] + head * columns * width :],
            i8_1(memory, WEIGHT_EXPONENTS)[op[6] + head * columns :], width // 2, rows,
            block, block + 1, f32_1(memory, FLOATS)[op[8] :], op[9], op[10] + head * columns, False,
        )  # fmt: skip


@inner
def gated_blocks(memory, party, pairs, exponents, width, rows, w_at, e_at, columns, both):
    """Own blocks of gate and up columns side by side into both [rows, 2 * mine]; (first, mine)."""
    w, ew = i16_1(memory, WEIGHTS)[w_at:], i8_1(memory, WEIGHT_EXPONENTS)[e_at:]
    blocks = columns // BLOCK
    first, last = part_of(blocks, party.thread, party.threads)
    mine, skip, up = (last - first) * BLOCK, first * BLOCK, blocks + first
    linear(pairs, exponents, w, ew, width // 2, rows, first, last, both, 2 * mine, -skip, False)
    linear(
        pairs, exponents, w, ew, width // 2, rows, up, up + last - first,
        both, 2 * mine, mine - up * BLOCK, False,
    )  # fmt: skip
    return skip, mine


@inner
def run_gated(memory, party, op, rows):
    """GATED: codes, exponents, width, weight, its exponents, columns, h, h stride, h column."""
    width = op[3]
    pairs, exponents = pairs_at(memory, op[1], op[2], rows, width)
    both = f32_2(memory, EXPERT_FLOATS)[party.thread]
    skip, mine = gated_blocks(
        memory, party, pairs, exponents, width, rows, op[4], op[5], op[6], both
    )
    h = floats_at(memory, op[7], rows, op[8])
    if mine > 0:
        side = both[: rows * 2 * mine].reshape(rows, 2 * mine)
        clamped_rows(side, mine, party.limit, h, op[9] + skip, 0, rows)


@inner
def run_add(memory, party, op, rows):
    """ADD: onto, y, width."""
    onto, y = floats_at(memory, op[1], rows, op[3]), floats_at(memory, op[2], rows, op[3])
    first, last = part_of(rows, party.thread, party.threads)
    for row in range(first, last):
        for column in range(op[3]):
            onto[row, column] = add(onto[row, column], y[row, column])


@inner
def run_gather(memory, shared, party, op, rows, side):
    """GATHER: x, width, own first column, own last column, each. False if it was aborted."""
    if party.world == 1:
        return meet(i64_1(memory, TEAM), party.threads, party.spins)
    width, own, end, count = op[2], op[3], op[4], rows * op[5]
    if not meet(i64_1(memory, TEAM), party.threads, party.spins):
        return False
    x = floats_at(memory, op[1], count, width)
    out = shared.columns[side][: count * width].reshape(count, width)
    first, last = part_of(end - own, party.thread, party.threads)
    copy_columns(x, out, own + first, own + last)
    if not meet(shared.group, party.world * party.threads, party.spins):
        return False
    first, last = part_of(width, party.thread, party.threads)
    copy_columns(out, x, first, min(last, own))
    copy_columns(out, x, max(first, end), last)
    return meet(i64_1(memory, TEAM), party.threads, party.spins)


@inner
def run_hc_weights(memory, party, op, rows):
    """HC_WEIGHTS: m, stride, base, scale, site."""
    wide = party.streams * (party.streams + 2)
    m, site = floats_at(memory, op[1], rows, op[2]), floats_at(memory, op[5], rows, wide)
    base, scale = constants_at(memory, op[3], wide), constants_at(memory, op[4], 3)
    first, last = part_of(rows, party.thread, party.threads)
    hc_weights(m, base, scale, party.hc_eps, party.hc_rounds, site, first, last)


@inner
def run_hc_read(memory, party, op, rows):
    """HC_READ: x, site, u."""
    n, d = party.streams, party.hidden
    x, site = floats_at(memory, op[1], rows, n * d), floats_at(memory, op[2], rows, n * (n + 2))
    first, last = part_of(rows, party.thread, party.threads)
    hc_read(x, site, floats_at(memory, op[3], rows, d), first, last)


@inner
def run_hc_write(memory, party, op, rows):
    """HC_WRITE: x, site, y."""
    n, d = party.streams, party.hidden
    x, site = floats_at(memory, op[1], rows, n * d), floats_at(memory, op[2], rows, n * (n + 2))
    first, last = part_of(rows, party.thread, party.threads)
    hc_write(x, site, floats_at(memory, op[3], rows, d), first, last)


@inner
def run_hc_mean(memory, party, op, rows):
    """HC_MEAN: x, h."""
    n, d = party.streams, party.hidden
    first, last = part_of(rows, party.thread, party.threads)
    x, h = floats_at(memory, op[1], rows, n * d), floats_at(memory, op[2], rows, d)
    hc_mean(x, n, h, first, last)
