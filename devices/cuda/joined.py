"""One rank among others on GPUs: who owns which columns, headers to compare, why it all ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.cuda.columns import compare_headers
from ...core.link import RankLost
from ..circle import Circle
from .card import Array, Card, Launch, Shape

Spans = NDArray[np.int64]  # [world, 2]: each rank's first and last column


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a program's gathers, in float32 values: the most that one rank owns, the most in all."""

    own: int
    whole: int

    @classmethod
    def of(cls, gathers: Sequence[tuple[int, int, int, int]]) -> "Sizes":
        """From each gather's rows, width, first and last own column."""
        own = max((rows * (last - first) for rows, _, first, last in gathers), default=0)
        return cls(own, max((rows * width for rows, width, _, _ in gathers), default=0))


class Joined:
    """What both ways to gather share. A step's header goes round as columns of an array of them."""

    def __init__(self, card: Card, circle: Circle, arrays: dict[str, Shape]) -> None:
        """arrays: what the way needs beside the headers, all in one allocation."""
        self.card, self.circle = card, circle
        self.rank, self.world = circle.rank, circle.world
        shapes: dict[str, Shape] = {
            "headers": ((self.world,), np.int64),
            "parted": ((1,), np.int64),
            "spans": ((SPANS, self.world, 2), np.int64),
        }
        self.arrays = card.arrays(shapes | arrays)
        self._spans = 0
        self._known: dict[bytes, int] = {}
        self._words: NDArray[np.int64] = card.staged(16).view(np.int64)

    @property
    def reason(self) -> str:
        """Why no rank can go on, "" while they can."""
        return self.circle.reason

    def spans_of(self, x: Array, first: int, last: int) -> Spans:
        """Every rank's columns of a buffer; they must be all of it, side by side."""
        rows, width = x.shape
        every = self.circle.words([rows, width, first, last])
        ends = [0, *every[:, 3].tolist()]
        if (every[:, :2] != (rows, width)).any() or every[:, 2].tolist() != ends[:-1]:
            raise AssertionError(f"ranks gather other columns: {every.tolist()}")
        assert ends[-1] == width, f"of {width} columns, nobody owns those past {ends[-1]}"
        return np.ascontiguousarray(every[:, 2:])

    def on_card(self, spans: Spans) -> Array:
        """Spans as an array of the card; equal ones share it."""
        key = spans.tobytes()
        if key not in self._known:
            self._known[key] = at = len(self._known)
            assert at < SPANS, f"more than {SPANS} ways to share columns"
            self.card.upload(spans, self.arrays["spans"][at])
            self.card.wait()
        return self.arrays["spans"][self._known[key]]

    @property
    def header_columns(self) -> tuple[Array, int, int]:
        """The headers as float32 columns [1, 2 * world], and which of them are own."""
        flat = self.arrays["headers"].view(np.float32).reshape(1, 2 * self.world)
        return flat, 2 * self.rank, 2 * self.rank + 2

    @property
    def compared(self) -> Launch:
        """Look at the headers, once all are here."""
        headers, parted = self.arrays["headers"], self.arrays["parted"]
        return partial(compare_headers, self.card.stream, headers, parted)

    def begin(self, step: int, header: int) -> None:
        """A step is about to be put into the stream."""
        self.circle.step = step
        self._words[0] = header
        self.card.upload(self._words[:1], self.arrays["headers"][self.rank : self.rank + 1])

    def end(self) -> None:
        """All of it is in the stream."""
        self.card.download(self.arrays["parted"], self._words[1:])

    def check(self, step: int) -> None:
        """The stream has been waited for. Raises RankLost: another step, or a rank that is gone."""
        if self.reason:
            raise RankLost(self.reason)
        if self._words[1]:
            raise RankLost(
                f"rank {self._words[1]} was about to run another step than rank 0's {step}"
            )

    def stop(self, reason: str) -> None:
        """End every rank's step, from any thread; the first reason stays."""
        self.circle.stop(reason)

    def close(self) -> None:
        """No step comes any more."""
        self.circle.close()


SPANS = 64  # ways to share columns that a program may have
