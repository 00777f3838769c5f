"""A step's tables as one block of bytes, copied onto the card at once; what comes back is its end.

A block has room for the most rows of a step; a step of fewer rows fills its bucket up with rows
that nobody asked for: token 0 at position 0 of a lane that no stream has, on the reserved pages.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.counting import CLEAN
from ...core.kernels.program_memory import Draws
from ..batch import Batch

WORD = 8
PLAIN = (0.0, 1.0, 1.0, 0.0, 0.0)  # how a row that nobody asked for is drawn: the largest logit


class Heard(NamedTuple):
    """What a step left: sums of each row, of its logits, flags, first poison by run, tokens."""

    row_sums: NDArray[np.uint64]
    logit_sums: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    picked_flags: NDArray[np.uint8]
    poisoned: NDArray[np.int64]
    tokens: NDArray[np.int64]


@dataclass(slots=True)
class Room:
    """Where each table of a step stands in a block of bytes.

    The last `told` bytes are zeroed by every step's copy and come back after it.
    """

    places: dict[str, tuple[int, tuple[int, ...], Any]] = field(default_factory=dict, init=False)
    bytes: int = field(default=0, init=False)
    told_at: int = field(default=0, init=False)

    def add(self, name: str, axes: tuple[int, ...], kind: Any) -> None:
        """A table behind those that are there."""
        self.places[name] = (self.bytes, axes, kind)
        size = int(np.prod(axes)) * np.dtype(kind).itemsize
        self.bytes += -(-size // WORD) * WORD

    def add_draws(self, rows: int) -> None:
        """How rows that get logits draw their tokens; see `Draws`."""
        self.add("draws", (5, rows), np.float32)
        self.add("whole", (4, rows), np.int64)
        self.add("bias_starts", (rows + 1,), np.int64)

    def add_checks(self, count: int) -> None:
        """A word for each matrix whose products are looked at; no table where none are."""
        if count:
            self.add("checks", (count,), np.int64)

    def views(self, block: Any) -> dict[str, Any]:
        """The tables in a block [bytes] of uint8, on the host or on the card."""
        found = {}
        for name, (at, axes, kind) in self.places.items():
            size = int(np.prod(axes)) * np.dtype(kind).itemsize
            found[name] = block[at : at + size].view(kind).reshape(axes)
        return found


@dataclass(slots=True)
class StepRoom(Room):
    """The tables of the llama. rows, lanes: of a step at most; entries: of a page table.

    checks: words that tell whether products were right.
    """

    rows: int
    lanes: int
    entries: int
    checks: int = 0

    def __post_init__(self) -> None:
        rows, lanes = self.rows, self.lanes
        for name in ("positions", "lanes", "selected", "logit_positions"):
            self.add(name, (rows,), np.int64)
        self.add("runs", (lanes, 5), np.int64)
        self.add("tables", (lanes + 1, self.entries), np.int32)
        self.add_draws(rows)
        self.told_at = self.bytes
        self.add_checks(self.checks)
        self.add("row_sums", (rows, 2), np.uint64)
        self.add("logit_sums", (rows, 2), np.uint64)
        self.add("poisoned", (lanes,), np.int64)
        self.add("tokens", (rows,), np.int64)
        self.add("flags", (rows,), np.uint8)
        self.add("picked_flags", (rows,), np.uint8)


def write_draws(at: dict[str, NDArray[Any]], draws: Draws, sampled: int) -> None:
    """A step's draws, filled up to `sampled` rows."""
    drawn = draws.whole.shape[1]
    at["draws"][:, :drawn] = draws.floats
    at["draws"][:, drawn:sampled] = np.array(PLAIN, np.float32)[:, None]
    at["whole"][:, :drawn] = draws.whole
    at["whole"][:, drawn:sampled] = 0
    at["bias_starts"][: drawn + 1] = draws.bias_starts
    at["bias_starts"][drawn + 1 : sampled + 1] = draws.bias_starts[-1]


class StepTables:
    """The block on the host, its views, and how a step is written into it."""

    def __init__(self, room: StepRoom, block: NDArray[np.uint8], pages: int) -> None:
        """pages: of the pool; the reserved ones are behind it."""
        self.room, self.block = room, block
        self.at: dict[str, NDArray[Any]] = room.views(block)
        self.told = block[room.told_at :]
        self._read, self._write = pages, pages + 1
        self.at["tables"][:] = self._read
        self.at["tables"][room.lanes, 0] = self._write

    def write(
        self, batch: Batch, draws: Draws, tables: NDArray[np.int32], rows: int, sampled: int
    ) -> None:
        """A step's tables, filled up to buckets of `rows` rows and `sampled` sampled ones."""
        at, have, drawn = self.at, batch.rows, len(batch.selected)
        self.told[:] = 0
        at["poisoned"][:] = CLEAN
        for name, values in (("positions", batch.positions), ("lanes", batch.lanes)):
            at[name][:have] = values
        at["positions"][have:rows] = 0
        at["lanes"][have:rows] = self.room.lanes
        at["selected"][:drawn] = batch.selected
        at["selected"][drawn:sampled] = 0
        at["logit_positions"][:drawn] = batch.positions[batch.selected]
        at["logit_positions"][drawn:sampled] = 0
        runs = batch.table()
        at["runs"][: len(runs)] = runs
        at["runs"][len(runs) :] = 0
        at["tables"][: len(tables)] = tables
        write_draws(at, draws, sampled)

    def heard(self) -> Heard:
        """What came back; the flag of a picked row is its row's."""
        at = self.at
        return Heard(*(at[name] for name in Heard._fields))
