"""A group of CPU devices driven by hand: facts go to every rank, each from a thread of its own."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvtape.core.apply import apply
from kvtape.core.device import Report
from kvtape.core.state import State, open_state
from kvtape.devices.group import cpu_group
from kvtape.devices.settings import DeviceSettings
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.find import find_model
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import (
    NO_STATE,
    Lane,
    PageId,
    Rank,
    RequestId,
    SessionId,
    StateId,
    StreamId,
    Token,
)
from kvtape.events.records import Sampling

TINY = Path(__file__).with_name("data") / "llama_tiny"
SMALL = {"lanes": 8, "context": 96, "pages": 40, "prompt_rows": 64}


def tiny() -> Checkpoint:
    """The tiny llama with weights of its own for the head."""
    return find_model(str(TINY))


def tiny_tokens() -> list[int]:
    """The 60 ids that the tiny llama's recorded logits belong to."""
    found = json.loads((TINY / "tokens.json").read_text())
    return [*found["prompt"], *found["generated"]]


def ids(tokens: Sequence[int]) -> tuple[Token, ...]:
    """Token ids as facts hold them."""
    return tuple(Token(token) for token in tokens)


def tiny_bits() -> NDArray[np.uint32]:
    """Logits [60, 512] of those ids by the contract's executable definition, as patterns."""
    bits: NDArray[np.uint32] = np.load(TINY / "exact.npz")["logits"]
    return bits


class CpuRig:
    """Ranks with a state each; settings override small defaults, `order` is the page book's."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        world: int = 1,
        threads: int = 1,
        order: str = "lowest",
        **settings: Any,
    ) -> None:
        self.settings = DeviceSettings(**{**SMALL, **settings})
        self.devices: Sequence[Any] = self.make(checkpoint, world, threads)
        self.page_rows = self.devices[0].rules.page_rows
        opened = _opened(self.devices[0], self.settings, world, order)
        self.states = [open_state(opened, leader=rank == 0) for rank in range(world)]
        self._pool = ThreadPoolExecutor(world)
        self._streams = 0

    def make(self, checkpoint: Checkpoint, world: int, threads: int) -> Sequence[Any]:
        """The devices by rank."""
        return cpu_group(checkpoint, self.settings, world=world, threads=threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for device in self.devices:
            device.close()

    @property
    def state(self) -> State:
        """Rank 0's."""
        return self.states[0]

    @property
    def device(self) -> Any:
        """Rank 0."""
        return self.devices[0]

    def step(self, *facts: AnyFact, every_row: bool = False) -> list[Report]:
        """Apply facts on every rank and run them as one step; the reports by rank."""

        def go(rank: int) -> Report:
            for fact in facts:
                apply(self.states[rank], fact)
            running = self.devices[rank].launch(self.states[rank], facts, every_row=every_row)
            report: Report = running.report()
            return report

        return list(self._pool.map(go, range(len(self.devices))))

    def begin(
        self, tokens: Sequence[int], sampling: Sampling | None = None, **begun: Any
    ) -> tuple[StreamId, list[AnyFact]]:
        """A new stream over these ids in its own lane, and the facts that seat it."""
        stream = StreamId(self._streams)
        self._streams += 1
        request = RequestId(f"r{stream}")
        facts: list[AnyFact] = [
            f.RequestArrived(
                request=request,
                session=SessionId("s"),
                prompt=ids(tokens),
                history_tokens=0,
                max_new=32,
                sampling=sampling or Sampling(),
                stop=(),
                eos=(),
                ignore_eos=True,
                draft=begun.get("draft", False),
                salt="",
            ),
            f.StreamQueued(stream=stream, request=request, choice=0),
            f.StreamBegun(
                stream=stream,
                lane=Lane(stream),
                kept_pages=begun.get("kept_pages", 0),
                promise_pages=-(-(len(tokens) + 32 + self.device.rules.drafts) // self.page_rows),
                marks=(),
                owner=Rank(0),
                state=begun.get("state", NO_STATE),
            ),
        ]
        return stream, facts

    def lease(self, stream: StreamId, rows: int, held: int | None = None) -> list[AnyFact]:
        """Pages that a stream needs to hold so many rows; `held`: pages it has."""
        known = self.state.streams.get(stream)
        held = held if held is not None else known.pages if known else 0
        missing = -(-rows // self.page_rows) - held
        if missing <= 0:
            return []
        pages = self.state.book.next(missing)
        return [f.PagesLeased(stream=stream, first=held, pages=pages)]

    def logits(self, stream: StreamId, position: int, rank: int = 0) -> NDArray[np.uint32]:
        """A row of the last step's logits, as patterns."""
        row = self.devices[rank].read(self.states[rank], stream, "logits", 0, position)
        return np.frombuffer(row[0], np.uint32)

    def run(
        self, tokens: Sequence[int], chunk: int, sampling: Sampling | None = None
    ) -> tuple[StreamId, NDArray[np.uint32], list[Report]]:
        """A stream over all these ids in chunks: its logits of every row, rank 0's reports."""
        stream, facts = self.begin(tokens, sampling)
        found, reports = [], []
        for first in range(0, len(tokens), chunk):
            rows = min(chunk, len(tokens) - first)
            facts += self.lease(stream, first + rows)
            facts.append(f.PromptStepRun(stream=stream, first=first, rows=rows))
            reports.append(self.step(*facts, every_row=True)[0])
            found += [self.logits(stream, row) for row in range(first, first + rows)]
            facts = []
        return stream, np.stack(found), reports

    def draw(self, stream: StreamId, token: int) -> list[AnyFact]:
        """The facts of a round in which a stream keeps a token and computes its row."""
        known = self.state.streams[stream]
        return [
            f.RowsKept(streams=(stream,), starts=(0, 1), tokens=ids([token])),
            *self.lease(stream, len(known.tokens) + 1),
            f.RoundRun(lanes=(known.lane,)),
        ]


def kept(state: int, pages: Sequence[int]) -> dict[str, Any]:
    """What `begin` takes to resume a state on these pages."""
    return {"state": StateId(state), "kept_pages": len(pages)}


def adopted(stream: StreamId, pages: Sequence[int]) -> f.PagesAdopted:
    """Pages of a kept state at the head of a stream's table."""
    return f.PagesAdopted(stream=stream, pages=tuple(PageId(page) for page in pages))


def _opened(device: Any, settings: DeviceSettings, world: int, order: str) -> f.RunOpened:
    return f.RunOpened(
        format=f.FORMAT,
        contract=1,
        weights="w16",
        build="test",
        model="tiny",
        model_digest=device.model_digest,
        family="llama",
        rules=device.rules,
        lanes=settings.lanes,
        context=settings.context,
        pages=settings.pages,
        prompt_rows=settings.prompt_rows,
        queue=8,
        states=8,
        order=order,
        plan={},
        world=world,
        devices=("cpu",) * world,
        flags={},
        poison=settings.poison,
        digests=settings.digests,
        text="ids",
    )
