"""Rows in the memory of a machine that stands still: their words, and where two of them differ."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..core.device import Device, HeldRows
from ..core.digests import ZERO, add_pairs
from ..core.families.caches import cache_names
from ..core.state import State
from ..events.facts import RunOpened
from ..events.ids import StreamId
from .machine import Machine


@dataclass(frozen=True, slots=True)
class Place:
    """One element of a row in memory. left: found there.  right: what should be there.

    layer and cache name a digest layer; column counts 16-bit elements of the row as it is digested
    (past its values: the exponent); bit: the lowest that differs.  page, written_by: of the tape.
    """

    part: str
    layer: int
    cache: str
    head: int
    position: int
    column: int
    bit: int
    left: int
    right: int
    row: int
    page: int = -1
    written_by: int = -1
    rank: int = -1

    @property
    def distance(self) -> int:
        """How far apart the two values are."""
        return abs(self.left - self.right)


def layer_and_cache(opened: RunOpened, part: str, digest_layer: int) -> tuple[int, str]:
    """A digest layer by its names."""
    names = cache_names(opened.family, part)
    return digest_layer // len(names), names[digest_layer % len(names)]


def holders(machine: Machine, part: str, rank: int = -1) -> list[tuple[Device, State]]:
    """The devices that hold a part, with their states: all that share it, or one of equals."""
    devices = machine.ranks.devices
    states = [machine.state, *machine.ranks.states]
    split = part in machine.opened.rules.split
    chosen = [rank] if rank >= 0 else list(range(len(devices))) if split else [0]
    return [(devices[at], states[at]) for at in chosen if devices[at].layers(part)]


def layers(machine: Machine, part: str) -> int:
    """How many digest layers a part has."""
    return max((device.layers(part) for device in machine.ranks.devices), default=0)


def probe(
    machine: Machine, stream: StreamId, part: str, layer: int, rows: range, rank: int = -1
) -> tuple[int, int]:
    """The digest of some rows of a digest layer, over the ranks that share it."""
    pairs = [
        device.probe(state, stream, part, layer, rows.start, len(rows))
        for device, state in holders(machine, part, rank)
    ]
    return add_pairs(ZERO, *pairs)


def read(
    machine: Machine, stream: StreamId, part: str, layer: int, position: int, rank: int = -1
) -> dict[int, bytes]:
    """The words of a row by head, as they are digested."""
    found: dict[int, bytes] = {}
    for device, state in holders(machine, part, rank):
        found.update(device.read(state, stream, part, layer, position))
    return found


def rows_of_layer(
    machine: Machine, stream: StreamId, part: str, layer: int, rows: int, rank: int
) -> Iterator[tuple[int, HeldRows]]:
    """(head, its rows at positions below `rows`) of a digest layer, as the devices hold them."""
    for device, state in holders(machine, part, rank):
        if layer < device.layers(part):
            yield from device.read_rows(state, stream, part, layer, 0, rows).items()


def first_element(left: bytes, right: bytes) -> tuple[int, int, int, int] | None:
    """(column, lowest bit, left, right) of the first 16-bit element that differs, if any does."""
    a, b = np.frombuffer(left, "<i2"), np.frombuffer(right, "<i2")
    apart = np.flatnonzero(a != b)
    if len(apart) == 0:
        return None
    column = int(apart[0])
    mask = (int(a[column]) ^ int(b[column])) & 0xFFFF
    return column, (mask & -mask).bit_length() - 1, int(a[column]), int(b[column])
