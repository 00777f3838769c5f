"""The tables of a ragged batch: every run's rows at their positions, on their pages."""

import numpy as np

from .compiled import code

LANE, SEEN, AT, ROWS, SAMPLED = range(5)  # columns of runs
POSITIONS, LANES, PAGES = range(3)  # rows of a batch's columns
FOLLOWING, WINDOW, WANTS, LIMIT = range(4)  # columns of what is asked of runs
WINDOWS, KEPT, WANTED, LIMITS, POISONED = range(5)  # rows of what is said of runs
NOWHERE = np.iinfo(np.int32).max  # no pool has so many pages


@code
def spread(runs, tables, page_rows, columns, selected):
    """Lay runs out by row; the largest page of any, NOWHERE where a row is past its table.

    runs [m, 5] int64: lane, rows seen by its last row, first batch row, rows, sampled rows; tables
    [lanes, entries] int32. Filled: columns [3, rows] int64: position, lane, page; selected
    [sampled rows] int64: the batch rows that get logits, the last ones of each run.
    """
    largest, drawn = -1, 0
    for run in range(len(runs)):
        lane, at, rows = runs[run, LANE], runs[run, AT], runs[run, ROWS]
        if (runs[run, SEEN] - 1) // page_rows >= tables.shape[1]:
            return NOWHERE
        for row in range(rows):
            position = runs[run, SEEN] - rows + row
            page = tables[lane, position // page_rows]
            columns[POSITIONS, at + row], columns[LANES, at + row] = position, lane
            columns[PAGES, at + row] = page
            largest = max(largest, page)
        for row in range(rows - runs[run, SAMPLED], rows):
            selected[drawn] = at + row
            drawn += 1
    return largest


@code
def follow(runs, asked, tokens, clean, next_tokens, places, sampled, by_run):
    """What a GLM's step asks of runs, laid out by row and by run.

    runs as for spread; asked [m, 4] int64: the known token after the last row or -1, whether it is
    a round's window, drafts wanted, rows that the stream's pages hold; tokens [rows] int64; clean:
    of a run without poison. Filled, int64: next_tokens [rows]; places [m, 4]: lane, first batch
    row, first position, rows; sampled [m, 2]: the first selected row, how many; by_run [5, m]:
    windows, rows kept (all), drafts wanted, limits, poisoned.
    """
    drawn = 0
    for run in range(len(runs)):
        at, rows = runs[run, AT], runs[run, ROWS]
        for row in range(at, at + rows - 1):
            next_tokens[row] = tokens[row + 1]
        next_tokens[at + rows - 1] = asked[run, FOLLOWING]
        places[run, 0], places[run, 1] = runs[run, LANE], at
        places[run, 2], places[run, 3] = runs[run, SEEN] - rows, rows
        sampled[run, 0], sampled[run, 1] = drawn, runs[run, SAMPLED]
        drawn += runs[run, SAMPLED]
        by_run[WINDOWS, run], by_run[KEPT, run] = asked[run, WINDOW], rows
        by_run[WANTED, run], by_run[LIMITS, run] = asked[run, WANTS], asked[run, LIMIT]
        by_run[POISONED, run] = clean


@code
def copied_tables(tables, unleased, spare):
    """Page tables [lanes, entries] int32 of their own, with one page in place of another."""
    own = np.empty_like(tables)
    for lane in range(tables.shape[0]):
        for entry in range(tables.shape[1]):
            page = tables[lane, entry]
            own[lane, entry] = spare if page == unleased else page
    return own
