"""Looking into pages on a GPU: summed there, read through the host, flipped, poisoned."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair
from ...core.kernels.cuda.copy import copy_pages
from ...core.kernels.cuda.poison import fill_flat
from ...core.kernels.cuda.rows import flip_bit, sum_rows
from ...events.facts import FaultInjected
from ..inspect import Inspector, Pages, Table, fault_place
from .filling import poison_pages
from .memory import PAGES, CudaMemory


@dataclass(slots=True)
class CudaInspector:
    """first_head: the number, in the whole model, of this rank's first KV head."""

    memory: CudaMemory
    first_head: int
    heads: int
    page_rows: int
    _sums: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        self._sums = self.memory.card.staged(16).view(np.uint64)

    @property
    def layers(self) -> int:
        """Digest layers of the rows: K and V of each layer."""
        return 2 * int(self.memory.keys.shape[0])

    def sum(self, table: Table, first: int, last: int, layer: int | None = None) -> Pair:
        """The digest of rows [first, last) of one digest layer, or of all, from memory."""
        low, high = (0, self.layers) if layer is None else (layer, layer + 1)
        m, card = self.memory, self.memory.card
        if last <= first or not self.heads:
            return 0, 0
        card.upload(np.ascontiguousarray(table), m.asked[: len(table)])
        fill_flat(card.stream, m.asked_sums, np.uint64(0))
        sum_rows(card.stream, *m.pages, m.asked, first, last, low, high, self.first_head,
                 m.asked_sums)  # fmt: skip
        card.download(m.asked_sums, self._sums)
        card.wait()
        return int(self._sums[0]), int(self._sums[1])

    def read(self, table: Table, layer: int, position: int) -> dict[int, bytes]:
        """One row of a digest layer by head, as the words that are digested: codes, exponent."""
        row = self.read_rows(table, layer, position, position + 1)
        return {head: words.tobytes() for head, words in row.items()}

    def read_rows(
        self, table: Table, layer: int, first: int, last: int
    ) -> dict[int, NDArray[np.uint64]]:
        """Rows [first, last) of a digest layer by head, [rows, words]: as `read`, many at once."""
        size = self.page_rows
        wanted = table[first // size : -(-last // size)]
        start = first // size * size
        host = Inspector(self._fetched(layer // 2, wanted), self.first_head, size)
        order = np.arange(len(wanted), dtype=np.int32)
        return host.read_rows(order, layer % 2, first - start, last - start)

    def _fetched(self, layer: int, wanted: Table) -> Pages:
        """Some pages of one layer, on the host, side by side."""
        m, card, count = self.memory, self.memory.card, len(wanted)
        card.upload(np.ascontiguousarray(wanted), m.page_ids[:count])
        found = []
        for arena, room in zip(m.pages, 2 * (m.looked_rows, m.looked_exponents), strict=True):
            _, pages, heads, width = arena.shape
            flat, side = arena[layer].reshape(pages, heads * width), room[:count]
            copy_pages(card.stream, flat, m.page_ids, side, m.page_order, 0, count)
            host = np.empty((count, heads * width), arena.dtype)
            card.download(side, host)
            card.wait()
            found.append(host.reshape(1, count, heads, width)[:, :, : self.heads])
        return Pages(*found)

    def flip(self, table: Table, fault: FaultInjected) -> None:
        """Turn one bit of a row over; raises ValueError where there is no such bit."""
        m = self.memory
        width = int(m.keys.shape[3]) // self.page_rows
        head = fault_place(fault, self.first_head, self.heads, self.layers, width)
        layer = 2 * fault.layer + "kv".index(fault.cache)
        page, row = int(table[fault.position // self.page_rows]), fault.position % self.page_rows
        flip_bit(m.card.stream, *m.pages, layer, page, head, row, fault.column, fault.bit)

    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every layer with what no sound row holds."""
        m = self.memory
        poison_pages(m.card, m.pages, pages, m.page_ids, pattern)


assert Pages._fields == PAGES
