"""Thrash and reclaim with the real counts of pages and states; every row stands for 128."""

import pytest

from kvtape.core.families.fake import fake_rules
from kvtape.events import facts as f
from kvtape.events.ids import RequestId

from .rig import Rig, arrive, opened_with
from .test_play import of

ROWS = 128  # for which one row stands here
PAGES = 1_028  # of a window of 524,288 rows, and one for each other lane
LANES = 4
REPLY = 4 * ROWS


def served(states: int, poison: str = "a") -> Rig:
    """Four lanes over 1,028 pages of 512 rows, marks at each 2,048, prompt steps of as many."""
    rules = fake_rules(512 // ROWS, 2048 // ROWS, min_prompt=4096 // ROWS, min_gap=256 // ROWS)
    opened = opened_with(
        rules, lanes=LANES, pages=PAGES, states=states, context=524_288 // ROWS,
        prompt_rows=2048 // ROWS, poison=poison,
    )  # fmt: skip
    return Rig(opened)


def chat(number: int, tokens: int) -> list[int]:
    """A conversation's prompt: no two have a page in common."""
    return [number, *((at * at * 7 + at // 64 + number) % 63 for at in range(tokens // ROWS - 1))]


def send(rig: Rig, name: str, number: int, tokens: int) -> f.RequestFinished:
    """Ask and wait."""
    prompt = chat(number, tokens)
    rig.step(arrive(name, prompt, REPLY // ROWS, history_tokens=len(prompt) - 1))
    assert rig.state.lanes.count(None) == LANES - 1, "it begins at once"
    rig.settle()
    return rig.finished[RequestId(name)]


@pytest.mark.parametrize(("states", "resumed"), [(4, 0), (16, 6)])
def test_six_chats_of_8k_sent_twice_thrash_in_4_states_and_all_resume_in_16(
    states: int, resumed: int
) -> None:
    rig = served(states)
    first = [send(rig, f"first{at}", at, 8_192) for at in range(6)]
    second = [send(rig, f"second{at}", at, 8_192) for at in range(6)]
    assert [end.cached_tokens for end in first] == [0] * 6
    assert [end.cached_tokens * ROWS for end in second] == [6_144 if resumed else 0] * 6
    assert len(of(f.StateResumed, rig)) == resumed
    assert len(rig.state.kept) == min(6, states)
    assert [end.token_sha for end in first] == [end.token_sha for end in second]


def test_with_992_of_1028_pages_kept_a_fifth_chat_of_128k_begins_at_once() -> None:
    """One conversation goes for it, whole; sent again it runs from row 0 and says the same."""
    rig = served(4)
    book = rig.state.book
    fresh = [send(rig, f"fresh{at}", at, 128_000) for at in range(4)]
    assert {end.cached_tokens for end in fresh} == {0}
    assert [len(kept.pages) for kept in rig.state.kept.values()] == [248] * 4
    assert (int((book.kept > 0).sum()), book.free) == (992, 36)
    fifth = chat(4, 128_000)
    rig.step(arrive("fifth", fifth, REPLY // ROWS, history_tokens=len(fifth) - 1))
    begun = of(f.StreamBegun, rig)[-1]
    assert (begun.stream, begun.promise_pages) == (4, 251)
    assert [fact.state for fact in of(f.StateDropped, rig)] == [0]
    assert of(f.StateDropped, rig)[0].why == "reclaimed"
    assert book.available + 251 == 36 + 248
    rig.settle()
    again = {at: send(rig, f"again{at}", at, 128_000) for at in (3, 0)}
    assert [end.cached_tokens * ROWS for end in again.values()] == [126_976, 0]
    assert all(end.token_sha == fresh[at].token_sha for at, end in again.items())
