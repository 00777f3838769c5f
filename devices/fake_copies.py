"""Kept states of one fake rank: what lies beside the pages, and rows where a copy owns them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fake_memory import Memory, Words

Pages = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A snapshot: a lane's fixed words, and the sums [8, 2] of the stream that left it.

    paged: the words of rows, keys and drafts on its pages, and the pages' sums; none where the
    pages themselves are kept.
    """

    fixed: Words
    sums: Words
    paged: tuple[Words, ...] = ()


def copy_out(memory: Memory, lane: int, pages: Pages) -> KeptCopy:
    """What a lane holds now; pages: those whose rows are to be copied too."""
    paged = tuple(words[:, pages] for words in _by_page(memory)) if len(pages) else ()
    return KeptCopy(memory.fixed[lane].copy(), memory.sums[lane].copy(), paged)


def copy_pages_in(memory: Memory, pages: Pages, copy: KeptCopy) -> None:
    """Put a copy's rows on pages of their own, with the pages' sums."""
    for words, kept in zip(_by_page(memory), copy.paged, strict=True):
        assert kept.shape[1] == len(pages), f"{len(pages)} pages, the copy has {kept.shape[1]}"
        words[:, pages] = kept


def _by_page(memory: Memory) -> tuple[Words, ...]:
    """What stands on pages, and the pages' sums, as views whose second axis is the page."""
    return memory.rows, memory.keys[np.newaxis], memory.drafts[np.newaxis], memory.page_sums
