"""Looking into a GLM's memory on a GPU: summed and poisoned there, read through the host."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair
from ...core.kernels.cuda.poison import fill_flat
from ...core.kernels.cuda.words import sum_paged, sum_ring, sum_state
from ...core.kernels.digest import PARTS
from ...core.kernels.words import ring_row, state_row
from ..glm.inspect import FIXED, GlmLooks, Seat, Words, Written, pooled
from .card import Array
from .filling import poison_pages
from .glm_memory import GlmCudaMemory


@dataclass(slots=True)
class GlmCudaInspector(GlmLooks):
    """See GlmLooks."""

    memory: GlmCudaMemory
    _sums: NDArray[np.uint64] = field(init=False)
    _fixed: NDArray[np.uint64] = field(init=False)
    _asked: list[Array] = field(init=False)  # cutting an array of the card takes its time
    _states: Array = field(init=False)

    def __post_init__(self) -> None:
        m = self.memory
        self._sums = m.card.staged(16).view(np.uint64)
        asked = m.asked_fixed.reshape(int(np.prod(m.asked_fixed.shape)))
        self._fixed = m.card.staged(asked.nbytes).view(np.uint64)
        self._asked = [asked, *(asked[at : at + 2] for at in range(0, asked.shape[0], 2))]
        self._states = m.states.view(np.uint64)

    # --- sums ------------------------------------------------------------------------------------

    def no_sums(self, seat: Seat) -> Array:
        """Sums [2] on the card; the stream's table is brought there, too."""
        m, card, table = self.memory, self.memory.card, np.ascontiguousarray(seat.table, np.int32)
        if len(table):
            card.upload(table, m.asked[: len(table)])
        fill_flat(card.stream, m.asked_sums, np.uint64(0))
        return m.asked_sums

    def add_paged(
        self, name: str, seat: Seat, first: int, last: int, step: int, part: str,
        caches: tuple[int, int], layer0: int, sums: Array,
    ) -> None:  # fmt: skip
        """Add the digests of rows on pages, `latent` or `keys`; a row every `step` positions."""
        m, span = self.memory, (first // step, last // step)
        words = m.arrays[name].view(np.uint64)
        sum_paged(m.card.stream, words, m.asked, *span, step, PARTS[part], *caches, layer0, sums)

    def add_state(self, seat: Seat, slot: int, layers: tuple[int, int], sums: Array) -> None:
        """Add the digests of some layers' states in a slot."""
        m, part = self.memory, PARTS["states"]
        sum_state(
            m.card.stream, self._states, seat.lane, slot, *layers, self.first_head, part, sums
        )

    def add_ring(
        self, seat: Seat, first: int, last: int, layers: tuple[int, int], sums: Array
    ) -> None:
        """Add the digests of raw rows [first, last)."""
        m, heads = self.memory, (self.first_head, self.heads)
        part = PARTS["rings"]
        sum_ring(m.card.stream, m.conv_ring, seat.lane, first, last, *layers, *heads, part, sums)

    def total(self, sums: Array) -> Pair:
        """What was added."""
        card = self.memory.card
        card.download(sums, self._sums)
        card.wait()
        return int(self._sums[0]), int(self._sums[1])

    def sum_fixed(self, seats: Sequence[Seat]) -> list[dict[str, Pair]]:
        """The digests of each seat's states and rings, as they are now; waited for once."""
        card, (every, *each) = self.memory.card, self._asked
        if not seats:
            return []
        fill_flat(card.stream, every, np.uint64(0))
        wanted = [(seat, part) for seat in seats for part in FIXED]
        for (seat, part), sums in zip(wanted, each, strict=False):
            self.add(seat, part, 0, max(1, seat.rows), (0, self.layers(part)), sums)
        card.download(every, self._fixed)
        card.wait()
        found = self._fixed.reshape(-1, len(FIXED), 2)[: len(seats)].tolist()
        return [{part: (a, b) for part, (a, b) in zip(FIXED, one, strict=True)} for one in found]

    # --- rows ------------------------------------------------------------------------------------

    def open(self, seat: Seat, part: str, layer: int, position: int) -> tuple[Words, Written]:
        """One row of one digest layer by head, brought to the host; and what brings it back."""
        m, own = self.memory, range(self.heads)
        if part in ("rows", "keys", "drafts"):
            cache = self.trunk if part == "drafts" else layer
            arena, step = (m.keys, self.kpool) if pooled(part, layer) else (m.latent, 1)
            if position % step != step - 1:
                return {}, _nothing  # a pool's key stands at its last position
            page, row = divmod(position // step, arena.shape[2])
            held, put_back = self._brought(arena[cache, int(seat.table[page]), row])
            return {0: held.view(np.uint64)}, put_back
        if part == "states":
            slot = (seat.rows - 1) % self.rings.states
            held, put_back = self._brought(m.states[layer, seat.lane, slot])
            rows = {h: state_row(held[None, None, None], 0, 0, 0, h) for h in own}
        elif part == "rings":
            held, put_back = self._brought(
                m.conv_ring[layer, seat.lane, position % self.rings.conv]
            )
            rows = {h: ring_row(held[None, None, None], 0, 0, 0, h, self.heads) for h in own}
        else:
            return {}, _nothing
        return {self.first_head + h: row for h, row in rows.items()}, put_back

    def _brought(self, of: Array) -> tuple[NDArray[Any], Written]:
        """What stands in a part of an array, in one piece; and what writes it there again."""
        card, held = self.memory.card, np.empty(of.shape, of.dtype)
        card.download(of, held)
        card.wait()
        return held, partial(self._put, held, of)

    def _put(self, held: NDArray[Any], to: Array) -> None:
        self.memory.card.upload(held, to)
        self.memory.card.wait()

    # --- poison ----------------------------------------------------------------------------------

    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every cache with what no sound row holds."""
        m = self.memory
        poison_pages(m.card, (m.latent, m.keys), pages, m.looked_ids, pattern)


def _nothing() -> None:
    """No row, nothing to write."""
