"""Looking at all scratch of a rank on a card whenever a step begins: every word of it is poison."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.kernels.poison import poison_value
from kvtape.devices.cuda import glm_memory, memory
from kvtape.devices.cuda.filling import Soil
from kvtape.devices.cuda.on_card import OnCard


class Fertile(AssertionError):
    """A word that a step could read though it never wrote it, and nobody would know."""


@contextmanager
def watched_soil() -> Iterator[list[tuple[int, ...]]]:
    """Every rank's scratch is looked at; yields the buckets of the steps so far."""
    real, seen = OnCard.soil, list[tuple[int, ...]]()

    def soil(self: OnCard, *counts: int) -> None:
        real(self, *counts)
        seen.append(counts)
        self.card.wait()
        look(self)

    OnCard.soil = soil  # type: ignore[method-assign,assignment]
    try:
        yield seen
    finally:
        OnCard.soil = real  # type: ignore[method-assign]


@contextmanager
def dropped_fill() -> Iterator[None]:
    """Nothing is filled after the first step."""
    real = Soil._fill
    Soil._fill = lambda self, counts: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Soil._fill = real  # type: ignore[method-assign]


def look(device: Any) -> None:
    """Raises Fertile where a word of scratch holds anything but poison."""
    glm = isinstance(device.memory, glm_memory.GlmCudaMemory)
    for name in glm_memory.SCRATCH if glm else memory.SCRATCH:
        held = on_host(device, name)
        value = np.array(poison_value(device.settings.poison, held.dtype))
        wrong = np.flatnonzero(as_bits(held) != as_bits(value.reshape(1)))
        if len(wrong):
            raise Fertile(f"{name}[{wrong[0]}], and {len(wrong) - 1} more of {held.size}")


def on_host(device: Any, name: str) -> NDArray[Any]:
    """An array, brought from the card, its elements one behind another."""
    array = device.memory.arrays[name]
    host = np.empty(array.shape, array.dtype)
    device.card.download(array, host)
    device.card.wait()
    return host.reshape(-1)


def as_bits(values: NDArray[Any]) -> NDArray[Any]:
    """The patterns of numbers."""
    return values.view(f"u{values.dtype.itemsize}")
