"""The card of a machine without one: numba's simulator, for tests. NUMBA_ENABLE_CUDASIM=1."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from .card import Array, CardInfo, Launch, Shape, check_room

TOTAL = 1 << 32  # bytes that it says it has


class SimulatedCard:
    """Arrays in the host's memory; everything is done when its call returns."""

    def __init__(self, total: int = TOTAL) -> None:
        self.stream: Any = 0
        self._total = total

    def count(self) -> int:
        """One."""
        return 1

    def use(self) -> None:
        """There is one card for all threads."""

    def info(self) -> CardInfo:
        """No card at all."""
        return CardInfo("simulator", self._total, self._total, "none")

    def arrays(self, shapes: Mapping[str, Shape]) -> dict[str, Array]:
        """Arrays of zeros."""
        check_room(shapes, self.info())
        return {n: cuda.to_device(np.zeros(axes, kind)) for n, (axes, kind) in shapes.items()}

    def staged(self, bytes_: int) -> NDArray[np.uint8]:
        """Bytes on the host."""
        return np.zeros(bytes_, np.uint8)

    def upload(self, host: NDArray[Any], to: Array) -> None:
        """Copy at once."""
        to.copy_to_device(host.reshape(to.shape))

    def download(self, of: Array, to: NDArray[Any]) -> None:
        """Copy at once."""
        to[...] = of.copy_to_host().reshape(to.shape)

    def captured(self, launches: Launch) -> Launch:
        """There are no graphs: the launches themselves."""
        return launches

    def wait(self) -> None:
        """Everything is done."""

    def close(self) -> None:
        """Memory goes with the arrays."""
