"""Run as a process: CUDA twins against their meanings under numba's simulator, a line of JSON each.

The simulator is chosen by the environment before numba is loaded, so it cannot be in pytest's own.
"""

import json
import os
import sys
import warnings

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.core.kernels.cuda import twins
from kvtape.tests import cuda_checked, cuda_mixers, cuda_pieces
from kvtape.tests.cuda_races import neighbours, watched

CASES, LEAST = 3, 1  # a thread of the simulator is one of Python: small cases


def main(names: list[str]) -> None:
    """Check the twins of these names, or all."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    with watched() as watch:
        for one in twins.twins():
            if not names or one.name in names:
                verdict = twins.check(one, np.random.default_rng(5), CASES, LEAST)
                say(one.name, verdict.equal, verdict.first)
        for name, equal in pieces().items():
            say(name, int(equal), "" if equal else "parts")
    say("hazards", len(watch.found), "; ".join(f"{at}: {why}" for at, why in watch.found.items()))
    for barrier in (True, False):
        say(f"neighbours, barrier {barrier}", len(neighbours(barrier)), "")


def say(name: str, count: int, what: str) -> None:
    """A line of JSON."""
    print(json.dumps([name, count, what]), flush=True)  # noqa: T201


def pieces() -> dict[str, bool]:
    """What several kernels do together, small."""
    rng = np.random.default_rng(6)
    return {
        "gated": cuda_pieces.gated(rng, 2),
        "beside": cuda_pieces.beside(rng, 2, 1) and cuda_pieces.beside(rng, 3, 2),
        "tiled": cuda_pieces.tiled(rng, 3, 32, 48, 96)
        and cuda_pieces.heads_tiled(rng, 3, 32, 48, 64),
        "routed": cuda_pieces.routed(rng, 3, 4, 2, False),
        "routed, many rows": cuda_pieces.routed(rng, 9, 2, 2, False),
        "routed by tiles": cuda_pieces.routed(rng, 3, 3, 2, True),
        **cuda_mixers.small(rng),
        **{f"checked {name}": equal for name, equal in cuda_checked.small(rng).items()},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
