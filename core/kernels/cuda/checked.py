"""What a linear map is checked by on a device: its weight rows summed, in the form of its weights.

With exact sums, sum_n acc_n = sum_k q_k S_k modulo 2^64, S_k = sum_n W_nk, for every row q: so the
outputs of a map are added up, the product with S is taken off, and nothing may be left. S has three
digits, which go through the kernel as outputs of one block more; no right launch leaves a rest.

A launcher's check is (planes, word): planes as here, for the outputs that it makes; word [1] int64
on the device, to which the launch adds what is left, modulo 2^64: 0 where all is right.
"""

import numpy as np

from .planes import OUTPUTS, pack_planes, planes_size

DIGITS, BITS = 3, 16  # of a sum: outputs of a block, and what each is worth more than the last


def check_planes(weights, groups):
    """weights [N, K] int16 -> [planes_size(16 * groups, K)] int8: of each group of outputs a block.

    Groups are equal and of consecutive outputs: one for linear, two for gated (gates, ups), one a
    head for linear_heads, two for an expert's map up and one for its map back; experts follow one
    another. S = d0 + 2^16 d1 + 2^32 d2 are outputs 0 to 2 of the block, the others are zero.
    """
    outputs, inputs = weights.shape
    assert groups > 0 and outputs % groups == 0, (outputs, groups)
    parts = weights.reshape(groups, outputs // groups, inputs)
    return planes_of_sums(parts.sum(axis=1, dtype=np.int64))


def planes_of_sums(sums):
    """The same from sums [groups, K] int64 of weight rows."""
    (groups, inputs), rest = sums.shape, sums
    blocks = np.zeros((groups, OUTPUTS, inputs), np.int16)
    for digit in range(DIGITS):
        blocks[:, digit] = rest.astype(np.int16)  # the low bits, as a signed number
        rest = (rest - blocks[:, digit]) >> BITS
    assert not rest.any(), "sums of weight rows with too many digits"
    made = np.zeros(planes_size(groups * OUTPUTS, inputs), np.int8)
    pack_planes(blocks.reshape(groups * OUTPUTS, inputs), made)
    return made
