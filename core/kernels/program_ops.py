"""The ops of a recorded program: what each does with the memory of its rank and a step's tables.

A thread takes turns of an op's items until none is left; `at` is the op's place in the program.
"""

import numpy as np

from .attend import attend
from .copy import copy_columns
from .digest import PARTS, digest_words
from .glu import glu_rows
from .linear import linear
from .norm import rmsnorm_q16
from .poisoned import first_poisoned
from .quantise import q16_rows
from .registry import inner
from .rows import write_rows
from .sampling import draw_row
from .team import ARRIVED, MET, fetch_add, wait_for
from .turns import OUT_DONE, OUT_TAKEN, chunk_of, done, part_of, take, wait_done

i32, i64, u64 = np.int32, np.int64, np.uint64

NORM, QUANTISE, LINEAR, GATED, WRITE, ATTEND, CHECK, MEET, GATHER = range(1, 10)
SUM_LOGITS, SAMPLE, END = range(10, 13)
BLOCK = 16
LOGITS_PART = PARTS["logits"]


@inner
def code_rows(memory, party, region, rows, width):
    """(codes [rows, width] int16, exponents [rows] int8) of a thread's region."""
    at = region * (memory.codes.size // party.threads)
    row = region * (memory.code_exponents.size // party.threads)
    codes = memory.codes[at : at + rows * width].reshape(rows, width)
    return codes, memory.code_exponents[row : row + rows]


@inner
def run_norm(memory, step, party, op, rows, first, last, region):
    """NORM: x, width, weight, of rows first to last; the rows may be the selected ones."""
    x_at, width, selected = op[1], op[2], op[-1] != 0
    w = memory.constants[op[3] : op[3] + width]
    codes, exponents = code_rows(memory, party, region, rows, width)
    for row in range(first, last):
        at = step.selected[row] if selected else row
        x = memory.floats[x_at + at * width : x_at + (at + 1) * width].reshape(1, width)
        one, e, flags = codes[row : row + 1], exponents[row : row + 1], memory.flags[at : at + 1]
        rmsnorm_q16(x, w, party.eps, one, e, flags, 0, 1)


@inner
def run_quantise(memory, party, op, rows, first, last, region):
    """QUANTISE: x, width, of rows first to last."""
    x_at, width = op[1], op[2]
    codes, exponents = code_rows(memory, party, region, rows, width)
    x = memory.floats[x_at : x_at + rows * width].reshape(rows, width)
    q16_rows(x, codes, exponents, memory.flags, first, last)


@inner
def make_codes(memory, step, party, op, rows, first, last, region):
    """NORM or QUANTISE of some rows."""
    if op[0] == NORM:
        run_norm(memory, step, party, op, rows, first, last, region)
    else:
        run_quantise(memory, party, op, rows, first, last, region)


@inner
def run_codes(memory, step, party, op, rows, at):
    """NORM or QUANTISE of rows that all threads read: not of a single one. False if aborted."""
    if rows == 1:
        return True
    turn = take(memory, at)
    while turn < 2 * party.threads:
        first, last = chunk_of(rows, turn, party.threads)
        make_codes(memory, step, party, op, rows, first, last, i64(0))
        done(memory, at, last - first)
        turn = take(memory, at)
    return wait_done(memory, party, at, rows)


@inner
def own_codes(memory, step, party, rows, made):
    """The region that a map's input stands in; a single row is made by op `made`, right now."""
    if rows > 1:
        return i64(0)
    make_codes(memory, step, party, memory.ops[made], 1, 0, 1, party.thread)
    return i64(party.thread)


@inner
def run_linear(memory, step, party, op, rows, at, made):
    """LINEAR: width, weight, exponents, columns, y, y stride, y column, add. Returns its items."""
    width, w_at, e_at, blocks = op[1], op[2], op[3], op[4] // BLOCK
    turn = take(memory, at)
    if turn < 2 * party.threads:
        region = own_codes(memory, step, party, rows, made)
        codes, exponents = code_rows(memory, party, region, rows, width)
        pairs = codes.reshape(codes.size).view(i32)
        while turn < 2 * party.threads:
            first, last = chunk_of(blocks, turn, party.threads)
            linear(
                pairs, exponents, memory.weights[w_at:], memory.weight_exponents[e_at:],
                width // 2, rows, first, last, memory.floats[op[5] :], op[6], op[7], op[8] != 0,
            )  # fmt: skip
            done(memory, at, last - first)
            turn = take(memory, at)
    return blocks


@inner
def gated_blocks(memory, op, rows, pairs, exponents, first, last):
    """Some blocks of GATED. Their gate and up columns stand side by side in a region of `own`."""
    width, blocks = op[1], op[4] // BLOCK
    w, ew = memory.weights[op[2] :], memory.weight_exponents[op[3] :]
    mine, skip = (last - first) * BLOCK, first * BLOCK
    at = op[5] + 2 * rows * skip
    both = memory.floats[at : at + 2 * rows * mine]
    up = blocks + first
    linear(pairs, exponents, w, ew, width // 2, rows, first, last, both, 2 * mine, -skip, False)
    linear(
        pairs, exponents, w, ew, width // 2, rows, up, up + last - first,
        both, 2 * mine, mine - up * BLOCK, False,
    )  # fmt: skip
    h = memory.floats[op[6] : op[6] + rows * op[7]].reshape(rows, op[7])
    glu_rows(both.reshape(rows, 2 * mine), mine, h, op[8] + skip, 0, rows)


@inner
def run_gated(memory, step, party, op, rows, at, made):
    """GATED: width, weight, exponents, columns, own, h, h stride, h column. Returns its items."""
    blocks = op[4] // BLOCK
    turn = take(memory, at)
    if turn < 2 * party.threads:
        region = own_codes(memory, step, party, rows, made)
        codes, exponents = code_rows(memory, party, region, rows, op[1])
        pairs = codes.reshape(codes.size).view(i32)
        while turn < 2 * party.threads:
            first, last = chunk_of(blocks, turn, party.threads)
            gated_blocks(memory, op, rows, pairs, exponents, first, last)
            done(memory, at, last - first)
            turn = take(memory, at)
    return blocks


@inner
def run_write(memory, step, party, op, rows, at):
    """WRITE: qkv, width, layer. Returns its items."""
    qkv = memory.floats[op[1] : op[1] + rows * op[2]].reshape(rows, op[2])
    items = rows * memory.keys.shape[2]
    turn = take(memory, at)
    while turn < 2 * party.threads:
        first, last = chunk_of(items, turn, party.threads)
        write_rows(
            qkv, step.positions, step.lanes, step.tables, memory.cos, memory.sin,
            memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
            op[3], party.first_head, memory.queries, memory.query_exponents,
            memory.row_sums, memory.flags, first, last,
        )  # fmt: skip
        done(memory, at, last - first)
        turn = take(memory, at)
    return items


@inner
def run_attend(memory, step, party, op, rows, at):
    """ATTEND: layer, o, o stride, o column. Returns its items."""
    layer = op[1]
    o = memory.floats[op[2] : op[2] + rows * op[3]].reshape(rows, op[3])
    items = len(step.tiles) * memory.keys.shape[2]
    item = take(memory, at)
    while item < items:
        attend(
            memory.queries, memory.query_exponents, step.positions, step.lanes, step.tables,
            memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
            layer, party.scale, step.tiles, item, item + 1, 1, o, op[4],
            memory.scratch[party.thread],
        )  # fmt: skip
        done(memory, at, 1)
        item = take(memory, at)
    return items


@inner
def run_check(memory, step, op, at):
    """CHECK: layer. Threads take runs."""
    run = take(memory, at)
    while run < len(step.runs):
        lane, rows = step.runs[run, 0], step.runs[run, 1]
        found = first_poisoned(
            memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
            step.tables[lane], 0, rows, op[1],
        )  # fmt: skip
        if found >= 0:
            step.poisoned[run] = min(step.poisoned[run], found)
        run = take(memory, at)


@inner
def run_gather(memory, shared, party, op, rows, at, met):
    """GATHER: x, width, own first column, own last column. False if the step was aborted.

    All of x's own columns are there. met: the gathers of this step before this one.
    """
    if party.world == 1:
        return True
    width, own, end = op[2], op[3], op[4]
    x = memory.floats[op[1] : op[1] + rows * width].reshape(rows, width)
    out = shared.columns[met % 2][: rows * width].reshape(rows, width)
    turn = take(memory, at)
    while turn < party.threads:
        first, last = part_of(end - own, turn, party.threads)
        copy_columns(x, out, own + first, own + last)
        if done(memory, at, 1) == party.threads - 1:
            fetch_add(shared.group, ARRIVED, 1)
        turn = take(memory, at)
    goal = memory.team[MET] + (met + 1) * party.world
    if not wait_for(shared.group, ARRIVED, goal, shared.group, party.spins):
        return False
    turn = take(memory, at, OUT_TAKEN)
    while turn < party.threads:
        first, last = part_of(width, turn, party.threads)
        copy_columns(out, x, first, min(last, own))
        copy_columns(out, x, max(first, end), last)
        done(memory, at, 1, OUT_DONE)
        turn = take(memory, at, OUT_TAKEN)
    return wait_done(memory, party, at, party.threads, OUT_DONE)


@inner
def run_sum_logits(memory, shared, step, party, op, rows, at):
    """SUM_LOGITS: logits, width. Each turn sums its words of every row into its own slot."""
    if not party.digests:
        return
    logits, width = op[1], op[2]
    turn = take(memory, at)
    while turn < party.threads:
        slot = party.rank * party.threads + turn
        first, last = part_of(width // 2, slot, party.world * party.threads)
        for row in range(rows):
            start = logits + row * width
            words = memory.floats[start + 2 * first : start + 2 * last].view(u64)
            position = step.positions[step.selected[row]]
            a, b = digest_words(words, LOGITS_PART, 0, 0, position, first)
            shared.sums[step.side, slot, row, 0] = a
            shared.sums[step.side, slot, row, 1] = b
        turn = take(memory, at)


@inner
def run_sample(memory, step, draws, party, op, rows, at):
    """SAMPLE: logits, width. Threads of rank 0 take rows."""
    if party.rank > 0:
        return
    width = op[2]
    row = take(memory, at)
    while row < rows:
        start = op[1] + row * width
        logits = memory.floats[start : start + width]
        mine, position = party.thread, step.positions[step.selected[row]] + 1
        draws.tokens[row] = draw_row(
            draws, row, logits, position, memory.sample_floats[mine], memory.sample_weights[mine],
            memory.sample_ids[mine], memory.sample_bins[mine],
        )  # fmt: skip
        row = take(memory, at)
