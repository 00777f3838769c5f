"""What a start wants of a room, and the least that must be there: the plan's inputs."""

from dataclasses import dataclass
from typing import Literal

from .state import table_pages

GIB = 1 << 30
CACHE_BYTES = 16 * GIB  # the prompt cache, where nobody asks for another
STATES = 256  # kept states at most, where nobody asks for another number

Order = Literal["today", "proposed"]
SpareTo = Literal["free", "pages"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a rank keeps of a model, in bytes.

    row: of a token.  page_digest: beside the rows of a page.  fixed: of a stream, what does not
    grow with its window.  snapshot: of a kept state, what stands on no page.  own_fixed: the fixed
    part of the engine's own stream, 0 where the room no longer holds it.  engine_paged: whether
    that stream is on pages; if not, its window is outside the room.  pageable: whether rows of this
    kind can stand on pages.
    """

    page_rows: int
    row_bytes: int
    fixed_bytes: int
    snapshot_bytes: int
    page_digest_bytes: int = 0
    own_fixed_bytes: int = 0
    engine_paged: bool = True
    pageable: bool = True

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.page_rows * self.row_bytes + self.page_digest_bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A room in bytes, and what a start wants of it.

    lanes: streams at once, the engine's own among them.  order: today's gives the prompt cache its
    bytes before any pages beyond the least, the proposed one first sets as many windows of pages
    aside as the room would hold as windows.  share: kept states by reference, in place of the
    prompt cache; 0 is none.  spare_to: where the bytes go that this cache would have had.
    lends: whether kept states stand on the pool's pages, and the cache holds what is beside them.
    """

    room_bytes: int
    lanes: int
    context: int
    sizes: Sizes
    paged: bool = True
    cache_bytes: int = CACHE_BYTES
    order: Order = "proposed"
    share: int = 0
    spare_to: SpareTo = "free"
    lends: bool = False

    @property
    def others(self) -> int:
        """Streams beside the engine's own."""
        return self.lanes - 1

    @property
    def window_pages(self) -> int:
        """Pages of a window: its rows and one page for rows past them."""
        return table_pages(self.context, self.sizes.page_rows)

    @property
    def window_bytes(self) -> int:
        """A stream in windows mode: the rows of its window and its fixed part."""
        return self.context * self.sizes.row_bytes + self.sizes.fixed_bytes

    @property
    def snapshots_bytes(self) -> int:
        """What kept states by reference need besides their pages."""
        return self.share * self.sizes.snapshot_bytes

    @property
    def fixed_bytes(self) -> int:
        """The fixed parts of all streams that the room must hold."""
        own = self.sizes.own_fixed_bytes if self.sizes.engine_paged else 0
        return own + self.others * self.sizes.fixed_bytes

    @property
    def least_pages(self) -> int:
        """One window for the engine's own stream, where it is on pages, and a page for the rest."""
        return self.window_pages * self.sizes.engine_paged + self.others

    @property
    def least_bytes(self) -> int:
        """What the room must hold for a start at all."""
        if self.paged:
            pages_bytes = self.least_pages * self.sizes.page_bytes
            return pages_bytes + self.fixed_bytes + self.snapshots_bytes
        return max(by_rows(self, self.lanes), by_pages(self, self.lanes))

    @property
    def fits(self) -> bool:
        """Whether the room holds the least."""
        return self.least_bytes <= self.room_bytes


def by_rows(wanted: Wanted, streams: int) -> int:
    """Bytes of so many streams in windows mode, each with its context and its fixed part."""
    return (streams - (not wanted.sizes.engine_paged)) * wanted.window_bytes


def by_pages(wanted: Wanted, streams: int) -> int:
    """Bytes of so many windows as whole pages, and the fixed parts that the room must hold."""
    sizes, window = wanted.sizes, wanted.window_pages * wanted.sizes.page_bytes
    own = window + sizes.own_fixed_bytes if sizes.engine_paged else 0
    return own + (streams - 1) * (window + sizes.fixed_bytes)


def windows_held(wanted: Wanted) -> int:
    """Windows of pages that the room would hold as a window a stream, one a lane at most; or 0."""
    own = by_pages(wanted, 1)
    each = by_pages(wanted, 2) - own
    return max(0, min(wanted.lanes, 1 + (wanted.room_bytes - own) // each))
