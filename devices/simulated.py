"""A device that computes nothing: it keeps a clock, and says which tokens a step would have kept.

Its memory is the book's alone. A step takes as long as its rows cost; a round stands for as many as
there are until a page is full, a reply ends or somebody arrives for whom there is a lane. Prompts
go first: replies wait while prompt rows run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.device import Ack, HeldRows, Pair, Report, Running
from ..core.state import State, Stream
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, Rank, StreamId
from .fake import Done


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds: of a prompt row, of a round of one row a lane, and of each lane in it."""

    prompt_row_us: int
    round_us: int
    lane_us: int


class SimulatedDevice:
    """One rank without memory. now_us: its clock; next_us: when somebody arrives, -1 for never."""

    def __init__(self, cost: Cost) -> None:
        self.now_us = 0
        self.next_us = -1
        self._cost = cost

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """Let the step's time pass."""
        report = Report(Rank(0), state.step)
        prompting = False
        for fact in facts:
            match fact:
                case f.PromptStepRun():
                    prompting = True
                    self.now_us += fact.rows * self._cost.prompt_row_us
                    stream = state.streams[fact.stream]
                    if stream.rows == len(stream.tokens):
                        _keep(report, stream, 1)
                case f.StreamBegun() if fact.state != NO_STATE:
                    report.acks.append(Ack(fact.stream, fact.state, ok=True))
                case f.RoundRun() if not prompting:
                    streams = [state.in_lane(lane) for lane in fact.lanes]
                    self._rounds(state, streams, report)
                case _:
                    pass  # nothing that takes time
        return Done(report)

    def _rounds(self, state: State, streams: list[Stream], report: Report) -> None:
        """The same rows for every lane."""
        took = self._cost.round_us + self._cost.lane_us * len(streams)
        rounds = min(_rows_left(state, stream) for stream in streams)
        if self.next_us >= 0 and None in state.lanes:
            rounds = max(1, min(rounds, -(-(self.next_us - self.now_us) // took)))
        self.now_us += rounds * took
        for stream in streams:
            _keep(report, stream, rounds)

    def layers(self, part: str) -> int:
        """It has no parts."""
        return 0

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """It has no rows."""
        raise LookupError(f"a simulated device has no {part}")

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """It has no rows."""
        raise LookupError(f"a simulated device has no {part}")

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """It has no rows."""
        raise LookupError(f"a simulated device has no {part}")

    def close(self) -> None:
        """There is nothing to let go of."""


def _rows_left(state: State, stream: Stream) -> int:
    """Rows until a stream's reply ends or its pages are full."""
    leased = stream.pages * state.opened.rules.page_rows - stream.rows
    return min(leased, stream.request.max_new - stream.new_tokens)


def _keep(report: Report, stream: Stream, rows: int) -> None:
    """So many rows more, each with the token that is the request's own."""
    report.streams.append(StreamId(stream.stream))
    report.tokens += [stream.request.eos[0]] * rows
    report.starts.append(len(report.tokens))
