"""Ranks of one process as CPU devices: one checkpoint read once, memory of their own for each."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core.families import FAMILIES
from ..core.families.family import Choices, Family
from ..core.families.glm import Glm
from ..core.families.llama import Llama
from ..events.ids import Rank
from ..events.records import FamilyRules
from .arena import rank_memory
from .cpu import CpuDevice
from .exchange import Exchange
from .program import Recorder
from .settings import DeviceSettings
from .weights.checkpoint import Checkpoint, UnsupportedModel
from .weights.glm_dir import GlmCheckpoint
from .weights_load import Progress, load_weights

if TYPE_CHECKING:
    from .cuda.device import CudaDevice
    from .cuda.glm_device import GlmCudaDevice
    from .glm.device import GlmDevice
    from .rank_process import RankProcess

SPINS = 4000  # turns of a meeting before a thread gives its core away, where each has one


def family_of(checkpoint: Checkpoint, choices: Choices | None = None) -> Family:
    """The family that computes a checkpoint. Raises UnsupportedModel, UnsupportedShape."""
    if checkpoint.family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(f"family {checkpoint.family!r} is none of {known}")
    return FAMILIES[checkpoint.family](checkpoint.config, choices or Choices())


def choices_of(rules: FamilyRules) -> Choices:
    """What a run chose, from the rules on its tape."""
    return Choices(rules.page_rows, rules.mark_rows, rules.drafts)


def no_progress(done: int, total: int) -> None:
    """Loading shows nothing."""


def cpu_group(
    checkpoint: Checkpoint,
    settings: DeviceSettings,
    *,
    world: int = 1,
    threads: int = 1,
    progress: Progress = no_progress,
    choices: Choices | None = None,
) -> "Sequence[CpuDevice | GlmDevice]":
    """Devices by rank, `threads` each; all must run every step, each from a thread of its own."""
    family = family_of(checkpoint, choices)
    spins = SPINS if world * threads <= (os.cpu_count() or 1) else 0
    if isinstance(family, Glm):
        from .glm.group import glm_group  # a llama's server need not wait for these kernels

        assert isinstance(checkpoint, GlmCheckpoint)
        return glm_group(
            checkpoint, family, settings, world=world, threads=threads, spins=spins,
            progress=progress,
        )  # fmt: skip
    assert isinstance(family, Llama)
    return llama_group(
        checkpoint, family, settings, world=world, threads=threads, spins=spins, progress=progress
    )


def cuda_group(
    checkpoint: Checkpoint,
    settings: DeviceSettings,
    *,
    world: int = 1,
    threads: int = 1,
    progress: Progress = no_progress,
    choices: Choices | None = None,
    gather: str = "auto",
) -> "Sequence[CudaDevice | GlmCudaDevice | RankProcess]":
    """Devices by rank, rank 0's here and each other one's in a process of its own.

    threads: of a rank, which one on a GPU does not have.  gather: how ranks hand columns over:
    nccl, links, or auto.  Raises UnsupportedShape: no GPU, too little of it, no kernels.
    """
    from .cuda.card import open_card

    open_card(0)  # which says what is missing: the kernels cannot be loaded without
    from .cuda.group import cuda_ranks

    return cuda_ranks(
        checkpoint, settings, world=world, progress=progress, choices=choices or Choices(),
        gather=gather,
    )  # fmt: skip


def device_here(recorded: str) -> str:
    """The kind of device that a run was made on, or the CPU where there is none of it here."""
    if recorded != "cuda":
        return "cpu"
    from .cuda.card import NoCard, open_card

    try:
        open_card(0)
    except NoCard:
        return "cpu"
    return "cuda"


MAKERS: dict[str, Callable[..., Sequence[Any]]] = {"cpu": cpu_group, "cuda": cuda_group}


def llama_group(
    checkpoint: Checkpoint,
    family: Llama,
    settings: DeviceSettings,
    *,
    world: int,
    threads: int,
    spins: int,
    progress: Progress,
) -> list[CpuDevice]:
    """The llama's ranks."""
    recorders = [
        Recorder(family, world, rank, settings.rows, threads, checks=settings.poisons)
        for rank in range(world)
    ]
    programs = [recorder.program() for recorder in recorders]
    workers = max(1, min(os.cpu_count() or 1, world * threads))
    weights, digest = load_weights(checkpoint, family, programs, workers, progress)
    columns = settings.rows * max(buffer.width for buffer in recorders[0].buffers.values())
    exchange = Exchange(world, threads, settings.rows, columns, settings.limit_s)
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
