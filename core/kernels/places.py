"""Many arrays as one: a table of addresses and shapes, read as arrays where they are used.

Compiled functions that hand on dozens of arrays take minutes to compile and count references to
all of them at every call; a row of this table is eight integers. Whoever makes the table keeps the
arrays alive.
"""

from collections.abc import Sequence

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from .registry import inner

f32, i8, i16, i32, i64 = np.float32, np.int8, np.int16, np.int32, np.int64
u8, u16, u64 = np.uint8, np.uint16, np.uint64
WORDS = 8  # of a row: the address, then the shape


def places_of(arrays: Sequence[np.ndarray]) -> NDArray[np.int64]:
    """The table [n, WORDS] of contiguous arrays."""
    table = np.zeros((len(arrays), WORDS), np.int64)
    for row, array in zip(table, arrays, strict=True):
        assert array.flags.c_contiguous, f"an array of {array.shape} is not contiguous"
        row[0] = array.ctypes.data
        row[1 : 1 + array.ndim] = array.shape
    return table


@intrinsic
def pointer(typing, address):
    """An address as a pointer."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    assert cgutils.voidptr_t == ir.IntType(8).as_pointer()
    return types.voidptr(types.int64), generate


@inner
def f32_1(places, name):
    """A float32 array [.]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1],), f32)


@inner
def f32_2(places, name):
    """A float32 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), f32)


@inner
def f32_3(places, name):
    """A float32 array of three axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3]), f32)


@inner
def f32_4(places, name):
    """A float32 array of four axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3], at[4]), f32)


@inner
def f32_5(places, name):
    """A float32 array of five axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3], at[4], at[5]), f32)


@inner
def f32_6(places, name):
    """A float32 array of six axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3], at[4], at[5], at[6]), f32)


@inner
def i16_1(places, name):
    """An int16 array [.]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1],), i16)


@inner
def i16_2(places, name):
    """An int16 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), i16)


@inner
def i16_4(places, name):
    """An int16 array of four axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3], at[4]), i16)


@inner
def i8_1(places, name):
    """An int8 array [.]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1],), i8)


@inner
def i8_2(places, name):
    """An int8 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), i8)


@inner
def i32_2(places, name):
    """An int32 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), i32)


@inner
def i64_1(places, name):
    """An int64 array [.]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1],), i64)


@inner
def i64_2(places, name):
    """An int64 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), i64)


@inner
def i64_3(places, name):
    """An int64 array of three axes."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2], at[3]), i64)


@inner
def u64_2(places, name):
    """A uint64 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), u64)


@inner
def u8_1(places, name):
    """A uint8 array [.]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1],), u8)


@inner
def u16_2(places, name):
    """A uint16 array [., .]."""
    at = places[name]
    return carray(pointer(at[0]), (at[1], at[2]), u16)
