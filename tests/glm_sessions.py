"""Twenty sessions of the tales model, mixed: replies that go on, cancels, drafts, short memory.

Every device that plays them must say the same, so a tape of one is a tape of all.
"""

import json
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np

from kvtape.core.device import Device
from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.group import choices_of, cpu_group
from kvtape.devices.text import read_codec
from kvtape.devices.weights.find import find_model
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events.canon import encode
from kvtape.events.commands import Cancel, Flush
from kvtape.events.facts import RunOpened
from kvtape.events.ids import RequestId
from kvtape.replay.opening import settings_of

from .device_play import SAMPLINGS
from .rig import Rig, arrive, opened_with

SESSIONS, PAGE = 20, 32
TEXTS = (
    "Once upon a time there was a fox who went home. The fox was happy and sang a song. ",
    "A girl named Anna had a small boat. One day she went to the sea with her friend. ",
    "The old king was sad. His daughter asked the wise man, and he told her a story. ",
)


def tales() -> GlmCheckpoint:
    """The model."""
    found = find_model("glm-tales")
    assert isinstance(found, GlmCheckpoint)
    return found


def sessions_opened(device: str, digest: str, **changes: Any) -> RunOpened:
    """A run with room for few: pages are short, kept states go for others."""
    rules = Glm(tales().config, Choices(PAGE, PAGE, 3)).rules()
    settings = {
        "family": "glm", "weights": "w16", "model": "glm-tales", "model_digest": digest,
        "context": 256, "devices": (device,), "lanes": 4, "pages": 32, "prompt_rows": 48,
        "states": 5, "poison": "a", "digests": "rows",
    }  # fmt: skip
    return opened_with(rules, **(settings | changes))


def play_sessions(
    opened: RunOpened, make: Callable[[RunOpened], Device], sessions: int = SESSIONS
) -> Rig:
    """The sessions one after another, several at a time; each asks again with its reply."""
    rng, rig = np.random.default_rng(17), Rig(opened, make=make)
    encode, eos = read_codec(tales().path).prompt, tuple(tales().config["eos_token_ids"])
    history: dict[int, list[int]] = {}
    for number in range(2 * sessions):
        session = number % sessions
        known = history.get(session, list(encode(TEXTS[session % 3])) * (1 + session % 2))
        name = f"s{session} r{number}"
        rig.step(
            arrive(
                name, known, int(rng.integers(5, 40)), session=f"s{session}",
                draft=session % 4 != 3, eos=eos, ignore_eos=session % 5 == 0,
                history_tokens=len(known) - 3, sampling=SAMPLINGS[-1 - session % 5],
            )
        )  # fmt: skip
        for _ in range(int(rng.integers(1, 12))):
            rig.step()
        if number % 6 == 4:
            rig.step(Cancel(request=RequestId(name), why="client left"))
        if number == sessions:
            rig.step(Flush())
        reply = rig.replies.get(RequestId(name), [])
        history[session] = [*known, *reply, *encode("The end. ")][:150]
    rig.settle()
    return rig


def sums_of(rig: Rig) -> list[int]:
    """A number for each step: what it decided and what the device said of it."""
    return [crc32(b"".join(encode(fact) for fact in facts)) for facts in rig.steps]


def main() -> None:
    """Print what the CPU says."""

    def one(opened: RunOpened) -> Device:
        return cpu_group(tales(), settings_of(opened), choices=choices_of(opened.rules))[0]

    print(json.dumps(sums_of(play_sessions(sessions_opened("cpu", "0" * 32), one))))  # noqa: T201


if __name__ == "__main__":
    main()
