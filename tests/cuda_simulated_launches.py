"""Run as a process: what the launches of a step are given to check, on numba's simulator of a GPU.

Nothing is launched. Prints a line of JSON a device: how many launches could check themselves, how
many do, and the names of the matrices that none of them checks; or, asked for poison, a line a
bucket: the layers that are looked at. The simulator is chosen by the environment.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.core.kernels.cuda.poisoned import note_poisoned
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.tests.cuda_glm_rig import GlmEagerRig
from kvtape.tests.cuda_rig import EagerRig
from kvtape.tests.cuda_simulated_glm import PAGE, SIZES
from kvtape.tests.random_llama import SMALLEST, RandomLlama
from kvtape.tests.tiny_glm import config, stored, weights, write

SMALL: dict[str, Any] = {"lanes": 4, "context": 64, "pages": 8, "prompt_rows": 40}
ROWS = (1, 4)  # buckets
HIDDEN = (32, 48)  # inputs of whole tiles, and others


def launches(device: Any) -> Iterator[Any]:
    """Of every bucket asked for, in all row sets."""
    for graphs in device._graphs:
        for rows in ROWS:
            yield from graphs.lowered(rows)


def told(device: Any) -> list[Any]:
    """What a device's launches check."""
    able, given = 0, []
    for one in launches(device):
        if isinstance(one, partial) and "check" in inspect.signature(one.func).parameters:
            able += 1
            given += [one.keywords["check"]] if one.keywords.get("check") is not None else []
    memory = device.memory
    names = set(memory.checks.names)
    for matrix, placed in memory.matrices.items():
        if any(one is placed.check for one in given):
            names.discard(memory.checks.names[memory.checks.by_matrix[matrix].word])
    return [able, len(given), sorted(names)]


def say(make: Callable[[bool], Any]) -> None:
    """A line for a device that verifies, and one for a device that does not."""
    for verify in (True, False):
        with make(verify) as rig:
            print(json.dumps(told(rig.device)), flush=True)  # noqa: T201


def llama(hidden: int) -> None:
    """A layer whose maps have so many inputs."""
    checkpoint = cast(Checkpoint, RandomLlama(SMALLEST | {"hidden_size": hidden}))
    say(lambda verify: EagerRig(checkpoint, verify=verify, **SMALL))


def glm(hidden: int) -> None:
    """Two layers and a drafter, with heads' own maps and with routed experts."""
    sizes = config(**(SIZES | {"hidden_size": hidden, "moe_intermediate_size": hidden}))
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "tiny", sizes, stored(weights(sizes), "BF16"))
        small: dict[str, Any] = {"checkpoint": GlmCheckpoint(path), "page_rows": PAGE, **SMALL}
        say(lambda verify: GlmEagerRig(verify=verify, drafts=1, **small))


def looks() -> None:
    """By bucket of the layers' rows, the layers whose pages a llama's launches look at."""
    checkpoint = cast(Checkpoint, RandomLlama(SMALLEST | {"num_hidden_layers": 3}))
    with EagerRig(checkpoint, poison="a", **SMALL) as rig:
        device = rig.device
        for rows in ROWS:
            launched = [one for one in device.near.lowered(rows) if isinstance(one, partial)]
            found = [one.args[-2] for one in launched if one.func is note_poisoned]
            print(json.dumps(found), flush=True)  # noqa: T201


def main(what: str) -> None:
    """A family with both numbers of inputs, or who looks for poison."""
    if what == "poison":
        looks()
        return
    for hidden in HIDDEN:
        {"llama": llama, "glm": glm}[what](hidden)


if __name__ == "__main__":
    main(sys.argv[1])
