"""Random rooms: never over the room, never fewer rows than windows unless the plan says so."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvtape.core.plan import Plan, PlanRefused, plan
from kvtape.core.plan_fits import fitting_context, fitting_lanes, fitting_share, what_fits
from kvtape.core.plan_notes import notes
from kvtape.core.plan_wanted import Order, Sizes, SpareTo, Wanted

MIB = 1 << 20
ORDERS: tuple[Order, ...] = ("today", "proposed", "proposed", "proposed")
SPARE: tuple[SpareTo, ...] = ("free", "pages")


def rooms(count: int, seed: int) -> Iterator[Wanted]:
    """Rooms around what they are asked to hold; half are so small that every byte shows."""
    chance = random.Random(seed)
    for index in range(count):
        small = index % 2
        page_rows, row = (chance.randint(1, 4), chance.randint(1, 5)) if small else (512, 13_056)
        fixed = chance.randint(0, 40) if small else chance.randint(0, 300 * MIB)
        sizes = Sizes(
            page_rows=page_rows,
            row_bytes=row,
            fixed_bytes=fixed,
            snapshot_bytes=chance.choice((fixed, fixed // 2)),
            page_digest_bytes=chance.choice((0, 0, 16)),
            own_fixed_bytes=chance.choice((0, fixed)),
            engine_paged=chance.random() < 0.9,
        )
        context = chance.randint(1, 40) if small else chance.choice((2**17, 2**18, 2**19, 2**20))
        lanes = chance.randint(1, 12)
        window = (-(-context // page_rows) + 1) * sizes.page_bytes
        most = lanes * (window + fixed) * 5 // 4 + 40
        paged = chance.random() < 0.85
        yield Wanted(
            room_bytes=chance.randint(0, most),
            lanes=lanes,
            context=context,
            sizes=sizes,
            paged=paged,
            cache_bytes=chance.choice((0, most // 9, most)),
            order=chance.choice(ORDERS),
            share=chance.choice((0, 0, chance.randint(1, 9))) * paged,
            spare_to=chance.choice(SPARE),
        )


def windows_by_hand(of: Wanted) -> int:
    """Windows put into the room one after the other, up to one a lane."""
    sizes, window = of.sizes, of.window_pages * of.sizes.page_bytes
    left, held = of.room_bytes, 0
    while held < of.lanes:
        own = held == 0
        need = window + (sizes.own_fixed_bytes if own else sizes.fixed_bytes)
        if own and not sizes.engine_paged:
            need = 0  # that window stands elsewhere
        if need > left:
            break
        left, held = left - need, held + 1
    return held


def least_by_hand(of: Wanted) -> int:
    """What a start cannot be without."""
    sizes, window = of.sizes, of.context * of.sizes.row_bytes
    own_paged, others = sizes.engine_paged, of.lanes - 1
    if of.paged:
        pages = others + (of.window_pages if own_paged else 0)
        fixed = others * sizes.fixed_bytes + (sizes.own_fixed_bytes if own_paged else 0)
        return pages * sizes.page_bytes + fixed + of.share * sizes.snapshot_bytes
    by_rows = (of.lanes if own_paged else others) * (window + sizes.fixed_bytes)
    paged_window = of.window_pages * sizes.page_bytes
    by_pages = others * (paged_window + sizes.fixed_bytes)
    by_pages += paged_window + sizes.own_fixed_bytes if own_paged else 0
    return max(by_rows, by_pages)


def check(of: Wanted) -> str:
    """Hold one room to every promise; says which kind of room it was."""
    try:
        found = plan(of)
    except PlanRefused:
        assert least_by_hand(of) > of.room_bytes, f"{of} fits"
        return "refused"
    assert least_by_hand(of) <= of.room_bytes, f"{of} does not fit"
    check_shares(of, found)
    if not of.paged:
        assert found.rows == of.lanes * of.context and not found.short_rows
        return "windows"
    assert found.pages >= of.lanes - 1 + (of.window_pages if of.sizes.engine_paged else 0)
    if of.spare_to != "pages" or not of.share:
        assert found.pages <= of.lanes * of.window_pages
    return check_rows(of, found)


def check_shares(of: Wanted, found: Plan) -> None:
    sizes = of.sizes
    shares = (
        found.pages_bytes,
        found.cache_bytes,
        found.fixed_bytes,
        found.snapshots_bytes,
        found.left_bytes,
    )
    assert min(shares) >= 0 and sum(shares) == of.room_bytes, f"{of} is over the room: {found}"
    own = sizes.own_fixed_bytes if sizes.engine_paged else 0
    assert found.fixed_bytes == own + (of.lanes - 1) * sizes.fixed_bytes
    assert found.snapshots_bytes == of.share * sizes.snapshot_bytes
    assert found.cache_bytes <= (0 if of.share else of.cache_bytes)


def check_rows(of: Wanted, found: Plan) -> str:
    """Fewer rows than windows only where the fixed parts do not fit beside them, and said."""
    held = windows_by_hand(of)
    assert found.windows_held == held
    on_pages = held if of.sizes.engine_paged else held - 1
    rows = on_pages * of.context
    assert found.short_rows == max(0, rows - found.rows)
    said = any("windows would hold" in line for line in notes(of, found))
    assert said == (found.short_rows > 0), f"{of} is short and does not say so"
    if of.order == "today" or not of.sizes.engine_paged:
        return "today"
    whole = held * of.window_pages * of.sizes.page_bytes
    if whole + found.fixed_bytes + found.snapshots_bytes <= of.room_bytes:
        assert found.pages >= held * of.window_pages and not found.short_rows
        return "whole"
    return "short" if found.short_rows else "cut"


def check_fits(of: Wanted) -> None:
    """What is offered fits, and one more does not."""
    lanes = fitting_lanes(of, 20)
    assert all(replace(of, lanes=more).fits == (more <= lanes) for more in range(1, 21))
    context = fitting_context(of, of.context)
    fits = [rows for rows in range(1, of.context + 1) if replace(of, context=rows).fits]
    best = max(fits, default=0)
    assert context == best or (context % of.sizes.page_rows == 0 and context <= best)
    assert best - context < of.sizes.page_rows
    if of.share and of.sizes.snapshot_bytes:
        share = fitting_share(of)
        assert all(replace(of, share=n).fits == (n <= share) for n in range(1, 30))


def run_rooms(count: int, seed: int) -> None:
    kinds = Counter(check(of) for of in rooms(count, seed))
    for kind in ("refused", "windows", "today", "whole", "short", "cut"):
        assert kinds[kind] > count / 1000, f"rooms of this kind are missing: {kind} of {kinds}"


def test_twenty_thousand_rooms() -> None:
    run_rooms(20_000, seed=1)


@pytest.mark.slow
def test_two_hundred_thousand_rooms() -> None:
    run_rooms(200_000, seed=2)


def test_what_is_offered_fits_and_one_more_does_not() -> None:
    small = [of for of in rooms(1_600, seed=3) if of.context <= 40]
    assert len(small) == 800
    for of in small:
        check_fits(of)


def whole(of: Wanted, lanes: int) -> bool:
    """Whether so many lanes leave room for every window that the room holds."""
    held = min(lanes, windows_by_hand(of))
    pages = held * of.window_pages * of.sizes.page_bytes
    fixed = of.sizes.own_fixed_bytes + (lanes - 1) * of.sizes.fixed_bytes
    return pages + fixed + of.share * of.sizes.snapshot_bytes <= of.room_bytes


def test_lanes_that_are_named_against_a_shortage_mend_it() -> None:
    mended = 0
    for of in rooms(8_000, seed=4):
        if not of.fits or not of.paged:
            continue
        line = next((line for line in notes(of, plan(of)) if "come first" in line), "")
        if line:
            most = max((n for n in range(1, of.lanes + 1) if whole(of, n)), default=0)
            named = int((line + " --parallel 0 ").split("--parallel ")[1].split(" ")[0])
            assert named == most, f"{of}: {line}"
            assert not most or plan(replace(of, lanes=most)).short_rows == 0
            mended += most > 0
    assert mended > 50


def test_an_engine_without_its_own_stream_on_pages_is_planned_alike_in_both_orders() -> None:
    seen = 0
    for of in rooms(12_000, seed=5):
        if not of.sizes.engine_paged and of.fits:
            today, proposed = (plan(replace(of, order=order)) for order in ORDERS[:2])
            assert replace(proposed, proposed=0) == today
            seen += 1
    assert seen > 400


def test_the_proposed_order_never_has_fewer_pages_than_todays() -> None:
    for of in rooms(4_000, seed=6):
        if of.fits and of.paged:
            today, proposed = (plan(replace(of, order=order)) for order in ORDERS[:2])
            assert proposed.pages >= today.pages


def test_a_larger_room_never_holds_less() -> None:
    chance = random.Random(7)
    for of in rooms(4_000, seed=7):
        more = replace(of, room_bytes=of.room_bytes + chance.randint(1, 50 * MIB))
        if of.fits:
            assert plan(more).rows >= plan(of).rows


def test_fits_tells_of_pages_for_a_start_in_windows() -> None:
    sizes = Sizes(4, 1, 0, 0)
    of = Wanted(room_bytes=30, lanes=3, context=16, sizes=sizes, paged=False)
    assert not of.fits and what_fits(of, 9, 16).pages
    assert not what_fits(replace(of, sizes=replace(sizes, pageable=False)), 9, 16).pages
    assert not what_fits(replace(of, room_bytes=20), 9, 16).pages
    assert what_fits(of, 9, 16).share is None
