"""What follows a step's rows: added to running sums, by page and by stream, and looked at."""

import numpy as np

from .digest import PARTS, digest_of, digest_words
from .registry import cpu, register

i64, u64 = np.int64, np.uint64

TOKENS = PARTS["tokens"]
LANE, SEEN, AT, ROWS, SAMPLED = range(5)  # columns of runs
HELD = ("rows", "logits", "tokens")  # running sums of a stream
TOLD = ("rows", "marks", "logits", "tokens")  # what is said of a stream
CLEAN = 1 << 62  # a run without poison
SOUND, TROUBLE, OUT_OF_ORDER = range(3)


def count_rows_meaning(
    keeps, runs, tokens, positions, pages, flags, poisoned, row_sums, shares, side, tables,
    page_rows, page_sums, counted, held, told,
):  # fmt: skip
    """As count_rows."""
    trouble = bool(flags[: len(tokens)].any()) or bool((poisoned != CLEAN).any())
    logits = shares[side].sum(axis=0, dtype=u64)
    at = 0
    for run, (lane, seen, start, rows, sampled) in enumerate(runs if keeps else ()):
        if counted[lane] != seen - rows:
            return OUT_OF_ORDER
        counted[lane] = seen
        own = slice(start, start + rows)
        np.add.at(page_sums, pages[own], row_sums[own])
        held[lane, 0] += row_sums[own].sum(axis=0, dtype=u64)
        held[lane, 1] += logits[at : at + sampled].sum(axis=0, dtype=u64)
        for row in range(start, start + rows):
            word = np.array([tokens[row]]).view(u64)
            held[lane, 2] += np.array(
                digest_of(word, TOKENS, 0, 0, int(positions[row]), np.zeros(1, u64)), u64
            )
        at += sampled
        told[run, 0], told[run, 2:] = held[lane, 0], held[lane, 1:]
        open_page = page_sums[tables[lane, seen // page_rows]] if seen % page_rows else u64(0)
        told[run, 1] = held[lane, 0] - open_page
    return TROUBLE if trouble else SOUND


@cpu
def count_rows(
    keeps, runs, tokens, positions, pages, flags, poisoned, row_sums, shares, side, tables,
    page_rows, page_sums, counted, held, told,
):  # fmt: skip
    """Count a step's rows; TROUBLE where one is no number or was poisoned, OUT_OF_ORDER: a fault.

    keeps: false only looks. runs [n, 5] int64: lane, rows seen by its last row, first batch row,
    rows, sampled rows; tokens, positions, pages [rows] int64; flags [>= rows] uint8; poisoned [n]
    int64; row_sums [>= rows, 2] uint64; shares [2, parties, >= sampled, 2] uint64, of the logits;
    side: which of its two; tables [lanes, entries] int32; page_sums [pages, 2] uint64.
    counted [lanes] int64 and held [lanes, 3, 2] uint64: rows of each lane's stream and sums over
    them; told [n, 4, 2] uint64: the sums after the step, marks: up to the last whole page.
    """
    trouble = SOUND
    for row in range(len(tokens)):
        if flags[row] != 0:
            trouble = TROUBLE
    for run in range(len(runs)):
        if poisoned[run] != CLEAN:
            trouble = TROUBLE
    if not keeps:
        return trouble
    at = 0
    for run in range(len(runs)):
        lane, seen, rows = runs[run, LANE], runs[run, SEEN], runs[run, ROWS]
        if counted[lane] != seen - rows:
            return OUT_OF_ORDER
        counted[lane] = seen
        sums = held[lane]
        for row in range(runs[run, AT], runs[run, AT] + rows):
            word = tokens[row : row + 1].view(u64)
            one = digest_words(word, TOKENS, 0, 0, positions[row], 0)
            for k in range(2):
                page_sums[pages[row], k] += row_sums[row, k]
                sums[0, k] += row_sums[row, k]
                sums[2, k] += one[k]
        for row in range(at, at + runs[run, SAMPLED]):
            for party in range(shares.shape[1]):
                for k in range(2):
                    sums[1, k] += shares[side, party, row, k]
        at += runs[run, SAMPLED]
        for k in range(2):
            told[run, 0, k], told[run, 1, k] = sums[0, k], sums[0, k]
            told[run, 2, k], told[run, 3, k] = sums[1, k], sums[2, k]
            if seen % page_rows != 0:
                told[run, 1, k] -= page_sums[tables[lane, seen // page_rows], k]
    return trouble


def count_cases(rng):
    """Whole pages and open ones, a flag, a poisoned run, one out of order, no run at all."""
    page_rows, lanes, entries = 4, 3, 6
    tables = rng.permutation(lanes * entries).astype(np.int32).reshape(lanes, entries)
    for kind in range(8):
        runs, positions, at = [], [], 0
        for lane in rng.permutation(lanes)[: int(rng.integers(0, lanes + 1))]:
            rows = int(rng.integers(1, 6))
            seen = int(rng.integers(rows, page_rows * entries))
            runs.append((lane, seen, at, rows, int(rng.integers(0, rows + 1))))
            positions += range(seen - rows, seen)
            at += rows
        runs = np.array(runs, i64).reshape(-1, 5)
        positions = np.array(positions, i64)
        rows_lanes = np.repeat(runs[:, LANE], runs[:, ROWS])
        pages = tables[rows_lanes, positions // page_rows].astype(i64)
        counted = np.zeros(lanes, i64)
        counted[runs[:, LANE]] = runs[:, SEEN] - runs[:, ROWS] + (kind == 7)
        words = [
            rng.integers(0, 2**64, shape, u64)
            for shape in ((at + 2, 2), (2, 2, at + 1, 2), (lanes * entries, 2), (lanes, 3, 2))
        ]
        flags = np.zeros(at + 2, np.uint8)
        flags[at if kind % 2 else 0] = kind > 1
        poisoned = np.full(len(runs), CLEAN, i64)
        poisoned[: kind == 5] = 77
        yield (
            kind != 6, runs, rng.integers(0, 500, at), positions, pages, flags, poisoned, words[0],
            words[1], int(rng.integers(0, 2)), tables, page_rows, words[2], counted, words[3],
            np.zeros((len(runs), 4, 2), u64),
        )  # fmt: skip


register(
    "count_rows",
    meaning=count_rows_meaning,
    cpu=count_rows,
    shapes="runs [n, 5], tokens, positions, pages [rows], poisoned [n], counted [lanes] int64; "
    "flags [>= rows] uint8; tables [lanes, entries] int32; row_sums [>= rows, 2], "
    "shares [2, parties, >= sampled, 2], page_sums [pages, 2], held [lanes, 3, 2], "
    "told [n, 4, 2] uint64",
    units="sums modulo 2^64; positions and rows of a stream; 0 sound, 1 trouble, 2 out of order",
    cases=count_cases,
)
