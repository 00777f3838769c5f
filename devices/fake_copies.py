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
    paged = tuple(words[at] for words, at in _on(memory, pages)) if len(pages) else ()
    return KeptCopy(memory.fixed[lane].copy(), memory.sums[lane].copy(), paged)


def copy_pages_in(memory: Memory, pages: Pages, copy: KeptCopy) -> None:
    """Put a copy's rows on pages of their own, with the pages' sums."""
    for (words, at), kept in zip(_on(memory, pages), copy.paged, strict=True):
        assert words[at].shape == kept.shape, f"rows of {len(pages)} pages, the copy has others"
        words[at] = kept


def _on(memory: Memory, pages: Pages) -> list[tuple[Words, object]]:
    """The arrays that pages are cut from, and where these pages stand in each."""
    return [
        (memory.rows, (slice(None), pages)),
        (memory.keys, pages),
        (memory.drafts, pages),
        (memory.page_sums, (slice(None), pages)),
    ]
