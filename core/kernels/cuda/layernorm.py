"""The CUDA twin of layernorm.py: a block a row."""

import numpy as np
from numba import cuda
from numba.core import types

from ..quantise import sound_amax
from ..scalars import (
    INF_BITS,
    ONE,
    absolute_bits,
    add,
    div,
    flt,
    mul,
    pow2,
    q16_value,
    rn,
    row_exponent,
    sqrt,
    sub,
)
from .quantise import greatest_number, row_tops
from .target import kernel, threads
from .twins import twin
from .warps import block_sum

i32, i64 = np.int32, np.int64
THREADS = 128


@kernel
def layernorm_block(x, w, b, eps, y, flags, first):
    """Row first + block; a thread reads its elements of x before it writes them, if y is x."""
    room, wide_room = cuda.shared.array(32, types.int32), cuda.shared.array(32, types.int64)
    at, width, me, step = first + cuda.blockIdx.x, w.shape[0], cuda.threadIdx.x, cuda.blockDim.x
    row, out = x[at], y[at]
    top, number = row_tops(row, width, room)
    exponent, total = row_exponent(flt(number)), i64(0)
    scale = pow2(-exponent)
    for i in range(me, width, step):
        total += i64(q16_value(row[i], scale))
    mean = div(mul(rn(block_sum(total, wide_room)), pow2(exponent)), rn(i64(width)))
    apart, number = i32(0), i32(0)
    for i in range(me, width, step):
        here = absolute_bits(sub(row[i], mean))
        apart = max(apart, here)
        number = max(number, here if here <= INF_BITS else i32(0))
    apart, number = greatest_number(apart, number, room)
    exponent, squares = row_exponent(flt(number)), i64(0)
    scale = pow2(-exponent)
    for i in range(me, width, step):
        digit = i32(q16_value(sub(row[i], mean), scale))
        squares += i64(i32(digit * digit))
    whole = mul(rn(block_sum(squares, wide_room)), pow2(i32(exponent + exponent)))
    r = div(ONE, sqrt(add(div(whole, rn(i64(width))), eps)))
    for i in range(me, width, step):
        out[i] = add(mul(mul(sub(row[i], mean), r), w[i]), b[i])
    if me == 0 and not (sound_amax(top) and sound_amax(apart)):
        flags[at] |= np.uint8(1)


def layernorm_rows(stream, x, w, b, eps, y, flags, first, last):
    """As the CPU's layernorm_rows."""
    if last > first:
        layernorm_block[last - first, threads(THREADS), stream](x, w, b, eps, y, flags, first)


twin("layernorm_rows", layernorm_rows)
