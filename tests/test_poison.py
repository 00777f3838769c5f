"""Poison: no sound row holds it, the predicates know it, and only what is named is filled."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

copy: Any = import_module("kvtape.core.kernels.copy")
poison: Any = import_module("kvtape.core.kernels.poison")
quantise: Any = import_module("kvtape.core.kernels.quantise")


f32 = np.float32
ROWS = hnp.arrays(
    f32, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=st.floats(width=32)
)


@pytest.mark.parametrize("pattern", ["a", "b"])
def test_both_patterns_are_known_as_poison(pattern: str) -> None:
    assert poison.is_poison_q(poison.poison_value(pattern, np.int16))
    assert poison.is_poison_exponent(poison.poison_value(pattern, np.int8))
    assert poison.is_poison_exponent(poison.poison_value(pattern, np.int32))
    assert poison.is_poison_float(poison.poison_value(pattern, f32))


def test_the_patterns_are_the_written_ones() -> None:
    written = {"a": (0x8000, -128, 0x7FC00000), "b": (0x8080, 127, 0x7F7FFFFF)}
    for pattern, (row, exponent, number) in written.items():
        assert int(poison.poison_value(pattern, np.int16)) & 0xFFFF == row
        assert int(poison.poison_value(pattern, np.int8)) == exponent
        assert int(poison.poison_value(pattern, f32).view(np.uint32)) == number


@given(ROWS)
def test_no_row_that_q16_writes_is_poison(x: NDArray[np.float32]) -> None:
    q, e = np.zeros(x.shape, np.int16), np.zeros(len(x), np.int8)
    quantise.q16_rows(x, q, e, np.zeros(len(x), np.uint8), 0, len(x))
    assert not any(poison.is_poison_q(v) for v in q.ravel())
    assert not any(poison.is_poison_exponent(v) for v in e)


def test_only_the_named_pages_are_filled() -> None:
    pages = np.arange(20, dtype=np.int16).reshape(5, 4)
    ids = np.array([3, 1, 4], np.int32)
    poison.fill_pages(pages, ids, poison.poison_value("a", np.int16), 0, 2)
    assert (pages[[1, 3]] == -32768).all()
    assert pages[[0, 2, 4]].tolist() == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]


def test_a_copied_page_is_another_pages_bytes_and_the_rest_is_left() -> None:
    source = np.arange(12, dtype=np.int8).reshape(3, 4)
    target = np.zeros((3, 4), np.int8)
    copy.copy_pages(source, np.array([2, 0], np.int32), target, np.array([0, 1], np.int32), 0, 2)
    assert target.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3], [0, 0, 0, 0]]
