"""The room of a start: what a run may use of a memory, of which a part is left alone."""

from .plan_wanted import GIB, Wanted, by_pages, by_rows

UNIFIED_LEAST, CARD_LEAST = 2 * GIB, GIB // 2  # what is left alone at least, whatever is asked


def reserve_bytes(total: int, *, unified: bool, asked: int | None = None) -> int:
    """What is left alone of a memory of so many bytes; asked: another than the default.

    unified: the machine's own memory, of which a tenth and 4 GiB at least, but a quarter at most.
    A card's own: a thirty-second, 1 GiB at least.
    """
    if asked is not None:
        return max(asked, UNIFIED_LEAST if unified else CARD_LEAST)
    if unified:
        return min(max(4 * GIB, total // 10), total // 4)
    return max(GIB, total // 32)


def ample_bytes(wanted: Wanted, pages_bytes: int) -> int:
    """A room for all that is wanted; pages beyond the least take `pages_bytes` at most."""
    kept = max(wanted.cache_bytes, wanted.snapshots_bytes)
    if not wanted.paged:
        return max(by_rows(wanted, wanted.lanes), by_pages(wanted, wanted.lanes)) + kept
    page = wanted.sizes.page_bytes
    pages = min(wanted.lanes * wanted.window_pages, pages_bytes // page)
    return max(wanted.least_pages, pages) * page + wanted.fixed_bytes + kept
