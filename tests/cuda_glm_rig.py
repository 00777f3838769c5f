"""A GLM's rank on a card driven by hand, as the CPU's is; on a GPU, or on the simulated one."""

from collections.abc import Sequence
from typing import Any

from kvtape.core.families.glm import Glm
from kvtape.devices.cuda.card import open_card
from kvtape.devices.cuda.gathering import alone
from kvtape.devices.cuda.glm_group import glm_rank
from kvtape.devices.group import no_progress
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.glm_dir import GlmCheckpoint

from .glm_rig import GlmRig


class GlmCudaRig(GlmRig):
    """A rank on a card. captures: steps are graphs."""

    captures = True

    def make(self, checkpoint: Checkpoint, world: int, threads: int) -> Sequence[Any]:
        """The device."""
        assert isinstance(checkpoint, GlmCheckpoint) and world == 1
        family = Glm(checkpoint.config, self.choices)
        _, _, make = glm_rank(
            checkpoint, family, self.settings, open_card(0), 0, 1, no_progress,
            captures=self.captures,
        )  # fmt: skip
        return [make(gather=alone)]


class GlmEagerRig(GlmCudaRig):
    """A rank on a card, each kernel launched by itself."""

    captures = False
