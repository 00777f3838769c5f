"""Kept states of one GLM rank: what lies beside the pages, copied out at a mark and back in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair
from ...core.kernels.glm_memory import GlmMemory
from .arena import RingSizes


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """mark: rows before it.  states [layers, heads, D, D]; raw [layers, taps - 1, 3 * heads * D].

    The index ring has nothing of a mark: no pool is unfinished there.  sums: by part, at the mark.
    """

    mark: int
    states: NDArray[np.float32]
    raw: NDArray[np.float32]
    sums: dict[str, Pair]


def copy_out(
    memory: GlmMemory, rings: RingSizes, lane: int, mark: int, taps: int, sums: dict[str, Pair]
) -> KeptCopy:
    """The state of a lane whose last kept row is the one before `mark`."""
    positions = _ring_rows(mark, taps, rings.conv)
    return KeptCopy(
        mark=mark,
        states=memory.states[:, lane, (mark - 1) % rings.states].copy(),
        raw=memory.conv_ring[:, lane, positions].copy(),
        sums=sums,
    )


def copy_in(memory: GlmMemory, rings: RingSizes, lane: int, kept: KeptCopy, taps: int) -> None:
    """Put a state back, into any lane."""
    memory.states[:, lane, (kept.mark - 1) % rings.states] = kept.states
    memory.conv_ring[:, lane, _ring_rows(kept.mark, taps, rings.conv)] = kept.raw


def _ring_rows(mark: int, taps: int, ring_rows: int) -> NDArray[np.int64]:
    """Where the raw rows before a mark stand; a mark is a page or more, so all are there."""
    return np.arange(mark - taps + 1, mark) % ring_rows
