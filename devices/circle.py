"""Ranks as processes that hand each other bytes: over sockets to rank 0, which passes them on."""

import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.link import RankLost

WORDS_SECONDS = 5.0  # how long whoever finds a socket shut waits to be told why


class Circle:
    """One rank's sockets: to every other rank at rank 0, to rank 0 alone at the others.

    A meeting has no header: all ranks come to the same meetings in the same order, with parts whose
    sizes all of them know. Whoever is shut out, or waits past the limit, raises RankLost.
    """

    def __init__(
        self, rank: int, world: int, ends: Sequence[socket.socket], limit_seconds: float
    ) -> None:
        """ends: of rank 0, by rank from 1 on; of another, its one."""
        self.rank, self.world = rank, world
        self.reason = ""
        self.step = 0
        self._ends, self._limit_seconds = list(ends), limit_seconds
        self._told = Event()
        for end in self._ends:
            end.settimeout(limit_seconds)

    def hand(self, parts: Sequence[NDArray[Any]]) -> None:
        """Give parts[rank] to all, and fill the others with what their ranks give."""
        views = [part.data.cast("B") if part.nbytes else memoryview(b"") for part in parts]
        if self.rank:
            self._give(0, views[self.rank])
            for rank, view in enumerate(views):
                if rank != self.rank:
                    self._take(0, view)
            return
        for rank in range(1, self.world):
            self._take(rank, views[rank])
        for to in range(1, self.world):
            for rank, view in enumerate(views):
                if rank != to:
                    self._give(to, view)

    def words(self, mine: Sequence[int]) -> NDArray[np.int64]:
        """Some numbers of every rank [world, len(mine)], each rank with as many."""
        every = np.zeros((self.world, len(mine)), np.int64)
        every[self.rank] = mine
        self.hand(list(every))
        return every

    def stop(self, reason: str) -> None:
        """Wake whoever waits, here and at the other ranks; the first reason stays."""
        self.reason = self.reason or reason
        self._told.set()
        for end in self._ends:
            with suppress(OSError):  # the other end is gone already
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """No meeting comes after this one."""
        self.stop("the device was closed")
        for end in self._ends:
            end.close()

    def _end(self, rank: int) -> socket.socket:
        return self._ends[0 if self.rank else rank - 1]

    def _give(self, rank: int, view: memoryview) -> None:
        if not len(view):  # whoever gets nothing may have left
            return
        try:
            self._end(rank).sendall(view)
        except OSError as error:
            raise self._lost(rank, error) from None

    def _take(self, rank: int, view: memoryview) -> None:
        end, at = self._end(rank), 0
        while at < len(view):
            try:
                got = end.recv_into(view[at:])
            except OSError as error:
                raise self._lost(rank, error) from None
            if not got:
                raise self._lost(rank, None)
            at += got

    def _lost(self, rank: int, error: OSError | None) -> RankLost:
        if isinstance(error, TimeoutError):
            late = f"rank {rank} did not come in step {self.step} within {self._limit_seconds:g} s"
            self.stop(late)
        elif not self.rank:  # whoever listens to that rank is about to say what became of it
            self._told.wait(WORDS_SECONDS)
        return RankLost(self.reason or f"rank {rank} is gone in step {self.step}")
