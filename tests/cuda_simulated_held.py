"""Run as a process: what a plan counts for a GPU of several ranks, and what such a rank allocates.

Prints a line of JSON a number of ranks: the bytes that are counted; those of all its arrays, of the
way to gather that takes the most; a line for each array. The simulator is chosen by the
environment.
"""

import json
import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.core.families.llama import Llama
from kvtape.devices.cuda import by_nccl, card, glm_memory, memory
from kvtape.devices.cuda.checks import checks_of
from kvtape.devices.cuda.joined import Joined, Sizes
from kvtape.devices.cuda.room import held_bytes
from kvtape.devices.glm.arena import ring_sizes
from kvtape.devices.settings import DeviceSettings
from kvtape.devices.weights.find import find_model

SETTINGS = DeviceSettings(
    lanes=3, context=64, pages=0, prompt_rows=30, states=0, verify=True, every_row=False
)


class Seen(Exception):
    """What NCCL's way asks of a card, before it meets the others."""


def gathering(sizes: Sizes, world: int) -> dict[str, card.Shape]:
    """The arrays of a rank's gathers over NCCL."""

    def asked(self: Any, of: Any, circle: Any, arrays: Any) -> None:
        raise Seen(arrays)

    circle: Any = SimpleNamespace(world=world, words=lambda own: np.array([own] * world))
    arrays: dict[str, card.Shape] = {}
    with patch.object(Joined, "__init__", asked):
        try:
            by_nccl.GatherByNccl(None, circle, sizes, (), 1.0)
        except Seen as seen:
            arrays = seen.args[0]
    return arrays


def told(family: Any, world: int, settings: DeviceSettings) -> list[int]:
    """Counted, allocated, and lines of the arrays that more pages may pad anew."""
    if isinstance(family, Glm):
        of_glm = glm_memory.recorded(family, world, 0, settings, [0] * family.caches)
        heads = glm_memory.heads_of(family, world, 0)
        shapes = glm_memory.planned(
            family, of_glm, settings, ring_sizes(family), heads, wide_table=False
        )
        sizes = Sizes.of(glm_memory.gathers_of(of_glm, settings))
    else:
        program = memory.recorded(family, world, 0, settings)
        first, last = family.heads(world, 0)
        step = memory.step_room(family, settings, checks_of(program, verify=settings.verify))
        shapes = memory.planned(family, program, settings, last - first, step)
        sizes = Sizes.of(memory.gathers_of(program, settings))
    counted, lines = held_bytes(family, settings, world, wide_table=False), card.LINE * len(shapes)
    if world > 1:
        shapes = shapes | gathering(sizes, world)
    return [counted, card.size_of(shapes), lines]


def main(path: str) -> None:
    """One rank and several."""
    checkpoint: Any = find_model(path)
    glm = checkpoint.family == "glm"
    family = (Glm if glm else Llama)(checkpoint.config, Choices(drafts=int(glm)))
    settings = replace(SETTINGS, drafts=int(glm))
    for world in (1, 2):
        print(json.dumps(told(family, world, settings)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
