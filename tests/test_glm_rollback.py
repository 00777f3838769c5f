"""What each part of a rollback of the GLM is for: taken out, it is seen in what streams hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.glm.arena import RingSizes
from kvtape.devices.glm.group import glm_group
from kvtape.devices.glm.layout import GlmOp
from kvtape.events.facts import RunOpened
from kvtape.replay.opening import settings_of

from .glm_memory import Forgetful, Playing, Schedule
from .glm_rig import glm_device, tiny_glm
from .glm_watched import VOCAB, Make, assert_same, faults, replies, serve, undrafted, wishes

MOSTLY = [(0, 4), (1, 4), (0, 4), (2, 4)]


def with_rings(rings: RingSizes) -> Make:
    """A device with rings of other sizes, and drafts of which most are wrong."""

    def make(opened: RunOpened) -> Any:
        family = Glm(tiny_glm().config, Choices(opened.rules.page_rows, 0, opened.rules.drafts))
        device = glm_group(
            tiny_glm(), family, settings_of(opened), world=1, threads=1, spins=0,
            progress=lambda done, total: None, rings=rings,
        )[0]  # fmt: skip
        return Playing(device, Schedule(replies(), MOSTLY, VOCAB))

    return make


def with_ops(change: Callable[[list[Any]], list[Any]]) -> Make:
    """A device whose program's ops were changed, and drafts of which most are wrong."""

    def make(opened: RunOpened) -> Any:
        device = glm_device(opened)
        ops = device.memory.ops
        ops[:] = np.array(change(list(ops.copy())))
        return Playing(device, Schedule(replies(), MOSTLY, VOCAB))

    return make


def late_acceptance(ops: list[Any]) -> list[Any]:
    """Rows are accepted after the drafter took the token behind each row, not before."""
    accept = next(at for at, op in enumerate(ops) if op[0] == GlmOp.ACCEPT)
    after = next(at for at, op in enumerate(ops) if op[0] == GlmOp.NEXT)
    return [*ops[:accept], *ops[accept + 1 : after + 1], ops[accept], *ops[after + 1 :]]


def forgetful(part: str, cache: int) -> Make:
    """A device that does not write a row or a key again where a refused one stands."""
    drafter = Schedule(replies(), MOSTLY, VOCAB)
    return lambda opened: Forgetful(glm_device(opened), drafter, part, cache)


ENOUGH = RingSizes(states=5, conv=7, index=8)


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda: with_rings(RingSizes(1, 7, 8)), "states"),
        (lambda: with_rings(RingSizes(5, 3, 8)), "conv"),
        (lambda: with_rings(RingSizes(5, 7, 4)), "index"),
        (lambda: with_rings(RingSizes(5, 7, 4)), "draft index"),
        (lambda: with_ops(late_acceptance), "draft rows"),
        (lambda: forgetful("rows", 2), "draft rows"),
        (lambda: forgetful("keys", 2), "draft keys"),
        (lambda: forgetful("keys", 0), "keys"),
        (lambda: forgetful("rows", 1), "rows"),
    ],
    ids=[
        "one state", "a conv ring of the taps", "an index ring of a pool",
        "the drafter's index ring", "drafts instead of true tokens", "drafted rows stay",
        "drafted keys stay", "refused keys stay", "refused rows stay",
    ],
)  # fmt: skip
def test_each_part_that_is_not_rolled_back_is_seen(make: Callable[[], Make], first: str) -> None:
    rig = serve(wishes(), 4, make())
    assert first in faults(rig, undrafted())


def test_the_same_drafts_are_sound_where_nothing_is_taken_out() -> None:
    """So that what the mutants show is what was taken out of them."""
    assert_same(serve(wishes(), 4, with_rings(ENOUGH)), undrafted())
    assert_same(serve(wishes(), 4, with_ops(list)), undrafted())
