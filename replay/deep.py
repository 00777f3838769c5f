"""Two machines that stand still: the first layer, row and element in which their memory differs."""

from dataclasses import replace

from ..events.ids import StreamId
from .bisect import first_difference
from .machine import Machine
from .memory import Place, first_element, layer_and_cache, layers, probe, read

ON_MEMORY = ("rows", "keys", "states", "rings", "drafts")


def first_place(
    left: Machine, right: Machine, streams: tuple[StreamId, StreamId], rows: int, rank: int = -1
) -> Place | None:
    """Bisect the parts of a stream that both hold; rows: of the shorter one.

    rank: the one whose memory is looked at, -1 for all: each rank's copy of what they hold alike.
    """
    for part in ON_MEMORY:
        for ranks in [(rank, rank)] if rank >= 0 else _copies(left, right, part):
            for layer in range(min(layers(left, part), layers(right, part))):
                place = _in_layer(left, right, streams, part, layer, rows, ranks)
                if place is not None:
                    return replace(place, rank=max(ranks))
    return None


def _copies(left: Machine, right: Machine, part: str) -> list[tuple[int, int]]:
    """Ranks of both sides to compare with each other: -1 where a part is shared out among them."""
    worlds = [len(side.ranks.devices) for side in (left, right)]
    if part in left.opened.rules.split or max(worlds) == 1:
        return [(-1, -1)]
    return [(min(at, worlds[0] - 1), min(at, worlds[1] - 1)) for at in range(max(worlds))]


def _in_layer(
    left: Machine, right: Machine, streams: tuple[StreamId, StreamId], part: str, layer: int,
    rows: int, ranks: tuple[int, int],
) -> Place | None:  # fmt: skip
    def alike(which: range) -> bool:
        sides = zip((left, right), streams, ranks, strict=True)
        a, b = (probe(side, stream, part, layer, which, rank) for side, stream, rank in sides)
        return a == b

    row = first_difference(rows if part != "states" else min(rows, 1), alike)
    if row is None:
        return None
    a = read(left, streams[0], part, layer, row, ranks[0])
    b = read(right, streams[1], part, layer, row, ranks[1])
    for head in sorted(a.keys() & b.keys()):
        element = first_element(a[head], b[head])
        if element is not None:
            column, bit, found, sound = element
            named, cache = layer_and_cache(left.opened, part, layer)
            return Place(
                part, named, cache, head, row, column, bit, found, sound,
                row=row % left.opened.rules.page_rows,
            )  # fmt: skip
    return None
