"""A GPU through CuPy and numba: CuPy holds memory, stream and graphs, numba launches kernels."""

import logging
import threading
from collections.abc import Mapping
from typing import Any, Self

import cupy  # pyright: ignore[reportMissingImports]  # where there is a GPU
import numpy as np
from numba import cuda
from numpy.typing import NDArray

from .card import (
    LINE,
    TO_CARD,
    TO_HOST,
    Array,
    CardInfo,
    Launch,
    NoCard,
    Shape,
    bytes_of,
    check_room,
)
from .kernel_store import use_store

RUNTIME: Any = cupy.cuda.runtime
logging.getLogger("numba").setLevel(logging.WARNING)  # it tells of every start


class Gpu:
    """One GPU of this machine, used by any number of this process's threads in turn."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._seen = threading.local()
        self.use()
        self._stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.stream: Any = cuda.external_stream(self._stream.ptr)
        self.stream_address = int(self._stream.ptr)
        self._held: list[Any] = []

    @classmethod
    def open(cls, index: int) -> Self:
        """The GPU of that number. Raises NoCard."""
        use_store()
        try:
            count = int(RUNTIME.getDeviceCount())
        except RUNTIME.CUDARuntimeError as error:
            raise NoCard(f"--device cuda: this machine has no usable GPU ({error})") from error
        if index >= count:
            raise NoCard(f"--device cuda: rank {index} needs a GPU of its own, there are {count}")
        return cls(index)

    def count(self) -> int:
        """GPUs of this machine."""
        return int(RUNTIME.getDeviceCount())

    def use(self) -> None:
        """Make this the card of the calling thread."""
        if not getattr(self._seen, "here", False):
            cupy.cuda.Device(self.index).use()
            cuda.select_device(self.index)
            self._seen.here = True

    def info(self) -> CardInfo:
        """Its name, its memory, and what is free of it."""
        free, total = RUNTIME.memGetInfo()
        name = RUNTIME.getDeviceProperties(self.index)["name"].decode()
        version = int(RUNTIME.driverGetVersion())
        return CardInfo(
            name, int(total), int(free), f"CUDA {version // 1000}.{version % 100 // 10}"
        )

    def arrays(self, shapes: Mapping[str, Shape]) -> dict[str, Array]:
        """Arrays of zeros in one allocation of just their size."""
        need = check_room(shapes, self.info())
        memory = cupy.cuda.Memory(max(need, LINE))
        self._held.append(memory)
        RUNTIME.memsetAsync(memory.ptr, 0, need, self._stream.ptr)
        found, at = {}, 0
        for name, (axes, kind) in shapes.items():
            place = cupy.cuda.MemoryPointer(memory, at)
            found[name] = cuda.as_cuda_array(cupy.ndarray(axes, kind, memptr=place), sync=False)
            at += -(-bytes_of((axes, kind)) // LINE) * LINE
        self.wait()
        return found

    def staged(self, bytes_: int) -> NDArray[np.uint8]:
        """Pinned bytes on the host."""
        pinned = cupy.cuda.alloc_pinned_memory(bytes_)
        self._held.append(pinned)
        return np.frombuffer(pinned, np.uint8, bytes_)

    def upload(self, host: NDArray[Any], to: Array) -> None:
        """Copy in stream order."""
        assert host.flags.c_contiguous and host.nbytes == to.nbytes, (host.shape, to.shape)
        RUNTIME.memcpyAsync(
            to.device_ctypes_pointer.value, host.ctypes.data, host.nbytes, TO_CARD,
            self._stream.ptr,
        )  # fmt: skip

    def download(self, of: Array, to: NDArray[Any]) -> None:
        """Copy in stream order."""
        assert to.flags.c_contiguous and to.nbytes == of.nbytes, (of.shape, to.shape)
        RUNTIME.memcpyAsync(
            to.ctypes.data, of.device_ctypes_pointer.value, to.nbytes, TO_HOST, self._stream.ptr
        )

    def captured(self, launches: Launch) -> Launch:
        """A graph of what `launches` puts into the stream; kernels must have run before."""
        with self._stream:
            self._stream.begin_capture()
            try:
                launches()
            finally:
                graph = self._stream.end_capture()
        graph.upload(self._stream)
        return lambda: graph.launch(self._stream)

    def wait(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def close(self) -> None:
        """Let the memory go."""
        self._held.clear()
