"""Single instructions by name, and what they mean in plain Python, which the simulator runs."""

import numpy as np
from numba.core import types

from .target import SIMULATED, device

i32 = np.int32


def _signed(value):
    """An integer's low 32 bits as int32."""
    return i32(np.uint32(int(value) & 0xFFFFFFFF).view(i32))


def _halves(word):
    return int(np.int16(np.uint16(int(word) & 0xFFFF).view(np.int16))), int(word) >> 16


def _low_halves(a, b):
    return _signed((int(a) & 0xFFFF) | (int(b) & 0xFFFF) << 16)


def _high_halves(a, b):
    return _signed((int(a) >> 16 & 0xFFFF) | (int(b) >> 16 & 0xFFFF) << 16)


def _dot_low(a, b, c):
    low, high = _halves(a)
    return _signed(int(c) + low * (int(b) & 255) + high * (int(b) >> 8 & 255))


def _dot_high(a, b, c):
    low, high = _halves(a)
    return _signed(int(c) + low * (int(b) >> 16 & 255) + high * (int(b) >> 24 & 255))


def _instruction(name, text, given, means):
    """An instruction over `given` int32 words that gives one."""
    if SIMULATED:
        return means
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    word = ir.IntType(32)
    form = ",".join(["=r"] + ["r"] * given)
    inline = ir.InlineAsm(ir.FunctionType(word, [word] * given), text, form)
    whole = types.int32

    def emit(context, builder, signature, values):
        return builder.call(inline, values)

    def two(typing, a, b):
        return whole(whole, whole), emit

    def three(typing, a, b, c):
        return whole(whole, whole, whole), emit

    one = two if given == 2 else three
    one.__name__ = name
    return intrinsic(one)


# The low, or the high, int16 of two words, side by side in one.
low_halves = _instruction("low_halves", "prmt.b32 $0, $1, $2, 0x5410;", 2, _low_halves)
high_halves = _instruction("high_halves", "prmt.b32 $0, $1, $2, 0x7632;", 2, _high_halves)
# c + the int16 of a by the low, or by the high, two unsigned bytes of b, modulo 2^32.
dot_low = _instruction("dot_low", "dp2a.lo.s32.u32 $0, $1, $2, $3;", 3, _dot_low)
dot_high = _instruction("dot_high", "dp2a.hi.s32.u32 $0, $1, $2, $3;", 3, _dot_high)

if SIMULATED:

    @device
    def four_of(array, at):
        """Four neighbouring float32 of an array [.]; `at` is a multiple of 4."""
        return array[at], array[at + 1], array[at + 2], array[at + 3]

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    @intrinsic
    def four_of(typing, array, at):
        """Four neighbouring float32 of an array [.] in one load; `at` is a multiple of 4."""

        def emit(context, builder, signature, values):
            given = context.make_array(signature.args[0])(context, builder, value=values[0])
            quad = ir.VectorType(ir.FloatType(), 4)
            place = builder.gep(given.data, [values[1]])
            pointer = builder.bitcast(place, quad.as_pointer(place.type.addrspace))
            loaded = builder.load(pointer, align=16)
            each = [builder.extract_element(loaded, ir.IntType(32)(k)) for k in range(4)]
            return context.make_tuple(builder, signature.return_type, each)

        return types.UniTuple(types.float32, 4)(array, types.int64), emit
