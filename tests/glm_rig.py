"""A group of GLM ranks driven by hand, over the tiny checkpoint with its drafter."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.glm.arena import RingSizes
from kvtape.devices.glm.device import GlmDevice
from kvtape.devices.glm.group import glm_group
from kvtape.devices.group import choices_of, cpu_group
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events.facts import RunOpened
from kvtape.replay.opening import settings_of

from .cpu_rig import CpuRig
from .rig import opened_with

TINY = Path(__file__).with_name("data") / "glm_tiny"
PAGE = 16


def tiny_glm() -> GlmCheckpoint:
    """The tiny GLM."""
    return GlmCheckpoint(TINY)


def glm_tokens() -> list[int]:
    """The 81 ids that the recorded logits belong to."""
    found = json.loads((TINY / "tokens.json").read_text())
    return [*found["prompt"], *found["generated"]]


def recorded(name: str) -> NDArray[Any]:
    """Recorded float logits by name."""
    found: NDArray[Any] = np.load(TINY / "logits.npz")[name]
    return found


class GlmRig(CpuRig):
    """Ranks with a state each; `drafts` a round, pages of 16 rows."""

    def __init__(
        self, *, drafts: int = 0, page_rows: int = PAGE, rings: RingSizes | None = None,
        checkpoint: GlmCheckpoint | None = None, **rest: Any,
    ) -> None:  # fmt: skip
        self.choices = Choices(page_rows=page_rows, mark_rows=page_rows, drafts=drafts)
        self.rings = rings
        super().__init__(checkpoint or tiny_glm(), drafts=drafts, **rest)

    def make(self, checkpoint: Checkpoint, world: int, threads: int) -> Sequence[GlmDevice]:
        """The devices by rank."""
        assert isinstance(checkpoint, GlmCheckpoint)
        family = Glm(checkpoint.config, self.choices)
        return glm_group(
            checkpoint, family, self.settings, world=world, threads=threads, spins=100,
            progress=lambda done, total: None, rings=self.rings,
        )  # fmt: skip


def glm_opened(drafts: int = 1, page_rows: int = PAGE, **settings: Any) -> RunOpened:
    """A run of the tiny GLM; settings override small defaults."""
    family = Glm(tiny_glm().config, Choices(page_rows, 0, drafts))
    small = {"family": "glm", "weights": "w16", "context": 192, "devices": ("cpu",)}
    return opened_with(family.rules(), **(small | settings))


def glm_devices(opened: RunOpened) -> Sequence[Any]:
    """The ranks of a run of the tiny GLM."""
    return cpu_group(
        tiny_glm(), settings_of(opened), world=opened.world, choices=choices_of(opened.rules)
    )


def glm_device(opened: RunOpened) -> GlmDevice:
    """Its one rank."""
    device: GlmDevice = glm_devices(opened)[0]
    return device
