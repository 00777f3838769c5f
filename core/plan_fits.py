"""What would fit: the largest lanes, context and share that a room holds, all else as wanted."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from .plan_wanted import Wanted, by_pages


@dataclass(frozen=True, slots=True)
class Fits:
    """The largest value of each, with all else as wanted; 0 where none would do.

    context is a whole number of pages where it is not the most that was asked about.  share: None
    where none is wanted.  pages: whether the set as wanted fits on pages.
    """

    lanes: int
    context: int
    share: int | None
    pages: bool


def what_fits(wanted: Wanted, most_lanes: int, most_context: int) -> Fits:
    """The largest lanes and context up to these, the largest share of any size."""
    return Fits(
        lanes=fitting_lanes(wanted, most_lanes),
        context=fitting_context(wanted, most_context),
        share=fitting_share(wanted) if wanted.share else None,
        pages=fits_on_pages(wanted),
    )


def fitting_lanes(wanted: Wanted, most: int) -> int:
    """The most streams at once that fit."""
    return largest(most, lambda lanes: replace(wanted, lanes=lanes).fits)


def fitting_context(wanted: Wanted, most: int) -> int:
    """The longest window that fits, in whole pages where it is not `most`."""
    if replace(wanted, context=most).fits:
        return most
    rows = wanted.sizes.page_rows
    pages = largest(most // rows, lambda pages: replace(wanted, context=pages * rows).fits)
    return pages * rows


def fitting_share(wanted: Wanted) -> int:
    """The most kept states by reference that fit."""
    left = wanted.room_bytes - replace(wanted, share=0).least_bytes
    each = wanted.sizes.snapshot_bytes
    return max(0, left // each) if each else wanted.share


def fits_on_pages(wanted: Wanted) -> bool:
    """Whether a start in windows would fit on pages."""
    return wanted.sizes.pageable and replace(wanted, paged=True).fits


def whole_lanes(wanted: Wanted, windows: int) -> int:
    """The most lanes whose fixed parts fit beside so many windows of pages; 0 where none do."""

    def fits(lanes: int) -> bool:
        held = min(lanes, windows)
        fixed = (lanes - held) * wanted.sizes.fixed_bytes
        return by_pages(wanted, held) + fixed + wanted.snapshots_bytes <= wanted.room_bytes

    return largest(wanted.lanes, fits)


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest of 1 to most that fits, where whatever is below a fitting one fits; else 0."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
