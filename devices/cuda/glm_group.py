"""A GLM's rank on a GPU: its program, its memory, and the weights that the CPU's loader packs."""

import os
from functools import partial
from typing import Any

from ...core.families.glm import Glm
from ...events.ids import Rank
from ..glm.arena import ring_sizes
from ..settings import DeviceSettings
from ..weights.glm_dir import GlmCheckpoint
from ..weights_load import Progress, load_weights
from .card import Card
from .checks import checks_of
from .glm_device import GlmCudaDevice
from .glm_memory import allocated, bring, gathers_of, heads_of, planned, recorded, room_of
from .joined import Sizes

Make = Any  # partial of GlmCudaDevice, without its gather


def glm_rank(
    checkpoint: GlmCheckpoint,
    family: Glm,
    settings: DeviceSettings,
    card: Card,
    rank: int,
    world: int,
    progress: Progress,
    *,
    captures: bool = True,
) -> tuple[str, Sizes, Make]:
    """Weights and memory on a card: the model's digest, sizes of gathers, what makes the device.

    Raises NoRoom, UnsupportedShape.
    """
    family.refuse_world(world)
    layers = [*family.sparse, *([family.sizes.layers] if family.choices.drafts else [])]
    exponents = [checkpoint.pool_exponent(layer) for layer in layers]
    program = recorded(family, world, rank, settings, exponents)
    rings, heads = ring_sizes(family), heads_of(family, world, rank)
    wide = bool(len(checkpoint.table()[1]))
    shapes = planned(family, program, settings, rings, heads, wide_table=wide)
    checks = checks_of(program, verify=settings.verify)
    memory = allocated(card, program, shapes, room_of(family, settings, checks), checks)
    workers = max(1, os.cpu_count() or 1)
    (weights,), digest = load_weights(checkpoint, family, [program], workers, progress)
    bring(memory, checkpoint, program, weights)
    make = partial(
        GlmCudaDevice, Rank(rank), world, settings, family, program, memory, rings,
        checkpoint.latent_exponent(), digest, captures=captures,
    )  # fmt: skip
    return digest, Sizes.of(gathers_of(program, settings)), make
