"""Scalars: each named operation rounds once, in Python and compiled alike."""

from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

meaning: Any = import_module("kvtape.core.kernels.meaning")
scalars: Any = import_module("kvtape.core.kernels.scalars")


f32 = np.float32
VECTORS = np.load(Path(__file__).parent / "data" / "operators.npz")
FLOATS = st.integers(0, 2**32 - 1).map(lambda pattern: np.uint32(pattern).view(f32))
NUMBERS = FLOATS.filter(lambda x: bool(np.isfinite(x)))


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x, f32).view(np.uint32).tolist()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return numba.njit(error_model="numpy")(function)


@compiled
def every_scalar(a: Any, b: Any, c: Any, n: Any, out: Any) -> None:
    out[0] = scalars.mul(a, b)
    out[1] = scalars.add(a, b)
    out[2] = scalars.sub(a, b)
    out[3] = scalars.div(a, b)
    out[4] = scalars.fma(a, b, c)
    out[5] = scalars.sqrt(a)
    out[6] = scalars.rint(a)
    out[7] = scalars.rn(n)
    out[8] = scalars.exp2c(a)
    out[9] = scalars.exp(b)
    out[10] = scalars.sigmoid(a)
    out[11] = scalars.silu(b)
    out[12] = scalars.pow2(n % 100)
    out[13] = scalars.q16_value(a, scalars.pow2(n % 60))
    out[14] = scalars.row_exponent(abs(a))
    out[15] = scalars.flt(scalars.bits(a))


@compiled
def map_one(name: Any, x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = scalars.exp2c(x[i]) if name == 0 else scalars.sigmoid(x[i])


@compiled
def map_fma(a: Any, b: Any, c: Any, out: Any) -> None:
    for i in range(a.shape[0]):
        out[i] = scalars.fma(a[i], b[i], c[i])


@compiled
def map_two_roundings(a: Any, b: Any, c: Any, out: Any) -> None:
    for i in range(a.shape[0]):
        out[i] = scalars.add(scalars.mul(a[i], b[i]), c[i])


def floats(name: str) -> NDArray[np.float32]:
    return np.asarray(VECTORS[name]).view(f32)


def nearest(value: Fraction) -> np.float32:
    """A rational rounded to float32, ties to even, by whole numbers alone."""
    if value == 0:
        return f32(0)
    size = abs(value)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= Fraction(2) ** e > size
    unit = Fraction(2) ** (max(e, -126) - 23)
    whole = round(size / unit)
    if whole * unit >= Fraction(2) ** 128:
        return f32(np.inf if value > 0 else -np.inf)
    return f32(float(whole * unit) * (1 if value > 0 else -1))


@given(NUMBERS, NUMBERS, NUMBERS)
@example(f32(1 + 2**-12), f32(1 + 2**-12), f32(2**-60))
@example(f32(1 + 2**-12), f32(1 + 2**-12), f32(-(2**-60)))
def test_fma_rounds_the_exact_value_once(a: np.float32, b: np.float32, c: np.float32) -> None:
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    out = np.zeros(1, f32)
    map_fma(np.array([a]), np.array([b]), np.array([c]), out)
    assert bits(out[0]) == bits(scalars.fma(a, b, c)) == bits(meaning.fma(a, b, c))
    if exact:  # the sign of a zero is IEEE's affair
        assert bits(out[0]) == bits(nearest(exact))


def test_fma_is_the_golden_one_and_two_roundings_are_not() -> None:
    a, b, c = floats("fma_a"), floats("fma_b"), floats("fma_c")
    fused, apart = np.empty_like(a), np.empty_like(a)
    map_fma(a, b, c, fused)
    map_two_roundings(a, b, c, apart)
    assert bits(fused) == VECTORS["fma_y"].tolist() == bits(meaning.fma(a, b, c))
    assert bits(apart) == bits(a * b + c)
    assert bits(apart) != bits(fused)


@pytest.mark.parametrize(("kind", "name"), [(0, "exp2c"), (1, "sig")])
def test_exp2c_and_sigmoid_are_the_golden_ones(kind: int, name: str) -> None:
    x = floats(f"{name}_u" if kind == 0 else f"{name}_x")
    out = np.empty_like(x)
    map_one(kind, x, out)
    whole = meaning.exp2c if kind == 0 else meaning.sigmoid
    assert bits(out) == VECTORS[f"{name}_y"].tolist() == bits(whole(x))


@given(FLOATS, FLOATS, FLOATS, st.integers(-(2**63), 2**63 - 1))
def test_python_and_compiled_scalars_agree(
    a: np.float32, b: np.float32, c: np.float32, n: int
) -> None:
    if np.isnan(a) or np.isnan(b) or np.isnan(c):
        return  # payloads of NaN are nobody's promise; NaN inputs have tests of their own
    made, meant = np.zeros(16, f32), np.zeros(16, f32)
    every_scalar(a, b, c, n, made)
    every_scalar.py_func(a, b, c, n, meant)  # type: ignore[attr-defined]
    nan = np.isnan(made)
    assert nan.tolist() == np.isnan(meant).tolist()
    assert bits(made[~nan]) == bits(meant[~nan])
    for at, whole in ((8, meaning.exp2c(a)), (10, meaning.sigmoid(a))):
        assert bits(made[at]) == bits(whole)


def test_a_nan_becomes_zero_where_the_contract_says_so() -> None:
    nan = f32(np.nan)
    assert bits(scalars.exp2c(nan)) == bits(meaning.exp2c(nan)) == bits(f32(0))
    assert scalars.q16_value(nan, f32(1)) == 0


def test_exp2c_is_never_subnormal_and_never_above_one_below_zero() -> None:
    patterns = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    edges = np.array([-126, -0.0, 0, 127.99999, 128, -1e-45, 1e-45, np.inf, -np.inf], f32)
    u = np.concatenate([patterns.view(f32), edges, np.nextafter(edges, f32(-np.inf))])
    y = np.empty_like(u)
    map_one(0, u, y)
    assert bits(y) == bits(meaning.exp2c(u))
    assert not ((y > 0) & (y < f32(2.0**-126))).any()
    assert (y[u <= 0] <= 1).all()
    assert (y[u >= 0] >= 1).all()
    assert (y[u < -126] == 0).all()
    assert bits(meaning.exp2c(np.array([0, -0.0], f32))) == bits(np.array([1, 1], f32))


def test_sigmoid_stays_between_zero_and_one() -> None:
    patterns = np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32)
    x = patterns.view(f32)
    y = np.empty_like(x)
    map_one(1, x, y)
    assert ((y >= 0) & (y <= 1)).all()


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**53 + 2**29 + 1)  # through float64 this would round twice
@example((1 << 54) + (1 << 30) + 1)
def test_rn_is_direct(n: int) -> None:
    out = np.zeros(16, f32)
    every_scalar(f32(1), f32(1), f32(1), n, out)
    assert bits(out[7]) == bits(scalars.rn(n)) == bits(nearest(Fraction(n)))


@given(NUMBERS.map(abs).filter(lambda x: x > 0))
@example(f32(32639.5))
@example(np.nextafter(f32(32639.5), f32(0)))
@example(f32(1e-45))
def test_the_row_exponent_is_the_least_that_fits(amax: np.float32) -> None:
    e = int(scalars.least_exponent(amax))
    if amax >= f32(2.0**-126):  # below, the clamp decides
        assert round(Fraction(float(amax)) / Fraction(2) ** e) <= meaning.QMAX
        assert round(Fraction(float(amax)) / Fraction(2) ** (e - 1)) > meaning.QMAX
    clamped = int(scalars.row_exponent(amax))
    assert clamped == min(max(e, meaning.EMIN), meaning.EMAX)
    assert meaning.q16(np.array([[amax]]))[1][0] == clamped


@pytest.mark.parametrize("name", ["mul", "add", "sub", "div"])
def test_a_float64_is_refused(name: str) -> None:
    operation = getattr(scalars, name)

    @numba.njit
    def widened(a: Any) -> Any:
        return operation(a, 2.0)

    with pytest.raises(numba.TypingError, match=r"float32, float64"):
        widened(f32(1))
