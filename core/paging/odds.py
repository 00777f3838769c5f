"""How likely a kept prefix comes back, and when: learned from those that did. Integers only.

What is known of a part of a prompt when it comes: the conversation's turn, how much the prompt adds
to what was there, how often the part had come back before. Each has a weight in log-odds, and a
part's odds are their sum; when it has had its time, the weights move towards what became of it.
When parts come back is one histogram for all. From both follows what it is worth to keep a part of
some odds and age on: the chance that it comes back within a time, over the time that it would stay
until then, for the best such time.
"""

import numpy as np

from .compiled import code
from .layout import (
    AT,
    BORN,
    BY_ADDED,
    BY_TURN,
    BY_USES,
    CAME,
    CLOCK,
    MOST,
    ODDS,
    ODDS_POLICY,
    PART_FIRST,
    PART_NEXT,
    PARTS,
    PARTS_MASK,
    POLICY,
    QUEUES,
    RECORD,
    RETURNED,
)

ONE = 2**20  # of log-odds
HALF = ONE // 2  # from one level to the next
CHANCES = (  # of the levels' log-odds, -6 to 6, of 2^16
    162, 267, 439, 720, 1179, 1921, 3108, 4971, 7812, 11955, 17625, 24743, 32768,
    40793, 47911, 53581, 57724, 60565, 62428, 63615, 64357, 64816, 65097, 65269, 65374,
)  # fmt: skip
LEVELS, MIDDLE = len(CHANCES), len(CHANCES) // 2

# Where weights begin, in quarters of log-odds: what many conversations have in common.
TURNS = (-1, -2, -1, -1, 1, 1, 1)  # first prompt, second, ...; the last stands for all after it
ADDED = (3, 3, 3, 1, -1, -1, 0, -2, -4)  # pages, by powers of two: 0, 1, 2 to 3, 4 to 7, ...
USES = (-1, 1, 1, 1, 2)  # how often it had come back
MANY = len(USES) - 1

RATE = 5_243  # of a weight's way towards an outcome, of 2^20
POOLS = 4  # a part has its time until so many times the pool's pages came after it
KNOWN_PAGES = 2  # a prompt goes on with a conversation if it repeats as many pages; one is anyone's

# Ages by fourths of a power of two, exact below 4. Before anything came back, any such fourth of an
# age between the two is as likely as another.
AGES = tuple(range(4)) + tuple((4 + at % 4) << (at // 4) for at in range(56))
FIRST_AGE, LAST_AGE, BEGUN = 12, 48, 2
LATEST = 1024  # ticks from one look at what came back to the next
RETURNS = 2**20  # in the histogram, then all its counts are halved
NEAR = 1e-9  # of two floats: more than their quotients of integers below 2^53 can be off

# In the tree's head, after the queues.
WEIGHTS = QUEUES + 2 * LEVELS
WEIGHTS_ADDED, WEIGHTS_USES = WEIGHTS + len(TURNS), WEIGHTS + len(TURNS) + len(ADDED)
GAPS = WEIGHTS_USES + len(USES)
WORTHS = GAPS + len(AGES)
HEAD = WORTHS + LEVELS * len(AGES)

_AGES, _CHANCES = np.array(AGES, np.int64), np.array(CHANCES, np.int64)
_COUNT = len(AGES)


@code
def bits(count):
    """The bits of a number that is not negative."""
    found = 0
    while count:
        found += 1
        count >>= 1
    return found


@code
def age_of(ticks):
    """The place of an age."""
    if ticks < 4:
        return max(0, ticks)
    octave = bits(ticks) - 3
    return min(_COUNT - 1, 4 * octave + (ticks >> octave))


@code
def chance(log_odds):
    """The chance of log-odds, of 2^16; a straight line between levels."""
    odds = max(-MIDDLE * HALF, min(MIDDLE * HALF - 1, log_odds))
    level, rest = odds // HALF, odds % HALF
    low, high = _CHANCES[level + MIDDLE], _CHANCES[level + MIDDLE + 1]
    return low + (high - low) * rest // HALF


@code
def worth(m, level, age):
    """What it is worth to keep pages of these odds on, of this age in ticks."""
    return m[WORTHS + level * _COUNT + age_of(age)]


@code
def part_at(m, number):
    """Where a part that has its time stands; 0 when its time is over."""
    if number < m[PART_FIRST]:
        return 0
    return m[PARTS] + (number & m[PARTS_MASK]) * RECORD


@code
def parts_left(m):
    """How many more parts there is room for."""
    return m[PARTS_MASK] + 1 - (m[PART_NEXT] - m[PART_FIRST])


@code
def new_part(m, turn, added, uses):
    """Pages came, or came back: what they are, and how likely they come back; its number.

    uses: how often they came back, at most MANY.
    """
    number = m[PART_NEXT]
    m[PART_NEXT] = number + 1
    part = part_at(m, number)
    m[part + BY_TURN] = WEIGHTS + min(turn, len(TURNS) - 1)
    m[part + BY_ADDED] = WEIGHTS_ADDED + min(bits(added), len(ADDED) - 1)
    m[part + BY_USES] = WEIGHTS_USES + uses
    level = MIDDLE + (_sum(m, part) + HALF // 2) // HALF
    m[part + BORN], m[part + AT] = m[CLOCK], m[CAME]
    m[part + ODDS] = max(0, min(LEVELS - 1, level))
    m[part + RETURNED] = 0
    return number


@code
def returned(m, number):
    """A part, or some of it, is asked for again."""
    part = part_at(m, number)
    if part and not m[part + RETURNED]:
        m[part + RETURNED] = 1
        m[GAPS + age_of(m[CLOCK] - m[part + BORN])] += 1


@code
def came(m, pages):
    """So many pages came to the pool: parts whose time is over are learned from."""
    m[CAME] += pages
    while m[PART_FIRST] < m[PART_NEXT]:
        part = part_at(m, m[PART_FIRST])
        if m[CAME] - m[part + AT] <= m[MOST]:
            break
        m[PART_FIRST] += 1
        off = (m[part + RETURNED] << 16) - chance(_sum(m, part))
        step = (off * RATE + 2**15) >> 16
        for told in (BY_TURN, BY_ADDED, BY_USES):
            m[m[part + told]] += step


@code
def _sum(m, part):
    return m[m[part + BY_TURN]] + m[m[part + BY_ADDED]] + m[m[part + BY_USES]]


@code
def tick(m):
    """Time goes on: now and then what came back is looked at anew."""
    m[CLOCK] += 1
    if m[POLICY] == ODDS_POLICY and m[CLOCK] % LATEST == 0:
        if m[GAPS : GAPS + _COUNT].sum() > RETURNS:
            for age in range(_COUNT):
                m[GAPS + age] //= 2
        look(m)


@code
def look(m):
    """[level][age]: the most, over times to come, of returns until then for the pages held.

    A quotient of floats is near enough to say which times may be the best; integers say how good.
    """
    back, held = np.zeros(_COUNT, np.int64), np.zeros(_COUNT, np.int64)
    for age in range(1, _COUNT):
        back[age] = back[age - 1] + m[GAPS + age - 1]
    rate = np.zeros(_COUNT, np.float64)
    whole = max(1, back[_COUNT - 1] + m[GAPS + _COUNT - 1])
    for level in range(LEVELS):
        likely = _CHANCES[level]
        for age in range(1, _COUNT):
            stay = (whole << 16) - likely * back[age - 1] + (whole << 16) - likely * back[age]
            held[age] = held[age - 1] + stay // 2 * (_AGES[age] - _AGES[age - 1])
        for age in range(_COUNT):
            m[WORTHS + level * _COUNT + age] = _most(likely, back, held, age, rate)


@code
def _most(likely, back, held, age, rate):
    """The best of the times to come."""
    most, best = 0.0, 0
    for to in range(age + 1, _COUNT):
        rate[to] = likely * (back[to] - back[age]) / (held[to] - held[age])
        most = max(most, rate[to])
    if most > 0.0:
        for to in range(age + 1, _COUNT):
            if rate[to] >= most * (1 - NEAR):
                best = max(best, shifted(likely * (back[to] - back[age]), held[to] - held[age]))
    return best


@code
def shifted(over, under):
    """`(over << 48) // under` of two numbers below 2^54, a byte of the quotient at a time."""
    found, rest = over // under, over % under
    for _ in range(6):
        rest <<= 8
        found = (found << 8) | rest // under
        rest %= under
    return found
