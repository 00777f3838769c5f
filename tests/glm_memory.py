"""What a stream of a GLM holds in memory, by position; devices whose drafts a test chooses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.device import Report
from kvtape.core.state import NO_LANE, State, Stream
from kvtape.devices.glm.device import GlmDevice
from kvtape.devices.glm.inspect import Seat
from kvtape.events.facts import AnyFact, StreamBegun
from kvtape.events.ids import StreamId

Held = dict[str, NDArray[Any]]
Drafter = Callable[[Stream], Sequence[int] | None]  # None: the model's own drafts stay
PAGED = ("rows", "keys")
TRUNK = ("rows", "keys", "states", "conv", "index")
DRAFTER = ("draft rows", "draft keys", "draft index")


def held(device: GlmDevice, state: State, stream: StreamId) -> Held:
    """All that the stream's kept rows left in one rank's memory, each part in row order.

    rows [caches, n, R]; keys [caches, n // kpool, DI]; states [layers, heads, D, D]; conv
    [layers, taps - 1, W] raw rows; index [caches, n % kpool, 2, DI] of the unfinished pool.
    """
    lane = int(state.streams[stream].lane)
    seat = Seat(lane, state.tables[lane], device.ledger.streams[stream].rows)
    m, rings, n = device.memory, device.rings, seat.rows
    sizes, trunk = device.family.sizes, len(device.family.sparse)
    pages = state.tables[lane, : -(-n // device.rules.page_rows)]
    caches = len(m.latent)
    rows = m.latent[:, pages].reshape(caches, -1, sizes.latent)[:, :n]
    keys = m.keys[:, pages].reshape(caches, -1, sizes.index_dim)[:, : n // sizes.kpool]
    before = np.arange(max(0, n - sizes.taps + 1), n) % rings.conv
    pool = np.arange(n - n % sizes.kpool, n) % rings.index
    index = m.index_ring[:, lane, pool]
    found = {
        "rows": rows[:trunk],
        "keys": keys[:trunk],
        "states": m.states[:, lane, (n - 1) % rings.states],
        "conv": m.conv_ring[:, lane, before],
        "index": index[:trunk],
        "draft rows": rows[trunk:],
        "draft keys": keys[trunk:],
        "draft index": index[trunk:],
    }
    return {part: np.ascontiguousarray(array) for part, array in found.items()}


def differing(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> list[str]:
    """The parts whose bytes differ; a part that has no bytes on one side is not compared."""
    parts = [part for part in one if one[part].size or other[part].size]
    return [part for part in parts if one[part].tobytes() != other[part].tobytes()]


class Playing:
    """A GLM device whose drafts come from `drafter`, and which may refuse every resume."""

    def __init__(self, device: GlmDevice, drafter: Drafter | None = None) -> None:
        self.inner, self.drafter, self.refuse_resume = device, drafter, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def launch(self, state: State, facts: Sequence[AnyFact], **more: Any) -> Any:
        """As the device does, after the drafts of every lane were replaced."""
        memory = self.inner.memory
        for stream in state.streams.values():
            drafts = self.drafter(stream) if self.drafter and stream.lane != NO_LANE else None
            if drafts is not None:
                memory.drafts[stream.lane, : len(drafts)] = drafts
                memory.draft_counts[stream.lane] = len(drafts)
        if self.refuse_resume:
            for fact in facts:
                if isinstance(fact, StreamBegun):
                    self.inner.copies.pop(fact.state, None)
        return self.inner.launch(state, facts, **more)


class Schedule:
    """Drafts that are right for a while: at each turn so many right ones, then wrong ones.

    replies: by request, what undrafted requests were answered.  turns: (right, drafts) in a cycle.
    """

    def __init__(
        self, replies: Mapping[str, Sequence[int]], turns: Sequence[tuple[int, int]], vocab: int
    ) -> None:
        self.replies, self.turns, self.vocab, self.at = replies, turns, vocab, 0

    def __call__(self, stream: Stream) -> list[int]:
        request, known = stream.request, len(stream.tokens)
        whole = [*request.prompt, *self.replies[request.request]]
        right, count = self.turns[self.at % len(self.turns)]
        self.at += 1
        true = whole[known : known + count]
        true += [5] * (count - len(true))
        return [t if at < right else (t + 3) % self.vocab for at, t in enumerate(true)]


class Forgetful(Playing):
    """A device that writes a row of one paged array of one cache only once: a mutant.

    What a refused row left there stays when the row is computed again with the true token.
    """

    def __init__(self, device: GlmDevice, drafter: Drafter, part: str, cache: int) -> None:
        super().__init__(device, drafter)
        self.rows = (device.memory.latent if part == "rows" else device.memory.keys)[cache]
        self.blank = self.rows[0, 0].copy()

    def launch(self, state: State, facts: Sequence[AnyFact], **more: Any) -> Any:
        """As the device does; its report puts back what stood in the rows before."""
        before = self.rows.copy()
        running = super().launch(state, facts, **more)
        report = running.report

        def once() -> Report:
            found: Report = report()
            written = (before != self.blank).any(axis=-1)
            self.rows[written] = before[written]
            return found

        return _Reported(once)


class _Reported:
    def __init__(self, report: Callable[[], Report]) -> None:
        self.report = report
