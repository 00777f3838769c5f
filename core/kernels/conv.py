"""The short causal convolution before the recurrence, its history in a ring addressed by position.

The raw row of position p stands at p % ring_rows of its lane, so a shorter length is the whole of a
rollback. Positions below 0 count as zeros whatever the ring holds.
"""

import numpy as np

from . import meaning
from .registry import cpu, register
from .scalars import ZERO, fma, silu

f32 = np.float32


def conv_rows_meaning(raw, column0, taps, ring, runs, y, c0, c1):
    """As conv_rows."""
    many, ring_rows = taps.shape[1], ring.shape[1]
    for lane, row0, position0, rows in runs:
        own = ring[lane, :, c0:c1].copy()
        for row in range(rows):
            total = np.zeros(c1 - c0, f32)
            for j in range(many):
                back = row + j - (many - 1)
                position = position0 + back
                if back >= 0:
                    value = raw[row0 + back, column0 + c0 : column0 + c1]
                else:
                    value = own[position % ring_rows] if position >= 0 else np.zeros_like(total)
                total = meaning.fma(value, taps[c0:c1, j], total)
            y[row0 + row, c0:c1] = meaning.silu(total)
        for row in range(max(0, rows - ring_rows), rows):
            at = (position0 + row) % ring_rows
            ring[lane, at, c0:c1] = raw[row0 + row, column0 + c0 : column0 + c1]


@cpu
def conv_rows(raw, column0, taps, ring, runs, y, c0, c1):
    """y = silu of a depthwise convolution, the oldest row first, an fma each from +0.

    raw [rows, stride] float32, channel c at column0 + c; taps [channels, taps] float32, the last
    for the row itself; ring [lanes, ring_rows, channels] float32 raw rows; runs [n, 4] int64
    (lane, first row, first position, rows), a lane once; y [rows, >= channels] float32. Channels c0
    to c1 (excluded) of every run, whose last ring_rows rows then stand in the ring.
    """
    many, ring_rows, size = taps.shape[1], ring.shape[1], c1 - c0
    weights = np.empty((many, size), f32)
    for j in range(many):
        for c in range(size):
            weights[j, c] = taps[c0 + c, j]
    for run in range(runs.shape[0]):
        lane, row0, position0, rows = runs[run]
        for row in range(rows):
            out = y[row0 + row, c0:c1]
            for c in range(size):
                out[c] = ZERO
            for j in range(many):
                back = row + j - (many - 1)
                if position0 + back < 0:
                    continue  # a zero leaves the +0 as it is
                value = raw[row0 + max(back, 0), column0 + c0 : column0 + c1]
                if back < 0:
                    value = ring[lane, (position0 + back) % ring_rows, c0:c1]
                weight = weights[j]
                for c in range(size):
                    out[c] = fma(value[c], weight[c], out[c])
            for c in range(size):
                out[c] = silu(out[c])
        for row in range(max(0, rows - ring_rows), rows):
            kept = ring[lane, (position0 + row) % ring_rows, c0:c1]
            value = raw[row0 + row, column0 + c0 : column0 + c1]
            for c in range(size):
                kept[c] = value[c]


def some_runs(rng, lanes, longest):
    """Runs of some lanes, a lane once, in any order; positions from 0 on, now and then no rows."""
    runs, row = [], int(rng.integers(0, 2))
    for lane in rng.permutation(lanes)[: int(rng.integers(1, lanes + 1))]:
        rows = int(rng.choice([0, 1, 1, 2, 3, longest]))
        runs.append((int(lane), row, int(rng.choice([0, 0, 1, 2, 5, 511, 512, 70000])), rows))
        row += rows
    return np.array(runs, np.int64), row + int(rng.integers(0, 2))


def long_runs(rng):
    """A run of many rows beside a short one and one without rows, of three lanes."""
    runs, row = [], 0
    for lane, rows in enumerate(rng.permutation([0, 3, int(rng.integers(17, 60))])):
        runs.append((lane, row, int(rng.choice([0, 1, 5, 511])), int(rows)))
        row += int(rows)
    return np.array(runs, np.int64), row


def conv_cases(rng):
    """Some channels only, rings of the least size and larger, junk before position 0."""
    shapes = ((1, 4, 0), (48, 4, 2), (96, 4, 1), (130, 3, 3), (16, 1, 1), (5, 4, 0), (3, 3, 1))
    for at, (width, many, more) in enumerate(shapes):
        runs, rows = some_runs(rng, 3, 9) if at < 5 else long_runs(rng)
        column0, after = (int(n) for n in rng.integers(0, 5, 2))
        raw = (rng.standard_normal((rows, column0 + width + after)) * 3).astype(f32)
        raw[rng.random(raw.shape) < 0.05] *= f32(1e20)
        taps = rng.standard_normal((width, many)).astype(f32)
        ring = rng.standard_normal((3, many - 1 + more + (many == 1), width)).astype(f32)
        for run in runs:
            if run[2] == 0:
                ring[run[0]] = rng.choice([np.nan, np.inf])
        y = np.full((rows, width + int(rng.integers(0, 2))), 7, f32)
        c0, c1 = (int(n) for n in np.sort(rng.integers(0, width + 1, 2)))
        yield raw, column0, taps, ring, runs, y, c0, c1


register(
    "conv_rows",
    meaning=conv_rows_meaning,
    cpu=conv_rows,
    shapes="raw [rows, stride] float32; taps [channels, taps] float32; "
    "ring [lanes, ring_rows, channels] float32; runs [n, 4] int64; y [rows, >= channels] float32",
    units="runs: lane, first row, first position, rows; c0, c1: channels; column0 in columns of "
    "raw; ring: position p at p % ring_rows",
    cases=conv_cases,
)
