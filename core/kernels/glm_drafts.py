"""Parts of the GLM's interpreter that draw tokens: samples, what is kept, and drafts."""

import numpy as np

from .digest import PARTS, digest_words
from .glm_common import floats_at
from .glm_memory import (
    DRAFT_COUNTS,
    DRAFT_FROM,
    DRAFT_LANES,
    DRAFT_LIMITS,
    DRAFT_POSITIONS,
    DRAFT_RUNS,
    DRAFT_TOKENS,
    DRAFT_WANTS,
    DRAFTING,
    DRAFTS,
    FLOATS,
    SAMPLE_BINS,
    SAMPLE_FLOATS,
    SAMPLE_IDS,
    SAMPLE_WEIGHTS,
    TABLE_HIGH,
    TABLE_LOW,
    TURNS,
)
from .mtp import embed_next, embed_rows
from .places import f32_1, f32_2, i32_2, i64_1, i64_2, i64_3, u16_2
from .registry import inner
from .sampling import draw_row
from .team import fetch_add
from .turns import part_of
from .weigh import greedy

i64, u64 = np.int64, np.uint64
LOGITS_PART = PARTS["logits"]


@inner
def run_embed(memory, step, party, op, rows):
    """EMBED: x. Every stream begins as the token's embedding."""
    n, d = party.streams, party.hidden
    first, last = part_of(rows, party.thread, party.threads)
    x = floats_at(memory, op[1], rows, n * d)
    embed_rows(u16_2(memory, TABLE_HIGH), u16_2(memory, TABLE_LOW), step.tokens, x, first, last)


@inner
def run_next(memory, party, tokens, positions, op, rows):
    """NEXT: x. The embedding of the token after each row."""
    first, last = part_of(rows, party.thread, party.threads)
    x = floats_at(memory, op[1], rows, party.hidden)
    embed_next(
        u16_2(memory, TABLE_HIGH), u16_2(memory, TABLE_LOW), tokens, positions, x, first, last
    )


@inner
def run_take(memory, party, index, op, rows):
    """TAKE: x, width, y. The rows of x that a row set is made of, side by side."""
    first, last = part_of(rows, party.thread, party.threads)
    width = op[2]
    for row in range(first, last):
        source, target = op[1] + index[row] * width, op[3] + row * width
        for column in range(width):
            f32_1(memory, FLOATS)[target + column] = f32_1(memory, FLOATS)[source + column]


@inner
def run_sum_logits(memory, shared, step, party, op, rows):
    """SUM_LOGITS: logits, width. Every party sums its words of every row into its own slot."""
    at, width = op[1], op[2]
    slot = party.rank * party.threads + party.thread
    first, last = part_of(width // 2, slot, party.world * party.threads)
    for row in range(rows):
        start = at + row * width
        words = f32_1(memory, FLOATS)[start + 2 * first : start + 2 * last].view(u64)
        position = step.positions[step.selected[row]]
        a, b = digest_words(words, LOGITS_PART, 0, 0, position, first)
        shared.sums[step.side, slot, row, 0] = a
        shared.sums[step.side, slot, row, 1] = b


@inner
def run_sample(memory, step, draws, party, op, rows):
    """SAMPLE: logits, width, turn. Rows as threads come free; on every rank that drafts."""
    at, width, mine = op[1], op[2], party.thread
    row = fetch_add(i64_1(memory, TURNS), op[3], 1)
    while row < rows:
        logits = f32_1(memory, FLOATS)[at + row * width : at + (row + 1) * width]
        draws.tokens[row] = draw_row(
            draws, row, logits, step.positions[step.selected[row]] + 1,
            f32_2(memory, SAMPLE_FLOATS)[mine], i32_2(memory, SAMPLE_WEIGHTS)[mine],
            i32_2(memory, SAMPLE_IDS)[mine], i64_3(memory, SAMPLE_BINS)[mine],
        )  # fmt: skip
        row = fetch_add(i64_1(memory, TURNS), op[3], 1)


@inner
def ends_reply(ends, token):
    """Whether a token is one of these ids; negative ids fill the row up."""
    found = False
    for end in ends:
        found = found or end == token
    return found


@inner
def seat_draft(memory, step, run, to, kept):
    """A drafting row: it begins at the run's last kept row."""
    lane, position = step.runs[run, 0], step.runs[run, 2] + kept - 1
    i64_1(memory, DRAFT_FROM)[to] = step.runs[run, 1] + kept - 1
    i64_1(memory, DRAFT_LANES)[to] = lane
    i64_1(memory, DRAFT_POSITIONS)[to] = position
    i64_1(memory, DRAFT_LIMITS)[to] = step.limits[run]
    i64_1(memory, DRAFT_WANTS)[to] = step.wants[run]
    one = i64_2(memory, DRAFT_RUNS)[to]
    one[0], one[1], one[2], one[3] = lane, to, position, 1


@inner
def run_accept(memory, step, draws, party):
    """ACCEPT: how many rows of each run are kept, the token after each row, and who drafts next.

    A window's row is kept while the token drawn at the row before is the one it was computed from,
    and did not end the reply: what is kept is what rows without drafts would have been.
    """
    if party.thread != 0:
        return
    drafting = i64(0)
    for run in range(len(step.runs)):
        lane, at, rows = step.runs[run, 0], step.runs[run, 1], step.runs[run, 3]
        start, count = step.sampled[run, 0], step.sampled[run, 1]
        kept = rows
        if step.windows[run] != 0:
            kept = i64(1)
            while (
                kept < rows
                and draws.tokens[start + kept - 1] == step.tokens[at + kept]
                and not ends_reply(step.ends[run], step.tokens[at + kept])
            ):
                kept += 1
            for row in range(kept - 1, rows - 1):  # scratch rows go on from what was drawn
                step.next_tokens[at + row] = draws.tokens[start + row]
            step.next_tokens[at + rows - 1] = draws.tokens[start + rows - 1]
        elif step.next_tokens[at + rows - 1] < 0 and count > 0:
            step.next_tokens[at + rows - 1] = draws.tokens[start + count - 1]
        step.kept[run] = kept
        i64_1(memory, DRAFT_COUNTS)[lane] = 0
        last = step.next_tokens[at + kept - 1]
        if step.wants[run] > 0 and last >= 0 and not ends_reply(step.ends[run], last):
            seat_draft(memory, step, run, drafting, kept)
            drafting += 1
    i64_1(memory, DRAFTING)[0] = drafting


@inner
def run_draft(memory, party, op, rows):
    """DRAFT: logits, width, which. The likeliest token after each drafting row, and the row after.

    A draft counts only while the rows it was computed from stand on the stream's own pages.
    """
    if party.thread != 0:
        return
    at, width, which = op[1], op[2], op[3]
    positions, limits = i64_1(memory, DRAFT_POSITIONS), i64_1(memory, DRAFT_LIMITS)
    counts, wants = i64_1(memory, DRAFT_COUNTS), i64_1(memory, DRAFT_WANTS)
    for row in range(rows):
        lane = i64_1(memory, DRAFT_LANES)[row]
        token = greedy(f32_1(memory, FLOATS)[at + row * width : at + (row + 1) * width])
        sound = which == 0 or positions[row] < limits[row]
        if sound and counts[lane] == which and which < wants[row]:
            i64_2(memory, DRAFTS)[lane, which] = token
            counts[lane] = which + 1
        i64_1(memory, DRAFT_TOKENS)[row] = token
        positions[row] += 1
        i64_2(memory, DRAFT_RUNS)[row, 2] += 1
