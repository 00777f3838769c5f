"""Matrices stored as e4m3 codes with a float32 scale for each block of 128 rows and columns."""

import numpy as np
from numpy.typing import NDArray

BLOCK = 128


def _values() -> NDArray[np.float32]:
    """What each of the 256 codes means: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    sizes = np.where(exponent > 0, normal, np.ldexp(mantissa / 8, -6))
    sizes[codes & 0x7F == 0x7F] = np.nan  # the format has no infinities
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


VALUES = _values()


def dequantise(
    codes: NDArray[np.uint8], scales: NDArray[np.float32], first: int
) -> NDArray[np.float32]:
    """Each value times its block's scale, rounded once: float32 [n, columns].

    codes [n, columns]: rows of a matrix from row `first` on; scales: of the whole matrix.
    """
    n, columns = codes.shape
    blocks = np.arange(first, first + n) // BLOCK
    with np.errstate(all="ignore"):  # what is no number is named where it is quantised
        out: NDArray[np.float32] = VALUES[codes]
        out *= np.repeat(scales[blocks], BLOCK, axis=1)[:, :columns]
        return out
