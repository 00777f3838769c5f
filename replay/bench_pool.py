"""The benchmark's book layer: page book, prompt tree and order, without requests or facts."""

import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.evict import policy_of
from ..core.pages import PageBook
from ..core.prefix_pool import PrefixPool
from ..core.state import table_pages
from ..core.tree import PromptTree
from ..events.commands import Arrive
from ..events.facts import RunOpened
from ..events.ids import NO_STATE, StateId, StreamId
from .bench_turns import Turn


@dataclass(slots=True)
class Held:
    """A stream that has begun: its prompt, its lane's table, how many pages it has and may lease.

    state: what it was found on, `found` pages.
    """

    prompt: NDArray[np.int32]
    table: NDArray[np.int32]
    pages: int = 0
    promise: int = 0
    state: StateId = NO_STATE
    found: int = 0


class Pool:
    """Book, tree and order, as a run opens them; pages of one row, kept prefixes of pages alone.

    Prompts are arrays beforehand, as the machine has them while a stream is there.
    """

    def __init__(self, opened: RunOpened, wishes: Sequence[Arrive]) -> None:
        rules, policy = opened.rules, policy_of(opened)
        self.book = PageBook(opened.pages, opened.order)
        self.tree = PromptTree(rules.page_rows, rules.lookahead, opened.pages, policy)
        self.pool = PrefixPool(self.book, self.tree)
        self.found = self.leased = self.swapped = self.new = self.returned = self.states = 0
        shape = (opened.lanes, table_pages(opened.context, rules.page_rows))
        self._tables = [*np.zeros(shape, np.int32)]
        self._prompts = [np.array(wish.prompt, np.int32) for wish in wishes]
        self._streams: dict[StreamId, Held] = {}
        self._does = (self.begin, self.resume, self.lease, self.keep, self.end, self.step)

    def play(self, turns: Sequence[Turn]) -> float:
        """The seconds that all turns took."""
        does = self._does
        gc.collect()
        gc.freeze()
        try:
            start = time.perf_counter()
            for turn in turns:
                does[turn[0]](turn)
            return time.perf_counter() - start
        finally:
            gc.unfreeze()

    @property
    def counted(self) -> Counter[str]:
        """Page operations by kind."""
        gone = self.new - int(np.count_nonzero(self.book.kept))
        kinds = {"found": self.found, "leased": self.leased, "swapped": self.swapped}
        return Counter(kinds | {"kept": self.new, "returned": self.returned, "let go": gone})

    def begin(self, turn: Turn) -> None:
        """A stream finds what is kept of its prompt, and is promised the pages that are missing."""
        _, stream, lane, wanted, hit = turn
        prompt, table = self._prompts[stream], self._tables[lane]
        held = self._streams[stream] = Held(prompt, table)
        if hit:
            held.state, found = self.pool.seat(prompt, "", table, len(prompt) - 1)
            held.pages = held.found = found
            self.found += found
        held.promise = wanted - held.found
        self.let_go(turn, self.pool.promise(held.promise))

    def let_go(self, turn: Turn, states: list[StateId]) -> None:
        """States went for a stream."""

    def resume(self, turn: Turn) -> None:
        """What a stream was found on came back."""
        stream = turn[1]
        held = self._streams[stream]
        self.tree.resumed(held.state, held.found, stream, len(held.prompt))

    def lease(self, turn: Turn) -> None:
        """A stream's table grows."""
        held, count = self._streams[turn[1]], turn[3]
        book, last = self.book, held.pages + count
        book.lease_into(held.table[held.pages : last])
        held.pages = last
        held.promise -= count
        book.promised -= count
        self.leased += count

    def keep(self, turn: Turn) -> None:
        """A stream leaves its prompt; what is kept of it already it uses from now on."""
        _, stream, _, pages, _ = turn
        held, pool, state = self._streams[stream], self.pool, StateId(self.states)
        made = pool.leave(held.prompt, "", held.table, pages, state, stream)
        self.states += len(made)
        self.swapped += pool.swapped
        if made:
            self.new += pages - pool.repeated
        self.left(turn, held, made)

    def left(self, turn: Turn, held: Held, made: list[int]) -> None:
        """States of so many pages are a stream's."""

    def end(self, turn: Turn) -> None:
        """A stream leaves."""
        stream = turn[1]
        held = self._streams.pop(stream)
        self.pool.end(held.table[: held.pages], held.promise, stream)
        self.returned += held.pages

    def step(self, turn: Turn) -> None:
        """A step of the machine that was noted is over."""
