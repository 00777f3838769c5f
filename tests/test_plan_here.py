"""How much there is to plan: what is left alone, what is wanted, what a machine or a card has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtape.core.plan_room import ample_bytes, reserve_bytes
from kvtape.core.plan_wanted import GIB
from kvtape.devices import memory_here
from kvtape.devices.memory_here import Here
from kvtape.replay.opening import BadOption
from kvtape.replay.plan_start import POOL_BYTES, Start, ask

DATA = Path(__file__).parent / "data"
GLM, LLAMA = str(DATA / "glm_tiny"), str(DATA / "llama_tiny")
MIB = 1 << 20


def machine(total: int, free: int | None = None, *, shared: bool = True) -> Callable[[], Here]:
    """A machine, or a card a rank, of so many bytes."""
    return lambda: Here(total, total if free is None else free, shared)


def test_a_machine_leaves_a_tenth_alone_and_a_card_a_thirty_second() -> None:
    for total, unified, card in (
        (640, 64, 20), (119, 11.9, 119 / 32), (40, 4, 1.25), (16, 4, 1), (8, 2, 1), (1, 0.25, 1),
    ):  # fmt: skip
        assert reserve_bytes(total * GIB, unified=True) == int(unified * GIB)
        assert reserve_bytes(total * GIB, unified=False) == int(card * GIB)
    for asked, unified, card in ((GIB // 4, 2 * GIB, GIB // 2), (3 * GIB, 3 * GIB, 3 * GIB)):
        assert reserve_bytes(64 * GIB, unified=True, asked=asked) == unified
        assert reserve_bytes(64 * GIB, unified=False, asked=asked) == card


@pytest.mark.parametrize(("model", "pages"), [(LLAMA, "auto"), (GLM, "on"), (GLM, "off")])
def test_where_nobody_says_it_is_as_much_as_is_wanted_on_any_machine_that_has_it(
    model: str, pages: Any
) -> None:
    start = Start(model, world=2, context=1024, kv_pages=pages)
    found = [ask(start, machine(total * GIB)) for total in (64, 128, 1024)]
    assert len({asked.wanted.room_bytes for asked in found}) == 1
    plan, wanted = found[0].plan(), found[0].wanted
    assert plan.pool_pages == wanted.lanes * wanted.window_pages and plan.left_bytes == 0
    assert plan.cache_bytes == wanted.cache_bytes and not plan.short_rows
    assert wanted.room_bytes == ample_bytes(wanted, POOL_BYTES // 2)


def test_a_machine_that_has_less_gives_less_cache_first_and_then_refuses() -> None:
    start = Start(GLM, kv_pages="off", context=1024)
    whole = ask(start, machine(64 * GIB)).plan()
    small = ask(start, machine(8 * GIB)).plan()
    assert small.pages_bytes == whole.pages_bytes
    assert 5.9 * GIB < small.cache_bytes < 6 * GIB and whole.cache_bytes == 16 * GIB
    weights = ask(start, machine(64 * GIB)).memory.weights
    tiny = ask(start, machine((weights + MIB) * 4 // 3))
    assert MIB <= tiny.wanted.room_bytes < MIB + 2 and not tiny.wanted.fits
    with pytest.raises(BadOption, match=r"this machine holds 4\.00 MiB a rank, and weights of 4"):
        ask(start, machine(4 * MIB))


def test_a_card_is_each_ranks_own_and_what_is_held_on_it_is_not_free() -> None:
    start = Start(GLM, world=2, kv_pages="off", context=1024)
    card = ask(start, machine(6 * GIB, 5 * GIB, shared=False))
    assert card.wanted.room_bytes == 4 * GIB - card.memory.weights, "a card leaves a GiB alone"
    assert (card.memory.total, card.memory.reserve) == (5 * GIB, GIB)
    shared = ask(start, machine(6 * GIB, 5 * GIB))
    assert (shared.memory.total, shared.memory.reserve) == (5 * GIB // 2, 3 * GIB // 4)


def test_many_streams_of_pages_alone_take_no_more_than_the_pools_bytes() -> None:
    asked = ask(Start(LLAMA, lanes=1000, context=4096), machine(64 * GIB))
    plan = asked.plan()
    assert plan.pages_bytes <= POOL_BYTES < plan.pages_bytes + asked.wanted.sizes.page_bytes
    assert plan.pages < 1000 * plan.window_pages


def test_the_machines_memory_is_its_own_or_its_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory_here, "GROUP_LIMIT", limit)
    whole = memory_here.machine_bytes()
    assert whole > MIB
    for text, found in (("max\n", whole), (f"{whole // 2}\n", whole // 2), (f"{2 * whole}", whole)):
        limit.write_text(text)
        assert memory_here.machine_bytes() == found
