"""The gated unit with limits: silu(min(gate, limit)) * up within +-limit."""

import numpy as np

from . import meaning
from .registry import cpu, register
from .scalars import mul, silu

f32 = np.float32


def clamped_rows_meaning(both, mine, limit, h, column, first, last):
    """As clamped_rows."""
    gate, up = both[first:last, :mine], both[first:last, mine : 2 * mine]
    gate = np.where(gate > limit, limit, gate)
    up = np.where(up > limit, limit, np.where(up < -limit, -limit, up))
    with np.errstate(all="ignore"):
        h[first:last, column : column + mine] = meaning.silu(gate) * up


@cpu
def clamped_rows(both, mine, limit, h, column, first, last):
    """h[:, column : column + mine] = silu(gate) * up after their limits; the gate has an upper one.

    both [rows, >= 2 * mine] float32: gate, then up; limit float32; h [rows, >= column + mine].
    """
    for row in range(first, last):
        gate, up = both[row, :mine], both[row, mine : 2 * mine]
        out = h[row, column : column + mine]
        for i in range(mine):
            g = limit if gate[i] > limit else gate[i]
            u = limit if up[i] > limit else up[i]
            u = -limit if u < -limit else u
            out[i] = mul(silu(g), u)


def clamped_cases(rng):
    """Values within the limits, beyond them and at them, infinite ones among them."""
    for mine in (1, 16, 48, 1536):
        rows, column = int(rng.integers(1, 5)), int(rng.integers(0, 9))
        both = rng.standard_normal((rows, 2 * mine + 3)) * rng.choice([1e-30, 1, 10, 1e20])
        both = both.astype(f32)
        both[0, 0], both[0, mine] = rng.choice([np.inf, -np.inf, -0.0, 10], 2)
        h = np.full((rows, column + mine + 2), 5, f32)
        yield both, mine, f32(10), h, column, int(rng.integers(0, rows + 1)), rows


register(
    "clamped_rows",
    meaning=clamped_rows_meaning,
    cpu=clamped_rows,
    shapes="both [rows, >= 2 * mine] float32 (gate, up); limit float32; "
    "h [rows, >= column + mine] float32",
    units="float32; column: where the columns in hand begin in h",
    cases=clamped_cases,
)
