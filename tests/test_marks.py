"""Where prompts are kept: at pages or on the grid, scaled and at real sizes."""

import pytest

from kvtape.core.families.fake import fake_rules
from kvtape.core.families.family import Choices, UnsupportedShape
from kvtape.core.families.glm import GRID_ROWS, PAGE_ROWS, Glm
from kvtape.core.families.llama import Llama
from kvtape.core.state import FLAT, RADIX
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events import facts as f
from kvtape.events.ids import RequestId

from .cpu_rig import tiny
from .glm_rig import TINY as TINY_GLM
from .rig import Rig, arrive, flat_plan, opened_with
from .test_play import of

# Prompt tokens, whether a chat, last mark, pages adopted, rows left to run; pages of 512 rows.
GRID_TABLE = [
    (64_000, True, 63_488, 124, 512),
    (65_536, True, 63_488, 124, 2_048),
    (128_000, True, 126_976, 248, 1_024),
    (131_072, True, 129_024, 252, 2_048),
    (136_000, False, 135_168, 264, 832),
]
PAGE_TABLE = [
    (64_000, True, 63_488, 124, 512),
    (65_536, True, 65_024, 127, 512),
    (136_000, False, 135_680, 265, 320),
]


def prompt_of(length: int) -> list[int]:
    """Tokens that repeat no page."""
    return [(at * at * 7 + at // 64) % 63 for at in range(length)]


def sent_twice(rig: Rig, length: int, *, chat: bool) -> tuple[f.RequestFinished, f.RequestFinished]:
    """The same prompt twice; a chat's history is the prompt but its reply's header."""
    prompt, ends = prompt_of(length), []
    for name in ("fresh", "again"):
        rig.step(arrive(name, prompt, 4, history_tokens=length - 1 if chat else 0))
        rig.settle()
        ends.append(rig.finished[RequestId(name)])
    return ends[0], ends[1]


def check_marks(rig: Rig, length: int, *, chat: bool, mark: int, pages: int, left: int) -> None:
    """The second send resumes the last mark on so many pages, and says the same."""
    fresh, again = sent_twice(rig, length, chat=chat)
    assert max(fact.mark for fact in of(f.SnapshotTaken, rig)) == mark
    assert (fresh.cached_tokens, again.cached_tokens) == (0, mark)
    assert fresh.token_sha == again.token_sha
    begun = of(f.StreamBegun, rig)[1]
    assert begun.kept_pages == pages
    ran = sum(fact.rows for fact in of(f.PromptStepRun, rig) if fact.stream == 1)
    assert ran == left == length - mark


@pytest.mark.parametrize(("length", "chat", "mark", "pages", "left"), GRID_TABLE)
def test_on_the_grid_marks_stand_at_multiples_of_2048(
    length: int, chat: bool, mark: int, pages: int, left: int
) -> None:
    rules = fake_rules(page_rows=512, mark_rows=2048)
    rig = Rig(opened_with(rules, context=140_000, pages=560, prompt_rows=4096))
    check_marks(rig, length, chat=chat, mark=mark, pages=pages, left=left)


@pytest.mark.parametrize(("length", "chat", "mark", "pages", "left"), PAGE_TABLE)
def test_by_pages_a_resend_costs_less_than_a_page(
    length: int, chat: bool, mark: int, pages: int, left: int
) -> None:
    rules = fake_rules(page_rows=512, mark_rows=512)
    rig = Rig(opened_with(rules, context=140_000, pages=560, prompt_rows=4096))
    check_marks(rig, length, chat=chat, mark=mark, pages=pages, left=left)


@pytest.mark.parametrize(("length", "chat", "mark", "pages", "left"), GRID_TABLE)
def test_on_the_grid_scaled_to_pages_of_8_rows(
    length: int, chat: bool, mark: int, pages: int, left: int
) -> None:
    """The same table divided by 64; a row and the lookahead are left to run all the same."""
    rig = Rig(opened_with(fake_rules(page_rows=8, mark_rows=32), context=2_200, pages=600))
    check_marks(rig, length // 64, chat=chat, mark=mark // 64, pages=pages, left=left // 64)


def test_a_second_turn_keeps_a_mark_only_where_its_history_has_passed_another() -> None:
    """A stream of 1,000 rows and 4 of its reply, as one of 64,000 and 256."""
    for history, marks in ((1_012, ()), (1_024, (1_024,))):
        rig = Rig(opened_with(fake_rules(page_rows=8, mark_rows=32), context=1_100, pages=300))
        first, turn = prompt_of(1_000), prompt_of(1_031)
        rig.step(arrive("first", first, 4, history_tokens=999))
        rig.settle()
        held = rig.state.book.kept.copy()
        assert held.sum() == 124 and rig.state.book.promised == 0
        rig.step(arrive("turn", turn[: history + 1], 4, history_tokens=history))
        begun = of(f.StreamBegun, rig)[1]
        assert (begun.kept_pages, begun.marks) == (124, marks)
        wanted = -(-(history + 1 + 4) // 8)
        assert begun.promise_pages == wanted - 124
        assert (rig.state.book.leases[held > 0] == 1).all(), "adopted: kept and leased"
        rig.settle()
        assert (rig.state.book.kept > 0).sum() == (128 if marks else 124)


@pytest.mark.parametrize("store", [RADIX, FLAT])
@pytest.mark.parametrize(
    ("history", "marks"),
    [
        (41, {RADIX: (40,), FLAT: (40,)}),  # the prompt's end, 44, is nearer than a gap
        (30, {RADIX: (28, 44), FLAT: (28,)}),
        (0, {RADIX: (44,), FLAT: ()}),
        (48, {RADIX: (44,), FLAT: (44,)}),
    ],
)
def test_marks_are_planned_a_gap_apart_history_first(
    store: int, history: int, marks: dict[int, tuple[int, ...]]
) -> None:
    rules = fake_rules(page_rows=4, mark_rows=4, min_gap=8)
    rig = Rig(opened_with(rules, flags={"store": store}, plan=flat_plan(1000)))
    rig.step(arrive("one", prompt_of(48), 2, history_tokens=history))
    assert of(f.StreamBegun, rig)[0].marks == marks[store]


def test_the_end_of_history_is_kept_though_another_mark_is_near() -> None:
    rig = Rig(opened_with(fake_rules(page_rows=4, mark_rows=4, min_gap=8)))
    for name, tokens, history in (("one", 48, 41), ("turn", 54, 46)):
        rig.step(arrive(name, prompt_of(tokens), 2, history_tokens=history))
        rig.settle()
    assert [fact.marks for fact in of(f.StreamBegun, rig)] == [(40,), (44, 52)]


def test_a_short_prompt_is_not_kept() -> None:
    for least, kept in ((48, 1), (49, 0)):
        rig = Rig(opened_with(fake_rules(min_prompt=least)))
        rig.step(arrive("one", prompt_of(48), 2))
        rig.settle()
        assert len(rig.state.kept) == kept


def test_a_glm_has_pages_of_512_rows_and_marks_there_or_on_the_grid() -> None:
    config = GlmCheckpoint(TINY_GLM).config
    assert (PAGE_ROWS, GRID_ROWS) == (512, 2_048)
    by_page, grid = Glm(config).rules(), Glm(config, Choices(mark_rows=GRID_ROWS)).rules()
    assert (by_page.page_rows, by_page.mark_rows, by_page.lookahead) == (512, 512, 1)
    assert (grid.page_rows, grid.mark_rows, grid.lookahead) == (512, 2_048, 1)
    assert [(rules.min_prompt, rules.min_gap) for rules in (by_page, grid)] == [(0, 0), (4096, 256)]
    with pytest.raises(UnsupportedShape, match="marks at 2000 rows cut pages of 512"):
        Glm(config, Choices(mark_rows=2_000))


def test_a_llama_has_no_grid() -> None:
    with pytest.raises(UnsupportedShape, match="pages and marks are 32 rows"):
        Llama(tiny().config, Choices(mark_rows=GRID_ROWS))
