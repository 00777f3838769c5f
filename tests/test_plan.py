"""The plan's golden numbers: each names the fixed part of a stream that it was worked out with."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvtape.core.plan import Plan, PlanRefused, plan
from kvtape.core.plan_notes import notes
from kvtape.core.plan_wanted import CACHE_BYTES, GIB, Order, Sizes, Wanted, windows_held
from kvtape.core.plan_words import gib

MIB = 1 << 20
PAGE = 6_684_672  # 512 rows of 13,056 bytes
FIXED_180 = 180 * MIB  # two ranks
FIXED_131 = 263 * MIB // 2  # 131.5 MiB, three ranks
SIZES_180 = Sizes(512, 13_056, FIXED_180, FIXED_180)
SIZES_131 = Sizes(512, 13_056, FIXED_131, FIXED_131)
K = 1024
ROOM_TP3_180 = 3_355 * PAGE + 7 * FIXED_180 + 16 * GIB  # 38.117 GiB: 3,355 pages and a whole cache
ROOM_TP3_131 = 3_355 * PAGE + 7 * FIXED_131 + 16 * GIB  # 37.79 GiB


def room(gibs: str) -> int:
    """Bytes of so many GiB, rounded down."""
    return int(Fraction(gibs) * GIB)


def wanted(
    bytes_: int, context: int, lanes: int, sizes: Sizes = SIZES_180, order: Order = "proposed"
) -> Wanted:
    return Wanted(room_bytes=bytes_, lanes=lanes, context=context, sizes=sizes, order=order)


def in_gib(count: int, decimals: int) -> str:
    return f"{count / GIB:.{decimals}f}"


def adds_up(found: Plan, of: Wanted) -> None:
    """Every byte of the room is somebody's, and no share is negative."""
    shares = (
        found.pages_bytes,
        found.cache_bytes,
        found.fixed_bytes,
        found.snapshots_bytes,
        found.left_bytes,
    )
    assert min(shares) >= 0 and sum(shares) == of.room_bytes


def test_a_page_and_a_token_have_the_bytes_of_twelve_caches() -> None:
    assert SIZES_180.page_bytes == PAGE == 512 * 13_056
    assert 13_056 == 12_288 + 768 == 12 * 512 * 2 + 12 * 128 * 2 // 4
    assert PAGE * 1000 == 6_375 * MIB


@pytest.mark.parametrize(
    ("context", "pages"),
    [(128 * K, 257), (256 * K, 513), (512 * K, 1_025), (1024 * K, 2_049), (1, 2), (513, 3)],
)
def test_a_window_has_its_pages_and_one(context: int, pages: int) -> None:
    assert wanted(0, context, 1).window_pages == pages


# case: room in bytes, context, lanes, order, windows, pages, tokens, the cache as printed.
TABLE_180: list[tuple[int, int, int, Order, int, int, int, str]] = [
    (room("15.256"), 1024 * K, 8, "today", 1, 2_056, 1_052_672, "1.226"),
    (room("15.256"), 1024 * K, 8, "proposed", 1, 2_056, 1_052_672, "1.226"),
    (room("9.5"), 128 * K, 4, "today", 1, 260, 133_120, "7.354"),
    (room("9.5"), 128 * K, 4, "proposed", 4, 1_028, 526_336, "2.573"),
    (room("15.2"), 256 * K, 8, "today", 1, 520, 266_240, "10.732"),
    (room("15.2"), 256 * K, 8, "proposed", 4, 2_052, 1_050_624, "1.195"),
    (ROOM_TP3_180, 1024 * K, 8, "today", 1, 3_355, 1_717_760, "16.000"),
    (ROOM_TP3_180, 1024 * K, 8, "proposed", 2, 4_098, 2_098_176, "11.374"),
]


@pytest.mark.parametrize("case", TABLE_180)
def test_the_table_of_plans_with_fixed_parts_of_180_mib(
    case: tuple[int, int, int, Order, int, int, int, str],
) -> None:
    bytes_, context, lanes, order, windows, pages, tokens, cache = case
    of = wanted(bytes_, context, lanes, order=order)
    found = plan(of)
    assert (found.windows_first, found.pages, found.rows) == (windows, pages, tokens)
    assert in_gib(found.cache_bytes, 3) == cache
    assert found.fixed_bytes == (lanes - 1) * FIXED_180
    assert found.pages_bytes == pages * PAGE
    spare = bytes_ - found.fixed_bytes - pages * PAGE
    assert found.cache_bytes == min(spare, CACHE_BYTES), "the cache is exact to the byte"
    adds_up(found, of)


def test_three_ranks_with_fixed_parts_of_131_mib() -> None:
    assert (in_gib(ROOM_TP3_180, 3), in_gib(ROOM_TP3_131, 2)) == ("38.117", "37.79")
    for bytes_, pages, cache in (
        (ROOM_TP3_131, 3_355, "11.374"),  # as measured
        (ROOM_TP3_131 + 2 * PAGE, 3_357, "11.387"),  # as predicted
    ):
        today = plan(wanted(bytes_, 1024 * K, 8, SIZES_131, "today"))
        assert (today.pages, today.cache_bytes) == (pages, 16 * GIB)
        proposed = plan(wanted(bytes_, 1024 * K, 8, SIZES_131))
        assert (proposed.windows_first, proposed.pages) == (2, 4_098)
        assert in_gib(proposed.cache_bytes, 3) == cache
        assert round(100 * (proposed.pages / 3_355 - 1)) == 22
        windows = replace(wanted(bytes_, 1024 * K, 2, SIZES_131), paged=False)
        assert in_gib(plan(windows).cache_bytes, 2) in ("12.14", "12.16")
        own = replace(SIZES_131, own_fixed_bytes=FIXED_131)  # two fixed parts
        assert in_gib(plan(replace(windows, sizes=own)).cache_bytes, 2) in ("12.02", "12.03")
    assert plan(wanted(room("38.12"), 1024 * K, 8)).pages == 4_098
    four = plan(wanted(room("39.1"), 1024 * K, 4, SIZES_131))
    assert (four.windows_first, four.pages) == (3, 6_147)
    assert 440 * MIB < four.cache_bytes < 465 * MIB, "about 450 MiB, less than a 64k state"


def test_three_ranks_with_fixed_parts_of_106_mib_fit_every_number_told_of_them() -> None:
    fixed = 106 * MIB
    sizes = Sizes(512, 13_056, fixed, fixed)
    bytes_ = 3_355 * PAGE + 7 * fixed + 16 * GIB
    proposed = plan(wanted(bytes_, 1024 * K, 8, sizes))
    assert (proposed.pages, in_gib(proposed.cache_bytes, 1)) == (4_098, "11.4")
    windows = plan(replace(wanted(bytes_, 1024 * K, 2, sizes), paged=False))
    assert in_gib(windows.cache_bytes, 1) == "12.0"
    assert 64 * K * 13_056 + fixed == 922 * MIB


def test_what_windows_hold_and_leave_with_fixed_parts_of_180_mib() -> None:
    for bytes_, context, lanes, tokens, cache in (
        (room("9.5"), 128 * K, 4, 524_288, "2.573"),
        (room("15.2"), 256 * K, 4, 1_048_576, "1.898"),
    ):
        found = plan(replace(wanted(bytes_, context, lanes), paged=False))
        assert (found.pages, found.rows) == (0, tokens)
        assert in_gib(found.cache_bytes, 3) == cache
    for bytes_ in (room("13.303"), room("16.671")):  # the rooms that hold four windows of 262,144
        assert plan(wanted(bytes_, 256 * K, 8)).windows_first == 4
    assert windows_held(wanted(room("13.301"), 256 * K, 8)) == 3
    assert windows_held(wanted(room("16.673"), 256 * K, 8)) == 5


def test_two_ranks_at_524288_with_fixed_parts_of_180_mib() -> None:
    found = plan(wanted(1_028 * PAGE + 3 * FIXED_180 + room("4.7"), 512 * K, 4))
    assert (found.windows_first, found.pages) == (1, 1_028)
    assert in_gib(found.cache_bytes, 1) == "4.7"


def test_the_cache_gets_what_windows_would_leave_less_the_fixed_parts_beyond_them() -> None:
    for bytes_, context, lanes in ((room("9.5"), 128 * K, 4), (room("15.2"), 256 * K, 8)):
        proposed = plan(wanted(bytes_, context, lanes))
        held = proposed.windows_first
        windows = plan(replace(wanted(bytes_, context, held), paged=False))
        beyond = (lanes - held) * FIXED_180
        assert proposed.cache_bytes == windows.cache_bytes - beyond


def test_a_room_that_the_fixed_parts_outgrow_is_cut_and_says_so() -> None:
    of = wanted(room("10.0"), 256 * K, 8)
    over = 3 * 513 * PAGE + 7 * FIXED_180 - of.room_bytes
    assert in_gib(over, 2) == "0.81", "what three windows and all fixed parts would be over by"
    found = plan(of)
    assert (found.windows_first, found.pages, found.rows) == (3, 1_408, 720_896)
    assert in_gib(found.cache_bytes, 2) == "0.00"
    assert (found.windows_held, found.short_rows) == (3, 786_432 - 720_896)
    adds_up(found, of)
    said = notes(of, found)[0]
    for words in ("786432 rows", "3 of 8 streams", "holds 720896", "--parallel 3"):
        assert words in said
    mended = replace(of, lanes=3)
    assert plan(mended).short_rows == 0 and not [
        line for line in notes(mended, plan(mended)) if "windows would" in line
    ]


def test_a_large_room_fills_a_window_a_lane_and_the_whole_cache() -> None:
    for order in ("today", "proposed"):
        for gibs in (16, 0, 3, 1000):
            of = replace(wanted(2000 * GIB, 128 * K, 4, order=order), cache_bytes=gibs * GIB)
            found = plan(of)
            assert found.pages == 4 * 257
            assert found.cache_bytes == gibs * GIB
            assert found.left_bytes == 2000 * GIB - gibs * GIB - 1_028 * PAGE - 3 * FIXED_180
            assert notes(of, found) == []
    assert wanted(GIB, K, 1).cache_bytes == 16 * GIB, "the cache nobody asked otherwise about"


def test_an_engine_whose_own_stream_is_not_on_pages_is_planned_as_before() -> None:
    own_window = replace(SIZES_180, engine_paged=False)
    found = plan(wanted(room("9.5"), 128 * K, 4, own_window))
    assert found.pages == 3 + (room("9.5") - 3 * (PAGE + FIXED_180) - found.cache_bytes) // PAGE
    assert found.windows_first == 0
    assert replace(found, proposed=0) == plan(wanted(room("9.5"), 128 * K, 4, own_window, "today"))


def test_the_new_numbers_are_not_todays() -> None:
    for bytes_, context, lanes in (
        (room("9.5"), 128 * K, 4),
        (room("15.2"), 256 * K, 8),
        (ROOM_TP3_180, 1024 * K, 8),
    ):
        before = plan(wanted(bytes_, context, lanes, order="today"))
        after = plan(wanted(bytes_, context, lanes))
        assert before.pages < after.pages and before.short_rows > 0 == after.short_rows
        assert (
            "prompt cache gets its bytes first"
            in notes(wanted(bytes_, context, lanes, order="today"), before)[0]
        )


@pytest.mark.parametrize(
    ("context", "need", "leaves", "lanes"),
    [
        (1024 * K, "90.48", "2.33", 1),
        (512 * K, "45.86", "8.70", 2),
        (256 * K, "23.54", "11.89", 4),
    ],
)
def test_windows_that_a_room_does_not_hold_are_refused_with_180_mib_fixed(
    context: int, need: str, leaves: str, lanes: int
) -> None:
    bytes_ = room("2.33") + 1024 * K * 13_056 + FIXED_180  # 2.33 GiB beside a window of 1M
    of = replace(wanted(bytes_, context, 8), paged=False)
    with pytest.raises(PlanRefused) as refused:
        plan(of)
    told = (
        f"--parallel 8 needs {need} GiB for its streams at a {context}-token window, and the memory"
        f" budget leaves {leaves} GiB: serve --parallel {lanes}, or lower --context to "
    )
    said = str(refused.value)
    assert said.startswith(told) and "--kv-pages on" in said
    lower = int(said.removeprefix(told).split(",")[0])
    plan(replace(of, lanes=lanes))
    plan(replace(of, context=lower))
    plan(replace(of, paged=True))
    for more in (replace(of, lanes=lanes + 1), replace(of, context=lower + 512)):
        with pytest.raises(PlanRefused):
            plan(more)


def test_eight_windows_of_131072_start_with_180_mib_fixed() -> None:
    of = wanted(room("2.33") + 1024 * K * 13_056 + FIXED_180, 128 * K, 8)
    assert gib(7 * of.window_bytes) == "12.39 GiB"
    assert plan(replace(of, paged=False)).rows == 8 * 128 * K


def test_kept_states_by_reference_are_taken_from_the_caches_bytes() -> None:
    of = wanted(1_028 * PAGE + 3 * FIXED_180 + room("4.7"), 512 * K, 4)
    unset, on = plan(of), plan(replace(of, share=16))
    assert gib(on.snapshots_bytes) == "2.81 GiB"
    assert gib(16 * FIXED_131) == "2.05 GiB"
    assert on.cache_bytes == 0, "there is no flat store"
    assert on.pages == unset.pages == 1_028
    assert on.left_bytes == unset.cache_bytes - 16 * FIXED_180
    assert in_gib(on.left_bytes, 1) == "1.9"
    adds_up(on, replace(of, share=16))
    to_pages = plan(replace(of, share=16, spare_to="pages"))
    assert to_pages.pages == 1_028 + on.left_bytes // PAGE
    assert to_pages.left_bytes < PAGE


def test_too_many_kept_states_are_refused_with_a_number_that_fits() -> None:
    of = replace(wanted(1_028 * PAGE + 3 * FIXED_180 + room("4.7"), 512 * K, 4), share=64)
    with pytest.raises(PlanRefused, match=r"--share 64 needs 11\.25 GiB .* --share 26 fits"):
        plan(of)
    assert plan(replace(of, share=26)).pages == 1_028
    with pytest.raises(PlanRefused):
        plan(replace(of, share=27))
    with pytest.raises(PlanRefused, match=r"--share 3 needs .* leave --share away"):
        plan(replace(of, room_bytes=1_028 * PAGE + 3 * FIXED_180 + MIB, share=3))
    with pytest.raises(PlanRefused, match=r"--parallel 1, .* --share 3 need 540\.00 MiB besides"):
        plan(replace(of, room_bytes=1_025 * PAGE, share=3))


def test_a_room_without_one_window_names_the_longest_that_fits() -> None:
    of = wanted(room("2.33"), 1024 * K, 8)
    with pytest.raises(PlanRefused) as refused:
        plan(of)
    said = str(refused.value)
    assert "--context 1048576 needs 12.76 GiB for one stream alone" in said
    assert "leaves 2.33 GiB" in said
    longest = int(said.rsplit(" ", 1)[1])
    plan(replace(of, context=longest))
    with pytest.raises(PlanRefused):
        plan(replace(of, context=longest + 1))
    with pytest.raises(PlanRefused, match="--parallel 1 --context 512 would do"):
        plan(replace(of, room_bytes=2 * PAGE))
    with pytest.raises(PlanRefused, match="no --context fits"):
        plan(replace(of, room_bytes=PAGE))
    with pytest.raises(PlanRefused, match=r"leaves -1\.00 GiB"):
        plan(replace(of, room_bytes=-GIB))


def test_a_refusal_names_numbers_that_do_not_fit_where_only_whole_pages_are_too_many() -> None:
    sizes = Sizes(512, 2 * MIB, 0, 0)  # a page of 1 GiB, a window of 2 GiB in 3 pages
    of = replace(wanted(room("8.5"), 1024, 3, sizes), paged=False)
    with pytest.raises(PlanRefused, match=r"needs 6\.00 GiB .* leaves 5\.50 GiB: .* --parallel 2,"):
        plan(of)


def test_a_small_cache_says_how_long_a_state_it_holds() -> None:
    of = wanted(room("15.256"), 1024 * K, 8)
    cache = plan(of).cache_bytes
    longest = (cache - FIXED_180) // 13_056
    assert notes(of, plan(of)) == [
        "the prompt cache gets 1.23 GiB of 16.00 GiB: room for a kept state of"
        f" {longest} tokens at most"
    ]
    assert notes(replace(of, cache_bytes=cache), plan(replace(of, cache_bytes=cache))) == []
    shared = replace(of, share=4)
    assert notes(shared, plan(shared)) == []
    none = wanted(2_056 * PAGE + 7 * FIXED_180 + MIB, 1024 * K, 8)
    assert notes(none, plan(none))[0].endswith(
        "0.00 GiB of 16.00 GiB: room for no kept state at all"
    )


def test_a_lone_request_of_the_whole_context_has_its_window_whatever_the_lanes() -> None:
    for lanes in (1, 2, 8, 30):
        for order in ("today", "proposed"):
            for bytes_ in (room("18.3"), room("40")):
                found = plan(wanted(bytes_, 1024 * K, lanes, order=order))
                assert found.pages >= found.window_pages + lanes - 1


def test_a_plan_is_numbers_by_their_names() -> None:
    found = plan(wanted(room("9.5"), 128 * K, 4)).numbers()
    assert found["pages"] == 1_028 and found["proposed"] == 1 and found["paged"] == 1
    assert all(type(value) is int for value in found.values())
