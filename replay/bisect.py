"""Where ranks part: while their memory stands still, find the first layer and row that differ."""

from collections.abc import Callable

from ..core.device import Pair
from ..core.outcome import Parting
from ..core.state import NO_STREAM, State
from ..events import commands as c
from ..events.canon import content_name
from ..events.ids import Rank
from .ranks import Ranks


def first_difference(rows: int, alike: Callable[[range], bool]) -> int | None:
    """The first of `rows` rows that is not alike, by halving; None when all are."""
    if rows == 0 or alike(range(rows)):
        return None
    low, high = 0, rows  # the first differing row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        if alike(range(low, middle)):
            low = middle
        else:
            high = middle
    return low


def locate(
    ranks: Ranks, state: State, parting: Parting, step: int, keep: Callable[[bytes], None]
) -> c.PartingFound:
    """A parting as a command: its layer and row; each rank's bytes of it are kept as blobs."""
    layer, position = _layer_and_row(ranks, state, parting)
    world = range(len(ranks.devices))
    blobs: list[str] = []
    for rank in world if position >= 0 else ():
        blob = ranks.read(rank, parting.stream, parting.part, layer, position)
        keep(blob)
        blobs.append(content_name(blob))
    return c.PartingFound(
        step=step,
        part=parting.part,
        stream=parting.stream,
        ranks=tuple(Rank(rank) for rank in world),
        values=tuple(parting.values),
        layer=layer,
        position=position,
        blobs=tuple(blobs),
    )


def _layer_and_row(ranks: Ranks, state: State, parting: Parting) -> tuple[int, int]:
    if parting.stream == NO_STREAM or parting.stream not in state.streams:
        return -1, -1
    rows = state.streams[parting.stream].rows
    for layer in range(ranks.devices[0].layers(parting.part)):

        def alike(which: range, layer: int = layer) -> bool:
            sums = {
                _probe(ranks, rank, parting, layer, which) for rank in range(len(ranks.devices))
            }
            return len(sums) == 1

        row = first_difference(rows, alike)
        if row is not None:
            return layer, row
    return -1, -1


def _probe(ranks: Ranks, rank: int, parting: Parting, layer: int, rows: range) -> Pair:
    return ranks.probe(rank, parting.stream, parting.part, layer, rows)
