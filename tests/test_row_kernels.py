"""Rows: Q16 by its definition, golden bits of norm and rotation, flags where they belong."""

import warnings
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

glu: Any = import_module("kvtape.core.kernels.glu")
meaning: Any = import_module("kvtape.core.kernels.meaning")
norm: Any = import_module("kvtape.core.kernels.norm")
quantise: Any = import_module("kvtape.core.kernels.quantise")
rope: Any = import_module("kvtape.core.kernels.rope")


f32 = np.float32
VECTORS = np.load(Path(__file__).parent / "data" / "operators.npz")
Floats = NDArray[np.float32]
ROWS = hnp.arrays(
    f32, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=st.floats(width=32)
)


def q16(x: Floats) -> tuple[NDArray[np.int16], NDArray[np.int8], list[bool]]:
    q = np.zeros(x.shape, np.int16)
    e, flags = np.zeros(len(x), np.int8), np.zeros(len(x), np.uint8)
    quantise.q16_rows(x, q, e, flags, 0, len(x))
    return q, e, [bool(flag) for flag in flags]


def test_q16_is_the_golden_one() -> None:
    x = VECTORS["q16_x"].view(f32)
    q, e, flags = q16(x)
    assert (q == VECTORS["q16_q"]).all()
    assert (e == VECTORS["q16_e"]).all()
    # The golden rows reach sizes that need an exponent above 63; just those are flagged.
    assert flags == [bool(amax >= 32639.5 * 2.0**63) for amax in np.abs(x).max(-1).astype(float)]


@given(ROWS)
@example(np.array([[32639.5]], f32))
@example(np.array([[-0.0, 0.0]], f32))
@example(np.array([[np.nan, 1.0], [np.inf, 1.0]], f32))
def test_q16_takes_the_least_exponent_and_rounds_to_even(x: Floats) -> None:
    q, e, flags = q16(x)
    for row in range(len(x)):
        numbers = [Fraction(float(v)) for v in x[row] if np.isfinite(v)]
        k = int(e[row])
        assert -63 <= k <= 63
        wide = any(abs(v) >= Fraction(65279, 2) * Fraction(2) ** 63 for v in numbers)
        assert flags[row] == (wide or len(numbers) < x.shape[1])
        if flags[row]:
            assert (np.abs(q[row].astype(int)) <= 32639).all()
            assert (q[row][np.isnan(x[row])] == 0).all()
            continue
        assert q[row].tolist() == [round(v / Fraction(2) ** k) for v in numbers]
        assert max(abs(int(v)) for v in q[row]) <= 32639
        finer = max(abs(round(v / Fraction(2) ** (k - 1))) for v in numbers)
        assert k == -63 or finer > 32639


def test_an_infinite_value_saturates() -> None:
    q, e, flags = q16(np.array([[np.inf, -np.inf, 1]], f32))
    assert q.tolist() == [[32639, -32639, 0]]
    assert e.tolist() == [63]
    assert flags == [True]


def test_a_flag_once_set_stays_and_touches_no_other_row() -> None:
    x = np.array([[1, 2], [np.nan, 2], [3, 4]], f32)
    q, e = np.zeros((3, 2), np.int16), np.zeros(3, np.int8)
    flags = np.array([1, 0, 0], np.uint8)
    quantise.q16_rows(x, q, e, flags, 0, 3)
    assert flags.tolist() == [1, 1, 0]


def test_rmsnorm_is_the_golden_one() -> None:
    x, w = VECTORS["rms_x"].view(f32), VECTORS["rms_w"].view(f32)
    y = norm.rmsnorm(x, w, f32(1e-5))
    assert (y.view(np.uint32) == VECTORS["rms_y"]).all()
    q, e = np.zeros(x.shape, np.int16), np.zeros(len(x), np.int8)
    flags = np.zeros(len(x), np.uint8)
    norm.rmsnorm_q16(x, w, f32(1e-5), q, e, flags, 0, len(x))
    want = meaning.q16(y)
    assert (q == want[0]).all()
    assert (e == want[1]).all()
    assert not flags.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_a_row_that_is_not_sound_is_flagged_by_the_norm(value: float) -> None:
    x = np.ones((3, 16), f32)
    x[1, 5] = value
    q, e = np.zeros(x.shape, np.int16), np.zeros(3, np.int8)
    flags = np.zeros(3, np.uint8)
    norm.rmsnorm_q16(x, np.ones(16, f32), f32(1e-5), q, e, flags, 0, 3)
    assert flags.tolist() == [0, 1, 0]


@given(st.lists(st.integers(0, 6), min_size=0, max_size=4))
def test_rows_split_at_any_place_give_the_same_bits(cuts: list[int]) -> None:
    rng = np.random.default_rng(5)
    x, w = quantise.hard_rows(rng, 6, 65), np.ones(65, f32)
    both, positions = rng.standard_normal((6, 40)).astype(f32), np.arange(6)
    cos, sin = rope.rope_tables(8, 16, 10000)
    results = []
    for edges in ([0, 6], [0, *sorted(cuts), 6]):
        q, e, flags = np.zeros((6, 65), np.int16), np.zeros(6, np.int8), np.zeros(6, np.uint8)
        out, turned = np.zeros((6, 20), f32), both.copy()
        for first, last in pairwise(edges):
            norm.rmsnorm_q16(x, w, f32(1e-5), q, e, flags, first, last)
            glu.glu_rows(both, 20, out, 0, first, last)
            rope.rope_rows(turned, 2, positions, cos, sin, first, last)
        results.append([part.tobytes() for part in (q, e, flags, out, turned)])
    assert results[0] == results[1]


@pytest.mark.parametrize("base", [10000, 100000])
def test_rope_tables_are_correctly_rounded_where_libm_can_tell(base: int) -> None:
    cos, sin = rope.rope_tables(2048, 64, base)
    angle = (np.arange(2048, dtype=f32)[:, None] * rope.inverse_frequencies(64, base)).astype(float)
    assert (cos == np.cos(angle).astype(f32)).all()
    assert (sin == np.sin(angle).astype(f32)).all()


def test_rope_turns_each_half_against_the_other_and_rounds_each_product() -> None:
    cos, sin = rope.rope_tables(100, 8, 10000)
    x = np.random.default_rng(3).standard_normal((1, 10)).astype(f32)
    turned = x.copy()
    rope.rope_rows(turned, 1, np.array([77]), cos, sin, 0, 1)
    for i in range(4):
        a, b, c, s = x[0, i], x[0, 4 + i], cos[77, i], sin[77, i]
        assert turned[0, i] == f32(a * c) - f32(b * s)
        assert turned[0, 4 + i] == f32(b * c) + f32(a * s)
    assert (turned[0, 8:] == x[0, 8:]).all()


def test_no_row_kernel_widens_a_float() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = norm.rmsnorm(np.ones((2, 4), f32), np.ones(4, f32), f32(1e-5))
    assert y.dtype == f32
    assert meaning.silu(np.ones(3, f32)).dtype == f32
