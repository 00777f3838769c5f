"""A stream cut off at a mark leaves its state: pages and lane are gone by the end of that step."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvtape.core.families.fake import fake_rules
from kvtape.core.state import FLAT, RADIX
from kvtape.events import facts as f
from kvtape.events.commands import Cancel
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId

from .glm_rig import glm_device
from .rig import Rig, arrive, flat_plan, opened_with
from .test_glm_stores import opened_in
from .test_play import of

FLAGS = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1, "prefix_wait": 1}
TEXT = [(at * at * 7 + 3 * at) % 61 for at in range(70)]


def fake_run(store: int) -> RunOpened:
    """Pages of 8 rows, marks at 16."""
    return opened_with(
        fake_rules(), flags={"store": store, **FLAGS}, plan=flat_plan(10**6), lanes=1, poison="a"
    )


def glm_run(store: int) -> RunOpened:
    """The tiny GLM on one rank."""
    return opened_in(store, flags={"store": store, **FLAGS}, lanes=1)


@contextmanager
def rig_of(kind: str, store: int) -> Iterator[Rig]:
    """A machine on a device of one kind, which is closed afterwards."""
    rig = Rig(fake_run(store)) if kind == "fake" else Rig(glm_run(store), glm_device)
    try:
        yield rig
    finally:
        rig.device.close()


def at_the_first_mark(rig: Rig) -> bool:
    """Whether the rows of the one stream are at its first mark, and the ranks have said so."""
    stream = rig.state.streams[rig.state.requests[RequestId("cut")]]
    return bool(stream.marks) and stream.rows == stream.marks[0]


@pytest.mark.parametrize("kind", ["fake", "glm"])
@pytest.mark.parametrize("store", [RADIX, FLAT])
def test_a_client_that_leaves_at_a_mark_leaves_a_state_that_serves(kind: str, store: int) -> None:
    """The next one takes its lane and its pages in the very step."""
    with rig_of(kind, store) as rig:
        rig.step(arrive("fresh", TEXT, 5, history_tokens=0, salt="other"))
        rig.settle()
        rig.step(arrive("cut", TEXT, 5, history_tokens=68))
        while not at_the_first_mark(rig):
            rig.step()
        mark = rig.state.streams[rig.state.requests[RequestId("cut")]].rows
        other = arrive("other", TEXT[::-1], 5, salt="another")
        facts = rig.step(Cancel(request=RequestId("cut"), why="client-left"), other)
        kinds = [fact.kind for fact in facts]
        assert kinds.index("snapshot_taken") < kinds.index("stream_released")
        assert kinds.index("stream_released") < kinds.index("stream_begun")
        rig.settle()
        rig.step(arrive("again", TEXT, 5, history_tokens=68))
        rig.settle()
        again, fresh = (rig.finished[RequestId(name)] for name in ("again", "fresh"))
        assert (again.cached_tokens, again.token_sha) == (mark, fresh.token_sha)
        assert not of(f.ResumeRefused, rig) and not of(f.SumsBroken, rig)
