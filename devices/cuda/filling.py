"""Poison on a GPU: pages of every layer, and what no step may read before it wrote it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...core.kernels.cuda.poison import fill_flat, fill_pages, fill_spans
from ...core.kernels.poison import poison_value
from .card import Array, Card, Launch

PASSED = 15  # elements behind a buffer's rows: linear maps write whole blocks of 16
ROWS, SAMPLED, DRAFTING = range(3)  # row sets, which a step has a number of rows of each

Counts = tuple[int, int, int]


class Span(NamedTuple):
    """A buffer that a step's rows begin at `at` of an array, `width` elements a row of a set.

    most: rows that may be touched, however many there are; 0 for no such limit.
    """

    at: int
    width: int
    set: int = ROWS
    most: int = 0


def poison_pages(
    card: Card, arenas: Sequence[Array], pages: Sequence[int], room: Array, pattern: str
) -> None:
    """Fill pages of arenas [layers, pages, ., .]; room [.] int32: ids go through it."""
    layers, every = arenas[0].shape[:2]
    ids = (np.arange(layers)[:, None] * every + np.array(pages)).astype(np.int32).reshape(-1)
    most = room.shape[0]
    for first in range(0, len(ids), most):
        some = ids[first : first + most]
        held = room[: len(some)]
        card.upload(some, held)
        for arena in arenas:
            flat = arena.reshape(layers * every, arena.shape[2] * arena.shape[3])
            value = poison_value(pattern, arena.dtype)
            fill_pages(card.stream, flat, held, value, 0, len(some))
        card.wait()  # the next ids take the place of these


def poison_all(card: Card, buffers: Iterable[Array], pattern: str) -> None:
    """Fill whole buffers."""
    for buffer in buffers:
        fill_flat(card.stream, flat_of(buffer), poison_value(pattern, buffer.dtype))


def flat_of(array: Array) -> Array:
    """All elements, one behind another."""
    return array.reshape(int(np.prod(array.shape)))


class Soil:
    """Scratch that is poison, all of it, whenever a step begins.

    What a step may have touched is filled before the next one: the buffers' rows that its buckets
    have. So a read outside of these finds poison as well. Fills are graphs, by those buckets.
    """

    def __init__(
        self, card: Card, arrays: Mapping[str, Array], spans: Mapping[str, Sequence[Span]],
        pattern: str,
    ) -> None:  # fmt: skip
        """spans: what rows touch, by array; an array without spans is filled whole."""
        self._card, self._pattern = card, pattern
        self._arrays = list(arrays.values())
        self._whole = [array for name, array in arrays.items() if name not in spans]
        self._parted: list[tuple[Array, Array, Sequence[Span]]] = []
        shapes = {name: ((len(some), 4), np.int64) for name, some in spans.items()}
        for name, table in card.arrays(shapes).items():
            card.upload(np.array(spans[name], np.int64), table)
            card.wait()
            self._parted.append((flat_of(arrays[name]), table, spans[name]))
        self._touched: Counts | None = None  # None: anything
        self._fills: dict[Counts, Launch] = {}

    def warm(self) -> None:
        """Compile and load what fills; afterwards all is to be filled anew."""
        poison_all(self._card, self._arrays, self._pattern)
        self._fill((1, 1, 1))
        self._card.wait()
        self._touched = None

    def lay(self, counts: Counts) -> None:
        """Fill what is not poison any more, ahead of a step of so many rows of each set."""
        touched, self._touched = self._touched, counts
        if touched is None:
            poison_all(self._card, self._arrays, self._pattern)
        elif touched in self._fills:
            self._fills[touched]()
        else:
            self._fill(touched)  # once by itself: no kernel may be loaded while a graph is made
            self._fills[touched] = self._card.captured(lambda: self._fill(touched))

    def _fill(self, counts: Counts) -> None:
        poison_all(self._card, self._whole, self._pattern)
        for flat, table, spans in self._parted:
            most = max(PASSED + one.width * counts[one.set] for one in spans)
            value = poison_value(self._pattern, flat.dtype)
            fill_spans(self._card.stream, flat, table, PASSED, *counts, value, most)

    def close(self) -> None:
        """Let the graphs go."""
        self._fills.clear()
