"""What the machine may ask of a device, and what a rank says of a finished step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..events.facts import AnyFact
from ..events.ids import Rank, StateId, StreamId
from .state import State

Pair = tuple[int, int]  # a digest: two sums modulo 2^64


class HeldRows(NamedTuple):
    """Rows of one digest layer and head: positions [n] int64, words [n, width] uint64."""

    positions: NDArray[np.int64]
    words: NDArray[np.uint64]


@dataclass(slots=True)
class Ack:
    """A rank's answer to a resume: the sums it read back, or why it could not."""

    stream: StreamId
    state: StateId
    ok: bool
    why: str = ""
    digest: dict[str, Pair] = field(default_factory=dict)


@dataclass(slots=True)
class Break:
    """Rows of a stream (or of a kept state it resumes) that do not sum to their running digest."""

    stream: StreamId
    part: str
    kept: Pair
    found: Pair


@dataclass(slots=True)
class Poisoned:
    """The first poisoned value that entered a sum: its stream, digest layer and position."""

    stream: StreamId
    layer: int
    position: int


@dataclass(slots=True)
class EveryRow:
    """Sums after every computed row of a step: what a fast-forward compares.

    streams [n]; firsts [n] position of the first row; sums[part][i] uint64 [rows, 2], cumulative;
    tokens[i] int [rows], what each row's logits sample.
    """

    streams: list[StreamId]
    firsts: list[int]
    sums: dict[str, list[NDArray[np.uint64]]]
    tokens: list[NDArray[np.int64]]


@dataclass(slots=True)
class Report:
    """What one rank says of a step.

    sums[stream][part]: cumulative over kept rows, this rank's share of split parts; a part that is
    summed at some steps only is left out at others, for every rank alike.
    streams, starts, tokens: accepted tokens in indptr form; drafts: by stream, how many tokens its
    window had drafted and how many of them were kept. Rank 0's alone are read.
    """

    rank: Rank
    step: int
    streams: list[StreamId] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    tokens: list[int] = field(default_factory=list)
    drafts: dict[StreamId, tuple[int, int]] = field(default_factory=dict)
    flagged: list[StreamId] = field(default_factory=list)
    sums: Mapping[StreamId, dict[str, Pair]] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    poisoned: list[Poisoned] = field(default_factory=list)
    book: str = ""
    every_row: EveryRow | None = None


class Running(Protocol):
    """A step under way on a device."""

    def report(self) -> Report:
        """Wait for the step and say what it did."""
        ...


class Device(Protocol):
    """One rank's memory and arithmetic. It does what facts say, in order, and decides nothing.

    What each fact means to a device:
      PagesLeased         fill the pages with poison, when poison is on
      StreamBegun         state -1: zero the stream's fixed part and its sums; otherwise, once the
                          step's leases are done: restore the snapshot, copy its rows in if it has
                          them, re-sum the stream's pages, answer with an Ack in the report
      ResumeRefused       forget what the resume restored: as StreamBegun with state -1
      SnapshotTaken       copy the fixed part, and the rows where it is not shared (families with
                          snapshots; nothing for pages alone)
      StateDropped        forget the copy
      FaultInjected       flip the bit, if the rank is this one
      PromptStepRun       compute rows; sample after the last one if it is the last known token
      RoundRun            compute each lane's window, keep the accepted rows, roll back the rest
      StreamReleased      forget the stream's sums
    All PromptStepRun and the RoundRun of a step run as one ragged batch, after the other facts.
    """

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """Begin a step; `state` has the facts applied. every_row: report sums after each row."""
        ...

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """The digest of some rows of one digest layer, summed anew from memory."""
        ...

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head."""
        ...

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at these positions, by head."""
        ...

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        ...

    def close(self) -> None:
        """Let threads and memory go."""
        ...
