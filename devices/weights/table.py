"""An embedding table as kernels read it: the two halves of each float32, without a copy if bf16."""

import mmap

import numpy as np
from numpy.typing import NDArray

from .safetensors_file import ROWS_AT_ONCE, Place, widen

Halves = tuple[NDArray[np.uint16], NDArray[np.uint16]]


def halves(place: Place) -> Halves:
    """(high uint16 [V, D], low uint16 [V, D]) of the float32 values; low is [0, D] for bf16."""
    if place.dtype == "BF16":
        return _mapped(place), np.empty((0, place.shape[1]), np.uint16)
    stored, columns = place.view(), place.shape[1]
    high, low = np.empty(place.shape, np.uint16), np.empty(place.shape, np.uint16)
    step = max(1, ROWS_AT_ONCE // columns)
    for at in range(0, len(stored), step):
        bits = widen(place.dtype, stored[at : at + step]).view(np.uint32)
        high[at : at + step], low[at : at + step] = bits >> 16, bits & 0xFFFF
    place.let_go(0, len(stored))
    return high, low


def _mapped(place: Place) -> NDArray[np.uint16]:
    """bf16 values where they lie in the file.

    The mapping is private and may be written, so that compiled loops see the same type of array as
    everywhere else; nobody writes.
    """
    if place.first % 2:  # a header of odd length: its values are not aligned
        return place.view().copy()
    start = place.first // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with place.file.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), place.last - start, access=mmap.ACCESS_COPY, offset=start)
    found = np.frombuffer(mapped, np.uint16, offset=place.first - start)
    return found.reshape(place.shape)
