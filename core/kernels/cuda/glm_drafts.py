"""What is kept of a step's windows, and the drafts that follow, decided on the card.

As core/kernels/glm_drafts.py has it, with one difference that no result shows: a drafting row's
place among the others is the step's tables' to say, by run, whether or not the run drafts.
"""

import numpy as np
from numba import cuda

from .sampling import THREADS as GREEDY_THREADS
from .sampling import greedy_kernel
from .target import device, kernel, threads

i64 = np.int64
THREADS = 128


@device
def ends_reply(ends, run, token):
    """Whether a token is one of a run's ends; negative ids fill the row up."""
    found = False
    for i in range(ends.shape[1]):
        found = found or ends[run, i] == token
    return found


@device
def kept_rows(run, at, rows, start, windows, tokens, drawn, ends, next_tokens, last):
    """How many rows of a run are kept; says the token after each of its rows where it was drawn."""
    kept = rows
    if windows[run] != 0:
        kept = i64(1)
        while (
            kept < rows
            and drawn[start + kept - 1] == tokens[at + kept]
            and not ends_reply(ends, run, tokens[at + kept])
        ):
            kept += 1
        for row in range(kept - 1, rows):  # scratch rows go on from what was drawn
            next_tokens[at + row] = drawn[start + row]
    elif next_tokens[at + rows - 1] < 0 and last >= 0:
        next_tokens[at + rows - 1] = drawn[start + last]
    return kept


@kernel
def accept_runs(
    runs, sampled, windows, tokens, drawn, ends, wants, limits, places, next_tokens, kept,
    draft_from, draft_runs, draft_positions, draft_lanes, draft_limits, draft_wants, draft_of,
):  # fmt: skip
    """A thread a run, in one block; see accept."""
    for run in range(cuda.threadIdx.x, runs.shape[0], cuda.blockDim.x):
        lane, at, rows = runs[run, 0], runs[run, 1], runs[run, 3]
        if rows > 0:
            start, count = sampled[run, 0], sampled[run, 1]
            mine = kept_rows(
                run, at, rows, start, windows, tokens, drawn, ends, next_tokens, count - 1
            )
            kept[run] = mine
            token, to = next_tokens[at + mine - 1], places[run]
            if wants[run] > 0 and token >= 0 and not ends_reply(ends, run, token):
                position = runs[run, 2] + mine - 1
                draft_from[to], draft_of[to] = at + mine - 1, run
                draft_lanes[to], draft_positions[to] = lane, position
                draft_limits[to], draft_wants[to] = limits[run], wants[run]
                draft_runs[to, 0], draft_runs[to, 1] = lane, to
                draft_runs[to, 2], draft_runs[to, 3] = position, 1


def accept(stream, *arguments):
    """How many rows of each run are kept, the token after each row, and who drafts next.

    runs [n, 4] int64 (lane, first row, first position, rows; none in places without a run),
    sampled [n, 2], windows [n], tokens [rows] of the step, drawn [sampled rows], ends [n, .],
    wants, limits, places [n]: the drafting row that is a run's; written: next_tokens [rows],
    kept [n], and of the drafting rows from, runs [., 4], positions, lanes, limits, wants and the
    run that each is of. All int64.
    """
    accept_runs[1, threads(THREADS), stream](*arguments)


@kernel
def keep_drafts(
    which, tokens, positions, runs, limits, wants, of, drafts, counts
):  # fmt: skip
    """A thread a drafting row; see draft."""
    row = cuda.grid(1)
    if row < tokens.shape[0]:
        run = of[row]
        sound = which == 0 or positions[row] < limits[row]
        if sound and counts[run] == which and which < wants[row]:
            drafts[run, which] = tokens[row]
            counts[run] = which + 1
        positions[row] += 1
        runs[row, 2] += 1


def draft(stream, logits, which, tokens, positions, runs, limits, wants, of, drafts, counts):
    """The likeliest token after each drafting row, and the row after.

    logits [rows, vocab] float32; tokens, positions, limits, wants, of [rows] and runs [rows, 4]
    int64 of the drafting rows; drafts [runs + 1, most], counts [runs + 1] int64 by run, the last
    for rows that are nobody's. A draft counts only while the rows it was computed from stand on the
    stream's own pages.
    """
    rows = logits.shape[0]
    if rows:
        greedy_kernel[rows, GREEDY_THREADS, stream](logits, tokens)
        block = threads(THREADS)
        keep_drafts[-(-rows // block), block, stream](
            which, tokens, positions, runs, limits, wants, of, drafts, counts
        )
