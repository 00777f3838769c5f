"""Linear on packed weights: integers to the bit, whoever computes which part."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

madd: Any = import_module("kvtape.core.kernels.madd")
packing: Any = import_module("kvtape.core.kernels.pack")
kernel: Any = import_module("kvtape.core.kernels.linear")

f32, i16 = np.float32, np.int16
QMAX = 32639


def packed(weights: NDArray[np.int16]) -> NDArray[np.int16]:
    into: NDArray[np.int16] = packing.aligned(packing.packed_size(*weights.shape), i16)
    packing.pack(weights, into)
    return into


def run(
    x: NDArray[np.int16],
    ex: NDArray[np.int8],
    weights: NDArray[np.int16],
    ew: NDArray[np.int8],
    cut: int = 0,
) -> NDArray[np.float32]:
    """All outputs, by two parties that share the blocks at `cut`."""
    (rows, inputs), blocks = x.shape, len(weights) // 16
    y = np.full((rows, len(weights)), np.nan, f32)
    pairs = x.view(np.int32).reshape(-1)
    for first, last in ((0, cut), (cut, blocks)):
        kernel.linear(
            pairs, ex, packed(weights), ew, inputs // 2, rows, first, last,
            y.reshape(-1), len(weights), 0, False,
        )  # fmt: skip
    return y


def meant(
    x: NDArray[np.int16], ex: NDArray[np.int8], weights: NDArray[np.int16], ew: NDArray[np.int8]
) -> NDArray[np.float32]:
    """The definition in int64, which no dot product here can leave."""
    dots = x.astype(np.int64) @ weights.astype(np.int64).T
    power = np.ldexp(f32(1), ex[:, None].astype(np.int32) + ew[None])
    result: NDArray[np.float32] = dots.astype(f32) * power.astype(f32)
    return result


def same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.tobytes() == b.tobytes()


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 13),
    st.integers(1, 4),
    st.integers(1, 1024),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_every_shape_has_the_bits_of_the_definition(
    rows: int, blocks: int, pairs: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    x = kernel.extreme_rows(rng, rows, 2 * pairs)
    weights = kernel.extreme_rows(rng, 16 * blocks, 2 * pairs)
    ex, ew = (rng.integers(-30, 31, n, np.int8) for n in (rows, 16 * blocks))
    cut = data.draw(st.integers(0, blocks))
    assert same(run(x, ex, weights, ew, cut), meant(x, ex, weights, ew))


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("signs", ["equal", "opposite", "mixed"])
def test_the_longest_sum_of_the_largest_values_is_exact(rows: int, signs: str) -> None:
    inputs = 2 * madd.WIDE_PAIRS
    rng = np.random.default_rng(rows)
    x = np.full((rows, inputs), QMAX, i16)
    weights = np.full((16, inputs), QMAX, i16)
    if signs == "opposite":
        weights *= -1
    if signs == "mixed":
        weights[:, rng.permutation(inputs)[: inputs // 3]] *= -1
        weights[:, 5] = 1
    zero = np.zeros(16, np.int8)
    assert same(run(x, zero[:rows], weights, zero), meant(x, zero[:rows], weights, zero))


def test_the_dot_product_is_rounded_once() -> None:
    # 2^24 + 1 and its neighbours are ties or just past them: a second rounding would show.
    x = np.array([[4096, 1], [4096, 3], [8192, 1], [8192, 2], [8192, 3]], i16)
    weights = np.zeros((16, 2), i16)
    weights[:, 0], weights[:, 1] = 4096, np.arange(16)
    zero = np.zeros(16, np.int8)
    assert same(run(x, zero[:5], weights, zero), meant(x, zero[:5], weights, zero))


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    rng = np.random.default_rng(3)
    x, weights = kernel.extreme_rows(rng, 11, 96), kernel.extreme_rows(rng, 48, 96)
    ex, ew = rng.integers(-9, 9, 11, np.int8), rng.integers(-9, 9, 48, np.int8)
    whole = run(x, ex, weights, ew)
    for first in range(11):
        for last in range(first + 1, 12):
            part = run(x[first:last].copy(), ex[first:last], weights, ew)
            assert same(part, whole[first:last])


def test_adding_rounds_after_the_sum_and_leaves_other_columns_alone() -> None:
    rng = np.random.default_rng(4)
    x, weights = kernel.extreme_rows(rng, 4, 64), kernel.extreme_rows(rng, 32, 64)
    ex, ew = np.full(4, -20, np.int8), np.full(32, -10, np.int8)
    y = rng.standard_normal((4, 50)).astype(f32)
    expected = y.copy()
    expected[:, 9 + 16 : 9 + 32] += meant(x, ex, weights, ew)[:, 16:]
    kernel.linear(
        x.view(np.int32).reshape(-1),
        ex,
        packed(weights),
        ew,
        32,
        4,
        1,
        2,
        y.reshape(-1),
        50,
        9,
        True,
    )
    assert same(y, expected)


@given(st.integers(1, 70), st.integers(1, 70))
def test_packing_keeps_every_weight_and_pads_with_zeros(outputs: int, inputs: int) -> None:
    weights = np.arange(1, outputs * inputs + 1, dtype=i16).reshape(outputs, inputs)
    into = packed(weights)
    assert into.ctypes.data % 64 == 0
    assert same(packing.unpack(into, outputs, inputs), weights)
    assert np.count_nonzero(into) == outputs * inputs


def test_a_line_of_the_cache_holds_a_pair_of_inputs_for_16_outputs() -> None:
    weights = np.arange(32 * 6, dtype=i16).reshape(32, 6)
    lines = packed(weights).reshape(2, 3, 16, 2)
    assert lines[1, 2, 5].tolist() == weights[16 + 5, 4:6].tolist()
