"""GLM ranks of one process as CPU devices: one checkpoint read once, memory of their own each."""

import os

from ...core.families.glm import Glm
from ...events.ids import Rank
from ..exchange import Exchange
from ..settings import DeviceSettings
from ..weights.glm_dir import GlmCheckpoint
from ..weights_load import Progress, load_weights
from .arena import RingSizes, glm_memory, ring_sizes
from .device import GlmDevice
from .program import GlmRecorder


def glm_group(
    checkpoint: GlmCheckpoint,
    family: Glm,
    settings: DeviceSettings,
    *,
    world: int,
    threads: int,
    spins: int,
    progress: Progress,
    rings: RingSizes | None = None,
) -> list[GlmDevice]:
    """Devices by rank, `threads` each; all must run every step, each from a thread of its own.

    rings: other sizes than the drafts need, so that tests can show what they are for.
    """
    family.refuse_world(world)
    layers = [*family.sparse, *([family.sizes.layers] if family.choices.drafts else [])]
    exponents = [checkpoint.pool_exponent(layer) for layer in layers]
    recorders = [
        GlmRecorder(family, world, rank, settings.rows, settings.poisons, exponents)
        for rank in range(world)
    ]
    programs = [recorder.program() for recorder in recorders]
    workers = max(1, min(os.cpu_count() or 1, world * threads))
    weights, digest = load_weights(checkpoint, family, programs, workers, progress)
    columns = settings.rows * max(program.widest for program in programs)
    exchange = Exchange(world, threads, settings.rows, columns, settings.limit_s)
    rings = rings or ring_sizes(family)
    latent_exponent = checkpoint.latent_exponent()
    devices = []
    for rank, (program, mine) in enumerate(zip(programs, weights, strict=True)):
        first, last = family.kda_heads(world, rank)
        memory = glm_memory(
            family, checkpoint, program, mine, settings, rings, last - first, threads,
            exchange.meeting(),
        )  # fmt: skip
        devices.append(
            GlmDevice(
                Rank(rank), world, threads, spins, settings, family, program, memory, rings,
                exchange, latent_exponent, digest,
            )
        )  # fmt: skip
    return devices
