"""Columns by way of the host: for ranks that share a GPU, or have no NCCL. A graph ends before."""

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.cuda.columns import pack_columns
from ..circle import Circle
from .card import Array, Card, Launch
from .gathering import Gathering
from .joined import Joined, Sizes

F32 = 4  # bytes


class GatherByLinks(Joined):
    """Own columns are copied to the host, handed round, and the whole is copied back."""

    said = "GPUs hand each other columns by way of the host, which takes its time (--gather links)"

    def __init__(self, card: Card, circle: Circle, sizes: Sizes) -> None:
        whole = max(sizes.whole, 2 * circle.world)
        super().__init__(card, circle, {"own": ((max(sizes.own, 2),), np.float32)})
        self._whole: NDArray[np.float32] = card.staged(whole * F32).view(np.float32)
        self._parts: NDArray[np.float32] = card.staged(whole * F32).view(np.float32)

    def bind(self, x: Array, first: int, last: int) -> list[Launch]:
        """Launches after which x [rows, width] has every rank's columns; [first, last) are own."""
        rows, width = x.shape
        spans = self.spans_of(x, first, last).tolist()
        whole = self._whole[: rows * width].reshape(rows, width)
        parts = [
            self._parts[rows * low : rows * high].reshape(rows, high - low) for low, high in spans
        ]
        own = self.arrays["own"][: rows * (last - first)]

        def hand_over() -> None:
            if last > first:
                pack_columns(self.card.stream, x, first, last, last - first, own)
                self.card.download(own, parts[self.rank].reshape(-1))
            self.card.wait()
            self.circle.hand(parts)
            for (low, high), part in zip(spans, parts, strict=True):
                whole[:, low:high] = part
            self.card.upload(whole, x)

        return [Gathering(hand_over)]

    def compare(self) -> list[Launch]:
        """Launches that stand before the first gather: whether all ranks mean the same step."""
        return [*self.bind(*self.header_columns), self.compared]
