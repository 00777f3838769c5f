"""Run as a process: every CUDA kernel compiled without a GPU, what its code holds in JSON lines.

Launches of all twins over their random cases are recorded instead of made; each kernel is then
compiled for the types it was to be launched with.
"""

import importlib
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import types

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda import (
    columns,
    experts,
    experts_plain,
    experts_tiles,
    linear,
    linear_heads,
    linear_tiles,
    target,
    tiles,
    twins,
)
from kvtape.tests import cuda_glm_pieces, cuda_mixers

# Both by name: numba-cuda puts modules of its own in the place of numba's.
CUDA: Any = importlib.import_module("numba.cuda")
DISPATCHER: Any = importlib.import_module("numba.cuda.dispatcher")
FORBIDDEN = re.compile(r"\b(?:mul|add|sub|fma)\.f(?:32|64)\b|\.approx|\.ftz|\.f64")


def launches() -> dict[str, tuple[Any, Any]]:
    """Every kernel by name, with the types of its first launch."""
    kernels = {kernel.name: kernel for kernel in registry.kernels()}
    found: dict[str, tuple[Any, Any]] = {}
    for one in twins.twins():
        rng = np.random.default_rng(0)
        for case in kernels[one.name].cases(rng):
            with target.recorded() as made:
                one.launch(0, *one.place(case))
            for launch in made:
                found.setdefault(launch[0].name, launch)
    with target.recorded() as made:
        wide_launches()
        launches_between_ranks()
        cuda_glm_pieces.pieces(np.random.default_rng(0), 3)
    return found | {launch[0].name: launch for launch in made}


def launches_between_ranks() -> None:
    """What moves columns from rank to rank, and compares headers."""
    x, flat, words = np.zeros((2, 32), np.float32), np.zeros(64, np.float32), np.zeros(2, np.int64)
    columns.pack_columns(0, x, 0, 16, 16, flat)
    columns.spread_columns(0, flat, 16, np.zeros((2, 2), np.int64), 0, x)
    columns.compare_headers(0, words, words[:1])


def wide_launches() -> None:
    """Those of linear's shapes, of the gated unit and of experts that no small case has.

    Of all that make linear maps also the kernels that check themselves.
    """
    for check in ((), (np.zeros(64, np.int8), np.zeros(1, np.int64))):
        linear_launches(check)
        expert_launches(check)
    ids = np.zeros(64, np.int64)
    experts.list_busy(0, ids, ids)
    cuda_mixers.wide()


def linear_launches(check: Any) -> None:
    """Linear maps, by head too, and gated units; check: of checked.py, or ()."""
    words, bytes_, out = np.zeros(64, np.int32), np.zeros(64, np.int8), np.zeros(64, np.float32)
    checked, limit = bool(check), np.float32(10)
    given = (words, bytes_, bytes_, bytes_, 16, 1, 0, 1, out, 16, 0, True, check)
    for bucket in linear.BUCKETS:
        gated: Any = linear.gated_kernel(bucket, checked)
        gated[1, 64, 0](*given[:6], 1, out, 16, 0, limit, check)
        for parts, side in linear.SHAPES[bucket]:
            linear.linear_kernel(bucket, side, parts << side, checked)[1, 32 * parts, 0](*given)
        heads: Any = linear_heads
        heads.linear_heads(0, *given[:5], bucket, 1, 16, out, 16, 0, check or None)
    linear.linear_kernel(linear.BUCKETS[0], 0, linear.MOST_PARTS, checked)[1, 32, 0](*given)
    linear.linear(0, *given[:4], 8, *given[5:12], check or None)
    linear_heads.linear_heads(0, *given[:4], 8, 1, 1, 16, out, 16, 0, check or None)
    tall = (words, bytes_, bytes_, bytes_, 16, 32)
    for most in linear_tiles.ROWS if tiles.warpgroups() else linear_tiles.ROWS[:-1]:
        linear_tiles.linear_tiles(0, most, *tall, 0, 1, out, 16, 0, True, check)
        linear_tiles.gated_tiles(0, most, *tall, 1, out, 16, 0, limit, check)
        linear_tiles.heads_tiles(0, min(most, 96), *tall, 1, 1, out, 16, 0, check)


def expert_launches(check: Any) -> None:
    """Routed experts; check: of checked.py, or ()."""
    words, bytes_, ids = np.zeros(64, np.int32), np.zeros(64, np.int8), np.zeros(64, np.int64)
    out, limit = np.zeros(64, np.float32), np.float32(10)
    given = (words, bytes_, bytes_, bytes_, 16)
    experts_tiles.expert_up_tiles(0, *given, ids, ids, ids, 8, 1, limit, out, 16, 0, check)
    experts_tiles.expert_down_tiles(0, *given, ids, ids, ids, 1, out, 16, 0, check)
    for slots in (8, 40):
        routed = (*given, ids[:8], ids[:slots], ids)
        experts.expert_up(0, *routed, 8, 1, limit, out, 16, 0, check or None)
        experts.expert_down(0, *routed, 1, out, 16, 0, check or None)
    chosen = ids.reshape(8, 8)
    experts_plain.plain_up(0, *given, chosen, ids, 8, 1, limit, out, 16, 0, check or None)
    experts_plain.plain_down(0, *given, chosen, ids, 8, 1, out, 16, 0, check or None)


def resources(ptx: str, chip: str) -> tuple[int, int, int]:
    """(registers of a thread, bytes of its stack, bytes spilled) as the assembler tells them."""
    from cuda.bindings import nvjitlink  # pyright: ignore[reportMissingImports]

    link = nvjitlink.create(2, [f"-arch={chip}", "-verbose"])
    code = ptx.encode()
    nvjitlink.add_data(link, nvjitlink.InputType.PTX, code, len(code), "kernel")
    nvjitlink.complete(link)
    log = bytearray(nvjitlink.get_info_log_size(link))
    nvjitlink.get_info_log(link, log)
    nvjitlink.destroy(link)
    text = log.decode()
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    stack = re.search(r"(\d+) bytes stack frame", text)
    registers = re.search(r"Used (\d+) registers", text)
    assert registers and stack, text
    return int(registers[1]), int(stack[1]), sum(int(n) for pair in spilled for n in pair)


def main(chip: str, shard: int, shards: int) -> None:
    """Compile everything for a chip such as sm_90, or every so many kernels of it."""
    capability: tuple[Any, ...] = (int(chip[3:-1]), int(chip[-1]))
    current = SimpleNamespace(compute_capability=capability)
    DISPATCHER.get_current_device = CUDA.get_current_device = lambda: current
    if tiles.warpgroups():
        capability, chip = (9, 0, "a"), "sm_90a"
    for name, (kernel, arguments) in list(launches().items())[shard::shards]:
        ptx, _ = CUDA.compile_ptx(
            kernel.function, types.void(*arguments), cc=capability,
            launch_bounds=kernel.most or None,
        )  # fmt: skip
        wrong = sorted(set(FORBIDDEN.findall(ptx)))
        line = [name, wrong, *resources(ptx, chip)]
        print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
