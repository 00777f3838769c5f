"""Shared memory of simulated blocks, watched: what threads do to a word between two barriers.

Two threads that touch a word without a barrier between them, one of them writing another value, are
a hazard, whatever order the simulator gave them. What a block does together is a barrier, as it is
on a device; a warp's shuffles and votes are none, for its threads stand for many warps.
"""

import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
from numba import cuda as numba_cuda
from numba.core import types
from numba.cuda.simulator import kernel as simulator
from numba.cuda.simulator import kernelapi
from numba.np import numpy_support

from kvtape.core.kernels.cuda.target import kernel

cuda: Any = numba_cuda
ATOMICS = ("add", "sub", "max", "min", "cas", "exch", "and_", "or_", "xor", "inc", "dec")
OF_A_BLOCK = ("block_sum", "block_max", "block_rank")  # of warps.py, which meet on a device, too
When = tuple[Any, int]  # block, barriers that the thread has met


@dataclass(slots=True)
class Word:
    """What was done to a word since the barrier of `when`: by whom, and atomically or not."""

    when: When | None = None
    wrote: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    atomic: set[int] = field(default_factory=set)


class Watch:
    """All words of all shared arrays of a launch; what was found, by place in the code."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.words: dict[tuple[int, int], Word] = {}
        self.found: dict[str, str] = {}
        self.inside = threading.local()  # an atomic operation
        self.arrays: list[Any] = []  # none goes, so that none has another's name

    def touched(self, array: int, index: int, kind: str) -> None:
        """A thread reads or writes a word; "same" is a write of what is there."""
        thread: Any = threading.current_thread()
        me = thread.thread_id
        when = (tuple(thread.blockIdx), getattr(thread, "barriers", 0))
        atomic = getattr(self.inside, "atomic", False)
        with self.lock:
            word = self.words.setdefault((array, index), Word())
            if word.when != when:
                word.when = when
                word.wrote, word.read, word.atomic = set(), set(), set()
            others = word.wrote - {me}
            if kind == "write" or atomic:
                others |= word.read - {me}
            if not atomic:
                others |= word.atomic - {me}
            if others and kind != "same":
                self._found(kind, others)
            if atomic:
                word.atomic.add(me)
            elif kind != "read":
                word.wrote.add(me)
            else:
                word.read.add(me)

    def _found(self, kind: str, others: set[int]) -> None:
        frames = traceback.extract_stack(sys._getframe(3), 3)
        place = " < ".join(f"{one.name}:{one.lineno}" for one in reversed(frames))
        self.found.setdefault(place, f"{kind} beside threads {sorted(others)[:4]}")


class Watched:
    """A shared array whose words are watched, or a part of one from `first` on."""

    def __init__(self, watch: Watch, array: Any, whole: Any, first: int = 0) -> None:
        self._watch, self._array, self._whole, self._first = watch, array, whole, first
        watch.arrays.append(whole)

    @property
    def shape(self) -> Any:
        """As of the array."""
        return self._array.shape

    @property
    def dtype(self) -> Any:
        """As of the array."""
        return self._array.dtype

    @property
    def size(self) -> int:
        """As of the array."""
        return int(self._array.size)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            first, _, step = index.indices(len(self._array))
            assert step == 1
            return Watched(self._watch, self._array[index], self._whole, self._first + first)
        self._watch.touched(id(self._whole), self._first + int(index), "read")
        return self._array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self._array[index]
        self._array[index] = value
        kind = "same" if before == self._array[index] else "write"
        self._watch.touched(id(self._whole), self._first + int(index), kind)


@contextmanager
def watched() -> Iterator[Watch]:
    """Every launch within has its shared memory watched."""
    watch, atomics = Watch(), kernelapi.FakeCUDAAtomic

    def array(self: Any, shape: Any, dtype: Any) -> Any:
        if isinstance(dtype, types.Type):
            dtype = numpy_support.as_dtype(dtype)
        if shape == 0:
            kept = self._allocations.setdefault("dynamic", self._dynshared)
            size = self._dynshared_size // dtype.itemsize
            made = np.frombuffer(kept.data, dtype=dtype, count=size)
            return Watched(watch, made, kept)
        frame = sys._getframe(1)
        place = (frame.f_code.co_filename, frame.f_lineno, frame.f_lasti)
        made = self._allocations.setdefault(place, np.empty(shape, dtype))
        return Watched(watch, made, made)

    def meets(self: Any) -> None:
        barrier(self)
        asks, by = sys._getframe(2).f_code, sys._getframe(3).f_code
        if asks.co_name != "everyone" or by.co_name in OF_A_BLOCK:
            self.barriers = getattr(self, "barriers", 0) + 1

    def atomically(name: str) -> Any:
        plain = getattr(atomics, name)

        def operation(*given: Any) -> Any:
            watch.inside.atomic = True
            try:
                return plain(*given)
            finally:
                watch.inside.atomic = False

        return operation

    barrier: Any = simulator.BlockThread.syncthreads
    with (
        patch.object(kernelapi.FakeCUDAShared, "array", array),
        patch.object(simulator.BlockThread, "syncthreads", meets),
        patch.multiple(atomics, **{name: atomically(name) for name in ATOMICS}),
    ):
        yield watch


def neighbours(barrier: bool) -> dict[str, str]:
    """What is found where threads read what their neighbours wrote, after a barrier or without."""

    def swapped(out: Any) -> None:
        room, me = cuda.shared.array(4, types.int32), cuda.threadIdx.x
        room[me] = me + 1
        if barrier:
            cuda.syncthreads()
        out[me] = room[me ^ 1]

    with watched() as watch:
        kernel(swapped)[1, 4, 0](np.zeros(4, np.int32))
    return watch.found
