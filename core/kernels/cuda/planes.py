"""The form that weights have on a CUDA device: two planes of bytes, in the order of its mma.

A tile is 16 outputs by 32 inputs, 1,024 bytes: the high bytes of its int16 weights (signed), then
their low bytes (unsigned), so w = 256 high + low, and a parameter has 2 bytes. A block of outputs
has its tiles one after another. In a plane lane 4 g + t of a warp has 16 bytes side by side: inputs
8 t to 8 t + 3 of outputs g and g + 8, then 8 t + 4 to 8 t + 7 of both. That is its operand A of
mma.m16n8k32 if operand B has its inputs in the same order, which it has when lane 4 n + t reads the
8 int16 of row n at 8 t in one go.
"""

import numpy as np

OUTPUTS, INPUTS = 16, 32  # of a tile
TILE = OUTPUTS * INPUTS * 2  # bytes
PLANE = TILE // 2


def planes_size(outputs, inputs):
    """Bytes of a matrix: outputs padded to 16, inputs to 32."""
    return -(-outputs // OUTPUTS) * -(-inputs // INPUTS) * TILE


def pack_planes(weights, into):
    """weights [N, K] int16 -> into [planes_size] int8, flat; what pads it is zero."""
    outputs, inputs = weights.shape
    blocks, tiles = -(-outputs // OUTPUTS), -(-inputs // INPUTS)
    assert into.size == planes_size(outputs, inputs), (into.size, weights.shape)
    padded = weights
    if padded.shape != (blocks * OUTPUTS, tiles * INPUTS):
        padded = np.zeros((blocks * OUTPUTS, tiles * INPUTS), np.int16)
        padded[:outputs, :inputs] = weights
    # [block, half of outputs, g, tile, t, half of 8 inputs, 4 inputs, low or high byte]
    view = np.ascontiguousarray(padded).view(np.int8).reshape(blocks, 2, 8, tiles, 4, 2, 4, 2)
    out = into.reshape(blocks, tiles, 2, 8, 4, 2, 2, 4)
    out[...] = view[..., ::-1].transpose(0, 3, 7, 2, 4, 5, 1, 6)


def unpack_planes(planes, outputs, inputs):
    """The matrix [N, K] int16 of a packed form."""
    blocks, tiles = -(-outputs // OUTPUTS), -(-inputs // INPUTS)
    view = planes.reshape(blocks, tiles, 2, 8, 4, 2, 2, 4).transpose(0, 6, 3, 1, 4, 5, 7, 2)
    whole = np.ascontiguousarray(view[..., ::-1]).view(np.int16)
    return np.ascontiguousarray(whole.reshape(blocks * OUTPUTS, tiles * INPUTS)[:outputs, :inputs])
