"""Columns over NCCL, inside a step's graph: for ranks that have a GPU each."""

from collections.abc import Callable
from functools import partial
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any

import numpy as np

from ...core.kernels.cuda.columns import pack_columns, spread_columns
from ...core.kernels.cuda.target import recording
from ...core.link import RankLost
from ..circle import Circle
from .card import Array, Launch
from .joined import Joined, Sizes
from .ways import nccl

WATCH_SECONDS = 0.5  # how often the watchdog looks
LEAVE_SECONDS = 20.0  # that leaving a group may take
_left: list[Any] = []  # communicators that were aborted: their destructors would wait for a rank


def in_time(do: Callable[[], Any], seconds: float, what: str) -> Any:
    """What `do` gives, on a thread that is left behind if it takes longer. Raises RankLost."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(do())
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, name="kvtape nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise RankLost(f"{what} did not happen within {seconds:g} s")
    return found[0]


class GatherByNccl(Joined):
    """Every rank's columns, filled up to the widest share, by one all-gather.

    A single row of which all own as much is gathered where it stands; otherwise own columns are
    packed before and the others' are spread behind. The step's header goes with its first columns,
    in one launch. A thread looks at the clock: a step past the limit is aborted on this rank, which
    ends the group.
    """

    said = "GPUs hand each other columns over NCCL"

    def __init__(
        self, card: Any, circle: Circle, sizes: Sizes, identity: tuple[int, ...], limit_s: float
    ) -> None:
        """card: a Gpu.  identity: as `get_unique_id` made it at rank 0."""
        own = max(int(circle.words([sizes.own])[:, 0].max()), 2)
        super().__init__(
            card, circle,
            {"own": ((own,), np.float32), "every": ((circle.world * own,), np.float32)},
        )  # fmt: skip
        self._nccl, self._limit_s, self._stream = nccl(), limit_s, card.stream_address
        world, rank = circle.world, circle.rank

        def join() -> Any:
            card.use()  # the current GPU is a thread's own
            return self._nccl.NcclCommunicator(world, identity, rank)

        self._communicator = in_time(join, limit_s, f"rank {rank}: NCCL's meeting of {world} ranks")
        self._first: list[tuple[Launch, Launch]] = []  # a header's all-gather, and what looks at it
        self._since: tuple[int, float] | None = None
        self._lock, self._stopped, self._closed = Lock(), False, Event()
        self._aborting = Thread(target=self._abort, name="kvtape abort", daemon=True)
        self._watch = Thread(target=self._look, name="kvtape watchdog", daemon=True)
        self._watch.start()

    def bind(self, x: Array, first: int, last: int) -> list[Launch]:
        """Launches after which x [rows, width] has every rank's columns; [first, last) are own."""
        rows, _ = x.shape
        spans = self.spans_of(x, first, last)
        shares = spans[:, 1] - spans[:, 0]
        widest = int(shares.max())
        headers, looks = [one for one, _ in self._first], [look for _, look in self._first]
        self._first = []
        if rows == 1 and (shares == widest).all():
            at = _address(x)
            gather = self._all_gather(at + first * x.dtype.itemsize, at, widest)
            return [self._together([*headers, gather]), *looks]
        stream, own, every = self.card.stream, self.arrays["own"], self.arrays["every"]
        gather = self._all_gather(_address(own), _address(every), rows * widest)
        return [
            partial(pack_columns, stream, x, first, last, widest, own),
            self._together([*headers, gather]),
            *looks,
            partial(
                spread_columns, stream, every, widest, self.on_card(spans), self.rank, x
            ),
        ]  # fmt: skip

    def compare(self) -> list[Launch]:
        """Nothing by itself: a step's header goes with its first columns."""
        x, first, _ = self.header_columns
        at = _address(x)
        header = self._all_gather(at + first * x.dtype.itemsize, at, 2)
        self._first = [(header, self.compared)]
        return []

    def begin(self, step: int, header: int) -> None:
        """A step is about to be put into the stream."""
        self._since = (step, monotonic())
        super().begin(step, header)

    def check(self, step: int) -> None:
        """The stream has been waited for. Raises RankLost: another step, or a rank that is gone."""
        self._since = None
        super().check(step)

    def stop(self, reason: str) -> None:
        """End every rank's step, from any thread; the first reason stays.

        What runs on the GPU is let go at once; the abort itself goes on until the graphs are gone.
        """
        super().stop(reason)
        with self._lock:
            first, self._stopped = not self._stopped, True
        if first:
            _left.append(self._communicator)
            self._aborting.start()

    def close(self) -> None:
        """No step comes any more."""
        self._closed.set()
        if self._watch.is_alive():
            self._watch.join()
        self.stop("the device was closed")
        super().close()
        self._aborting.join(LEAVE_SECONDS)  # the graphs are gone by now

    def _abort(self) -> None:
        self.card.use()
        self._communicator.abort()

    def _all_gather(self, of: int, to: int, count: int) -> Launch:
        """Of every rank `count` float32 values at `of`, side by side at `to`."""

        def launch() -> None:
            if not recording():
                self._communicator.allGather(of, to, count, self._nccl.NCCL_FLOAT32, self._stream)

        return launch

    def _together(self, gathers: list[Launch]) -> Launch:
        """Several all-gathers as one launch."""
        if len(gathers) == 1:
            return gathers[0]

        def launch() -> None:
            self._nccl.groupStart()
            for gather in gathers:
                gather()
            self._nccl.groupEnd()

        return launch

    def _look(self) -> None:
        while not self._closed.wait(WATCH_SECONDS):
            since = self._since
            if since is not None and monotonic() - since[1] > self._limit_s:
                step, limit = since[0], self._limit_s
                self.stop(f"rank {self.rank} has been in step {step} for {limit:g} s")


def _address(array: Array) -> int:
    """Where an array of the card begins."""
    return int(array.device_ctypes_pointer.value)
