"""Windows: each stream has a whole one to itself; what is computed is what pages would give."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtape.core.admit import pages_wanted
from kvtape.core.families.fake import fake_rules
from kvtape.core.plan_pages import in_windows
from kvtape.core.state import FLAT, RADIX, table_pages
from kvtape.events import facts as f
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId, StreamId

from .glm_rig import glm_device, glm_opened
from .rig import Rig, arrive, expected_reply, flat_plan, opened_with
from .test_machine import FlatMachine
from .test_play import of

LANES, CONTEXT = 8, 128
WINDOW = table_pages(CONTEXT, 8)  # of the fake rules: 16 pages and one
GLM_WINDOW = table_pages(192, 16)
TEXT = [(at * at * 7 + 3 * at) % 61 for at in range(90)]


def fake_opened(windows: int, **settings: object) -> RunOpened:
    """A run of the fake family over copies, each mode with the pool that it plans."""
    small: dict[str, object] = {
        "flags": {"store": FLAT, "windows": windows}, "plan": flat_plan(10**6), "lanes": LANES,
        "pages": LANES * WINDOW if windows else 60, "context": CONTEXT,
    }  # fmt: skip
    return opened_with(fake_rules(drafts=2), **(small | settings))


def told(rig: Rig) -> dict[str, tuple[str, str]]:
    """By request: the hash of its reply, and the last digest of its logits."""
    logits: dict[StreamId, str] = {}
    ended: dict[str, tuple[str, str]] = {}
    for fact in rig.facts:
        if isinstance(fact, f.StepClosed):
            for stream in fact.digests.streams:
                logits[stream] = fact.digests.of(stream)["logits"]
        if isinstance(fact, f.RequestFinished):
            assert fact.reason == "length"
            ended[fact.request] = (fact.token_sha, logits[fact.stream])
    return ended


def play(opened: RunOpened, streams: int, device: Callable[[RunOpened], Any] | None) -> Rig:
    """So many at once, of different lengths; then the first one's prompt again, from its copy."""
    rig = Rig(opened, device)
    room = opened.context - 10
    wishes = [
        arrive(
            f"r{at}", TEXT[at : at + min(room, 20 + 7 * at)], 6 + at % 3, ignore_eos=True,
            draft=at % 3 > 0, history_tokens=18 + 7 * at,
        )
        for at in range(streams)
    ]  # fmt: skip
    rig.step(*wishes)
    rig.settle()
    rig.step(arrive("again", wishes[0].prompt, 6, ignore_eos=True, history_tokens=18))
    rig.settle()
    return rig


@pytest.mark.parametrize("streams", range(1, LANES + 1))
def test_windows_and_pages_give_equal_replies_and_logits(streams: int) -> None:
    windows, pages = (play(fake_opened(mode), streams, None) for mode in (1, 0))
    assert told(windows) == told(pages) and len(told(windows)) == streams + 1
    assert windows.finished[RequestId("again")].cached_tokens == 16
    for request, wish in windows.arrived.items():
        assert windows.replies[request] == expected_reply(windows.opened.rules, wish)


@pytest.mark.parametrize("streams", [1, 3, 8])
def test_a_glm_in_windows_and_on_pages_gives_equal_replies_and_logits(streams: int) -> None:
    found = []
    for mode, pages in ((1, LANES * GLM_WINDOW), (0, 60)):
        plan = flat_plan(10**8)
        flags = {"store": FLAT, "windows": mode}
        opened = glm_opened(2, flags=flags, plan=plan, lanes=LANES, pages=pages)
        rig = play(opened, streams, glm_device)
        rig.device.close()
        found.append(told(rig))
        assert rig.finished[RequestId("again")].cached_tokens == 16
    assert found[0] == found[1] and len(found[0]) == streams + 1


def test_a_stream_is_promised_a_window_from_its_begin_to_its_release() -> None:
    rig = Rig(fake_opened(1))
    rig.step(arrive("short", [1, 2, 3], 2), arrive("long", TEXT, 20))
    begun = of(f.StreamBegun, rig)
    assert [fact.promise_pages for fact in begun] == [WINDOW, WINDOW]
    assert [fact.kept_pages for fact in begun] == [0, 0]
    while rig.state.streams:
        for stream in rig.state.streams.values():
            assert stream.pages + stream.promise == WINDOW
        rig.step()
    assert rig.state.book.free == rig.state.book.total and rig.state.book.promised == 0
    on_pages = Rig(fake_opened(0))
    on_pages.step(arrive("short", [1, 2, 3], 2))
    assert of(f.StreamBegun, on_pages)[0].promise_pages == 1, "one page holds all of it"


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_as_many_streams_run_as_there_are_windows_and_the_next_one_waits(windows: int) -> None:
    rig = Rig(fake_opened(1, pages=windows * WINDOW + WINDOW - 1))
    rig.step(*(arrive(f"r{at}", [at, 2, 3], 4, ignore_eos=True) for at in range(5)))
    most = 0
    while rig.state.streams:
        seated = [stream for stream in rig.state.lanes if stream is not None]
        most = max(most, len(seated))
        rig.step()
    assert most == windows and len(rig.finished) == 5
    order = [fact.stream for fact in of(f.StreamBegun, rig)]
    assert order == sorted(order), "nobody passes the head of the queue"


def test_a_pool_without_a_window_refuses_and_names_how_many_pages_one_takes() -> None:
    rig = Rig(fake_opened(1, pages=WINDOW - 1))
    (refused,) = (fact for fact in rig.step(arrive("r", [1], 1)) if fact.kind == "request_refused")
    assert isinstance(refused, f.RequestRefused)
    assert (refused.reason, refused.need, refused.have) == ("larger_than_pool", WINDOW, WINDOW - 1)


def test_no_page_of_a_window_is_lent() -> None:
    rig = play(fake_opened(1), LANES, None)
    assert not of(f.PagesAdopted, rig) and not of(f.PagesSwapped, rig)
    assert all(not fact.shared and not fact.pages for fact in of(f.SnapshotTaken, rig))
    assert int(rig.state.book.kept.sum()) == 0


def test_a_tape_from_before_the_flag_is_on_pages() -> None:
    for flags in ({}, {"store": RADIX}, {"store": FLAT, "windows": 0}):
        assert not in_windows(opened_with(fake_rules(), flags=flags))
    assert in_windows(fake_opened(1))
    for mode, pages in ((0, 2), (1, WINDOW)):
        assert pages_wanted(Rig(fake_opened(mode)).state, 10, 3) == pages


class WindowRig(Rig):
    """A rig whose streams have windows."""

    def __init__(self, opened: RunOpened) -> None:
        super().__init__(opened.model_copy(update={"flags": opened.flags | {"windows": 1}}))


class WindowMachine(FlatMachine):
    """Random use: there are pages for one window, or two."""

    made = WindowRig


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = FlatMachine.TestCase.settings
