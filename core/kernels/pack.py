"""The packed form of a weight matrix, which the innermost loops read as one stream."""

import numpy as np

OUTPUTS = 16
ALIGNMENT = 64  # bytes: a line of the cache holds one pair of inputs for 16 outputs


def aligned(count, dtype):
    """A zeroed array [count] whose first byte is on a line of the cache."""
    dtype = np.dtype(dtype)
    room = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + count * dtype.itemsize].view(dtype)


def packed_size(outputs, inputs):
    """int16 values of a packed matrix: outputs padded to 16, inputs to 2."""
    return -(-outputs // OUTPUTS) * OUTPUTS * (inputs + inputs % 2)


def pack(weights, into):
    """weights [N, K] int16 -> into [packed_size] int16, flat, as [N / 16][K / 2][16][2]."""
    outputs, inputs = weights.shape
    assert into.size == packed_size(outputs, inputs), (into.size, weights.shape)
    blocks = into.reshape(-(-outputs // OUTPUTS), -1, OUTPUTS, 2)
    if outputs % OUTPUTS or inputs % 2:
        padded = np.zeros((blocks.shape[0] * OUTPUTS, blocks.shape[1] * 2), np.int16)
        padded[:outputs, :inputs] = weights
        weights = padded
    # A pair of inputs moves as one int32: half the elements to copy.
    pairs = np.ascontiguousarray(weights).view(np.int32).reshape(blocks.shape[0], OUTPUTS, -1)
    blocks.view(np.int32)[..., 0] = pairs.transpose(0, 2, 1)


def unpack(packed, outputs, inputs):
    """The matrix [N, K] int16 of a packed form."""
    assert packed.size == packed_size(outputs, inputs), (packed.size, outputs, inputs)
    blocks = packed.reshape(-(-outputs // OUTPUTS), -1, OUTPUTS, 2).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(blocks.reshape(blocks.shape[0] * OUTPUTS, -1)[:outputs, :inputs])
