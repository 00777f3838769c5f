"""A request trace of the public form that is made here: the same statistics, from a seed.

What is drawn was read off the public trace of conversations: one prompt in four repeats all of an
earlier one's pages but for its last part, every prompt begins with the same page, half of them have
less than a dozen pages and one in twenty has more than eighty.
"""

import random
from collections.abc import Iterator
from typing import Any

from .simulate_trace import PAGE_TOKENS, Asked, asked_by

REQUESTS = 12_031
MOST_PAGES = 240
GOES_ON, CUTS = 0.41, 0.2  # shares: of prompts that go on with an earlier one, of these that cut it
BACK, FIRST, ADDED = (5.6, 0.9), (2.4, 1.15), (0.7, 1.5)  # of normal logarithms: mean, deviation
REPLY = (343, 200)  # tokens: mean, deviation
APART_MS = 294


def made_trace(page_rows: int, requests: int = REQUESTS, seed: int = 1) -> list[Asked]:
    """So many requests, the same from the same seed."""
    return [asked_by(line, at, page_rows) for at, line in enumerate(_lines(requests, seed))]


def _lines(requests: int, seed: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(seed)
    talks: list[list[int]] = []
    new = 1  # the next id that no prompt has
    for at in range(requests):
        if talks and chance.random() < GOES_ON:
            back = int(chance.lognormvariate(*BACK))
            talk = talks[max(0, len(talks) - 1 - back)]
            if chance.random() < CUTS:
                talk = talk[: chance.randint(1, len(talk))]
            added = int(chance.lognormvariate(*ADDED))
        else:
            talk, added = [0], 1 + int(chance.lognormvariate(*FIRST))
        talk = [*talk, *range(new, new + added)][:MOST_PAGES]
        new += added
        talks.append(talk)
        yield {
            "timestamp": at * APART_MS,
            "input_length": len(talk) * PAGE_TOKENS + chance.randrange(1, PAGE_TOKENS),
            "output_length": max(1, int(chance.gauss(*REPLY))),
            "hash_ids": [*talk, new],
        }
        new += 1
