"""Run as a process: states and rings summed on numba's simulator of a GPU, together and one by one.

Prints a line of JSON: pairs of the sums of several streams waited for once, of each by itself, and
of the CPU's.
"""

import json
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.devices.cuda.glm_inspect import GlmCudaInspector
from kvtape.devices.cuda.simulated import SimulatedCard
from kvtape.devices.glm.arena import RingSizes
from kvtape.devices.glm.inspect import FIXED, GlmInspector, GlmLooks, Seat

LAYERS, LANES, HEADS, DIM, FIRST_HEAD, TAPS = 2, 2, 2, 16, 5, 4
RINGS = RingSizes(states=3, conv=4, index=4)
SEATS = [Seat(1, np.zeros(4, np.int32), 7), Seat(0, np.zeros(4, np.int32), 2)]


def inspectors() -> tuple[GlmLooks, GlmLooks]:
    """The simulated card's, with odd things left in its sums, and the CPU's, over equal memory."""
    rng, card = np.random.default_rng(0), SimulatedCard()
    host: dict[str, Any] = {
        "states": rng.standard_normal((LAYERS, LANES, RINGS.states, HEADS, DIM, DIM), np.float32),
        "conv_ring": rng.standard_normal((LAYERS, LANES, RINGS.conv, 3 * HEADS * DIM), np.float32),
        "asked_fixed": np.full((2 * LANES, 2), 77, np.uint64),
        "asked_sums": np.full(2, 77, np.uint64),
        "asked": np.zeros(4, np.int32),
    }
    there = card.arrays({name: (one.shape, one.dtype.type) for name, one in host.items()})
    for name, one in host.items():
        card.upload(one, there[name])
    shape = (RINGS, FIRST_HEAD, HEADS, LAYERS, 1, 1, 4, TAPS)
    memory: Any = SimpleNamespace(card=card, arrays=there, **there)
    of_host: Any = SimpleNamespace(**host)
    return GlmCudaInspector(*shape, memory), GlmInspector(*shape, of_host)


def main() -> None:
    """Print them."""
    warnings.simplefilter("ignore")  # sums wrap around, and NumPy's scalars say so
    there, here = inspectors()
    for seats in (SEATS, SEATS[1:], []):
        alone = [
            {part: there.sum(seat, part, 0, max(1, seat.rows)) for part in FIXED} for seat in seats
        ]
        sys.stdout.write(
            json.dumps([there.sum_fixed(seats), alone, here.sum_fixed(seats)]) + "\n"
        )  # fmt: skip


if __name__ == "__main__":
    main()
