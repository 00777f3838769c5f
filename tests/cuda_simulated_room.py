"""Run as a process: plans for a GPU of a given size, and what its ranks then hold, to the byte.

Prints a line of JSON a case: the card's bytes, those that a start would allocate and the pages
among them, or the words of a refusal. The simulator is chosen by the environment.
"""

import json
import os
import random
import sys
from dataclasses import replace
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.core.families.llama import Llama
from kvtape.devices.cuda import card, glm_memory, memory, simulated
from kvtape.devices.cuda.checks import checks_of
from kvtape.devices.glm.arena import ring_sizes
from kvtape.devices.weights.find import find_model
from kvtape.replay.opening import BadOption, RunOptions, run_opened, settings_of
from kvtape.replay.plan_made import planned

MIB, GIB = 1 << 20, 1 << 30


def options(rng: random.Random, *, glm: bool) -> RunOptions:
    """What a start may ask for, but for the memory."""
    return RunOptions(
        device="cuda", lanes=rng.randint(1, 9), context=rng.choice((0, 64, 200, 500)),
        prompt_rows=rng.choice((1, 8, 64, 300)), drafts=rng.choice((-1, 0, 1)) if glm else -1,
        poison=rng.choice(("off", "a")), digests=rng.choice(("rows", "off")),
        kv_pages=rng.choice(("auto", "on")), verify=rng.random() < 0.3,
        cache_bytes=rng.choice((None, 0, 3 * MIB)) if glm else None,
    )  # fmt: skip


def shapes_of(path: str, asked: RunOptions, found: Any) -> dict[str, Any]:
    """The arrays that a start allocates whose plan this is."""
    checkpoint: Any = find_model(path)
    choices = Choices(drafts=asked.drafts)
    family: Any = (Glm if checkpoint.family == "glm" else Llama)(checkpoint.config, choices)
    opened = run_opened(
        asked, family.rules(), found.division(1), model="", model_digest="", family="",
        device="cuda",
    )  # fmt: skip
    settings = replace(settings_of(opened), verify=asked.verify)
    if isinstance(family, Glm):
        of_glm = glm_memory.recorded(family, 1, 0, settings, [0] * family.caches)
        wide = bool(len(checkpoint.table()[1]))
        return glm_memory.planned(
            family, of_glm, settings, ring_sizes(family), glm_memory.heads_of(family, 1, 0),
            wide_table=wide,
        )  # fmt: skip
    program = memory.recorded(family, 1, 0, settings)
    first, last = family.heads(1, 0)
    step = memory.step_room(family, settings, checks_of(program, verify=settings.verify))
    return memory.planned(family, program, settings, last - first, step)


def main(path: str, seed: int, cases: int) -> None:
    """Random starts on cards of random sizes."""
    rng = random.Random(seed)
    glm = find_model(path).family == "glm"
    for _ in range(cases):
        total = GIB + rng.randrange(1, 60) * MIB
        info = card.CardInfo("a card", total, total, "none")
        fake: Any = simulated.SimulatedCard
        fake.info = lambda self, info=info: info
        asked = options(rng, glm=glm)
        told = {"total": total, "refused": "", "glm": glm}
        try:
            found = planned(path, asked)
        except BadOption as error:
            print(json.dumps(told | {"refused": str(error)}), flush=True)  # noqa: T201
            continue
        wanted = found.asked.wanted
        told |= {
            "need": card.size_of(shapes_of(path, asked, found)),
            "pages": found.plan.pool_pages,
            "most": wanted.lanes * wanted.window_pages,
            "page": wanted.sizes.page_bytes,
        }
        print(json.dumps(told), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
