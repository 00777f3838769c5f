"""A plan for a GPU counts all that a rank holds there: what it gives away is there to be had."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvtape.core.families.fake import fake_rules
from kvtape.core.plan_room import reserve_bytes
from kvtape.core.plan_wanted import GIB
from kvtape.core.state import FLAT
from kvtape.devices.settings import DeviceSettings
from kvtape.events.facts import RunOpened
from kvtape.replay.forward import room_for
from kvtape.replay.opening import settings_of
from kvtape.replay.plan_start import Start, ask

from .rig import flat_plan, opened_with
from .test_plan_here import GLM, LLAMA, machine

HERE = Path(__file__).parent
CASES = 40
LINE = 256  # bytes to which arrays are aligned
PADDED = 100 * LINE  # bytes that arrays are apart, all together, at most


@pytest.fixture(scope="module", params=[LLAMA, GLM])
def planned(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Random starts of a model on simulated cards of random sizes."""
    script = str(HERE / "cuda_simulated_room.py")
    done = subprocess.run(
        [sys.executable, script, request.param, "3", str(CASES)],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_is_planned_is_there(planned: list[dict[str, Any]]) -> None:
    """Pages, kept states, weights, lanes and buffers of a rank, its reserve left alone."""
    given = [one for one in planned if not one["refused"]]
    assert len(given) > CASES // 3
    for one in given:
        free = one["total"] - reserve_bytes(one["total"], unified=False)
        assert one["need"] <= free, one


def test_what_is_there_is_given_away(planned: list[dict[str, Any]]) -> None:
    """A pool that is short of what streams could use leaves less than a page."""
    short = [
        one for one in planned if not (one["refused"] or one["glm"] or one["pages"] == one["most"])
    ]
    assert short or planned[0]["glm"]
    for one in short:
        free = one["total"] - reserve_bytes(one["total"], unified=False)
        assert free - one["need"] < one["page"] + PADDED, one


def test_what_is_not_there_is_refused_with_numbers(planned: list[dict[str, Any]]) -> None:
    refused = [one["refused"] for one in planned if one["refused"]]
    assert refused
    for said in refused:
        assert "MiB" in said or "KiB" in said, said
        assert "--context" in said or "--parallel" in said, said
    assert any("buffers of" in said and "--prompt-rows" in said for said in refused)


@pytest.mark.parametrize("model", [LLAMA, GLM])
def test_what_ranks_gather_in_is_counted(model: str) -> None:
    """By the way that takes the most; each array may be padded anew once it has pages."""
    done = subprocess.run(
        [sys.executable, str(HERE / "cuda_simulated_held.py"), model],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == 2
    for counted, allocated, lines in told:
        assert abs(counted - allocated - lines) < 2 * LINE


def test_a_cpu_has_no_buffers_in_its_plan() -> None:
    asked = ask(Start(GLM, context=1024), machine(64 * GIB))
    assert asked.memory.buffers == 0


def test_a_server_asks_for_the_logits_that_it_draws_from() -> None:
    """A window a lane: prompts have one row, and a lane has one run a step."""
    opened: RunOpened = opened_with(fake_rules(drafts=2), lanes=5, prompt_rows=64)
    settings = settings_of(opened)
    assert (settings.rows, settings.logit_rows) == (64 + 15, 15)
    every = settings_of(room_for(opened, [], 0))
    assert every.logit_rows == every.rows == 64 + 3
    assert settings_of(room_for(opened, [], 512)).logit_rows == 3
    assert DeviceSettings(lanes=5, context=64, pages=9, prompt_rows=64).logit_rows == 69


def test_copies_that_have_no_bytes_have_no_place_on_a_card() -> None:
    for cache, states in ((0, 0), (20, 2)):
        opened = opened_with(fake_rules(), flags={"store": FLAT}, plan=flat_plan(cache), states=256)
        assert settings_of(opened).states == states
