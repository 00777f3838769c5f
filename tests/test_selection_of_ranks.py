"""The sparse selection is every rank's own and the same: which pools each row reads, by layer."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from kvtape.core.kernels.glm_memory import OPS
from kvtape.devices.glm.layout import GlmOp
from kvtape.events.facts import PromptStepRun

from .glm_rig import GlmRig, glm_tokens

TOKENS = glm_tokens()
Lists = list[tuple[int, ...]]  # by row, the pools that it reads


@cache
def selections(world: int, layer: int) -> list[Lists]:
    """By rank, what a prompt's rows select in one sparse layer: the step is cut off behind it."""
    with GlmRig(world=world, prompt_rows=len(TOKENS)) as rig:
        for device in rig.devices:
            ops = device.memory.ops
            places = np.flatnonzero(ops[:, 0] == GlmOp.SELECT)
            assert len(places) == len(device.family.sparse)
            device._places[OPS, 1] = places[layer] + 1
        stream, facts = rig.begin(TOKENS)
        facts += rig.lease(stream, len(TOKENS))
        rig.step(*facts, PromptStepRun(stream=stream, first=0, rows=len(TOKENS)))
        return [lists_of(device.memory) for device in rig.devices]


def lists_of(memory: Any) -> Lists:
    """The lists that stand in a rank's memory."""
    picked, counts = memory.picked, memory.counts
    return [tuple(picked[row, : counts[row]].tolist()) for row in range(len(TOKENS))]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_rank_selects_the_same_pools_in_each_layer(world: int) -> None:
    with GlmRig() as rig:
        layers = range(len(rig.device.family.sparse))
    chosen = []
    for layer in layers:
        (alone,) = selections(1, layer)
        assert sum(each != tuple(range(len(each))) for each in alone) > 40, "pools are left out"
        assert selections(world, layer) == [alone] * world
        chosen.append(alone)
    assert len(chosen) > 1 and chosen[0] != chosen[1], "layers select for themselves"
