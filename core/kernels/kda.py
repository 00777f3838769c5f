"""The gated delta rule with a decay for each key: its inputs, the recurrence and its output gate.

A state is [D keys, D values] float32 a head. Sums over keys are four chains of fma by key modulo 4,
each from +0, added as (c0 + c1) + (c2 + c3); values are independent of each other.
The state after the row of position p stands in slot p % slots of its lane: a shorter length is the
whole of a rollback.
"""

import numpy as np

from . import meaning
from .conv import some_runs
from .kda_tile import TILE, small_tile, wide_tile
from .quantise import hard_rows, row_squares
from .registry import cpu, inner, register
from .scalars import LOG2E, ONE, ZERO, add, div, exp2c, mul, rn, sigmoid, sqrt

f32, i64 = np.float32, np.int64
L2_EPS = f32(1e-6)
SMALL = 4  # values of a small tile
BLOCK = 8  # rows that go through one tile before the next

# --- the meaning ---------------------------------------------------------------------------------


def kda_prepare_meaning(
    qkv, f, fcol, dt, decay, bound, b, bcol, q, k, a, beta, flags, first, last
):  # fmt: skip
    """As kda_prepare."""
    heads = decay.size
    width = dt.size // heads
    for row, head in (divmod(item, heads) for item in range(first, last)):
        own = slice(head * width, (head + 1) * width)
        parts = qkv[row, : 3 * dt.size].reshape(3, heads, width)[:2, head]
        with np.errstate(all="ignore"):
            unit = parts * (f32(1) / np.sqrt(meaning.squares(parts) + f32(1e-6)))[:, None]
            q[row, own] = unit[0] * (f32(1) / np.sqrt(f32(width)))
            k[row, own] = unit[1]
            gate = decay[head] * (f[row, fcol : fcol + dt.size][own] + dt[own])
            a[row, own] = meaning.exp(bound * meaning.sigmoid(gate))
        beta[row, head] = meaning.sigmoid(b[row, bcol + head])
        flags[row] |= np.uint8(meaning.q16(parts)[2].any())


def over_keys(state, x):
    """The sum over keys of state [keys, values] * x [keys]: four chains of fma."""
    chains = [np.zeros(state.shape[1], f32) for _ in range(4)]
    for i in range(len(state)):
        chains[i % 4] = meaning.fma(state[i], x[i], chains[i % 4])
    return (chains[0] + chains[1]) + (chains[2] + chains[3])


def kda_rows_meaning(q, k, qkv, a, beta, states, runs, o, work, first, last):
    """As kda_rows; work is not needed."""
    _, slots, heads, width, _ = states.shape
    for run, head in (divmod(item, heads) for item in range(first, last)):
        lane, row0, position0, rows = runs[run]
        own = slice(head * width, (head + 1) * width)
        state = states[lane, (position0 - 1) % slots, head].copy()
        if position0 == 0:
            state[:] = 0
        for row in range(row0, row0 + rows):
            v = qkv[row, 2 * heads * width + head * width :][:width]
            with np.errstate(all="ignore"):
                state = state * a[row, own, None]
                apart = beta[row, head] * (v - over_keys(state, k[row, own]))
                state = meaning.fma(k[row, own, None], apart, state)
                o[row, own] = over_keys(state, q[row, own])
            if row >= row0 + rows - slots:
                states[lane, (position0 + row - row0) % slots, head] = state


def kda_gate_meaning(o, gate, gcol, w, eps, out, ocol, flags, first, last):
    """As kda_gate."""
    width = w.size
    heads = o.shape[1] // width
    for row, head in (divmod(item, heads) for item in range(first, last)):
        x = o[row, head * width : (head + 1) * width]
        with np.errstate(all="ignore"):
            r = f32(1) / np.sqrt(meaning.squares(x) / f32(width) + eps)
            g = meaning.sigmoid(gate[row, gcol + head * width :][:width])
            out[row, ocol + head * width :][:width] = x * r * w * g
        flags[row] |= np.uint8(meaning.q16(x)[2])


# --- the loops for the CPU -----------------------------------------------------------------------


@cpu
def kda_prepare(qkv, f, fcol, dt, decay, bound, b, bcol, q, k, a, beta, flags, first, last):
    """Unit queries (times D^-1/2) and keys, decays and betas; items row * H + head.

    qkv [rows, >= 3 * H * D] float32: q | k | v of these heads; f [rows, stride] float32 from
    column fcol, dt [H * D], decay [H], bound: a = exp(bound sigmoid(decay (f + dt)));
    b [rows, stride] float32 from column bcol: beta = sigmoid(b). q, k, a [rows, H * D] and
    beta [rows, H] float32; flags [rows] uint8: 1 where q or k is not sound, else left alone.
    """
    heads = decay.shape[0]
    width = dt.shape[0] // heads
    smaller = div(ONE, sqrt(rn(width)))
    for item in range(first, last):
        row, head = item // heads, item % heads
        own, end = head * width, (head + 1) * width
        for side in range(2):
            start = (side * heads + head) * width
            x = qkv[row, start : start + width]
            squares, sound = row_squares(x)
            r = div(ONE, sqrt(add(squares, L2_EPS)))
            if side == 0:
                out = q[row, own:end]
                for i in range(width):
                    out[i] = mul(mul(x[i], r), smaller)
            else:
                out = k[row, own:end]
                for i in range(width):
                    out[i] = mul(x[i], r)
            if not sound:
                flags[row] = np.uint8(1)
        out, gate, more = a[row, own:end], f[row, fcol + own : fcol + end], dt[own:end]
        for i in range(width):
            s = sigmoid(mul(decay[head], add(gate[i], more[i])))
            out[i] = exp2c(mul(mul(bound, s), LOG2E))
        beta[row, head] = sigmoid(b[row, bcol + head])


@inner
def row_through_tile(
    q, k, qkv, a, beta, kept, held, o, shape, v_stride, run, head, row, column, size
):  # fmt: skip
    """Row `row` of a run through the values column to column + size of one head's state.

    All arrays flat; shape: that of the states.
    """
    slots, heads, width = shape[1], shape[2], shape[3]
    lane, row0, position0, rows = run[0], run[1], run[2], run[3]
    near, whole = column * width, width * width
    source, source_at, source_stride = held, near, size
    if row > max(0, rows - slots) or (row == 0 and position0 > 0):
        slot = lane * slots + (position0 + row - 1) % slots
        source, source_at, source_stride = kept, (slot * heads + head) * whole + column, width
    elif row == 0:
        for i in range(width * size):
            held[near + i] = ZERO
    target, target_at, target_stride = held, near, size
    if row >= rows - slots:
        slot = lane * slots + (position0 + row) % slots
        target, target_at, target_stride = kept, (slot * heads + head) * whole + column, width
    at = row0 + row
    own = (at * heads + head) * width
    v_at = at * v_stride + (2 * heads + head) * width + column
    tile = (
        source, source_at, source_stride, target, target_at, target_stride, width,
        q, k, a, own, qkv, v_at, beta[at * heads + head], o, own + column,
    )  # fmt: skip
    if size == TILE:
        wide_tile(*tile)
    else:
        small_tile(*tile)


@cpu
def kda_rows(q, k, qkv, a, beta, states, runs, o, work, first, last):
    """Runs through the recurrence; items run * H + head.

    q, k, a, o [rows, H * D] and beta [rows, H] float32; qkv [rows, >= 3 * H * D] float32, the
    values being columns 2 * H * D on; states [lanes, slots, H, D, D] float32; runs [n, 4] int64
    (lane, first row, first position, rows), a lane once; work [D, D] float32, of any content.
    The state before a run is that of its first position - 1 (zeros before position 0); those of
    its last `slots` rows are stored. D is a multiple of 4.

    A tile of values passes through some rows while it is near; its states between are in `work`.
    """
    heads, width = states.shape[2], states.shape[3]
    qs, ks, vs, decays = (
        q.reshape(q.size), k.reshape(k.size), qkv.reshape(qkv.size), a.reshape(a.size)
    )  # fmt: skip
    betas, out = beta.reshape(beta.size), o.reshape(o.size)
    kept, held = states.reshape(states.size), work.reshape(work.size)
    for item in range(first, last):
        run, head = runs[item // heads], item % heads
        for block in range(0, run[3], BLOCK):
            end = min(block + BLOCK, run[3])
            column = 0
            while column < width:
                size = TILE if column + TILE <= width else SMALL
                for row in range(block, end):
                    row_through_tile(
                        qs, ks, vs, decays, betas, kept, held, out, states.shape, qkv.shape[1],
                        run, head, row, column, size,
                    )  # fmt: skip
                column += size


@cpu
def kda_gate(o, gate, gcol, w, eps, out, ocol, flags, first, last):
    """RMSNorm of each head, times sigmoid(gate); items row * H + head.

    o [rows, H * D] float32; gate [rows, stride] float32 from column gcol; w [D], eps float32;
    out [rows, stride] float32 from column ocol; flags [rows] uint8: 1 where o is not sound.
    """
    width = w.shape[0]
    heads = o.shape[1] // width
    for item in range(first, last):
        row, own = item // heads, (item % heads) * width
        x, y = o[row, own : own + width], out[row, ocol + own : ocol + own + width]
        g = gate[row, gcol + own : gcol + own + width]
        squares, sound = row_squares(x)
        r = div(ONE, sqrt(add(div(squares, rn(width)), eps)))
        for i in range(width):
            y[i] = mul(mul(mul(x[i], r), w[i]), sigmoid(g[i]))
        if not sound:
            flags[row] = np.uint8(1)


# --- random cases --------------------------------------------------------------------------------

SHAPES = ((1, 4), (3, 8), (2, 16), (2, 20), (4, 32), (1, 64))  # heads, width


def some_items(rng, items):
    """A part of the items, now and then none."""
    first, last = np.sort(rng.integers(0, items + 1, 2))
    return int(first), int(last)


def prepare_cases(rng):
    """Hard rows, gates far out, columns of other heads around one's own."""
    for heads, width in SHAPES:
        rows, size = int(rng.integers(1, 4)), heads * width
        qkv = hard_rows(rng, rows, 3 * size)
        fcol, bcol = (int(n) for n in rng.integers(0, 5, 2))
        f = (rng.standard_normal((rows, fcol + size + 2)) * rng.choice([1, 100])).astype(f32)
        b = (rng.standard_normal((rows, bcol + heads + 1)) * 5).astype(f32)
        f[0, fcol], b[0, bcol] = rng.choice([np.inf, -np.inf, 0]), rng.choice([np.inf, -0.0])
        dt, decay = rng.standard_normal(size).astype(f32), rng.uniform(1e-3, 16, heads).astype(f32)
        q, k, a = (np.full((rows, size), 7, f32) for _ in range(3))
        beta, flags = np.full((rows, heads), 7, f32), np.zeros(rows, np.uint8)
        items = some_items(rng, rows * heads)
        yield (qkv, f, fcol, dt, decay, f32(-5), b, bcol, q, k, a, beta, flags, *items)


def recurrence_cases(rng):
    """Runs from position 0 over junk and from later ones, shorter and longer than the slots."""
    for heads, width in SHAPES:
        slots = int(rng.choice([1, 2, 3, 5]))
        runs, rows = some_runs(rng, 3, 20)
        q, k, v = (rng.standard_normal((rows, heads * width)) for _ in range(3))
        q, k = (x.astype(f32) / f32(np.sqrt(width)) for x in (q, k))
        qkv = np.concatenate([np.full((rows, 2 * heads * width), np.nan), v], 1).astype(f32)
        a = np.exp(-5 * rng.random((rows, heads * width)) ** 2).astype(f32)
        beta = rng.random((rows, heads)).astype(f32)
        states = rng.standard_normal((3, slots, heads, width, width)).astype(f32)
        for lane, _, position, _ in runs:
            if position == 0:
                states[lane] = np.nan
        o, work = np.full((rows, heads * width), 7, f32), np.full((width, width), np.nan, f32)
        yield q, k, qkv, a, beta, states, runs, o, work, *some_items(rng, len(runs) * heads)


def gate_cases(rng):
    """Hard rows, gates far out, into columns of a wider row."""
    for heads, width in SHAPES:
        rows, size = int(rng.integers(1, 4)), heads * width
        o = hard_rows(rng, rows, size)
        gcol, ocol = (int(n) for n in rng.integers(0, 5, 2))
        gate = (rng.standard_normal((rows, gcol + size + 2)) * rng.choice([1, 100])).astype(f32)
        w = (1 + rng.standard_normal(width) * 0.3).astype(f32)
        out, flags = np.full((rows, ocol + size + 1), 7, f32), np.zeros(rows, np.uint8)
        items = some_items(rng, rows * heads)
        yield o, gate, gcol, w, f32(1e-5), out, ocol, flags, *items


register(
    "kda_prepare",
    meaning=kda_prepare_meaning,
    cpu=kda_prepare,
    shapes="qkv [rows, >= 3 * H * D], f [rows, stride], dt [H * D], decay [H], bound, "
    "b [rows, stride], q, k, a [rows, H * D], beta [rows, H] float32; flags [rows] uint8",
    units="float32; fcol, bcol: columns where these heads begin; items row * H + head",
    cases=prepare_cases,
)
register(
    "kda_rows",
    meaning=kda_rows_meaning,
    cpu=kda_rows,
    shapes="q, k, a, o [rows, H * D], qkv [rows, >= 3 * H * D], beta [rows, H], "
    "states [lanes, slots, H, D, D], work [D, D] float32; runs [n, 4] int64",
    units="runs: lane, first row, first position, rows; state [keys, values] after position p in "
    "slot p % slots; items run * H + head",
    cases=recurrence_cases,
    scratch=3,
)
register(
    "kda_gate",
    meaning=kda_gate_meaning,
    cpu=kda_gate,
    shapes="o [rows, H * D], gate [rows, stride], w [D], eps, out [rows, stride] float32; "
    "flags [rows] uint8",
    units="float32; gcol, ocol: columns where these heads begin; items row * H + head",
    cases=gate_cases,
)
