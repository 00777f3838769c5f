"""The plan: who gets how much of a room at start, in whole bytes, by one pure function.

With pages: first what a start cannot be without (one window, and for each other stream its fixed
part and a page), in the proposed order then as many windows of pages as the room would hold as
windows, then the prompt cache, then pages again, up to a window a lane. What must fit and does not
is refused; what is only promised and does not fit is cut, and said (core/plan_words.py).
"""

from dataclasses import asdict, dataclass, replace

from .plan_wanted import STATES, Wanted, by_pages, windows_held
from .plan_words import refusal


class PlanRefused(Exception):
    """A start that the room does not hold; the message names the numbers and what would fit."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How a room is divided; pages, cache, fixed, snapshots and left add up to it.

    rows: that all streams share.  windows_first: to be set aside, as pages, before the cache.
    windows_held: streams with a whole window that the same room would hold, one a lane at most.
    short_rows: by how much `rows` are fewer than the contexts of these streams.
    """

    paged: int
    proposed: int
    window_pages: int
    windows_first: int
    windows_held: int
    pages: int
    rows: int
    pages_bytes: int
    cache_bytes: int
    fixed_bytes: int
    snapshots_bytes: int
    left_bytes: int
    short_rows: int

    @property
    def pool_pages(self) -> int:
        """Pages of the pool: those that all streams share, or those of all windows."""
        return self.pages if self.paged else self.windows_first * self.window_pages

    @property
    def room_bytes(self) -> int:
        """What the shares add up to."""
        kept = self.cache_bytes + self.snapshots_bytes
        return self.pages_bytes + self.fixed_bytes + kept + self.left_bytes

    def numbers(self) -> dict[str, int]:
        """Every number by its name, as a run records them."""
        return asdict(self)


def plan(wanted: Wanted) -> Plan:
    """Divide a room. Raises PlanRefused where it does not hold the least of a start."""
    assert wanted.lanes >= 1 and wanted.context >= 1, f"{wanted.lanes} lanes, {wanted.context} rows"
    assert wanted.cache_bytes >= 0 and wanted.share >= 0, "nothing wanted is below zero"
    assert wanted.sizes.pageable or not wanted.paged, "rows of this kind stand in windows"
    assert wanted.paged or not wanted.share, "kept states by reference stand on pages"
    if not wanted.fits:
        raise PlanRefused(refusal(wanted))
    return _on_pages(wanted) if wanted.paged else _in_windows(wanted)


def plan_of_pages(wanted: Wanted, pages: int) -> Plan:
    """The plan of a pool of so many pages, in a room that holds just that.

    In windows, as many streams run at once as it has windows. Raises PlanRefused where it has none.
    """
    windows = min(wanted.lanes, pages // wanted.window_pages)
    if not wanted.paged and not windows:
        raise PlanRefused(
            f"--pages {pages} holds no window: {wanted.context} tokens take {wanted.window_pages};"
            f" --pages {wanted.window_pages} would do, or --kv-pages on"
        )
    most = wanted.lanes * wanted.window_pages
    if not wanted.paged and pages > most:
        raise PlanRefused(
            f"--pages {pages}: in windows {wanted.lanes} streams use {most} at most;"
            f" --pages {most} would do, or --kv-pages on"
        )
    held = pages if wanted.paged else windows * wanted.window_pages
    kept = wanted.snapshots_bytes if wanted.share else wanted.cache_bytes
    pages_bytes = held * wanted.sizes.page_bytes
    there = replace(wanted, room_bytes=pages_bytes + wanted.fixed_bytes + kept)
    shared, first = (pages, 0) if wanted.paged else (0, windows)
    found = _told(there, first, shared, pages_bytes, 0 if wanted.share else kept)
    rows = found.rows if wanted.paged else windows * wanted.context
    return replace(found, rows=rows, windows_held=windows, short_rows=0)


def kept_states(wanted: Wanted, found: Plan) -> int:
    """How many prompts may be kept: as asked, or as many as the cache has what each needs."""
    each = wanted.sizes.snapshot_bytes
    if wanted.share:
        return wanted.share
    return min(STATES, found.cache_bytes // each) if wanted.lends and each else STATES


def _on_pages(wanted: Wanted) -> Plan:
    page = wanted.sizes.page_bytes
    space = wanted.room_bytes - wanted.fixed_bytes
    windows = int(wanted.sizes.engine_paged)
    if wanted.sizes.engine_paged and wanted.order == "proposed":
        windows = windows_held(wanted)
    aim = max(windows * wanted.window_pages, wanted.least_pages)
    # The count of windows is not charged with the fixed parts of the lanes beyond it.
    first = min(aim, space // page)
    cache = min(wanted.cache_bytes, space - first * page)
    pages = first + (space - first * page - cache) // page
    pages = min(pages, wanted.lanes * wanted.window_pages)
    if wanted.share:
        cache, most = 0, (space - wanted.snapshots_bytes) // page
        pages = most if wanted.spare_to == "pages" else min(pages, most)
    return _told(wanted, windows, pages, pages * page, cache)


def _in_windows(wanted: Wanted) -> Plan:
    windows_bytes = by_pages(wanted, wanted.lanes) - wanted.fixed_bytes
    cache = min(wanted.cache_bytes, wanted.room_bytes - wanted.fixed_bytes - windows_bytes)
    return _told(wanted, wanted.lanes, 0, windows_bytes, cache)


def _told(wanted: Wanted, windows: int, pages: int, pages_bytes: int, cache: int) -> Plan:
    """The plan, with what is left and what is short."""
    fixed, snapshots = wanted.fixed_bytes, wanted.snapshots_bytes
    rows = pages * wanted.sizes.page_rows if wanted.paged else wanted.lanes * wanted.context
    held = windows_held(wanted)
    beside = held - (wanted.paged and not wanted.sizes.engine_paged)  # that window is no page
    return Plan(
        paged=int(wanted.paged),
        proposed=int(wanted.order == "proposed"),
        window_pages=wanted.window_pages,
        windows_first=windows,
        windows_held=held,
        pages=pages,
        rows=rows,
        pages_bytes=pages_bytes,
        cache_bytes=cache,
        fixed_bytes=fixed,
        snapshots_bytes=snapshots,
        left_bytes=wanted.room_bytes - pages_bytes - cache - fixed - snapshots,
        short_rows=max(0, beside * wanted.context - rows),
    )
