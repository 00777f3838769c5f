"""A broken sum explained: the one word whose change turns the digest kept into the digest found."""

import numpy as np

from ..core.digests import hex_pair, sub_pairs
from ..core.kernels.digest import PARTS
from ..core.kernels.syndrome import find_word
from ..core.state import Phase, State
from ..events.ids import StreamId
from .machine import Machine
from .memory import Place, first_element, layer_and_cache, layers, rows_of_layer


def rows_in_reach(state: State, stream: StreamId) -> int:
    """Rows that a stream may have in memory: kept, taken over, and those of a window under way."""
    held, rules = state.streams[stream], state.opened.rules
    over = held.pages if held.phase is Phase.RESUMING else held.kept_pages
    most = max(held.rows + 1 + rules.drafts, over * rules.page_rows)
    return min(most, held.pages * rules.page_rows)


def explain(
    machine: Machine, stream: StreamId, part: str, kept: str, found: str, rank: int = -1
) -> Place | None:
    """Search a machine's sound rows for the word; None if more than one word changed.

    rank: whose share the sums are, -1 for the sum over ranks.
    """
    digest_part = "rows" if part == "marks" else part
    off = sub_pairs(hex_pair(found), hex_pair(kept))
    off_0, off_1 = (np.uint64(lane) for lane in off)
    if stream not in machine.state.streams or not layers(machine, digest_part):
        return None
    rows = rows_in_reach(machine.state, stream)
    if digest_part not in machine.opened.rules.split or len(machine.ranks.devices) == 1:
        rank = -1  # every rank holds the same rows
    for layer in range(layers(machine, digest_part)):
        for head, held in rows_of_layer(machine, stream, digest_part, layer, rows, rank):
            positions, words = held.positions, np.ascontiguousarray(held.words)
            row, column, mask = find_word(
                words, PARTS[digest_part], layer, head, positions, off_0, off_1, 0, len(words)
            )
            if row >= 0:
                sound = words[row].copy()
                turned = sound.copy()
                turned[column] ^= np.uint64(mask)
                return _place(machine, digest_part, layer, head, int(positions[row]), turned, sound)
    return None


def _place(
    machine: Machine, part: str, layer: int, head: int, position: int,
    turned: np.ndarray[tuple[int, ...], np.dtype[np.uint64]],
    sound: np.ndarray[tuple[int, ...], np.dtype[np.uint64]],
) -> Place:  # fmt: skip
    element = first_element(turned.tobytes(), sound.tobytes())
    assert element is not None, "a word that changed has an element that did"
    column, bit, left, right = element
    named, cache = layer_and_cache(machine.opened, part, layer)
    return Place(
        part, named, cache, head, position, column, bit, left, right,
        row=position % machine.opened.rules.page_rows,
    )  # fmt: skip
