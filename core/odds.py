"""How likely a kept prefix comes back, and when: learned from those that did. Integers only.

What is known of a part of a prompt when it comes: the conversation's turn, how much the prompt adds
to what was there, how often the part had come back before. Each has a weight in log-odds, and a
part's odds are their sum; when it has had its time, the weights move towards what became of it.
When parts come back is one histogram for all. From both follows what it is worth to keep a part of
some odds and age on: the chance that it comes back within a time, over the time that it would stay
until then, for the best such time.
"""

from collections import OrderedDict, deque
from itertools import accumulate
from typing import NamedTuple

ONE = 2**20  # of log-odds
HALF = ONE // 2  # from one level to the next
CHANCES = (  # of the levels' log-odds, -6 to 6, of 2^16
    162, 267, 439, 720, 1179, 1921, 3108, 4971, 7812, 11955, 17625, 24743, 32768,
    40793, 47911, 53581, 57724, 60565, 62428, 63615, 64357, 64816, 65097, 65269, 65374,
)  # fmt: skip
LEVELS, MIDDLE = len(CHANCES), len(CHANCES) // 2

# Where weights begin, in quarters of log-odds: what many conversations have in common.
BY_TURN = (-1, -2, -1, -1, 1, 1, 1)  # first prompt, second, ...; the last stands for all after it
BY_ADDED = (3, 3, 3, 1, -1, -1, 0, -2, -4)  # pages, by powers of two: 0, 1, 2 to 3, 4 to 7, ...
BY_USES = (-1, 1, 1, 1, 2)  # how often it had come back
MANY = len(BY_USES) - 1

RATE = 5_243  # of a weight's way towards an outcome, of 2^20
POOLS = 4  # a part has its time until so many times the pool's pages came after it
KNOWN_PAGES = 2  # a prompt goes on with a conversation if it repeats as many pages; one is anyone's

# Ages by fourths of a power of two, exact below 4. Before anything came back, any such fourth of an
# age between the two is as likely as another.
AGES = tuple(range(4)) + tuple((4 + at % 4) << (at // 4) for at in range(56))
FIRST_AGE, LAST_AGE, BEGUN = 12, 48, 2
LATEST = 1024  # ticks from one look at what came back to the next
MOST = 2**20  # returns in the histogram, then all its counts are halved


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
        self._weights = [quarters * (ONE // 4) for quarters in BY_TURN + BY_ADDED + BY_USES]
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
            if sum(self._gaps) > MOST:
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
            min(turn, len(BY_TURN) - 1),
            len(BY_TURN) + min(added.bit_length(), len(BY_ADDED) - 1),
            len(BY_TURN) + len(BY_ADDED) + uses,
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
