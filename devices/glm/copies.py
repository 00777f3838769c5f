"""Kept states of one GLM rank: what lies beside the pages, or rows too, copied out and back in."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair
from ...core.kernels.glm_memory import GlmMemory
from ..ledger import Sums
from .arena import RingSizes

Pages = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeptPages:
    """Pages that a copy owns, n of them up to its mark.

    latent [caches, n, page_rows, R]; keys [caches, n, page_rows / kpool, DI]; sums[part] [n, 2].
    """

    latent: NDArray[np.int16]
    keys: NDArray[np.int16]
    sums: dict[str, Sums]


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """mark: rows before it.  states [layers, heads, D, D]; raw [layers, taps - 1, 3 * heads * D].

    The index ring has nothing of a mark: no pool is unfinished there.  sums: by part, at the mark.
    pages: None where the pages themselves are kept.
    """

    mark: int
    states: NDArray[np.float32]
    raw: NDArray[np.float32]
    sums: dict[str, Pair]
    pages: KeptPages | None


def copy_out(
    memory: GlmMemory,
    rings: RingSizes,
    lane: int,
    mark: int,
    taps: int,
    sums: dict[str, Pair],
    pages: KeptPages | None,
) -> KeptCopy:
    """The state of a lane whose last kept row is the one before `mark`."""
    positions = _ring_rows(mark, taps, rings.conv)
    return KeptCopy(
        mark=mark,
        states=memory.states[:, lane, (mark - 1) % rings.states].copy(),
        raw=memory.conv_ring[:, lane, positions].copy(),
        sums=sums,
        pages=pages,
    )


def copy_in(memory: GlmMemory, rings: RingSizes, lane: int, kept: KeptCopy, taps: int) -> None:
    """Put a state back, into any lane."""
    memory.states[:, lane, (kept.mark - 1) % rings.states] = kept.states
    memory.conv_ring[:, lane, _ring_rows(kept.mark, taps, rings.conv)] = kept.raw


def copy_pages_out(memory: GlmMemory, page_sums: Mapping[str, Sums], pages: Pages) -> KeptPages:
    """The rows and keys that stand on these pages, of every cache, and the pages' sums."""
    sums = {part: of_pages[pages] for part, of_pages in page_sums.items()}
    return KeptPages(memory.latent[:, pages], memory.keys[:, pages], sums)


def copy_pages_in(
    memory: GlmMemory, page_sums: Mapping[str, Sums], pages: Pages, kept: KeptPages
) -> None:
    """Put rows, keys and sums on pages that were leased for them."""
    memory.latent[:, pages], memory.keys[:, pages] = kept.latent, kept.keys
    for part, of_pages in page_sums.items():
        of_pages[pages] = kept.sums[part]


def _ring_rows(mark: int, taps: int, ring_rows: int) -> NDArray[np.int64]:
    """Where the raw rows before a mark stand; a mark is a page or more, so all are there."""
    return np.arange(mark - taps + 1, mark) % ring_rows
