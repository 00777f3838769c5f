"""A group of CUDA devices driven by hand, as the CPU's are; on a GPU, or on the simulated one."""

from collections.abc import Sequence
from typing import Any

from kvtape.core.families.llama import Llama
from kvtape.devices.cuda.group import cuda_llama
from kvtape.devices.group import family_of, no_progress
from kvtape.devices.weights.checkpoint import Checkpoint

from .cpu_rig import CpuRig


class CudaRig(CpuRig):
    """Ranks on cards. captures: steps are graphs."""

    captures = True

    def make(self, checkpoint: Checkpoint, world: int, threads: int) -> Sequence[Any]:
        """The devices by rank."""
        family = family_of(checkpoint)
        assert isinstance(family, Llama)
        return cuda_llama(
            checkpoint, family, self.settings, world=world, progress=no_progress,
            captures=self.captures,
        )  # fmt: skip


class EagerRig(CudaRig):
    """Ranks on cards, each kernel launched by itself."""

    captures = False
