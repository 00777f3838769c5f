"""Items of an op, taken by whichever thread comes: counters of those taken and of those done."""

from .registry import inner
from .team import fetch_add, wait_for

# int64 words of an op's counters, a line of the cache; the last two are for an op of two halves.
LINE = 8
TAKEN, DONE, OUT_TAKEN, OUT_DONE = range(4)


@inner
def part_of(total, thread, threads):
    """A thread's share [first, last) of `total` items."""
    return total * thread // threads, total * (thread + 1) // threads


@inner
def chunk_of(total, turn, threads):
    """The items [first, last) of a turn, of 2 * threads turns: large ones first, then small.

    Consecutive items lie side by side in memory, so few large pieces are read fastest; the small
    ones even out what threads of unequal speed, or that came late, have left.
    """
    large = total - total // 4
    if turn < threads:
        return part_of(large, turn, threads)
    first, last = part_of(total - large, turn - threads, threads)
    return large + first, large + last


@inner
def take(memory, at, word=TAKEN):
    """The next turn of op `at`, never the same twice in a step."""
    return fetch_add(memory.turns, at * LINE + word, 1)


@inner
def done(memory, at, items, word=DONE):
    """So many more items of op `at` are done; how many were before."""
    return fetch_add(memory.turns, at * LINE + word, items)


@inner
def wait_done(memory, party, at, items, word=DONE):
    """Wait until so many items of op `at` are done; False if the step was aborted."""
    return wait_for(memory.turns, at * LINE + word, items, memory.team, party.spins)
