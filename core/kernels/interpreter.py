"""The loop that runs a recorded forward pass: every thread of every rank runs the whole program.

Threads of a rank share its buffers and split the blocks, rows or items of each op; ranks have
memory of their own and hand each other float32 columns through the exchange. A gather has one
meeting of all: the exchange has two sides in turn, so a side is written again only after everyone
has met once more, which nobody does before it has read. A single row is quantised by every thread
for itself, into a region of its own, which saves a meeting.
"""

import numpy as np

from .attend import attend
from .digest import PARTS, digest_words
from .glu import glu_rows
from .linear import linear
from .norm import rmsnorm_q16
from .poisoned import first_poisoned
from .quantise import q16_rows
from .registry import inner
from .rows import write_rows
from .sampling import sample_row
from .scalars import ONE, ZERO
from .team import fetch_add, meet
from .weigh import greedy

f32, i32, i64, u64 = np.float32, np.int32, np.int64, np.uint64

NORM, QUANTISE, LINEAR, GATED, WRITE, ATTEND, CHECK, MEET, GATHER = range(1, 10)
SUM_LOGITS, SAMPLE, END = range(10, 13)
BLOCK = 16
LOGITS_PART = PARTS["logits"]


@inner
def part_of(total, thread, threads):
    """A thread's share [first, last) of `total` items."""
    return total * thread // threads, total * (thread + 1) // threads


@inner
def rows_of(party, rows):
    """The rows that a thread quantises: a single row is everyone's, each into its own region."""
    if rows == 1:
        return 0, 1, party.thread
    first, last = part_of(rows, party.thread, party.threads)
    return first, last, i64(0)


@inner
def code_rows(memory, party, region, rows, width):
    """(codes [rows, width] int16, exponents [rows] int8) of a thread's region."""
    at = region * (memory.codes.size // party.threads)
    row = region * (memory.code_exponents.size // party.threads)
    codes = memory.codes[at : at + rows * width].reshape(rows, width)
    return codes, memory.code_exponents[row : row + rows]


@inner
def run_norm(memory, step, party, op, rows):
    """NORM: x, width, weight; the rows may be the selected ones."""
    x_at, width, selected = op[1], op[2], op[-1] != 0
    w = memory.constants[op[3] : op[3] + width]
    first, last, region = rows_of(party, rows)
    codes, exponents = code_rows(memory, party, region, rows, width)
    for row in range(first, last):
        at = step.selected[row] if selected else row
        x = memory.floats[x_at + at * width : x_at + (at + 1) * width].reshape(1, width)
        one, e, flags = codes[row : row + 1], exponents[row : row + 1], memory.flags[at : at + 1]
        rmsnorm_q16(x, w, party.eps, one, e, flags, 0, 1)


@inner
def run_quantise(memory, party, op, rows):
    """QUANTISE: x, width."""
    x_at, width = op[1], op[2]
    first, last, region = rows_of(party, rows)
    codes, exponents = code_rows(memory, party, region, rows, width)
    x = memory.floats[x_at : x_at + rows * width].reshape(rows, width)
    q16_rows(x, codes, exponents, memory.flags, first, last)


@inner
def run_linear(memory, party, op, rows):
    """LINEAR: width, weight, exponents, columns, y, y stride, y column, add."""
    width, w_at, e_at, columns = op[1], op[2], op[3], op[4]
    region = party.thread if rows == 1 else i64(0)
    codes, exponents = code_rows(memory, party, region, rows, width)
    pairs = codes.reshape(codes.size).view(i32)
    first, last = part_of(columns // BLOCK, party.thread, party.threads)
    linear(
        pairs, exponents, memory.weights[w_at:], memory.weight_exponents[e_at:], width // 2, rows,
        first, last, memory.floats[op[5] :], op[6], op[7], op[8] != 0,
    )  # fmt: skip


@inner
def run_gated(memory, party, op, rows):
    """GATED: width, weight, exponents, columns, own, h, h stride, h column.

    A thread's gate and up columns stand side by side in a region of its own of `own`.
    """
    width, w_at, e_at, columns = op[1], op[2], op[3], op[4]
    region = party.thread if rows == 1 else i64(0)
    codes, exponents = code_rows(memory, party, region, rows, width)
    pairs = codes.reshape(codes.size).view(i32)
    w, ew = memory.weights[w_at:], memory.weight_exponents[e_at:]
    blocks = columns // BLOCK
    first, last = part_of(blocks, party.thread, party.threads)
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
def run_write(memory, step, party, op, rows):
    """WRITE: qkv, width, layer."""
    qkv = memory.floats[op[1] : op[1] + rows * op[2]].reshape(rows, op[2])
    items = rows * memory.keys.shape[2]
    first, last = part_of(items, party.thread, party.threads)
    write_rows(
        qkv, step.positions, step.lanes, step.tables, memory.cos, memory.sin,
        memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
        op[3], party.first_head, memory.queries, memory.query_exponents,
        memory.row_sums, memory.flags, first, last,
    )  # fmt: skip


@inner
def run_attend(memory, step, party, op, rows):
    """ATTEND: layer, o, o stride, o column. Threads take items as they come free."""
    layer = op[1]
    o = memory.floats[op[2] : op[2] + rows * op[3]].reshape(rows, op[3])
    items = len(step.tiles) * memory.keys.shape[2]
    item = fetch_add(memory.turns, layer, 1)
    while item < items:
        attend(
            memory.queries, memory.query_exponents, step.positions, step.lanes, step.tables,
            memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
            layer, party.scale, step.tiles, item, item + 1, 1, o, op[4],
            memory.scratch[party.thread],
        )  # fmt: skip
        item = fetch_add(memory.turns, layer, 1)


@inner
def run_check(memory, step, party, op):
    """CHECK: layer. Threads split the runs."""
    for run in range(party.thread, len(step.runs), party.threads):
        lane, rows = step.runs[run, 0], step.runs[run, 1]
        found = first_poisoned(
            memory.keys, memory.key_exponents, memory.values, memory.value_exponents,
            step.tables[lane], 0, rows, op[1],
        )  # fmt: skip
        if found >= 0:
            step.poisoned[run] = min(step.poisoned[run], found)


@inner
def copy_columns(source, target, first, last):
    """Columns first to last of every row, none if last is not above first; both [rows, width]."""
    for row in range(source.shape[0]):
        for column in range(first, last):
            target[row, column] = source[row, column]


@inner
def run_gather(memory, shared, party, op, rows, side):
    """GATHER: x, width, own first column, own last column. False if the step was aborted."""
    alone = party.threads == 1
    if party.world == 1:
        return alone or meet(memory.team, party.threads, party.spins)
    width, own, end = op[2], op[3], op[4]
    if not alone and not meet(memory.team, party.threads, party.spins):
        return False
    x = memory.floats[op[1] : op[1] + rows * width].reshape(rows, width)
    out = shared.columns[side][: rows * width].reshape(rows, width)
    first, last = part_of(end - own, party.thread, party.threads)
    copy_columns(x, out, own + first, own + last)
    if not meet(shared.group, party.world * party.threads, party.spins):
        return False
    first, last = part_of(width, party.thread, party.threads)
    copy_columns(out, x, first, min(last, own))
    copy_columns(out, x, max(first, end), last)
    return alone or meet(memory.team, party.threads, party.spins)


@inner
def run_sum_logits(memory, shared, step, party, op, rows):
    """SUM_LOGITS: logits, width. Every party sums its words of every row into its own slot."""
    at, width = op[1], op[2]
    slot = party.rank * party.threads + party.thread
    first, last = part_of(width // 2, slot, party.world * party.threads)
    for row in range(rows):
        start = at + row * width
        words = memory.floats[start + 2 * first : start + 2 * last].view(u64)
        position = step.positions[step.selected[row]]
        a, b = digest_words(words, LOGITS_PART, 0, 0, position, first)
        shared.sums[step.side, slot, row, 0] = a
        shared.sums[step.side, slot, row, 1] = b


@inner
def run_sample(memory, step, draws, party, op, rows):
    """SAMPLE: logits, width, turn. Threads of rank 0 take rows as they come free."""
    at, width, mine = op[1], op[2], party.thread
    row = fetch_add(memory.turns, op[3], 1)
    while row < rows:
        logits = memory.floats[at + row * width : at + (row + 1) * width]
        temperature, repetition = draws.floats[0, row], draws.floats[2, row]
        frequency, presence = draws.floats[3, row], draws.floats[4, row]
        first, last = draws.bias_starts[row], draws.bias_starts[row + 1]
        plain = repetition == ONE and frequency == ZERO and presence == ZERO and first == last
        if plain and temperature == ZERO:
            draws.tokens[row] = greedy(logits)
        else:
            top_k, seed, choice = draws.whole[0, row], draws.whole[1, row], draws.whole[2, row]
            counts = draws.counts[draws.whole[3, row]]
            reply_counts = draws.reply_counts[draws.whole[3, row]]
            draws.tokens[row] = sample_row(
                logits, temperature, top_k, draws.floats[1, row],
                (repetition, frequency, presence),
                draws.bias_ids[first:last], draws.biases[first:last], counts, reply_counts,
                seed, step.positions[step.selected[row]] + 1, choice,
                memory.sample_floats[mine], memory.sample_weights[mine],
                memory.sample_ids[mine], memory.sample_bins[mine],
            )  # fmt: skip
        row = fetch_add(memory.turns, op[3], 1)


@inner
def run_program(memory, shared, step, draws, party):
    """Run every op over the step's rows; the index of the op that was aborted, or -1."""
    side = i64(0)
    for at in range(len(memory.ops)):
        op = memory.ops[at]
        code, rows = op[0], len(step.positions)
        if op[-1] != 0:
            rows = len(step.selected)
            if rows == 0:
                continue
        sound = True
        if code == NORM:
            run_norm(memory, step, party, op, rows)
            if rows > 1:
                sound = meet(memory.team, party.threads, party.spins)
        elif code == QUANTISE:
            run_quantise(memory, party, op, rows)
            if rows > 1:
                sound = meet(memory.team, party.threads, party.spins)
        elif code == LINEAR:
            run_linear(memory, party, op, rows)
        elif code == GATED:
            run_gated(memory, party, op, rows)
        elif code == WRITE:
            run_write(memory, step, party, op, rows)
        elif code == ATTEND:
            run_attend(memory, step, party, op, rows)
        elif code == CHECK:
            run_check(memory, step, party, op)
        elif code == MEET:
            sound = meet(memory.team, party.threads, party.spins)
        elif code == GATHER:
            sound = run_gather(memory, shared, party, op, rows, side)
            side = 1 - side
        elif code == SUM_LOGITS:
            if party.digests:
                run_sum_logits(memory, shared, step, party, op, rows)
        elif code == SAMPLE:
            if party.rank == 0:
                run_sample(memory, step, draws, party, op, rows)
        elif code == END:
            sound = meet(shared.group, party.world * party.threads, party.spins)
        if not sound:
            return at
    return i64(-1)
