"""A file mapped for reading, whose pages are let go of once their rows are taken."""

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .checkpoint import BadModel, ModelNotFound


class Mapped:
    """The bytes of a file: uint8 [size]. Pages count as memory of ours only while in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelNotFound(f"{path}: {error.strerror}") from error
        except ValueError as error:  # what mmap says of an empty file
            raise BadModel(f"{path}: the file is empty") from error
        self.bytes: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.bytes)

    def let_go(self, first: int, last: int) -> None:
        """Bytes [first, last) were read once; they come back from the file when asked for again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        last = last // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self.map.madvise(mmap.MADV_DONTNEED, first, last - first)
