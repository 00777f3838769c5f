"""Ranks of one process as CPU devices: one checkpoint read once, memory of their own for each."""

import os

from ..core.families import FAMILIES
from ..core.families.family import Family
from ..events.ids import Rank
from .arena import rank_memory
from .cpu import CpuDevice
from .exchange import Exchange
from .program import Recorder
from .settings import DeviceSettings
from .weights.checkpoint import Checkpoint, UnsupportedModel
from .weights_load import Progress, load_weights

SPINS = 4000  # turns of a meeting before a thread gives its core away, where each has one


def family_of(checkpoint: Checkpoint) -> Family:
    """The family that computes a checkpoint. Raises UnsupportedModel."""
    if checkpoint.family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(f"family {checkpoint.family!r} is none of {known}")
    return FAMILIES[checkpoint.family](checkpoint.config)


def no_progress(done: int, total: int) -> None:
    """Loading shows nothing."""


def cpu_group(
    checkpoint: Checkpoint,
    settings: DeviceSettings,
    *,
    world: int = 1,
    threads: int = 1,
    progress: Progress = no_progress,
) -> list[CpuDevice]:
    """Devices by rank, `threads` each; all must run every step, each from a thread of its own."""
    family = family_of(checkpoint)
    recorders = [
        Recorder(family, world, rank, settings.rows, threads, checks=settings.poisons)
        for rank in range(world)
    ]
    programs = [recorder.program() for recorder in recorders]
    workers = max(1, min(os.cpu_count() or 1, world * threads))
    weights, digest = load_weights(checkpoint, family, programs, workers, progress)
    columns = settings.rows * max(buffer.width for buffer in recorders[0].buffers.values())
    exchange = Exchange(world, threads, settings.rows, columns, settings.limit_s)
    spins = SPINS if world * threads <= (os.cpu_count() or 1) else 0
    devices = []
    for rank, (program, mine) in enumerate(zip(programs, weights, strict=True)):
        first, last = family.heads(world, rank)
        memory = rank_memory(
            family, program, mine, settings, last - first, threads, exchange.meeting()
        )
        devices.append(
            CpuDevice(
                Rank(rank), world, threads, spins, settings, checkpoint, family, program, memory,
                exchange, digest,
            )
        )  # fmt: skip
    return devices
