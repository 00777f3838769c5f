"""Numbers that overflow in a GLM: whose request ends, whose does not; sizes that are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.core.families.family import Choices, UnsupportedShape
from kvtape.core.families.glm import Glm
from kvtape.devices.glm.device import GlmDevice
from kvtape.devices.group import choices_of, cpu_group
from kvtape.devices.settings import DeviceSettings
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.devices.weights.table import Halves
from kvtape.events.facts import RunOpened
from kvtape.events.records import Sampling
from kvtape.replay.opening import settings_of

from . import tiny_glm as variants
from .cpu_rig import SMALL
from .glm_memory import Playing
from .glm_rig import glm_opened, glm_tokens, tiny_glm
from .rig import Rig, arrive

TOKENS = glm_tokens()
LAYER = "model.language_model.layers.6."
BAD = 509  # the id whose row overflows; no prompt and no reply holds it otherwise
FORCED = int(np.float32(1000).view(np.uint32))


class Spoiled(GlmCheckpoint):
    """The tiny checkpoint with another embedding of the bad id."""

    def __init__(self, value: float) -> None:
        super().__init__(tiny_glm().path)
        self.value = np.float32(value)

    def table(self) -> Halves:
        """The halves of the embedding's bits."""
        high, low = (half.copy() for half in super().table())
        pattern = int(self.value.view(np.uint32))
        high[BAD], low[BAD] = pattern >> 16, pattern & 0xFFFF
        return high, low


def variant(folder: Path, name: str, value: float) -> GlmCheckpoint:
    """The tiny checkpoint with a tensor of this value alone."""
    config, weights = variants.recorded()
    weights[name] = np.full_like(weights[name], value)
    return GlmCheckpoint(variants.write(folder, config, variants.stored(weights, "F32")))


def serve(checkpoint: GlmCheckpoint, drafts: int, *wishes: Any, play: Any = None) -> Rig:
    """These requests at once, to the end."""

    def make(opened: RunOpened) -> Any:
        device = cpu_group(
            checkpoint, settings_of(opened), world=1, choices=choices_of(opened.rules)
        )[0]
        assert isinstance(device, GlmDevice)
        return Playing(device, play)

    rig = Rig(glm_opened(drafts, lanes=8, pages=60, prompt_rows=40), make=make)
    rig.step(*wishes)
    rig.settle()
    rig.device.close()
    return rig


def eight(bad: int | None, draft: bool = True) -> list[Any]:
    """Eight requests; one of them holds the bad id in the middle of its prompt."""
    rng = np.random.default_rng(8)
    found = []
    for at in range(8):
        prompt = rng.integers(6, 500, 9 + 5 * at).tolist()
        if at == bad:
            prompt[len(prompt) // 2] = BAD
        found.append(arrive(f"r{at}", prompt, 9, draft=draft))
    return found


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("value", [1e30, float("nan")])
def test_a_request_that_overflows_fails_alone_among_eight(value: float, drafts: int) -> None:
    checkpoint = Spoiled(value)
    sound, rig = serve(checkpoint, 0, *eight(None)), serve(checkpoint, drafts, *eight(4))
    ends = {request: end.reason for request, end in rig.finished.items()}
    assert ends == {f"r{at}": "fault" if at == 4 else "length" for at in range(8)}
    assert {fact.kind for fact in rig.facts} & {"poison_read", "sums_broken"} == set()
    del sound.replies[next(request for request in sound.replies if request == "r4")]
    assert {r: reply for r, reply in rig.replies.items() if r != "r4"} == sound.replies


def test_the_lane_and_the_pages_of_a_fault_are_clean_for_the_next_request() -> None:
    """What it left in states, rings and pages is read by nobody."""
    checkpoint = Spoiled(1e30)
    wish = arrive("after", TOKENS[:61], 20, draft=True)
    alone = serve(checkpoint, 2, wish)
    rig = serve(checkpoint, 2, arrive("bad", [*TOKENS[:20], BAD], 9, draft=True))
    assert rig.finished["bad"].reason == "fault"  # type: ignore[index]

    def make(opened: RunOpened) -> Any:
        return cpu_group(
            checkpoint, settings_of(opened), world=1, choices=choices_of(opened.rules)
        )[0]

    again = Rig(glm_opened(2, lanes=1, pages=12), make=make)
    again.step(arrive("bad", [*TOKENS[:20], BAD], 9, draft=True))
    again.settle()
    again.step(wish)
    again.settle()
    again.device.close()
    assert again.replies["after"] == alone.replies["after"]  # type: ignore[index]
    assert again.finished["after"].reason == "length"  # type: ignore[index]


def test_a_token_that_a_reply_draws_ends_it_and_it_alone() -> None:
    checkpoint = Spoiled(1e30)
    wishes = eight(None)
    forced = Sampling(bias=((BAD, FORCED),))
    wishes[2] = wishes[2].model_copy(update={"sampling": forced})
    rig, sound = serve(checkpoint, 2, *wishes), serve(checkpoint, 2, *eight(None))
    assert {r for r, end in rig.finished.items() if end.reason == "fault"} == {"r2"}
    assert all(rig.replies[r] == sound.replies[r] for r in sound.replies if r != "r2")


def test_a_refused_draft_that_overflows_is_nobodys_fault() -> None:
    """Every draft is the bad id: rows that are not kept raise no flag."""
    checkpoint = Spoiled(1e30)
    sound = serve(checkpoint, 0, *eight(None))
    for drafts in ([BAD, BAD, BAD, BAD], [7, BAD, 7, 7]):
        rig = serve(checkpoint, 4, *eight(None), play=lambda stream, d=drafts: d)
        assert {end.reason for end in rig.finished.values()} == {"length"}
        assert rig.replies == sound.replies


@pytest.mark.parametrize("name", ["enorm.weight", "shared_head.norm.weight"])
def test_a_drafter_that_overflows_flags_nothing_and_changes_nothing(
    tmp_path: Path, name: str
) -> None:
    """Its rows are no numbers, or its logits; drafts are then any id, and verified as ever."""
    checkpoint = variant(tmp_path, LAYER + name, 3e38)
    sound, rig = serve(tiny_glm(), 0, *eight(None)), serve(checkpoint, 3, *eight(None))
    assert {end.reason for end in rig.finished.values()} == {"length"}
    assert rig.replies == sound.replies
    assert {fact.kind for fact in rig.facts} & {"poison_read", "sums_broken"} == set()


# --- refused before a weight is read --------------------------------------------------------------


class Unread(GlmCheckpoint):
    """A checkpoint of which no weight may be read."""

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """No."""
        raise AssertionError(f"rows {first} to {last} of {name} are read")

    def vector(self, name: str) -> NDArray[np.float32]:
        """No."""
        raise AssertionError(f"{name} is read")


@pytest.mark.parametrize(
    ("changed", "choices", "world", "error"),
    [
        ({}, Choices(16, 16, 1), 5, "5 ranks share 4 heads: serve --tp 4 at most"),
        ({}, Choices(16, 16, 5), 1, "--mtp-drafts 5: it must be 0 to 4"),
        ({}, Choices(18, 18, 1), 1, "pages of 18 rows cut pools of index_kpool 4"),
        ({}, Choices(16, 24, 1), 1, "marks at 24 rows cut pages of 16"),
        ({"index_kpool": 8, "index_topk": 16}, Choices(12, 12, 1), 1, "index_kpool 8"),
        ({"index_kpool": 3}, Choices(), 1, "index_kpool is 3: it does not divide"),
        ({"index_kpool": 32}, Choices(), 1, "index_topk"),
        ({"num_nextn_predict_layers": 0}, Choices(16, 16, 1), 1, "the model has no MTP layer"),
        ({"num_nextn_predict_layers": 2}, Choices(), 1, "num_nextn_predict_layers"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    changed: dict[str, Any], choices: Choices, world: int, error: str
) -> None:
    checkpoint = Unread(tiny_glm().path)
    checkpoint.config = {**checkpoint.config, **changed}
    settings = DeviceSettings(**SMALL)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedShape, match=error):
        cpu_group(checkpoint, settings, world=world, choices=choices)


def test_the_numbers_of_drafts_that_a_run_may_ask_for() -> None:
    config = tiny_glm().config
    assert [Glm(config, Choices(16, 16, d)).rules().drafts for d in (-1, 0, 4)] == [1, 0, 4]
    plain = {**config, "num_nextn_predict_layers": 0}
    assert [Glm(plain, Choices(16, 16, d)).rules().drafts for d in (-1, 0)] == [0, 0]
