"""Looking into one rank's pages: rows summed anew, rows read, bits flipped, poison laid."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.device import Pair
from ..core.kernels.packed import KEYS
from ..core.kernels.poison import fill_flat, poison_value
from ..core.kernels.rows import flip_bit, read_row, sum_rows
from ..events.facts import FaultInjected

Rows = NDArray[np.int16]
Exponents = NDArray[np.int8]
Table = NDArray[np.int32]  # the pages of a stream, in row order


class Looks(Protocol):
    """Looking into a rank's pages, wherever they are; as `Inspector` has it."""

    @property
    def layers(self) -> int:
        """Digest layers of the rows."""
        ...

    def sum(self, table: Table, first: int, last: int, layer: int | None = None) -> Pair:
        """The digest of rows [first, last) of one digest layer, or of all, from memory."""
        ...

    def read(self, table: Table, layer: int, position: int) -> dict[int, bytes]:
        """One row of a digest layer by head."""
        ...

    def read_rows(
        self, table: Table, layer: int, first: int, last: int
    ) -> dict[int, NDArray[np.uint64]]:
        """Rows [first, last) of a digest layer by head."""
        ...

    def flip(self, table: Table, fault: FaultInjected) -> None:
        """Turn one bit of a row over."""
        ...

    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every layer with what no sound row holds."""
        ...


class Pages(NamedTuple):
    """The arenas of pages on the host, as core/kernels/rows.py has them."""

    keys: Rows
    key_exponents: Exponents
    values: Rows
    value_exponents: Exponents


def fault_place(fault: FaultInjected, first_head: int, heads: int, layers: int, width: int) -> int:
    """The rank's own head that a fault is in. Raises ValueError where there is no such bit."""
    head = fault.head - first_head
    if fault.part != "rows":
        raise ValueError(f"faults go into part rows, not into {fault.part!r}")
    if fault.cache not in ("k", "v"):
        raise ValueError(f"a row's caches are k and v, not {fault.cache!r}")
    if not 0 <= head < heads:
        raise ValueError(f"rank {fault.rank} does not hold KV head {fault.head}")
    bits = 16 if fault.column < width else 8
    sizes = (("layer", layers // 2), ("column", width + 1), ("bit", bits))
    for name, size in sizes:
        if not 0 <= getattr(fault, name) < size:
            raise ValueError(f"{name} {getattr(fault, name)} is not below {size}")
    return head


@dataclass(slots=True)
class Inspector:
    """first_head: the number, in the whole model, of this rank's first KV head."""

    memory: Any  # a RankMemory; Pages will do to look
    first_head: int
    page_rows: int

    @property
    def layers(self) -> int:
        """Digest layers of the rows: K and V of each layer."""
        return 2 * int(self.memory.keys.shape[0])

    @property
    def heads(self) -> int:
        """KV heads of this rank."""
        return int(self.memory.keys.shape[2])

    def sum(self, table: Table, first: int, last: int, layer: int | None = None) -> Pair:
        """The digest of rows [first, last) of one digest layer, or of all, from memory."""
        low, high = (0, self.layers) if layer is None else (layer, layer + 1)
        sums = np.zeros(2, np.uint64)
        sum_rows(*self._pages, table, first, last, low, high, self.first_head, sums)
        return int(sums[0]), int(sums[1])

    def read(self, table: Table, layer: int, position: int) -> dict[int, bytes]:
        """One row of a digest layer by head, as the words that are digested: codes, exponent."""
        page, row = int(table[position // self.page_rows]), position % self.page_rows
        found = {}
        for head in range(self.heads):
            codes = np.zeros(self._width, np.int16)
            exponent = read_row(*self._pages, layer, page, head, row, codes)
            found[self.first_head + head] = codes.tobytes() + np.int64(exponent).tobytes()
        return found

    def read_rows(
        self, table: Table, layer: int, first: int, last: int
    ) -> dict[int, NDArray[np.uint64]]:
        """Rows [first, last) of a digest layer by head, [rows, words]: as `read`, many at once."""
        side, size, width = layer % 2, self.page_rows, self._width
        pages = table[first // size : -(-last // size)]
        data = self._pages[2 * side][layer // 2][pages]
        exponents = self._pages[2 * side + 1][layer // 2][pages]
        count = len(pages)
        if side == KEYS:  # [page, head][rows / 16][width / 2][16][2], see core/kernels/rows.py
            packed = data.reshape(count, self.heads, size // 16, width // 2, 16, 2)
            codes = packed.transpose(1, 0, 2, 4, 3, 5)
        else:  # [page, head][width / 16][rows / 2][16][2]
            packed = data.reshape(count, self.heads, width // 16, size // 2, 16, 2)
            codes = packed.transpose(1, 0, 3, 5, 2, 4)
        words = np.empty((self.heads, count * size, width // 4 + 1), np.uint64)
        rows = np.ascontiguousarray(codes).reshape(self.heads, count * size, width)
        words[:, :, :-1] = rows.view(np.uint64)
        by_head = exponents.astype(np.int64).transpose(1, 0, 2).reshape(self.heads, count * size)
        words[:, :, -1] = np.ascontiguousarray(by_head).view(np.uint64)
        start = first // size * size
        found = words[:, first - start : last - start]
        return {self.first_head + head: found[head] for head in range(self.heads)}

    def flip(self, table: Table, fault: FaultInjected) -> None:
        """Turn one bit of a row over; raises ValueError where there is no such bit."""
        head = fault_place(fault, self.first_head, self.heads, self.layers, self._width)
        layer = 2 * fault.layer + "kv".index(fault.cache)
        page, row = int(table[fault.position // self.page_rows]), fault.position % self.page_rows
        flip_bit(*self._pages, layer, page, head, row, fault.column, fault.bit)

    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every layer with what no sound row holds."""
        for cache in self._pages:
            cache[:, list(pages)] = poison_value(pattern, cache.dtype)

    def poison_scratch(self, pattern: str) -> None:
        """Fill what no step may read before it wrote it."""
        m = self.memory
        for buffer in (m.floats, m.codes, m.code_exponents, m.scratch):
            flat = buffer.reshape(-1)
            fill_flat(flat, poison_value(pattern, flat.dtype))
        for rows in (m.queries, m.query_exponents):
            rows[...] = poison_value(pattern, rows.dtype)

    @property
    def _pages(
        self,
    ) -> tuple[Rows, Exponents, Rows, Exponents]:
        m = self.memory
        return m.keys, m.key_exponents, m.values, m.value_exponents

    @property
    def _width(self) -> int:
        return int(self.memory.keys.shape[3]) // self.page_rows
