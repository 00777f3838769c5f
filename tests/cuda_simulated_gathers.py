"""Run as a process: both ways to gather columns, over simulated cards and a plain NCCL.

Ranks are threads. Prints a line of JSON a case: the way, its shape, what is wrong with it ("").
The simulator is chosen by the environment before numba is loaded.
"""

import ctypes
import json
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np
from numpy.typing import NDArray

from kvtape.core.kernels.cuda.target import Kernel
from kvtape.core.link import RankLost
from kvtape.devices.circle import Circle
from kvtape.devices.cuda import by_nccl
from kvtape.devices.cuda.by_links import GatherByLinks
from kvtape.devices.cuda.card import Shape
from kvtape.devices.cuda.joined import Sizes
from kvtape.devices.cuda.simulated import SimulatedCard

Ends = Sequence[int]  # where each rank's columns end
CASES: tuple[tuple[int, Ends], ...] = (
    (1, (16, 32)), (3, (16, 32)), (1, (32, 48)), (2, (32, 48)), (2, (16, 32, 32)),
    (1, (0, 0, 16)), (3, (48, 64, 80)), (1, (16, 32, 48, 64)),
)  # fmt: skip


class HostCard(SimulatedCard):
    """A simulated card whose arrays have addresses."""

    stream_address = 0

    def arrays(self, shapes: Mapping[str, Shape]) -> dict[str, Any]:
        """Arrays of zeros."""
        return {name: np.zeros(axes, kind) for name, (axes, kind) in shapes.items()}

    def upload(self, host: NDArray[Any], to: Any) -> None:
        """Copy at once."""
        to[...] = host.reshape(to.shape)

    def download(self, of: Any, to: NDArray[Any]) -> None:
        """Copy at once."""
        to[...] = of.reshape(to.shape)


class PlainNccl:
    """NCCL's part of a group whose ranks are threads: an all-gather, several as one."""

    NCCL_FLOAT32 = 7

    def __init__(self, world: int) -> None:
        self._barrier, self._from = Barrier(world), [0] * world
        self.calls = self.groups = 0

    def NcclCommunicator(self, world: int, identity: Any, rank: int) -> Any:
        """One rank's end."""
        nccl = self

        class Communicator:
            def allGather(self, of: int, to: int, count: int, kind: int, stream: int) -> None:
                """Every rank's values, side by side."""
                nccl._from[rank] = of
                nccl._barrier.wait()
                for other, at in enumerate(nccl._from):
                    ctypes.memmove(to + 4 * count * other, at, 4 * count)
                nccl._barrier.wait()
                nccl.calls += rank == 0

            def abort(self) -> None:
                """Nothing is held."""

        return Communicator()

    def groupStart(self) -> None:
        """Several calls are one."""
        self.groups += 1

    def groupEnd(self) -> None:
        """Until here."""


def circles(world: int) -> list[Circle]:
    """Every rank's."""
    pairs = [socket.socketpair() for _ in range(world - 1)]
    rest = [Circle(rank, world, [pairs[rank - 1][1]], 30) for rank in range(1, world)]
    return [Circle(0, world, [one for one, _ in pairs], 30), *rest]


def tried(way: str, rows: int, ends: Ends, headers: Sequence[int]) -> str:
    """Two gathers of one shape behind a comparison of headers, in two steps; what is wrong."""
    world, width = len(ends), ends[-1]
    rng = np.random.default_rng(rows + width)
    whole = rng.integers(0, 1 << 32, (2, rows, width), np.uint32).view(np.float32)
    wrong: list[str] = []
    nccl, around = PlainNccl(world), circles(world)
    module: Any = by_nccl
    module.nccl = lambda: nccl
    module._address = lambda array: int(array.ctypes.data)

    def go(rank: int) -> None:
        first, last = ([0, *ends][rank], ends[rank])
        sizes = Sizes.of([(rows, width, first, last)])
        card, circle = HostCard(), around[rank]
        gather: Any = (
            GatherByLinks(card, circle, sizes) if way == "links"
            else by_nccl.GatherByNccl(card, circle, sizes, (), 30.0)
        )  # fmt: skip
        x = np.zeros((rows, width), np.float32)
        launches = [*gather.compare(), *gather.bind(x, first, last), *gather.bind(x, first, last)]
        for step in (0, 1):
            x[:] = -1
            x[:, first:last] = whole[step, :, first:last]
            gather.begin(step, headers[rank] if step else 7)
            for launch in launches:
                launch()
            gather.end()
            if (x.view(np.uint32) != whole[step].view(np.uint32)).any():
                wrong.append(f"rank {rank} step {step}: other bits")
            try:
                gather.check(step)
            except RankLost as error:
                wrong.append(str(error))
        gather.close()

    run(world, go)
    expected = 0 if way == "links" else 6  # two gathers and a header, twice
    if nccl.calls != expected or nccl.groups != (2 * world if expected else 0):
        wrong.append(f"{nccl.calls} calls, {nccl.groups} groups")
    return "; ".join(sorted(set(wrong)))


def unlike(way: str) -> str:
    """Ranks that would gather columns which are not each other's rest."""
    found: list[str] = []
    around = circles(2)

    def go(rank: int) -> None:
        gather = GatherByLinks(HostCard(), around[rank], Sizes(64, 64))
        try:
            gather.bind(np.zeros((1, 32), np.float32), 16 * rank, 16 + 32 * rank)
        except AssertionError as error:
            found.append(str(error))
        gather.close()

    run(2, go)
    return "; ".join(sorted(set(found)))


def run(world: int, go: Callable[[int], None]) -> None:
    """Every rank on a thread; whatever one raises is raised."""
    with ThreadPoolExecutor(world) as pool:
        list(pool.map(go, range(world)))


def main() -> None:
    """All cases both ways; headers that differ; columns that do."""
    launch, lock = Kernel._launch, Lock()

    def alone(kernel: Kernel, *given: Any) -> None:  # the simulator runs one kernel at a time
        with lock:
            launch(kernel, *given)

    kernels: Any = Kernel
    kernels._launch = alone
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    for way in ("links", "nccl"):
        for rows, ends in CASES:
            said(way, [rows, *ends], tried(way, rows, ends, [5] * len(ends)))
        said(way, "headers", tried(way, 1, (16, 32, 48), [5, 5, 6]))
    said("links", "columns", unlike("links"))


def said(*line: object) -> None:
    """A line of JSON."""
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
