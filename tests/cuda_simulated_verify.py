"""Run as a process: devices that look at their products, on numba's simulator of a GPU.

Prints lines of JSON: what the CPU said of a step, what the simulated device did, and what that one
said once a bit of each of some weights had turned over. The argument: llama or glm. The simulator
is chosen by the environment before numba is loaded.
"""

import json
import os
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from kvtape.core.link import RankLost
from kvtape.devices.kernel_cache import use_cache
from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events import facts as f
from kvtape.tests.cpu_rig import CpuRig
from kvtape.tests.cuda_flipped import flip, host
from kvtape.tests.cuda_glm_rig import GlmEagerRig
from kvtape.tests.cuda_real_sums import bring_checks
from kvtape.tests.cuda_rig import EagerRig
from kvtape.tests.cuda_simulated_glm import PAGE, SIZES
from kvtape.tests.device_play import told
from kvtape.tests.glm_rig import GlmRig
from kvtape.tests.random_llama import SMALLEST, RandomLlama
from kvtape.tests.tiny_glm import config, stored, weights, write

SMALL: dict[str, Any] = {"lanes": 4, "context": 64, "pages": 40, "prompt_rows": 2}
LLAMA = ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")  # whole tiles, a unit, no whole tiles
GLM = ("layers.1.self_attn.absorbed_v.weight", "layers.1.mlp.experts.{}.up_proj.weight")


def one_row(rig: CpuRig) -> Any:
    """What the device says of a prompt of one row, or why it says nothing; its stream is gone."""
    one, seat = rig.begin([7])
    prompt = f.PromptStepRun(stream=one, first=0, rows=1)
    facts = (*seat, *rig.lease(one, 1), prompt)
    try:
        found: Any = told(rig.step(*facts, every_row=True)[0])
    except RankLost as error:
        found = f"{type(error).__name__}: {error}"
    return found


def flipped(rig: CpuRig, tensors: list[str]) -> list[Any]:
    """What is said of such rows while one bit of each matrix is another, one at a time."""
    found = []
    for tensor in tensors:
        flip(rig.device.memory, tensor)
        found.append(one_row(rig))
        flip(rig.device.memory, tensor)
    return found


def brought(memory: Any) -> bool:
    """Whether what checks are made of is the same, made on the card of the weights there."""
    before, after = (np.zeros(memory.check_planes.shape[0], np.int8) for _ in range(2))
    memory.card.download(memory.check_planes, before)
    memory.card.upload(after, memory.check_planes)
    bring_checks(memory)
    memory.card.download(memory.check_planes, after)
    return bool(before.any() and (before == after).all())


def say(found: Any) -> None:
    """A line."""
    print(json.dumps(found), flush=True)  # noqa: T201


def llama() -> None:
    """A layer whose maps take every route."""
    checkpoint = cast(Checkpoint, RandomLlama(SMALLEST))
    with CpuRig(checkpoint, **SMALL) as rig:
        say(one_row(rig))
    with EagerRig(checkpoint, verify=True, **SMALL) as rig:
        say(one_row(rig))
        say(flipped(rig, [f"model.layers.0.{name}.weight" for name in LLAMA]))
        say(brought(rig.device.memory))


def glm() -> None:
    """Two layers, the second with heads' own maps and with routed experts."""
    sizes = config(**SIZES)
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "tiny", sizes, stored(weights(sizes), "BF16"))
        small: dict[str, Any] = {"checkpoint": GlmCheckpoint(path), "page_rows": PAGE, **SMALL}
        with GlmRig(**small) as rig:
            say(one_row(rig))
        with GlmEagerRig(verify=True, **small) as rig:
            say(one_row(rig))
            expert, begin = host(rig.device.memory, "experts")[0, 0], "model.language_model."
            say(flipped(rig, [begin + name.format(expert) for name in GLM]))


def main(family: str) -> None:
    """Play one family."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    use_cache()
    {"llama": llama, "glm": glm}[family]()


if __name__ == "__main__":
    main(sys.argv[1])
