"""A group of CUDA devices driven by hand, as the CPU's are; on a GPU, or on the simulated one."""

from collections.abc import Sequence
from typing import Any

from kvtape.core.families.family import Choices
from kvtape.devices.cuda.group import cuda_ranks
from kvtape.devices.group import no_progress
from kvtape.devices.weights.checkpoint import Checkpoint

from .cpu_rig import CpuRig


class CudaRig(CpuRig):
    """A rank on a card. captures: steps are graphs."""

    captures = True

    def make(self, checkpoint: Checkpoint, world: int, threads: int) -> Sequence[Any]:
        """The devices by rank."""
        assert world == 1, "followers are processes, which cannot be driven by hand"
        return cuda_ranks(
            checkpoint, self.settings, world=world, progress=no_progress, choices=Choices(),
            captures=self.captures,
        )  # fmt: skip


class EagerRig(CudaRig):
    """A rank on a card, each kernel launched by itself."""

    captures = False
