"""Dirt in all memory that nobody owns, thrown before every step of every rank."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kvtape.core.kernels.fake_memory import POOL
from kvtape.core.state import State
from kvtape.devices.fake_memory import PATTERNS
from kvtape.events.facts import AnyFact

DIRT = -0x8000  # poison of pattern a in 16 bits; other dirt is what another stream left


def soil_pages(device: Any, state: State, facts: Sequence[AnyFact]) -> None:
    """Free pages, the page for padded writes, and what lies past each stream's last row."""
    del facts
    free = [*state.book.free_pages(), state.opened.pages + 1]
    if hasattr(device, "_memory"):
        _soil_fake(device, state, free)
        return
    device.inspector.poison_pages(tuple(free), "a")
    if hasattr(device.memory, "latent"):
        page_rows, latent, keys = state.opened.rules.page_rows, *_glm_pages(device)
        kpool = page_rows // keys.shape[2]
        for stream, held in device.ledger.streams.items():
            if (seated := state.streams.get(stream)) is not None:
                table = state.table(seated)
                for at in range(held.rows, len(table) * page_rows):
                    page, row = table[at // page_rows], at % page_rows
                    latent[:, page, row] = DIRT
                    if row % kpool == 0 and at >= held.rows:
                        keys[:, page, row // kpool] = DIRT


def _glm_pages(device: Any) -> tuple[Any, Any]:
    return device.memory.latent, device.memory.keys


def _soil_fake(device: Any, state: State, free: list[int]) -> None:
    memory, page_rows, pattern = device._memory, state.opened.rules.page_rows, PATTERNS["a"]
    memory.rows[:, free] = memory.keys[free] = memory.drafts[free] = pattern
    for stream, lane in device._lanes.items():
        if (seated := state.streams.get(stream)) is None or seated.lane != lane:
            continue
        table = state.table(seated)
        for at in range(device._rows[lane], len(table) * page_rows):
            page, row = table[at // page_rows], at % page_rows
            memory.rows[:, page, row] = memory.drafts[page, row] = pattern
            if row % POOL == POOL - 1:
                memory.keys[page, row // POOL] = pattern


def soil_scratch(patterns: Sequence[str]) -> Callable[[Any, State, Sequence[AnyFact]], None]:
    """What a step computes in, full of one pattern after the other."""
    turns: dict[int, int] = {}

    def soil(device: Any, state: State, facts: Sequence[AnyFact]) -> None:
        turn = turns[int(device.rank)] = turns.get(int(device.rank), -1) + 1
        pattern = patterns[turn % len(patterns)]
        if hasattr(device, "_memory"):
            device._memory.saved[:] = device._memory.scratch[:] = np.uint64(PATTERNS[pattern])
        else:
            device.inspector.poison_scratch(pattern)

    return soil
