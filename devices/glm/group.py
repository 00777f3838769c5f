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

SPINS = 4000  # turns of a meeting before a thread gives its core away, where each has one


def glm_group(
    checkpoint: GlmCheckpoint,
    family: Glm,
    settings: DeviceSettings,
    *,
    world: int,
    threads: int,
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
    cores = os.cpu_count() or 1
    workers = max(1, min(cores, world * threads))
    weights, digest = load_weights(checkpoint, family, programs, workers, progress)
    columns = settings.rows * max(program.widest for program in programs)
    exchange = Exchange(world, threads, settings.rows, columns, settings.limit_s)
    spins = SPINS if world * threads <= cores else 0
    rings = rings or ring_sizes(family)
    latent_exponent = checkpoint.latent_exponent()
    devices = []
    for rank, (program, mine) in enumerate(zip(programs, weights, strict=True)):
        heads, kda = (
            last - first
            for first, last in (family.heads(world, rank), family.kda_heads(world, rank))
        )
        memory = glm_memory(
            family, checkpoint, program, mine, settings, rings, (heads, kda), threads,
            exchange.meeting(),
        )  # fmt: skip
        devices.append(
            GlmDevice(
                Rank(rank), world, threads, spins, settings, family, program, memory, rings,
                exchange, latent_exponent, digest,
            )
        )  # fmt: skip
    return devices
