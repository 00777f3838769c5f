"""Looking into one GLM rank's memory: parts summed anew, rows read, bits flipped, poison laid."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.device import HeldRows, Pair
from ...core.families.caches import digest_layer
from ...core.kernels.digest import PARTS
from ...core.kernels.glm_memory import GlmMemory
from ...core.kernels.poison import fill_flat, poison_value
from ...core.kernels.words import paged_row, ring_row, state_row, sum_paged, sum_ring, sum_state
from ...events.facts import FaultInjected
from .arena import RingSizes

Table = NDArray[np.int32]  # the pages of a stream, in row order
Words = dict[int, NDArray[np.uint64]]  # of a row, by head
Written = Callable[[], None]
Sums = NDArray[np.uint64]
ELEMENT_BITS = 16  # a fault's column counts elements of 16 bits, whatever the part holds
FIXED = ("states", "rings")  # parts of a fixed size
DRAFT_ROWS, DRAFT_KEYS = 0, 1  # digest layers of part `drafts`


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a stream's memory is: its lane, its pages, and how many rows are kept."""

    lane: int
    table: Table
    rows: int


def pooled(part: str, layer: int) -> bool:
    """Whether a digest layer's rows are keys of pools, not of single tokens."""
    return part == "keys" or (part == "drafts" and layer == DRAFT_KEYS)


def _written() -> None:
    """Views of memory need no writing back."""


@dataclass(slots=True)
class GlmLooks:
    """Looking into memory, wherever it is.

    first_head: the number, in the whole model, of this rank's first recurrent head, of `heads`.
    recurrent, caches: layers with states, caches of rows; trunk: caches of the trunk; the drafter's
    is the one after.
    """

    rings: RingSizes
    first_head: int
    heads: int
    recurrent: int
    caches: int
    trunk: int
    kpool: int
    taps: int

    @abstractmethod
    def no_sums(self, seat: Seat) -> Any:
        """Sums [2] of nothing yet, for what a stream holds."""

    @abstractmethod
    def add_paged(
        self, name: str, seat: Seat, first: int, last: int, step: int, part: str,
        caches: tuple[int, int], layer0: int, sums: Any,
    ) -> None:  # fmt: skip
        """Add the digests of rows on pages, `latent` or `keys`; a row every `step` positions."""

    @abstractmethod
    def add_state(self, seat: Seat, slot: int, layers: tuple[int, int], sums: Any) -> None:
        """Add the digests of some layers' states in a slot."""

    @abstractmethod
    def add_ring(
        self, seat: Seat, first: int, last: int, layers: tuple[int, int], sums: Any
    ) -> None:
        """Add the digests of raw rows [first, last)."""

    @abstractmethod
    def total(self, sums: Any) -> Pair:
        """What was added."""

    @abstractmethod
    def open(self, seat: Seat, part: str, layer: int, position: int) -> tuple[Words, Written]:
        """One row of one digest layer by head, as words; and what writes them back."""

    @abstractmethod
    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every cache with what no sound row holds."""

    def sum(self, seat: Seat, part: str, first: int, last: int, layer: int | None = None) -> Pair:
        """The digest of rows [first, last) of one digest layer of a part, or of all, from memory.

        States have one row, the one after the last kept row; rings the rows that a convolution
        would still read; a pool's key stands at its last position.
        """
        own = (0, self.layers(part)) if layer is None else (layer, layer + 1)
        sums = self.no_sums(seat)
        self.add(seat, part, first, last, own, sums)
        return self.total(sums)

    def add(
        self, seat: Seat, part: str, first: int, last: int, own: tuple[int, int], sums: Any
    ) -> None:
        """Add the digests of rows [first, last) of some digest layers of a part; see `sum`."""
        (low, high), kpool, trunk = own, self.kpool, self.trunk
        if part == "rows":
            self.add_paged("latent", seat, first, last, 1, part, own, 0, sums)
        elif part == "keys":
            self.add_paged("keys", seat, first, last, kpool, part, own, 0, sums)
        elif part == "drafts":
            cache = (trunk, trunk + 1)
            if low <= DRAFT_ROWS < high:
                self.add_paged("latent", seat, first, last, 1, part, cache, -trunk, sums)
            if low <= DRAFT_KEYS < high:
                self.add_paged("keys", seat, first, last, kpool, part, cache, 1 - trunk, sums)
        elif part == "states" and seat.rows and first == 0 < last:
            self.add_state(seat, (seat.rows - 1) % self.rings.states, own, sums)
        elif part == "rings":
            first, last = max(first, seat.rows - self.taps + 1), min(last, seat.rows)
            self.add_ring(seat, first, last, own, sums)

    def sum_fixed(self, seats: Sequence[Seat]) -> list[dict[str, Pair]]:
        """The digests of each seat's states and rings, as they are now."""
        return [
            {part: self.sum(seat, part, 0, max(1, seat.rows)) for part in FIXED} for seat in seats
        ]

    def words(self, seat: Seat, part: str, layer: int, position: int) -> Words:
        """One row of one digest layer by head, as words."""
        return self.open(seat, part, layer, position)[0]

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        recurrent = self.recurrent if self.heads else 0
        drafting = 2 if self.caches > self.trunk else 0
        layers = {"rows": self.trunk, "keys": self.trunk, "drafts": drafting}
        return layers.get(part, recurrent if part in ("states", "rings") else 1)

    def rows(self, seat: Seat, part: str, layer: int, first: int, last: int) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at positions [first, last), by head."""
        held = self._positions(seat, part, layer, first, last)
        read = [self.words(seat, part, layer, position) for position in held]
        return {
            head: HeldRows(np.array(held), np.stack([row[head].reshape(-1) for row in read]))
            for head in (read[0] if read else {})
        }

    def _positions(self, seat: Seat, part: str, layer: int, first: int, last: int) -> range:
        """Where kept rows of a digest layer stand; see `sum`."""
        last = min(last, seat.rows)
        if part == "states":
            return range(first, min(last, 1))
        if part == "rings":
            return range(max(first, seat.rows - self.taps + 1, 0), last)
        step = self.kpool if pooled(part, layer) else 1
        return range(first + (step - 1 - first) % step, last, step)

    def flip(self, seat: Seat, fault: FaultInjected) -> None:
        """Turn one bit of a row over; raises ValueError where there is no such bit."""
        layer = digest_layer("glm", fault.part, fault.layer, fault.cache)
        if not 0 <= layer < self.layers(fault.part):
            raise ValueError(f"part {fault.part!r} has no layer {fault.layer}")
        rows, put_back = self.open(seat, fault.part, layer, fault.position)
        if fault.head not in rows:
            raise ValueError(f"rank {fault.rank} holds no {fault.part} of head {fault.head}")
        row = rows[fault.head]
        word, part = divmod(fault.column, 64 // ELEMENT_BITS)
        if not 0 <= word < row.size or not 0 <= fault.bit < ELEMENT_BITS:
            raise ValueError(f"column {fault.column}, bit {fault.bit} is not in this row")
        at = np.unravel_index(word, row.shape)
        row[at] ^= np.uint64(1 << (part * ELEMENT_BITS + fault.bit))
        put_back()


@dataclass(slots=True)
class GlmInspector(GlmLooks):
    """Looking into memory that is the host's."""

    memory: GlmMemory

    def no_sums(self, seat: Seat) -> Sums:
        """Sums [2]."""
        return np.zeros(2, np.uint64)

    def add_paged(
        self, name: str, seat: Seat, first: int, last: int, step: int, part: str,
        caches: tuple[int, int], layer0: int, sums: Sums,
    ) -> None:  # fmt: skip
        """Add the digests of rows on pages, `latent` or `keys`; a row every `step` positions."""
        words = getattr(self.memory, name).view(np.uint64)
        low, high = first // step, last // step
        sum_paged(words, seat.table, low, high, step, PARTS[part], *caches, layer0, sums)

    def add_state(self, seat: Seat, slot: int, layers: tuple[int, int], sums: Sums) -> None:
        """Add the digests of some layers' states in a slot."""
        words = self.memory.states.view(np.uint64)
        sum_state(words, seat.lane, slot, *layers, self.first_head, PARTS["states"], sums)

    def add_ring(
        self, seat: Seat, first: int, last: int, layers: tuple[int, int], sums: Sums
    ) -> None:
        """Add the digests of raw rows [first, last)."""
        ring, part = self.memory.conv_ring, PARTS["rings"]
        sum_ring(ring, seat.lane, first, last, *layers, self.first_head, self.heads, part, sums)

    def total(self, sums: Sums) -> Pair:
        """What was added."""
        return int(sums[0]), int(sums[1])

    def open(self, seat: Seat, part: str, layer: int, position: int) -> tuple[Words, Written]:
        """One row of one digest layer by head, as views of memory itself."""
        return self._views(seat, part, layer, position), _written

    def _views(self, seat: Seat, part: str, layer: int, position: int) -> Words:
        m, own = self.memory, range(self.heads)
        if part in ("rows", "keys", "drafts"):
            cache = self.trunk if part == "drafts" else layer
            rows, step = (m.keys, self.kpool) if pooled(part, layer) else (m.latent, 1)
            if position % step != step - 1:
                return {}  # a pool's key stands at its last position
            return {0: paged_row(rows.view(np.uint64), seat.table, cache, position // step)}
        if part == "states":
            slot = (seat.rows - 1) % self.rings.states
            return {
                self.first_head + h: state_row(m.states, seat.lane, slot, layer, h) for h in own
            }
        if part == "rings":
            heads = self.heads
            return {
                self.first_head + h: ring_row(m.conv_ring, seat.lane, position, layer, h, heads)
                for h in own
            }
        return {}

    def poison_pages(self, pages: tuple[int, ...], pattern: str) -> None:
        """Fill pages of every cache with what no sound row holds."""
        for rows in (self.memory.latent, self.memory.keys):
            rows[:, list(pages)] = poison_value(pattern, rows.dtype)

    def poison_scratch(self, pattern: str) -> None:
        """Fill what no step may read before it wrote it."""
        m = self.memory
        for buffer in (
            m.floats, m.codes, m.code_exponents, m.scores, m.work, m.expert_codes, m.expert_floats,
        ):  # fmt: skip
            flat = buffer.reshape(-1)
            fill_flat(flat, poison_value(pattern, flat.dtype))
