"""Run as a process: poison over the scratch of made-up steps, on numba's simulator of a GPU.

Every step writes whatever it may touch. Prints a line of JSON: by step, which arrays held anything
but poison when it began, and how many fills were captured. The simulator is chosen by the
environment.
"""

import json
import os
import sys
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.core.kernels.poison import poison_value
from kvtape.devices.cuda.card import Launch
from kvtape.devices.cuda.filling import DRAFTING, PASSED, SAMPLED, Counts, Soil, Span
from kvtape.devices.cuda.simulated import SimulatedCard

SPANS = {
    "floats": [Span(0, 3), Span(50, 5, SAMPLED), Span(100, 4, DRAFTING), Span(150, 20, most=2)],
    "z": [Span(0, 6, SAMPLED)],
}
STEPS: list[Counts] = [(4, 2, 1), (1, 0, 0), (4, 2, 1), (8, 3, 4), (1, 0, 0), (1, 1, 1), (4, 2, 1)]


class CountingCard(SimulatedCard):
    """How many graphs were made."""

    graphs = 0

    def captured(self, launches: Launch) -> Launch:
        """One more."""
        self.graphs += 1
        return launches


def touch(arrays: dict[str, Any], counts: Counts) -> None:
    """What a step of so many rows may write, zeros: rows, what is passed behind them, the rest."""
    for name, array in arrays.items():
        host = array.copy_to_host()
        flat = host.reshape(-1)
        for one in SPANS.get(name, ()):
            rows = min(counts[one.set], one.most or counts[one.set])
            if rows:
                flat[one.at : one.at + rows * one.width + PASSED] = 0
        if name not in SPANS:
            flat[:] = 0
        array.copy_to_device(host)


def fertile(arrays: dict[str, Any]) -> list[str]:
    """The arrays that are not all poison."""
    found = []
    for name, array in arrays.items():
        held = array.copy_to_host().reshape(-1)
        value = np.array([poison_value("a", held.dtype)], held.dtype)
        if held.tobytes() != value.tobytes() * held.size:
            found.append(name)
    return found


def main() -> None:
    """Play the steps."""
    card = CountingCard()
    arrays = card.arrays(
        {"floats": ((210,), np.float32), "z": ((5, 6), np.float32), "flags": ((9,), np.int16)}
    )
    soil = Soil(card, arrays, SPANS, "a")
    soil.warm()
    touch(arrays, (8, 4, 3))  # of steps that nobody counts
    found = []
    for counts in STEPS:
        soil.lay(counts)
        found.append(fertile(arrays))
        touch(arrays, counts)
    sys.stdout.write(json.dumps([found, fertile(arrays), card.graphs]) + "\n")


if __name__ == "__main__":
    main()
