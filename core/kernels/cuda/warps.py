"""What the threads of a warp or a block do together; what they add up is integers, in any order."""

import numpy as np
from numba import cuda

from .target import SIMULATED, WARP, device

ALL_LANES = 0xFFFFFFFF

if SIMULATED:
    _came_with = {}

    @device
    def everyone(value):
        """What every thread of the block came with."""
        _came_with[cuda.threadIdx.x] = value
        cuda.syncthreads()
        values = [_came_with[thread] for thread in range(cuda.blockDim.x)]
        cuda.syncthreads()
        return values

    @device
    def warp_sum(value):
        """The sum over a warp, in every thread of it; modulo 2^64."""
        first = cuda.threadIdx.x // WARP * WARP
        values = everyone(value)[first : first + WARP]
        return type(value)(wrapped(sum(int(one) for one in values), np.dtype(type(value))))

    @device
    def warp_max(value):
        """The largest over a warp, in every thread of it."""
        first = cuda.threadIdx.x // WARP * WARP
        return max(everyone(value)[first : first + WARP])

    def wrapped(total, dtype):
        """An integer brought into the range of a type."""
        size = 8 * dtype.itemsize
        low = total & ((1 << size) - 1)
        return low - (1 << size) if dtype.kind == "i" and low >> (size - 1) else low

    @device
    def block_sum(value, room):
        """As on a device; `room` is not needed here."""
        return type(value)(sum(int(one) for one in everyone(value)))

    @device
    def block_max(value, room):
        """As on a device; `room` is not needed here."""
        return max(everyone(value))

    @device
    def lane_value(value, lane):
        """The value of another lane of the warp."""
        return everyone(value)[cuda.threadIdx.x // WARP * WARP + lane]

    @device
    def warp_top(value):
        """The largest int32 over a warp, in every thread of it."""
        return max(everyone(value))

    @device
    def warp_meets():
        """What lanes of a warp wrote before it, they all see after it."""
        cuda.syncthreads()

    @device
    def lane_apart(value, apart):
        """The value of the lane whose number differs in the bits of `apart`."""
        return everyone(value)[cuda.threadIdx.x ^ apart]

    @device
    def block_rank(flag, room):
        """As on a device; `room` is not needed here."""
        flags = everyone(flag)
        return sum(flags[: cuda.threadIdx.x]), sum(flags)

else:

    def _over_warp(what):
        """One instruction that gives each thread of a warp the sum, or largest, of int32 values."""
        from llvmlite import ir
        from numba.core import types
        from numba.cuda.extending import intrinsic

        word = ir.IntType(32)
        text = f"redux.sync.{what}.s32 $0, $1, 0xffffffff;"
        inline = ir.InlineAsm(ir.FunctionType(word, [word]), text, "=r,r", side_effect=True)

        def emit(context, builder, signature, values):
            return builder.call(inline, values, attrs=["convergent"])

        @intrinsic
        def over_warp(typing, value):
            return types.int32(types.int32), emit

        return over_warp

    warp_top, warp_added = _over_warp("max"), _over_warp("add")

    @device
    def warp_sum(value):
        """The sum over a warp, in every thread of it; integers alone, whose order is no matter."""
        for apart in (16, 8, 4, 2, 1):
            value += cuda.shfl_xor_sync(ALL_LANES, value, apart)
        return value

    @device
    def warp_max(value):
        """The largest over a warp, in every thread of it."""
        for apart in (16, 8, 4, 2, 1):
            value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, apart))
        return value

    @device
    def block_sum(value, room):
        """The sum over a block, in every thread; room: shared, an element a warp, of value's type.

        All threads of the block take part; whole warps.
        """
        value = warp_sum(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        mine = room[cuda.laneid] if cuda.laneid < cuda.blockDim.x >> 5 else value - value
        cuda.syncthreads()
        return warp_sum(mine)

    @device
    def block_max(value, room):
        """The largest over a block, in every thread; room as for block_sum."""
        value = warp_max(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        mine = room[min(cuda.laneid, (cuda.blockDim.x >> 5) - 1)]
        cuda.syncthreads()
        return warp_max(mine)

    @device
    def lane_value(value, lane):
        """The value of another lane of the warp; all lanes ask."""
        return cuda.shfl_sync(ALL_LANES, value, lane)

    @device
    def warp_meets():
        """What lanes of a warp wrote before it, they all see after it."""
        cuda.syncwarp()

    @device
    def lane_apart(value, apart):
        """The value of the lane whose number differs in the bits of `apart`; all lanes ask."""
        return cuda.shfl_xor_sync(ALL_LANES, value, apart)

    @device
    def block_rank(flag, room):
        """(threads before this one whose flag is set, all whose flag is set) of the block.

        room: shared, an int32 a warp.
        """
        votes = cuda.ballot_sync(ALL_LANES, flag)
        warp, lane = cuda.threadIdx.x >> 5, cuda.laneid
        if lane == 0:
            room[warp] = cuda.popc(votes)
        cuda.syncthreads()
        mine = room[lane] if lane < cuda.blockDim.x >> 5 else 0
        cuda.syncthreads()
        before = warp_sum(mine if lane < warp else 0)
        return before + cuda.popc(votes & ((1 << lane) - 1)), warp_sum(mine)
