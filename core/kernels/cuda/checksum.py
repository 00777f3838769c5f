"""What the threads of a launch that checks itself add up: its outputs, less those of its check.

checked.py says what is in a check: a kernel's last argument, where it was made for checks; () where
it was not. All is modulo 2^64, so that no order and no overflow matters.
"""

import numpy as np
from numba import cuda
from numba.core import types

from .target import SIMULATED, WARP, device

i32, i64 = np.int32, np.int64
CHECKED = "_checked"  # in the name of a kernel that takes a check

if SIMULATED:
    from .warps import wrapped

    @device
    def counted(kept, total, output, own):
        """`kept` and one sum more: an output's, or output 0 to 15's of a block of check."""
        value = int(total) if own else -int(total) << 16 * (output & 3)
        return i64(wrapped(int(kept) + value, np.dtype(i64)))

    @device
    def add_up(word, kept):
        """Add what every thread of a block kept to word[0]; all of them come."""
        before, seen = word[0], None
        while seen != before:  # the simulator's own sums would complain of an overflow
            before = word[0]
            after = i64(wrapped(int(before) + int(kept), np.dtype(i64)))
            seen = cuda.atomic.cas(word, 0, before, after)

    @device
    def add_up_first(word, kept, items):
        """As on a device; all threads tell for themselves."""
        add_up(word, kept)

else:
    from .warps import warp_added

    APART = 2 * WARP  # threads whose warps do not meet
    PIECE = 26  # bits of a sum that a warp adds up at once: 32 of them are below 2^31

    @device
    def counted(kept, total, output, own):
        """`kept` and one sum more: an output's, or output 0 to 15's of a block of check."""
        return kept + total if own else kept - (total << (i64(output & 3) << i64(4)))

    @device
    def _warp_total(value):
        """The sum of an int64 over a warp, modulo 2^64, in pieces that cannot overflow."""
        mask = i64((1 << PIECE) - 1)
        low = warp_added(i32(value & mask))
        middle = warp_added(i32(value >> i64(PIECE) & mask))
        high = warp_added(i32(value >> i64(2 * PIECE)))
        return (i64(high) << i64(2 * PIECE)) + (i64(middle) << i64(PIECE)) + i64(low)

    @device
    def add_up(word, kept):
        """Add what every thread of a block kept to word[0]; all of them come, whole warps."""
        room, warp = cuda.shared.array(WARP, types.int64), cuda.threadIdx.x >> 5
        whole = _warp_total(kept)
        if cuda.laneid == 0:
            room[warp] = whole
        cuda.syncthreads()
        if warp == 0:
            whole = room[cuda.laneid] if cuda.laneid < cuda.blockDim.x >> 5 else i64(0)
            whole = _warp_total(whole)
            if cuda.laneid == 0:
                cuda.atomic.add(word, 0, whole)

    @device
    def add_up_first(word, kept, items):
        """As add_up, where only the first `items` threads have kept anything."""
        warp = cuda.threadIdx.x >> 5
        if items <= APART:
            if warp * WARP < items:
                whole = _warp_total(kept)
                if cuda.laneid == 0:
                    cuda.atomic.add(word, 0, whole)
            return
        add_up(word, kept)
