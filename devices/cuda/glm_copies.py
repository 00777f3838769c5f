"""Kept states of a GLM on a GPU: copied there in stream order, or to the host for want of room.

A copy holds the state after its last row and the raw rows that a convolution would still read.
Pages that it owns stand on the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair
from ...core.kernels.cuda.copy import copy_pages
from ..glm.arena import RingSizes
from ..glm.copies import KeptPages
from ..ledger import Sums
from .card import Array
from .glm_memory import LOOKED, GlmCudaMemory

Pages = NDArray[np.int32]
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeptOnCard:
    """mark: rows before it.  place: of the copy on the card; or -1, and held has its arrays.

    sums: by part, at the mark.  pages: None where the pages themselves are kept.
    """

    mark: int
    place: int
    held: tuple[NDArray[np.float32], NDArray[np.float32]] | None
    sums: dict[str, Pair]
    pages: KeptPages | None


@dataclass(slots=True)
class CardCopies:
    """Where copies stand among kept_states and kept_raw; the last place is for those that pass."""

    memory: GlmCudaMemory
    rings: RingSizes
    layers: int
    taps: int
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.free = list(range(self._passing))[::-1]

    @property
    def _passing(self) -> int:
        return int(self.memory.kept_states.shape[0]) - 1

    def out(self, lane: int, mark: int) -> tuple[int, Any]:
        """The state of a lane whose last kept row is the one before `mark`: (place, held)."""
        place = self.free.pop() if self.free else self._passing
        self._move(lane, mark, place, back=False)
        if place < self._passing:
            return place, None
        held = tuple(self._brought(one) for one in self._places(place))
        return -1, held

    def back(self, lane: int, copy: KeptOnCard) -> None:
        """Put a state back, into any lane."""
        place = copy.place
        if copy.held is not None:
            place = self._passing
            for host, to in zip(copy.held, self._places(place), strict=True):
                self.memory.card.upload(host, to)
        self._move(lane, copy.mark, place, back=True)

    def let_go(self, copy: KeptOnCard) -> None:
        """Its place is free again."""
        if copy.place >= 0:
            self.free.append(copy.place)

    def pages_out(self, page_sums: Mapping[str, Sums], pages: Pages) -> KeptPages:
        """The rows and keys that stand on these pages, of every cache, and the pages' sums."""
        m = self.memory
        sums = {part: of_pages[pages] for part, of_pages in page_sums.items()}
        latent = self._pages(m.latent, m.looked_latent, pages, None)
        return KeptPages(latent, self._pages(m.keys, m.looked_keys, pages, None), sums)

    def pages_back(self, page_sums: Mapping[str, Sums], pages: Pages, kept: KeptPages) -> None:
        """Put rows, keys and sums on pages that were leased for them."""
        m = self.memory
        self._pages(m.latent, m.looked_latent, pages, kept.latent)
        self._pages(m.keys, m.looked_keys, pages, kept.keys)
        for part, of_pages in page_sums.items():
            of_pages[pages] = kept.sums[part]

    # --- pieces ----------------------------------------------------------------------------------

    def _places(self, place: int) -> tuple[Array, Array]:
        return self.memory.kept_states[place], self.memory.kept_raw[place]

    def _brought(self, of: Array) -> NDArray[np.float32]:
        host = np.empty(of.shape, np.float32)
        self.memory.card.download(of, host)
        self.memory.card.wait()
        return host

    def _move(self, lane: int, mark: int, place: int, *, back: bool) -> None:
        """Between a lane and a place, of every layer."""
        m, layers = self.memory, np.arange(self.layers)
        slots, rows, lanes = self.rings.states, self.rings.conv, int(m.states.shape[1])
        positions = np.arange(mark - self.taps + 1, mark) % rows  # a mark is a page, or more
        states = (layers * lanes + lane) * slots + (mark - 1) % slots
        raw = (((layers * lanes + lane) * rows)[:, None] + positions).reshape(-1)
        first = place * int(m.kept_states.shape[1])
        self._rows(m.states, m.kept_states, 3, 2, states, first + layers, back=back)
        order = np.arange(len(raw)) + first * (self.taps - 1)
        self._rows(m.conv_ring, m.kept_raw, 3, 3, raw, order, back=back)

    def _rows(
        self, arena: Array, kept: Array, axes: int, kept_axes: int, ids: Any, to: Any, *, back: bool
    ) -> None:
        """Copy rows, by ids over the first axes of both arrays."""
        m, card = self.memory, self.memory.card
        if not len(ids):
            return
        both = [
            (_flat(arena, axes), ids, m.looked_ids), (_flat(kept, kept_axes), to, m.looked_to)
        ]  # fmt: skip
        for _, numbers, held in both:
            card.upload(numbers.astype(np.int32), held[: len(numbers)])
        (rows, _, at), (rows_to, _, at_to) = reversed(both) if back else both
        copy_pages(card.stream, rows, at, rows_to, at_to, 0, len(ids))
        card.wait()  # the next ids take the place of these

    def _pages(
        self, arena: Array, room: Array, pages: Pages, put: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Pages of every cache on the host [caches, n, ., .]; or those of `put` onto the card."""
        m, card = self.memory, self.memory.card
        caches, every, per_page, width = arena.shape
        ids = (np.arange(caches)[:, None] * every + pages).astype(np.int32).reshape(-1)
        held = np.empty((len(ids), per_page * width), arena.dtype)
        if put is not None:
            held = np.ascontiguousarray(put).reshape(held.shape)
        flat = arena.reshape(caches * every, per_page * width)
        for first in range(0, len(ids), LOOKED):
            some = ids[first : first + LOOKED]
            side, here = room[: len(some)], held[first : first + len(some)]
            card.upload(some, m.looked_ids[: len(some)])
            there, order = (flat, m.looked_ids), (side, m.looked_order)
            if put is None:
                copy_pages(card.stream, *there, *order, 0, len(some))
                card.download(side, here)
            else:
                card.upload(here, side)
                copy_pages(card.stream, *order, *there, 0, len(some))
            card.wait()
        return held.reshape(caches, len(pages), per_page, width)


def _flat(array: Array, axes: int) -> Array:
    """The first axes as one, the others as another."""
    rows = int(np.prod(array.shape[:axes]))
    return array.reshape(rows, int(np.prod(array.shape[axes:])))
