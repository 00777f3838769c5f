"""Run as a process on a GPU: what checks of linear maps cost, in microseconds a launch.

As cuda_bench.py times; a launch with a check and one without, each over sets of weights that no
cache holds, their checks as well.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import cupy as cp  # pyright: ignore[reportMissingImports]
import numpy as np

from kvtape.core.kernels.cuda import experts, linear, linear_heads
from kvtape.core.kernels.cuda.planes import planes_size
from kvtape.devices.cuda.kernel_store import use_store
from kvtape.tests.cuda_bench import (
    DEVICE,
    FLOAT,
    SETS_BYTES,
    call,
    dealt,
    exponents,
    packed,
    room,
    timed,
    words,
)

MAPS = (
    (576, 1536), (49152, 576), (32, 16384), (288, 4096), (1536, 4096), (4096, 4096),
    (24576, 4096), (4096, 12288),
)  # fmt: skip
Line = tuple[str, float, float]  # what, microseconds without and with


def sets(size: int, check: int) -> list[tuple[Any, Any]]:
    """Weights of so many bytes and their checks."""
    count = max(6, min(60, SETS_BYTES // size))
    return [(packed(size), packed(check)) for _ in range(count)]


def both(what: str, kinds: list[tuple[Any, Any]], launch: Callable[..., Any]) -> Line:
    """launch(weights, check) gives one launch."""
    word = DEVICE(np.zeros(1, np.int64))
    plain = timed([launch(w, None) for w, _ in kinds])
    return what, plain, timed([launch(w, (check, word)) for w, check in kinds])


def maps(rows: int) -> Iterator[Line]:
    """Linear maps at the widths of both models, gated units, and maps by head."""
    for n, k in MAPS:
        x, ex, ew, y = words(rows, k), exponents(rows), exponents(n), room(rows * n)
        rest: Any = (ew, k // 2, rows, 0, n // 16, y, n, 0, False)
        kinds = sets(planes_size(n, k), planes_size(16, k))
        yield both(
            f"linear {n} x {k}", kinds,
            lambda w, check, x=x, ex=ex, rest=rest: call(linear.linear, x, ex, w, *rest, check),
        )  # fmt: skip
    for n in (12288, 2048):
        x, ex, ew, h = words(rows, 4096), exponents(rows), exponents(2 * n), room(rows * n)
        rest = (ew, 2048, rows, n // 16, h, n, 0, FLOAT(10))
        kinds = sets(planes_size(2 * n, 4096), planes_size(32, 4096))
        yield both(
            f"gated {n} x 4096", kinds,
            lambda w, check, x=x, ex=ex, rest=rest: call(linear.gated, x, ex, w, *rest, check),
        )  # fmt: skip
    for n, k in ((512, 256), (256, 512)):
        x, ex, ew = words(64 * rows, k), exponents(64 * rows), exponents(64 * n)
        rest = (ew, k // 2, rows, 64, n, room(rows * 64 * n), 64 * n, 0)
        kinds = sets(planes_size(64 * n, k), planes_size(64 * 16, k))
        yield both(
            f"64 heads of {n} x {k}", kinds,
            lambda w, check, x=x, ex=ex, rest=rest: call(
                linear_heads.linear_heads, x, ex, w, *rest, check
            ),
        )  # fmt: skip


def routed(rows: int) -> Iterator[Line]:
    """288 experts of 4096 by 2048, of which every row goes to eight; up, and back."""
    many, inner, wide, chosen, rng = 288, 2048, 4096, 8, np.random.default_rng(2)
    slots = rows * chosen
    lists = [dealt(rng, rows, many, chosen) for _ in range(6)]
    w, ew = packed(planes_size(2 * inner * many, wide)), exponents(2 * inner * many)
    up = (words(rows, wide), exponents(rows), w, ew, wide // 2)
    check, to = packed(planes_size(32 * many, wide)), room(slots * wide)
    yield both(
        "experts up", [(one, check) for one in lists],
        lambda one, check: call(
            experts.expert_up, *up, *one, chosen, inner // 16, FLOAT(10), to, inner, 0, check
        ),
    )  # fmt: skip
    down = (words(slots, inner), exponents(slots), w, ew, inner // 2)
    yield both(
        "experts down", [(one, check) for one in lists],
        lambda one, check: call(experts.expert_down, *down, *one, wide // 16, to, wide, 0, check),
    )  # fmt: skip


def main(rows: list[int]) -> None:
    """Print a line a measurement."""
    use_store()
    for count in rows:
        for part in (maps, routed):
            for what, plain, with_check in part(count):
                more = with_check - plain
                print(  # noqa: T201
                    f"{what:24s} {count:5d} rows {plain:9.2f} us, checked {with_check:9.2f}, "
                    f"{more:+6.2f} us {100 * more / plain:+6.1f} %", flush=True,
                )  # fmt: skip
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]] or [1, 8, 32])
