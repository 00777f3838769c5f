"""The GLM on a GPU says what the CPU says: on a GPU, on the simulated one, and in its tables."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtape.core.kernels.counting import CLEAN
from kvtape.core.kernels.glm_memory import GlmStep
from kvtape.devices.batch import Batch
from kvtape.devices.cuda.glm_tables import MOST_ENDS, GlmRoom, GlmTables
from kvtape.devices.draws import DrawTables
from kvtape.devices.glm.step import empty_tables
from kvtape.devices.group import choices_of, cpu_group
from kvtape.events.facts import RunOpened
from kvtape.replay.opening import settings_of

from .device_play import Told
from .glm_play import SCENES, play
from .glm_rig import GlmRig
from .glm_sessions import play_sessions, sessions_opened, sums_of, tales
from .test_cuda_device import as_json, on_gpu

HERE = Path(__file__).parent
SESSIONS: list[int] = json.loads((HERE / "data" / "glm_sessions.json").read_text())
RECORDED: dict[str, list[Told]] = json.loads((HERE / "data" / "glm_play.json").read_text())


@pytest.mark.parametrize("scene", SCENES)
def test_the_recording_is_what_the_cpu_says(scene: str) -> None:
    assert as_json(play(scene, GlmRig)) == RECORDED[scene]


def test_the_recording_holds_drafts_kept_poison_found_and_sums_that_break() -> None:
    kept = [counts for step in RECORDED["planted"] for counts in step["drafts"].values()]
    assert {b for a, b in kept if a == 4} == {0, 1, 2, 3, 4}
    assert not any(b for step in RECORDED["rounds"] for _, b in step["drafts"].values())
    for scene in ("unwritten a", "unwritten b"):
        assert any(step["poisoned"] for step in RECORDED[scene])
    broken = {one[1] for step in RECORDED["resumed"] for one in step.get("breaks", ())}
    assert broken == {"rows", "keys", "states", "rings"}


# --- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("scene", SCENES)
def test_a_gpu_says_what_the_cpu_says(scene: str, *, captures: bool) -> None:
    from .cuda_glm_rig import GlmCudaRig, GlmEagerRig

    assert as_json(play(scene, GlmCudaRig if captures else GlmEagerRig)) == RECORDED[scene]


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("captures", [True, False])
def test_all_scratch_is_poison_whenever_a_step_begins(*, captures: bool) -> None:
    from .cuda_glm_rig import GlmCudaRig, GlmEagerRig
    from .soil_watch import Fertile, dropped_fill, watched_soil

    kind = GlmCudaRig if captures else GlmEagerRig
    with watched_soil() as seen:
        assert as_json(play("rounds", kind)) == RECORDED["rounds"]
    assert len(set(seen)) > 1
    with watched_soil(), dropped_fill(), pytest.raises(Fertile):
        play("rounds", kind)


@on_gpu
@pytest.mark.gpu
def test_pieces_of_a_step_have_the_bits_that_are_meant() -> None:
    from .cuda_glm_pieces import pieces

    rng = np.random.default_rng(4)
    for rows in (*range(1, 20), 33, 64, 65, 130):
        assert all(pieces(rng, rows).values()), rows


@on_gpu
@pytest.mark.gpu
def test_sessions_of_a_gpu_are_those_of_the_cpu() -> None:
    from kvtape.devices.group import cuda_group

    assert sessions_on("cuda", cuda_group) == SESSIONS


@pytest.mark.slow
def test_the_recorded_sessions_are_those_of_the_cpu() -> None:
    assert sessions_on("cpu", cpu_group) == SESSIONS


def sessions_on(device: str, make: Any) -> list[int]:
    """Twenty sessions on a device of that kind, a number a step."""

    def one(opened: RunOpened) -> Any:
        settings, choices = settings_of(opened), choices_of(opened.rules)
        return make(tales(), settings, choices=choices)[0]

    rig = play_sessions(sessions_opened(device, "0" * 32), one)
    rig.device.close()
    return sums_of(rig)


# --- on the simulated one ------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [[], pytest.param(["2"], marks=pytest.mark.slow)])
def test_the_simulated_device_says_what_the_cpu_says(rounds: list[str]) -> None:
    """One row; or two prompts, windows of drafts, a state that is kept and resumed."""
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, str(HERE / "cuda_simulated_glm.py"), *rounds]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    cpu, simulated = (json.loads(line) for line in done.stdout.splitlines())
    assert simulated == cpu


@pytest.fixture(scope="module")
def simulated() -> dict[str, bool]:
    """What the simulator made of each piece of a step."""
    command = [sys.executable, "-W", "error", str(HERE / "cuda_glm_pieces.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, bool] = json.loads(done.stdout)
    return found


PIECES = (
    "each", "slots", "heads", "added", "repeated", "heads mapped", "heads mapped, plain",
    "experts mapped, plain", "accepted", "drafted", "poison",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_a_simulated_piece_of_a_step_has_the_bits_that_are_meant(
    piece: str, simulated: dict[str, bool]
) -> None:
    assert simulated[piece]
    assert sorted(simulated) == sorted(PIECES)


LOWERED = """
import json

from kvtape.devices.cuda.card import open_card
from kvtape.devices.cuda.gathering import alone
from kvtape.devices.cuda.glm_group import glm_rank
from kvtape.devices.glm.layout import GlmOp
from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.devices.settings import DeviceSettings
from kvtape.tests.glm_rig import tiny_glm

found = {}
for drafts in (0, 2):
    family = Glm(tiny_glm().config, Choices(16, 16, drafts))
    settings = DeviceSettings(lanes=2, context=64, pages=8, prompt_rows=4, drafts=drafts)
    make = glm_rank(tiny_glm(), family, settings, open_card(0), 0, 1, lambda a, b: None)[2]
    device = make(gather=alone)
    sizes = [[len(one.lowered(rows)) for rows in one.buckets] for one in device._graphs]
    found[drafts] = [[int(one) for one in device._sets], sizes]
print(json.dumps(found))
"""


def test_every_op_is_lowered_by_row_set_and_bucket() -> None:
    """Trunk and head; with drafts, what is kept and the drafter, then its own drafts."""
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, "-c", LOWERED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["0"][0] == [0, 1] and found["2"][0] == [0, 1, 0, 2]
    for _, sizes in found.values():
        assert all(buckets == sorted(buckets) and buckets[0] > 4 for buckets in sizes)


# --- its tables ----------------------------------------------------------------------------------


def small_step() -> GlmStep:
    """A window of two rows in lane 1, a piece of a prompt in lane 0; the first wants drafts."""
    return empty_tables(2)._replace(
        tokens=np.array([4, 9, 2]), positions=np.array([30, 31, 7]), lanes=np.array([1, 1, 0]),
        selected=np.array([0, 1]), tables=np.array([[1, 2], [3, 4]], np.int32),
        runs=np.array([[1, 0, 30, 2], [0, 2, 7, 1]]), next_tokens=np.array([9, -1, 5]),
        sampled=np.array([[0, 2], [2, 0]]), windows=np.array([1, 0]), kept=np.array([2, 1]),
        ends=np.array([[3, -1], [-1, -1]]), wants=np.array([2, 0]), limits=np.array([32, 32]),
    )  # fmt: skip


def written() -> tuple[GlmTables, GlmRoom, int]:
    """The small step in a block that was full of something else."""
    room, none = GlmRoom(rows=8, lanes=2, entries=2, drafts=2), np.zeros(0, np.int64)
    tables = GlmTables(room, np.full(room.bytes, 0xAB, np.uint8), 5)
    draws = DrawTables(16).of({}, Batch([], none, none, none, none, none))
    draws = draws._replace(
        floats=np.zeros((5, 2), np.float32), whole=np.ones((4, 2), np.int64),
        bias_starts=np.array([0, 1, 1]),
    )  # fmt: skip
    return tables, room, tables.write(small_step(), draws, 4, 2)


def test_rows_that_nobody_asked_for_stand_in_a_lane_of_their_own() -> None:
    tables, room, drafting = written()
    seen = room.views(tables.block)
    assert seen["have"].tolist() == [3, 2, 1]
    assert drafting == 1 and seen["places"].tolist() == [0, 0]
    assert seen["lanes"][:4].tolist() == [1, 1, 0, 2] and seen["positions"][3] == 0
    assert seen["tables"].tolist() == [[1, 2], [3, 4], [6, 6]], "a page that nobody reads"
    assert seen["draft_lanes"].tolist() == seen["draft_of"].tolist() == [2, 2]
    assert not seen["draft_runs"].any(), "a drafting row is there once the card says so"
    assert seen["ends"][0, :2].tolist() == [3, -1] and (seen["ends"][:, 2:] == -1).all()
    assert (seen["poisoned"] == CLEAN).all() and not seen["kept"].any()


def test_what_comes_back_is_the_steps_own_and_stays_as_it_was() -> None:
    tables, _, _ = written()
    tables.at["kept"][:] = [2, 1]
    tables.at["drafts"][0] = [7, 8]
    heard = tables.heard(small_step())
    tables.told[:] = 0
    assert heard.kept.tolist() == [2, 1] and heard.drafts.tolist() == [[7, 8], [0, 0]]
    assert heard.paged.shape == (3, 3, 2), "of rows, keys and drafts, a pair a row"
    assert [len(one) for one in heard[1:]] == [2, 3, 2, 2, 2, 2, 2]


def test_more_ends_than_there_is_room_for_are_refused() -> None:
    tables, _, _ = written()
    none = np.zeros(0, np.int64)
    draws = DrawTables(16).of({}, Batch([], none, none, none, none, none))
    step = small_step()._replace(ends=np.zeros((2, MOST_ENDS + 1), np.int64))
    with pytest.raises(AssertionError, match="33 ids end a reply"):
        tables.write(step, draws, 4, 2)
