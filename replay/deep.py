"""Two machines that stand still: the first layer, row and element in which their memory differs."""

from ..events.ids import StreamId
from .bisect import first_difference
from .machine import Machine
from .memory import Place, first_element, layer_and_cache, layers, probe, read

ON_MEMORY = ("rows", "keys", "states", "rings", "drafts")


def first_place(
    left: Machine, right: Machine, streams: tuple[StreamId, StreamId], rows: int, rank: int = -1
) -> Place | None:
    """Bisect the parts of a stream that both hold; rows: of the shorter one."""
    for part in ON_MEMORY:
        for layer in range(min(layers(left, part), layers(right, part))):
            place = _in_layer(left, right, streams, part, layer, rows, rank)
            if place is not None:
                return place
    return None


def _in_layer(
    left: Machine, right: Machine, streams: tuple[StreamId, StreamId], part: str, layer: int,
    rows: int, rank: int,
) -> Place | None:  # fmt: skip
    def alike(which: range) -> bool:
        sides = zip((left, right), streams, strict=True)
        a, b = (probe(side, stream, part, layer, which, rank) for side, stream in sides)
        return a == b

    row = first_difference(rows if part != "states" else min(rows, 1), alike)
    if row is None:
        return None
    a = read(left, streams[0], part, layer, row, rank)
    b = read(right, streams[1], part, layer, row, rank)
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
