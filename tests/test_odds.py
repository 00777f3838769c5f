"""What a run learns of prefixes that come back: chances, ages, what is worth keeping, memory."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest

from kvtape.core.paging import layout
from kvtape.core.paging import odds as compiled
from kvtape.core.paging.odds import AGES, CHANCES, LATEST, LEVELS, MANY, MIDDLE, ONE, POOLS, RETURNS
from kvtape.core.paging.words import begin

from .plain_odds import Memory, Odds, age_of, chance, worths


def test_a_chance_is_the_logistic_of_its_log_odds() -> None:
    for level, likely in enumerate(CHANCES):
        log_odds = (level - MIDDLE) / 2
        assert likely == round(65536 / (1 + math.exp(-log_odds)))
        assert abs(chance(int(log_odds * ONE)) - likely) <= 1  # the last is met from below
    between = [chance(at * ONE // 16) for at in range(-200, 200)]
    assert between == sorted(between)
    assert (between[0], between[-1] + 1 >= CHANCES[-1]) == (CHANCES[0], True)


def test_an_age_falls_between_its_bounds() -> None:
    assert all(low < high for low, high in pairwise(AGES))
    for ticks in [*range(-1, 5000), 10**5, 10**9]:
        at = age_of(ticks)
        assert at == 0 or AGES[at] <= ticks
        assert at == len(AGES) - 1 or ticks < AGES[at + 1]


def test_what_is_worth_keeping_is_the_best_return_for_the_time() -> None:
    """By the definition: returns up to a time, over the time that pages stay until then."""
    gaps = [(7 * at) % 11 if 3 < at < 40 else 0 for at in range(len(AGES))]
    whole, found = sum(gaps), worths(gaps)
    back = [Fraction(sum(gaps[:at]), whole) for at in range(len(AGES))]
    for level in (0, 7, MIDDLE, LEVELS - 1):
        likely = Fraction(CHANCES[level], 2**16)
        for at in (0, 3, 12, 30, 50, len(AGES) - 2):
            best, held = Fraction(0), Fraction(0)
            for to in range(at + 1, len(AGES)):
                stays = 1 - likely * (back[to - 1] + back[to]) / 2
                held += stays * (AGES[to] - AGES[to - 1])
                best = max(best, likely * (back[to] - back[at]) / held)
            assert abs(found[level][at] - best * 2**48) <= best * 2**48 / 2**12 + 1
        assert found[level][-1] == 0


@pytest.mark.parametrize("most", [1, 40, RETURNS // 60])
def test_compiled_worths_chances_and_ages_are_the_plain_ones(most: int) -> None:
    rng, m = random.Random(most), begin(1, 0, 10, layout.ODDS_POLICY)
    for gaps in ([0] * len(AGES), [rng.randrange(most + 1) for _ in AGES]):
        m[compiled.GAPS : compiled.WORTHS] = gaps
        compiled.look(m)
        found = m[compiled.WORTHS : compiled.HEAD].tolist()
        assert found == [worth for level in worths(gaps) for worth in level]
    for _ in range(500):
        number = rng.randrange(-(2**25), 2**25) >> rng.randrange(24)
        assert compiled.chance(number) == chance(number)
        assert compiled.age_of(number) == age_of(number)
        over, under = rng.randrange(2**37), rng.randrange(1, 2**53)
        if over >> 9 < under:
            assert compiled.shifted(over, under) == (over << 48) // under


def test_of_equal_age_the_likelier_is_worth_more() -> None:
    odds = Odds(100)
    for age in (0, 5, 100, 3000):
        column = [odds.worth(level, age) for level in range(LEVELS)]
        assert column == sorted(column) and column[0] < column[-1]


def played(odds: Odds, returns: bool, times: int) -> None:
    """So many prompts of one kind come, each with a page of its own, and come back or not."""
    for clock in range(times):
        part = odds.part(clock, 0, 16, 0)
        odds.came(1)
        if returns:
            odds.returned(part, clock + 20)


@pytest.mark.parametrize("returns", [True, False])
def test_a_kind_that_comes_back_rises_and_one_that_does_not_falls(returns: bool) -> None:
    odds = Odds(10)
    before = [odds.part(0, turn, added, 0).level for turn, added in ((0, 16), (6, 255))]
    played(odds, returns, 4000)
    after = [odds.part(0, turn, added, 0).level for turn, added in ((0, 16), (6, 255))]
    assert (after[0] > before[0] + 2) if returns else (after[0] < before[0] - 2)
    assert abs(after[1] - before[1]) <= abs(after[0] - before[0]), "they share one weight of three"


def test_nothing_is_learned_before_its_time_is_over() -> None:
    odds = Odds(10)
    weights = list(odds._weights)
    played(odds, True, POOLS * 10)
    assert odds._weights == weights
    played(odds, True, 2)
    assert odds._weights != weights


def test_a_part_counts_once_and_not_after_its_time() -> None:
    odds = Odds(10)
    before = sum(odds._gaps)
    part = odds.part(0, 0, 3, MANY)
    odds.returned(part, 50)
    odds.returned(part, 60)
    late = odds.part(0, 0, 3, 0)
    odds.came(POOLS * 10 + 1)
    odds.returned(late, 70)
    assert late.gone and not late.returned
    assert (sum(odds._gaps), odds._gaps[age_of(50)]) == (before + 1, 3)


def test_when_parts_come_back_changes_what_is_worth_keeping() -> None:
    """All come back after 300: one of that age is worth keeping, one that missed it is not."""
    odds = Odds(10)
    for clock in range(600):
        odds.returned(odds.part(clock, 0, 3, 0), clock + 300)
    for _ in range(LATEST):
        odds.tick()
    assert odds.worth(MIDDLE, 290) > 4 * odds.worth(MIDDLE, 10)
    assert odds.worth(MIDDLE, 290) > 100 * odds.worth(MIDDLE, 700)


def test_no_more_is_remembered_than_was_said_and_the_oldest_memory_goes() -> None:
    odds = Odds(1)
    part = odds.part(0, 2, 3, 1)
    for at in range(POOLS + 2):
        odds.remember(bytes([at]), Memory(at, 2, part))
    kept = [odds.remembers(bytes([at])) for at in range(POOLS + 2)]
    assert kept == [False, False] + [True] * POOLS
    assert odds.recall(bytes([3])) == Memory(3, 2, part)
    assert odds.recall(bytes([3])) is None  # it is kept again
    odds.came(POOLS + 1)
    assert not odds.remembers(bytes([4])), "its part had its time"
