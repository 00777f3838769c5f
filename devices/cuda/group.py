"""Ranks as CUDA devices: a card for each, weights brought over from what the CPU's loader packs."""

import os
from collections.abc import Sequence

from ...core.families.llama import Llama
from ...events.ids import Rank
from ..program import Recorder
from ..settings import DeviceSettings
from ..weights.checkpoint import Checkpoint
from ..weights_load import Progress, load_weights
from .card import NoCard, open_card
from .device import CudaDevice
from .memory import rank_memory


def cuda_llama(
    checkpoint: Checkpoint,
    family: Llama,
    settings: DeviceSettings,
    *,
    world: int,
    progress: Progress,
    captures: bool = True,
) -> Sequence[CudaDevice]:
    """The llama's ranks. Raises NoCard, NoRoom."""
    if world > 1:
        raise NoCard(f"--tp {world} --device cuda: one rank alone runs on a GPU; --tp 1 would do")
    cards = [open_card(rank) for rank in range(world)]
    programs = [
        Recorder(family, world, rank, settings.rows, 1, checks=settings.poisons).program()
        for rank in range(world)
    ]
    weights, digest = load_weights(
        checkpoint, family, programs, max(1, os.cpu_count() or 1), progress
    )
    devices = []
    for rank, (card, program, mine) in enumerate(zip(cards, programs, weights, strict=True)):
        first, last = family.heads(world, rank)
        memory = rank_memory(card, family, program, mine, settings, last - first)
        device = CudaDevice(
            Rank(rank), world, settings, checkpoint, family, program, memory, digest,
            captures=captures,
        )  # fmt: skip
        device.warm()
        devices.append(device)
    return devices
