"""The gated unit between a layer's two wide maps: silu(gate) * up."""

import numpy as np

from . import meaning
from .registry import cpu, register
from .scalars import mul, silu

f32 = np.float32


def glu_rows_meaning(both, inner, out, column, first, last):
    """As glu_rows."""
    gate, up = both[first:last, :inner], both[first:last, inner : 2 * inner]
    with np.errstate(all="ignore"):
        out[first:last, column : column + inner] = meaning.silu(gate) * up


@cpu
def glu_rows(both, inner, out, column, first, last):
    """out[:, column : column + inner] = silu(gate) * up.

    both [rows, at least 2 * inner] float32: gate, then up; out [rows, at least column + inner].
    """
    for row in range(first, last):
        gate, up = both[row, :inner], both[row, inner : 2 * inner]
        result = out[row, column : column + inner]
        for i in range(inner):
            result[i] = mul(silu(gate[i]), up[i])


def glu_cases(rng):
    """Columns of one rank inside a wider row; small, large and infinite gates."""
    for inner in (1, 16, 48, 1536):
        rows, column = int(rng.integers(1, 5)), int(rng.integers(0, 9))
        scale = rng.choice([1e-30, 1, 20, 1e20])
        both = (rng.standard_normal((rows, 2 * inner + 3)) * scale).astype(f32)
        both[0, 0] = rng.choice([np.inf, -88.0, -0.0, 1e-44])
        out = np.full((rows, column + inner + 2), 5, f32)
        yield both, inner, out, column, int(rng.integers(0, rows)), rows


register(
    "glu_rows",
    meaning=glu_rows_meaning,
    cpu=glu_rows,
    shapes="both [rows, >= 2 * inner] float32 (gate, up); out [rows, >= column + inner] float32",
    units="float32; column: where this rank's inner columns begin in out",
    cases=glu_cases,
)
