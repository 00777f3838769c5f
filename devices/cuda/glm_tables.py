"""A GLM's step as one block of bytes, copied onto the card at once; what comes back is its end.

As tables.py has it. Rows that nobody asked for stand in a lane that no stream has; places of runs
and of drafting rows that a step does not have hold no rows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.counting import CLEAN
from ...core.kernels.glm_memory import GlmStep
from ...core.kernels.program_memory import Draws
from ..glm.step import NO_END
from .tables import WORD, Room, write_draws

Names = tuple[str, ...]
MOST_ENDS = 32  # ids that end a stream's reply
BY_RUN: Names = ("kept", "poisoned", "draft_counts", "drafts")
PAGED: Names = ("row_sums", "key_sums", "draft_sums")  # one behind another


class GlmHeard(NamedTuple):
    """What a step left, as GlmRoom has it; paged [3, rows, 2]: what PAGED names."""

    paged: NDArray[np.uint64]
    logit_sums: NDArray[np.uint64]
    flags: NDArray[np.uint8]
    drawn: NDArray[np.int64]
    kept: NDArray[np.int64]
    poisoned: NDArray[np.int64]
    draft_counts: NDArray[np.int64]
    drafts: NDArray[np.int64]


@dataclass(slots=True)
class GlmRoom(Room):
    """rows, lanes: of a step at most; entries: of a page table; drafts: of a round at most.

    checks: words that tell whether products were right.

    have: rows of each row set, those behind them are nobody's.  A run's tables are in the order of
    the step's runs, a drafting row's in that of the runs that want drafts. Of drafts and
    draft_counts the last entry takes what nobody wants.
    """

    rows: int
    lanes: int
    entries: int
    drafts: int
    checks: int = 0

    def __post_init__(self) -> None:
        rows, lanes = self.rows, self.lanes
        for name in ("tokens", "positions", "lanes", "selected", "logit_positions", "next_tokens"):
            self.add(name, (rows,), np.int64)
        self.add("runs", (lanes, 4), np.int64)
        self.add("tables", (lanes + 1, self.entries), np.int32)
        self.add("sampled", (lanes, 2), np.int64)
        self.add("ends", (lanes, MOST_ENDS), np.int64)
        for name in ("windows", "wants", "limits", "places"):
            self.add(name, (lanes,), np.int64)
        for name in ("from", "tokens", "positions", "lanes", "limits", "wants", "of"):
            self.add("draft_" + name, (lanes,), np.int64)
        self.add("draft_runs", (lanes, 4), np.int64)
        self.add("have", (3,), np.int64)
        self.add_draws(rows)
        self.told_at = self.bytes
        self.add_checks(self.checks)
        for name in (*PAGED, "logit_sums"):
            self.add(name, (rows, 2), np.uint64)
        self.add("drawn", (rows,), np.int64)
        self.add("kept", (lanes,), np.int64)
        self.add("poisoned", (lanes,), np.int64)
        self.add("draft_counts", (lanes + 1,), np.int64)
        self.add("drafts", (lanes + 1, max(1, self.drafts)), np.int64)
        self.add("flags", (rows,), np.uint8)


class GlmTables:
    """The block on the host, its views, and how a step is written into it."""

    def __init__(self, room: GlmRoom, block: NDArray[np.uint8], pages: int) -> None:
        """pages: of the pool; the reserved ones are behind it."""
        self.room, self.block = room, block
        self.at: dict[str, NDArray[Any]] = room.views(block)
        self.told = block[room.told_at :]
        first, size = room.places[PAGED[0]][0], len(PAGED) * room.rows * 2 * WORD
        self._paged = block[first : first + size].view(np.uint64).reshape(len(PAGED), -1, 2)
        self.at["tables"][:] = pages + 1  # to be written, and read by nobody

    def write(self, step: GlmStep, draws: Draws, rows: int, sampled: int) -> int:
        """A step's tables, filled up to buckets of rows and of rows that get logits.

        Returns how many rows may draft.
        """
        self.told[:] = 0
        self.at["poisoned"][:] = CLEAN
        self._rows(step, rows, sampled)
        drafting = self._runs(step)
        have = (len(step.positions), len(step.selected), drafting)
        self.at["have"][:] = np.maximum(have, 1)
        write_draws(self.at, draws, sampled)
        return drafting

    def _rows(self, step: GlmStep, rows: int, sampled: int) -> None:
        at, have, drawn = self.at, len(step.positions), len(step.selected)
        filled = (("tokens", 0), ("positions", 0), ("lanes", self.room.lanes), ("next_tokens", 0))
        for name, nobodys in filled:
            at[name][:have] = getattr(step, name)
            at[name][have:rows] = nobodys
        at["tables"][: len(step.tables)] = step.tables
        at["selected"][:drawn] = step.selected
        at["selected"][drawn:sampled] = 0
        at["logit_positions"][:drawn] = step.positions[step.selected]
        at["logit_positions"][drawn:sampled] = 0

    def _runs(self, step: GlmStep) -> int:
        """Tables by run, and the places of those that want drafts."""
        at, count = self.at, len(step.runs)
        at["runs"][:count] = step.runs
        at["runs"][count:] = 0
        if not self.room.drafts:
            return 0
        for name in ("sampled", "windows", "wants", "limits"):
            at[name][:count] = getattr(step, name)
            at[name][count:] = 0
        most = step.ends.shape[1]
        assert most <= MOST_ENDS, f"{most} ids end a reply, a device of this kind takes {MOST_ENDS}"
        at["ends"][:] = NO_END
        at["ends"][:count, :most] = step.ends
        for name in ("from", "tokens", "positions", "limits", "wants", "runs"):
            at["draft_" + name][:] = 0
        at["draft_lanes"][:] = at["draft_of"][:] = self.room.lanes
        wanting = np.flatnonzero(step.wants)
        at["places"][:] = 0
        at["places"][wanting] = np.arange(len(wanting))
        return len(wanting)

    def heard(self, step: GlmStep) -> GlmHeard:
        """What came back of a step, in arrays of its own."""
        at, rows, sampled = self.at, len(step.positions), len(step.selected)
        runs = len(step.runs)
        return GlmHeard(
            self._paged[:, :rows].copy(), at["logit_sums"][:sampled].copy(),
            at["flags"][:rows].copy(), at["drawn"][:sampled].copy(),
            *(at[name][:runs].copy() for name in BY_RUN),
        )  # fmt: skip
