"""A plain block pool that gives up what was unused longest: what other servers do, to compare."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class LruPool:
    """Blocks by name of their prefix. Idle ones stay until room is wanted, a prompt's tail first.

    hits: blocks that were found; short: blocks that had no room and were counted without one.
    """

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._held: dict[Hashable, int] = {}  # named blocks in use, by how many
        self._idle: OrderedDict[Hashable, None] = OrderedDict()
        self._plain = 0  # blocks in use that have no name
        self._live: dict[int, tuple[Sequence[Hashable], int]] = {}
        self.hits = self.short = 0

    def begin(self, stream: int, names: Sequence[Hashable], plain: int) -> int:
        """Take a prompt's named blocks, found or new, and so many plain ones; how many were found.

        names: each stands for the whole prefix that it ends, and is there once.
        """
        found = 0
        while found < len(names) and (names[found] in self._held or names[found] in self._idle):
            self._idle.pop(names[found], None)
            self._held[names[found]] = self._held.get(names[found], 0) + 1
            found += 1
        fresh = []
        for name in names[found:]:
            if name in self._held:  # what stands before it went, or is a copy
                plain += 1
            else:
                self._idle.pop(name, None)
                fresh.append(name)
        self._make_room(len(fresh) + plain)
        for name in fresh:
            self._held[name] = 1
        self._plain += plain
        self._live[stream] = (tuple(names[:found]) + tuple(fresh), plain)
        self.hits += found
        return found

    def finish(self, stream: int) -> None:
        """Let go of a stream's blocks; those with a name stay while there is room."""
        names, plain = self._live.pop(stream)
        self._plain -= plain
        for name in reversed(names):
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self._idle[name] = None

    def _make_room(self, want: int) -> None:
        used = len(self._held) + len(self._idle) + self._plain
        for _ in range(max(0, used + want - self._pages)):
            if not self._idle:
                self.short += 1
                continue
            self._idle.popitem(last=False)
