"""The card where launches are only listed: arrays that nobody fills, to see what is launched."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .card import Array, CardInfo, Launch, Shape

ROOM = 1 << 46  # bytes that it says it has: the host gives none before they are written


class RecordingCard:
    """Everything is done at once, for there is nothing to do."""

    stream: Any = 0

    def count(self) -> int:
        """As many as anybody asks for."""
        return 64

    def use(self) -> None:
        """There is one card for all threads."""

    def info(self) -> CardInfo:
        """No card at all."""
        return CardInfo("recording", ROOM, ROOM, "none")

    def arrays(self, shapes: Mapping[str, Shape]) -> dict[str, Array]:
        """Arrays of zeros."""
        return {name: np.zeros(axes, kind) for name, (axes, kind) in shapes.items()}

    def staged(self, bytes_: int) -> NDArray[np.uint8]:
        """Bytes on the host."""
        return np.zeros(bytes_, np.uint8)

    def upload(self, host: NDArray[Any], to: Array) -> None:
        """What is in an array is no matter."""

    def download(self, of: Array, to: NDArray[Any]) -> None:
        """Nor here."""

    def captured(self, launches: Launch) -> Launch:
        """There are no graphs: the launches themselves."""
        return launches

    def wait(self) -> None:
        """Everything is done."""

    def close(self) -> None:
        """Memory goes with the arrays."""
