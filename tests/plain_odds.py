"""What odds of prefixes mean, plainly: the compiled ones of the prompt tree are held to these."""

from collections import OrderedDict, deque
from itertools import accumulate
from typing import NamedTuple

from kvtape.core.paging.odds import (
    ADDED,
    AGES,
    BEGUN,
    CHANCES,
    FIRST_AGE,
    HALF,
    LAST_AGE,
    LATEST,
    LEVELS,
    MIDDLE,
    ONE,
    POOLS,
    RATE,
    RETURNS,
    TURNS,
    USES,
)


class Part:
    """Pages of one prompt that had come back equally often, and what becomes of them.

    born: the clock when they came; at: pages that had come to the pool by then; told: the places of
    their weights.
    """

    __slots__ = ("at", "born", "gone", "level", "returned", "told", "uses")

    def __init__(self, born: int, at: int, uses: int, told: tuple[int, ...], level: int) -> None:
        self.born, self.at, self.uses, self.told, self.level = born, at, uses, told, level
        self.returned = self.gone = False


class Memory(NamedTuple):
    """A page's prefix that went: how often it had come back, in which turn, and with which part."""

    uses: int
    turn: int
    part: Part


class Odds:
    """What a run has learned of prefixes that come back. pages: of its pool."""

    def __init__(self, pages: int) -> None:
        self._weights = [quarters * (ONE // 4) for quarters in TURNS + ADDED + USES]
        self._most = POOLS * pages
        self._came = 0  # pages to the pool
        self._parts: deque[Part] = deque()  # that have their time
        # An ordered map has its first at once; a plain one passes by all that went before it.
        self._gone: OrderedDict[bytes, Memory] = OrderedDict()
        self._gaps = [BEGUN if FIRST_AGE <= at < LAST_AGE else 0 for at in range(len(AGES))]
        self._ticks = 0
        self._worth = worths(self._gaps)

    def tick(self) -> None:
        """Time goes on: now and then what came back is looked at anew."""
        self._ticks += 1
        if self._ticks % LATEST == 0:
            if sum(self._gaps) > RETURNS:
                self._gaps = [count // 2 for count in self._gaps]
            self._worth = worths(self._gaps)

    def worth(self, level: int, age: int) -> int:
        """What it is worth to keep pages of these odds on, of this age in ticks."""
        return self._worth[level][age_of(age)]

    def part(self, clock: int, turn: int, added: int, uses: int) -> Part:
        """Pages came, or came back: what they are, and how likely they come back.

        uses: how often they came back, at most MANY.
        """
        told = (
            min(turn, len(TURNS) - 1),
            len(TURNS) + min(added.bit_length(), len(ADDED) - 1),
            len(TURNS) + len(ADDED) + uses,
        )
        level = MIDDLE + (self._sum(told) + HALF // 2) // HALF
        part = Part(clock, self._came, uses, told, max(0, min(LEVELS - 1, level)))
        self._parts.append(part)
        return part

    def returned(self, part: Part, clock: int) -> None:
        """A part, or some of it, is asked for again."""
        if not part.returned and not part.gone:
            part.returned = True
            self._gaps[age_of(clock - part.born)] += 1

    def came(self, pages: int) -> None:
        """So many pages came to the pool: parts whose time is over are learned from."""
        self._came += pages
        while self._parts and self._came - self._parts[0].at > self._most:
            part = self._parts.popleft()
            part.gone = True
            off = (part.returned << 16) - chance(self._sum(part.told))
            for at in part.told:
                self._weights[at] += (off * RATE + 2**15) >> 16

    def remember(self, name: bytes, memory: Memory) -> None:
        """A page's prefix went; the oldest memory makes room."""
        self._gone.pop(name, None)
        self._gone[name] = memory
        if len(self._gone) > self._most:
            self._gone.popitem(last=False)

    def remembers(self, name: bytes) -> bool:
        """Whether a prefix went not too long ago."""
        memory = self._gone.get(name)
        return memory is not None and not memory.part.gone

    def recall(self, name: bytes) -> Memory | None:
        """What is remembered of a prefix that is kept again; None if nothing is."""
        memory = self._gone.pop(name, None)
        return None if memory is None or memory.part.gone else memory

    def _sum(self, told: tuple[int, ...]) -> int:
        return sum(self._weights[at] for at in told)


def chance(log_odds: int) -> int:
    """The chance of log-odds, of 2^16; a straight line between levels."""
    level, rest = divmod(max(-MIDDLE * HALF, min(MIDDLE * HALF - 1, log_odds)), HALF)
    low, high = CHANCES[level + MIDDLE], CHANCES[level + MIDDLE + 1]
    return low + (high - low) * rest // HALF


def age_of(ticks: int) -> int:
    """The place of an age."""
    if ticks < 4:
        return max(0, ticks)
    octave = ticks.bit_length() - 3
    return min(len(AGES) - 1, 4 * octave + (ticks >> octave))


def worths(gaps: list[int]) -> list[list[int]]:
    """[level][age]: the most, over times to come, of returns until then for the pages held."""
    back = [0, *accumulate(gaps)]
    whole, ages = max(1, back[-1]), len(AGES)
    found = []
    for likely in CHANCES:
        stays = [(whole << 16) - likely * came for came in back]
        held = [0]
        for at in range(ages - 1):
            held.append(held[-1] + (stays[at] + stays[at + 1]) // 2 * (AGES[at + 1] - AGES[at]))
        worth = [
            max(
                (likely * (back[to] - back[at]) << 48) // max(1, held[to] - held[at])
                for to in range(at + 1, ages)
            )
            for at in range(ages - 1)
        ]
        found.append([*worth, 0])
    return found
