"""A small request trace of the public form, made from a seed."""

import json
import random
from pathlib import Path

PAGE = 512


def small_trace(path: Path, seed: int = 1, requests: int = 120) -> Path:
    """Conversations that share their first page; some go on, some replace their last part."""
    rng = random.Random(seed)
    talks: list[list[int]] = []
    names = iter(range(1, 10**6))
    lines = []
    for number in range(requests):
        going = talks and rng.random() < 0.5
        talk = rng.choice(talks[-12:]) if going else [0]
        kept = talk[: rng.randint(1, len(talk))] if rng.random() < 0.2 else list(talk)
        whole = kept + [next(names) for _ in range(rng.randint(0, 6))]
        talks.append(whole)
        rest = rng.randint(1, PAGE - 1)
        lines.append(
            {
                "timestamp": number // 3 * 3000,
                "input_length": len(whole) * PAGE + rest,
                "output_length": rng.choice((1, 40, 700, 1500)),
                "hash_ids": [*whole, next(names)],
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def talks_and_heaps(path: Path, rounds: int = 40, talks: int = 8, heap: int = 20) -> Path:
    """Talks that go on by a page each, in turns; before each turn a heap that nobody asks again."""
    names = iter(range(10**6))
    said = [[next(names) for _ in range(3)] for _ in range(talks)]
    lines: list[dict[str, object]] = []
    for turn in range(rounds * talks):
        talk = said[turn % talks]
        talk.append(next(names))
        for prompt in ([next(names) for _ in range(heap)], talk):
            lines.append(
                {
                    "timestamp": len(lines) * 60_000,
                    "input_length": len(prompt) * PAGE + 1,
                    "output_length": 100,
                    "hash_ids": [*prompt, next(names)],
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
