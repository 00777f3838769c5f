"""Run as a process: the CUDA device under numba's simulator beside the CPU's, a small llama.

Prints a line of JSON a step: what either device said of it. The simulator is chosen by the
environment before numba is loaded.
"""

import json
import os
import warnings
from typing import Any, cast

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.events import facts as f
from kvtape.tests.cpu_rig import CpuRig
from kvtape.tests.cuda_rig import EagerRig
from kvtape.tests.device_play import SAMPLINGS, Told, told
from kvtape.tests.random_llama import SMALLEST, RandomLlama
from kvtape.tests.soil_watch import Fertile, dropped_fill, watched_soil

TOKENS = [7, 1, 63]
SMALL: dict[str, Any] = {"lanes": 2, "context": 64, "pages": 8, "prompt_rows": 4, "digests": "full"}


def steps(rig: CpuRig) -> list[Told]:
    """A prompt in two steps, the second beside another stream's; poison on all the while."""
    one, seat = rig.begin(TOKENS, SAMPLINGS[1])
    prompt = f.PromptStepRun(stream=one, first=0, rows=2)
    found = [told(rig.step(*seat, *rig.lease(one, 2), prompt, every_row=True)[0])]
    two, seat = rig.begin(TOKENS[:1], SAMPLINGS[2])
    lease = f.PagesLeased(stream=two, first=0, pages=rig.state.book.next(1))
    rest = f.PromptStepRun(stream=one, first=2, rows=1)
    begun = f.PromptStepRun(stream=two, first=0, rows=1)
    found.append(told(rig.step(*seat, lease, rest, begun)[0]))
    row = rig.device.read(rig.state, one, "rows", 1, 2)[0]
    found.append({"read": [row.hex(), rig.device.read(rig.state, one, "logits", 0, 2)[0].hex()]})
    return found


def refused(rig: CpuRig) -> str:
    """What is said of a step whose every row is to get logits, where there is room for two."""
    one, seat = rig.begin(TOKENS, SAMPLINGS[1])
    prompt = f.PromptStepRun(stream=one, first=0, rows=3)
    try:
        rig.step(*seat, *rig.lease(one, 3), prompt, every_row=True)
    except ValueError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Play on both devices."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    checkpoint = cast(Checkpoint, RandomLlama(SMALLEST))
    for kind in (CpuRig, EagerRig):
        with watched_soil(), kind(checkpoint, poison="a", **SMALL) as rig:
            print(json.dumps(steps(rig)), flush=True)  # noqa: T201
    with watched_soil(), dropped_fill(), EagerRig(checkpoint, poison="a", **SMALL) as rig:
        try:
            steps(rig)
        except Fertile:
            print("a fill that is dropped is seen", flush=True)  # noqa: T201
    with EagerRig(checkpoint, every_row=False, **SMALL) as rig:
        print(refused(rig), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
