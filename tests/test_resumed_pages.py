"""A resume: whose pages, at whose head, written by nobody, given back when a rank refuses it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvtape.core.device import Device
from kvtape.core.families.fake import fake_rules
from kvtape.core.state import FLAT, RADIX, State
from kvtape.devices import fake
from kvtape.devices.glm import device as glm
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import PageId, RequestId

from .glm_rig import glm_devices, glm_opened
from .replay_bench import fakes, opening
from .rig import Rig, arrive, flat_plan, opened_with
from .test_marks import prompt_of
from .test_play import of
from .test_replay_cpu import cpus, opened_for
from .wire import Heard, Wire, listened, one_by_one

TEXT = [(5 * at + at // 7) % 31 for at in range(40)]
MARKER = 0x3C3C  # of 16 bits: it is neither poison nor what any row here holds
KINDS = ["drafted", "plain", "paged", "glm", "llama"]


def opened_as(kind: str, world: int = 2, **changes: Any) -> RunOpened:
    """A run of some ranks: the fake family's kinds, the tiny llama, the tiny GLM with drafts."""
    if kind == "llama":
        return opened_for(world=world, **changes)
    if kind == "glm":
        small: Any = {"devices": ("cpu",) * world, "lanes": 2, "pages": 30, "world": world}
        return glm_opened(2, **(small | changes))
    return opening(kind, world=world, **changes)


def makes(kind: str) -> Any:
    """Who makes the devices of a kind."""
    return {"glm": glm_devices, "llama": cpus}.get(kind, fakes)


def paged_arrays(device: Any) -> list[np.ndarray[Any, Any]]:
    """All 16-bit words that stand on pages; the page is the second axis."""
    if hasattr(device, "_memory"):
        held = device._memory
        return [held.rows.view(np.int16), *(
            words[np.newaxis].view(np.int16) for words in (held.keys, held.drafts)
        )]  # fmt: skip
    if hasattr(device.memory, "values"):
        return [device.memory.keys, device.memory.values]
    return [device.memory.latent, device.memory.keys]


class Marking:
    """Overwrites adopted pages with a marker once their resume is answered, on every rank."""

    def __init__(self) -> None:
        self.marked: list[tuple[Any, tuple[PageId, ...]]] = []

    def __call__(self, device: Any, state: State, facts: Sequence[AnyFact]) -> None:
        for fact in facts:
            if isinstance(fact, f.StateResumed) and not self.marked_on(device):
                stream = state.streams[fact.stream]
                pages = tuple(state.table(stream)[: stream.kept_pages])
                for words in paged_arrays(device):
                    words[:, list(pages)] = MARKER
                self.marked.append((device, pages))
            for one, pages in self.marked:
                if one is device and isinstance(fact, f.StreamReleased):
                    for words in paged_arrays(device):
                        assert (words[:, list(pages)] == MARKER).all(), "a row < mark was written"

    def marked_on(self, device: Any) -> bool:
        return any(one is device for one, _ in self.marked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_stream_writes_no_row_below_its_mark(kind: str) -> None:
    """Its rows are overwritten as it resumes, so that to write any of them again would show."""
    marking = Marking()
    wire = listened(
        opened_as(kind), one_by_one([("first", TEXT), ("again", TEXT)], 12), makes(kind), marking
    )
    assert wire.ends["again"].cached_tokens > 0
    assert len(marking.marked) == 2, "on both ranks"
    assert wire.ends["again"].token_sha != wire.ends["first"].token_sha, "the marker was read"


@pytest.mark.parametrize("kind", ["drafted", "glm"])
def test_by_reference_no_row_is_copied_and_by_copy_on_every_rank(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = glm if kind == "glm" else fake
    real, copied = module.copy_pages_in, list[int]()

    def counted(memory: Any, *given: Any) -> None:
        copied.append(1)
        real(memory, *given)

    monkeypatch.setattr(module, "copy_pages_in", counted)
    script = one_by_one([("first", TEXT), ("again", TEXT)])
    for store, copies in ((RADIX, 0), (FLAT, 2)):
        copied.clear()
        settings: Any = {"flags": {"store": store}, "plan": flat_plan(10**9)}
        wire = listened(opened_as(kind, **settings), script, makes(kind))
        assert wire.ends["again"].cached_tokens > 0
        assert len(copied) == copies
        owned = {own for spy in wire.ranks for own in spy.heard[-1].copies.values()}
        assert (owned == {0}) == (store == RADIX), "rows that the copies own"


@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_adopts_the_kept_pages_at_the_head_of_its_table_on_every_rank(kind: str) -> None:
    """Holders are one more while it runs, and then as before."""
    wire = listened(opened_as(kind, 3), one_by_one([("first", TEXT), ("again", TEXT)]), makes(kind))
    (resumed,) = wire.of("state_resumed")
    path = next(fact.pages for fact in wire.of("snapshot_taken") if fact.state == resumed.state)
    path = path[: resumed.mark // wire.opened.rules.page_rows]
    assert path and wire.ends["again"].cached_tokens == resumed.mark
    for spy in wire.ranks:
        before, *during = leases_around(spy.heard, resumed.stream)
        after = during.pop()
        for heard in during:
            assert heard.seats[resumed.stream][: len(path)] == path
            assert [heard.leases[page] for page in path] == [1] * len(path)
        assert [before.leases[page] for page in path] == [0] * len(path)
        assert [after.leases[page] for page in path] == [0] * len(path)


def leases_around(heard: list[Heard], stream: int) -> list[Heard]:
    """The turn before a stream holds pages, those in which it does, and the one after."""
    holds = [at for at, turn in enumerate(heard) if stream in turn.seats]
    return heard[holds[0] - 1 : holds[-1] + 2]


# --- refused --------------------------------------------------------------------------------------


def refusing(rank: int) -> Any:
    """Devices of which one refuses to resume."""

    def refuse(devices: Sequence[Device]) -> None:
        devices[rank].refuse_resume = True  # type: ignore[attr-defined]

    return refuse


@pytest.mark.parametrize("kind", ["drafted", "paged"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_refused_resume_gives_the_pages_back_on_every_rank(kind: str, rank: int) -> None:
    script = one_by_one([("first", TEXT), ("again", TEXT)])
    check_refused(listened(opened_as(kind, 3), script, spoil=refusing(rank)), rank)


def check_refused(wire: Wire, rank: int) -> None:
    """Holders are as before the begin; the prompt runs from row 0 and says the same."""
    (refused,) = wire.of("resume_refused")
    assert refused.rank == rank
    end = wire.ends["again"]
    assert (end.cached_tokens, end.token_sha) == (0, wire.ends["first"].token_sha)
    adopted, returned = wire.of("pages_adopted")[0], wire.of("pages_returned")[1]
    assert returned == f.PagesReturned(stream=refused.stream, pages=adopted.pages)
    anew = [fact for fact in wire.of("stream_begun") if fact.stream == refused.stream][1]
    assert (anew.kept_pages, anew.state) == (0, -1)
    for spy in wire.ranks:
        at = next(at for at, heard in enumerate(spy.heard) if refused in heard.facts)
        before = spy.heard[at - 2]
        assert sum(before.leases) == 0, "nobody holds a page as it begins"
        own = spy.heard[at].seats[refused.stream]
        assert sum(spy.heard[at].leases) == len(own), "what it adopted is back"
        assert sum(spy.heard[-1].leases) == 0


# --- the book of a resume in numbers --------------------------------------------------------------


def test_the_book_of_a_resume_of_64000_tokens() -> None:
    """126 pages are wanted, 124 adopted, 2 promised; they have 1, 2, 1 holders and 0, 1, 0."""
    rules = fake_rules(page_rows=512, mark_rows=2048, min_prompt=4096, min_gap=256)
    rig = Rig(opened_with(rules, context=131_072, pages=257, prompt_rows=2048))
    book, prompt = rig.state.book, prompt_of(64_000)
    rig.step(arrive("first", prompt, 4, history_tokens=63_990))
    rig.settle()
    (taken,) = of(f.SnapshotTaken, rig)
    path = list(taken.pages)
    assert (taken.mark, len(path), int(book.kept.sum())) == (63_488, 124, 124)
    assert holders(rig, path) == {1}
    rig.step(arrive("again", prompt, 256, history_tokens=63_990))
    begun = of(f.StreamBegun, rig)[1]
    assert (begun.kept_pages, begun.promise_pages, begun.marks) == (124, 2, ())
    stream = rig.state.streams[begun.stream]
    seen: set[tuple[int, int]] = set()
    while rig.state.streams:
        assert holders(rig, path) == {2}
        own = rig.state.table(stream)[124:]
        seen.add((len(own), stream.promise))
        assert len(own) + stream.promise == 2 and (not own or holders(rig, own) == {1})
        rig.step()
    assert seen == {(0, 2), (1, 1), (2, 0)}
    assert holders(rig, path) == {1} and book.free == 257 - 124
    assert (int(book.leases.sum()), book.promised) == (0, 0)
    assert rig.finished[RequestId("again")].cached_tokens == 63_488


def holders(rig: Rig, pages: Sequence[PageId]) -> set[int]:
    """How many hold each of these pages."""
    book = rig.state.book
    return {int(book.leases[page] + book.kept[page]) for page in pages}


@pytest.mark.parametrize(
    ("history", "marks", "held"), [(64_800, (), 124), (65_536, (65_536,), 128)]
)
def test_a_second_turn_of_66000_tokens_adds_four_pages_or_none(
    history: int, marks: tuple[int, ...], held: int
) -> None:
    rules = fake_rules(page_rows=512, mark_rows=2048, min_prompt=4096, min_gap=4096)
    rig = Rig(opened_with(rules, context=131_072, pages=257, prompt_rows=2048))
    for name, prompt, known in (
        ("first", prompt_of(64_000), 63_990), ("turn", prompt_of(66_000), history),
    ):  # fmt: skip
        rig.step(arrive(name, prompt, 4, history_tokens=known))
        rig.settle()
    assert rig.finished[RequestId("turn")].cached_tokens == 63_488
    assert of(f.StreamBegun, rig)[1].marks == marks
    assert int((rig.state.book.kept > 0).sum()) == held
