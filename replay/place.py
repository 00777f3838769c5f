"""Where a tape's contradiction is in memory: a sound replay stands still and is searched."""

from collections.abc import Iterable
from dataclasses import replace

from ..events.facts import RunOpened
from ..events.ids import StreamId
from ..events.reader import Step
from .machine import Machine, MakeDevices
from .memory import Place, first_element, layer_and_cache, read
from .recording import Recording
from .rerun import reopened, rerun
from .suspect import Suspect
from .syndrome import explain
from .writers import Writers


def place_of(recording: Recording, suspect: Suspect, make: MakeDevices) -> Place | None:
    """Replay soundly up to the contradiction and find what changed.

    Memory that is written in place is looked at one step earlier too, as it was before the step.
    """
    steps = recording.before(suspect.at.seq)
    for cut in (steps, steps[:-1]):
        with Machine(reopened(recording.opened), make) as machine:
            rerun(machine, cut)
            place = _explained(machine, suspect)
        if place is not None:
            return with_writer(recording.opened, cut, StreamId(suspect.at.stream), place)
    return None


def _explained(machine: Machine, suspect: Suspect) -> Place | None:
    at = suspect.at
    stream = StreamId(at.stream)
    if suspect.kind == "ranks_parted":
        return _odd_rank(machine, suspect) if stream in machine.state.streams else None
    for one in _seated(machine, stream):
        place = explain(machine, one, at.part, at.right, at.left, at.rank)
        if place is not None:
            return replace(place, rank=at.rank)
    return None


def _seated(machine: Machine, first: StreamId) -> list[StreamId]:
    """The streams in lanes, this one first: rows of the same tokens are the same in each of them.

    A replay that the fault made differ stopped before the stream took over the rows that were hit.
    """
    seated = [stream for stream in machine.state.lanes if stream is not None]
    return sorted(seated, key=lambda stream: stream != first)


def _odd_rank(machine: Machine, suspect: Suspect) -> Place | None:
    """The rank whose bytes are not what a sound replay has there."""
    at = suspect.at
    if suspect.layer < 0 or at.position < 0:
        return None
    heads = read(machine, StreamId(at.stream), at.part, suspect.layer, at.position)
    sound = b"".join(heads[head] for head in sorted(heads))
    layer, cache = layer_and_cache(machine.opened, at.part, suspect.layer)
    for rank, row in enumerate(suspect.rows):
        element = first_element(row, sound) if len(row) == len(sound) else None
        if element is not None:
            width = len(sound) // len(heads) // 2
            column, bit, left, right = element
            return Place(
                at.part, layer, cache, sorted(heads)[column // width], at.position,
                column % width, bit, left, right,
                row=at.position % machine.opened.rules.page_rows, rank=rank,
            )  # fmt: skip
    return None


def with_writer(opened: RunOpened, steps: Iterable[Step], stream: StreamId, place: Place) -> Place:
    """A place, with the fact that wrote its row last."""
    writers = Writers(opened).fold(steps)
    if place.part == "states":  # written by every row, the last one last
        last = writers.state.streams[stream].rows - 1
        return replace(place, row=0, written_by=writers.of(stream, last))
    return replace(
        place,
        page=-1 if place.part == "rings" else writers.page_of(stream, place.position),
        written_by=writers.of(stream, place.position),
    )
