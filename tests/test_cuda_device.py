"""The CUDA device says what the CPU's says: on a GPU, on the simulated one, and in its tables."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtape.core.kernels.counting import CLEAN
from kvtape.devices.batch import Batch
from kvtape.devices.cuda.card import RESERVE, CardInfo, NoCard, NoRoom, Shape, check_room, size_of
from kvtape.devices.cuda.graph import Graphs, buckets_of
from kvtape.devices.cuda.tables import StepRoom, StepTables
from kvtape.devices.draws import DrawTables
from kvtape.devices.group import cuda_group, device_here
from kvtape.devices.paged import leases_together
from kvtape.devices.settings import DeviceSettings
from kvtape.events import facts as f
from kvtape.events.ids import Lane, PageId, StreamId

from .cpu_rig import CpuRig, tiny, tiny_bits, tiny_tokens
from .device_play import SCENES, Told, play

HERE = Path(__file__).parent
SETTINGS = DeviceSettings(lanes=8, context=96, pages=40, prompt_rows=64)
RECORDED: dict[str, list[Told]] = json.loads((HERE / "data" / "device_play.json").read_text())


def has_gpu() -> bool:
    """Whether this machine has what --device cuda needs."""
    return bool(find_spec("cupy") and find_spec("numba_cuda")) and device_here("cuda") == "cuda"


on_gpu = pytest.mark.skipif(not has_gpu(), reason="no CUDA device here")


def as_json(told: list[Told]) -> Any:
    return json.loads(json.dumps(told))


@pytest.mark.parametrize("scene", SCENES)
def test_the_recording_is_what_the_cpu_says(scene: str) -> None:
    assert as_json(play(scene, lambda **more: CpuRig(tiny(), **more))) == RECORDED[scene]


# --- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("scene", SCENES)
def test_a_gpu_says_what_the_cpu_says(scene: str) -> None:
    from .cuda_rig import CudaRig

    assert as_json(play(scene, lambda **more: CudaRig(tiny(), **more))) == RECORDED[scene]


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [1, 7, 60])
@pytest.mark.parametrize("captures", [True, False])
def test_a_gpu_has_the_bits_of_the_definition(chunk: int, *, captures: bool) -> None:
    from .cuda_rig import CudaRig, EagerRig

    with (CudaRig if captures else EagerRig)(tiny()) as rig:
        assert (rig.run(tiny_tokens(), chunk)[1] == tiny_bits()).all()


@on_gpu
@pytest.mark.gpu
def test_rows_that_see_far_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtape.devices.cuda import device, memory

    from .cuda_rig import CudaRig

    for module in (device, memory):
        monkeypatch.setattr(module, "NEAR", 8)
    with CudaRig(tiny()) as rig:
        assert rig.device.far is not rig.device.near
        assert (rig.run(tiny_tokens(), 20)[1] == tiny_bits()).all()


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("captures", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 20])
def test_all_scratch_is_poison_whenever_a_step_begins(chunk: int, *, captures: bool) -> None:
    from .cuda_rig import CudaRig, EagerRig
    from .soil_watch import Fertile, dropped_fill, watched_soil

    kind = CudaRig if captures else EagerRig
    with watched_soil() as seen, kind(tiny(), poison="b") as rig:
        assert (rig.run(tiny_tokens(), chunk)[1] == tiny_bits()).all()
    assert seen
    with (
        watched_soil(), dropped_fill(), kind(tiny(), poison="b") as rig, pytest.raises(Fertile),
    ):  # fmt: skip
        rig.run(tiny_tokens(), chunk)


# --- on the simulated one ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_simulated_device_says_what_the_cpu_says() -> None:
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, str(HERE / "cuda_simulated_device.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    *told, seen, refused = done.stdout.splitlines()
    cpu, simulated = map(json.loads, told)
    assert simulated == cpu
    assert seen == "a fill that is dropped is seen"
    assert refused == "a step of 3 rows with logits, the device has 2"


PLANNED = """
from kvtape.devices.cuda.memory import planned
from kvtape.devices.cuda.tables import StepRoom
from kvtape.devices.group import family_of
from kvtape.devices.program import Recorder
from kvtape.devices.settings import DeviceSettings
from kvtape.tests.random_llama import SMALLEST, RandomLlama

family = family_of(RandomLlama(SMALLEST))
settings = DeviceSettings(lanes=2, context=64, pages=8, prompt_rows=4)
program = Recorder(family, 1, 0, settings.rows, 1, checks=False).program()
step = StepRoom(settings.rows, settings.lanes, 3)
room = planned(family, program, settings, 1, step)
print(*room["bias_ids"][0], *room["biases"][0], settings.logit_rows * family.vocab)
"""


def test_there_is_room_for_every_bias_that_clients_can_ask_for() -> None:
    """Each row may bias each id once; what does not fit would end the run of all of them."""
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, "-c", PLANNED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    ids, biases, most = map(int, done.stdout.split())
    assert ids == biases == most


# --- anywhere ------------------------------------------------------------------------------------


def test_buckets_are_powers_of_two_and_the_most_rows() -> None:
    assert buckets_of(1) == (1,)
    assert buckets_of(64) == (1, 2, 4, 8, 16, 32, 64)
    assert buckets_of(72) == (1, 2, 4, 8, 16, 32, 64, 72)
    for most in range(1, 200):
        assert list(buckets_of(most)) == sorted(set(buckets_of(most)))


class Stand:
    """A card that captures by keeping what it was given."""

    def captured(self, launches: Any) -> Any:
        return launches


def test_a_step_runs_the_smallest_bucket_that_has_room_once() -> None:
    ran: list[int] = []
    card: Any = Stand()
    graphs = Graphs(card, lambda rows: [lambda: ran.append(rows)], rows=20)
    for rows in (0, 1, 3, 3, 17, 20, 16):
        graphs.run(rows)
    assert ran == [1, 4, 4, 20, 20, 16]


def test_a_step_is_filled_up_with_rows_on_reserved_pages() -> None:
    room, pages = StepRoom(rows=8, lanes=2, entries=3), 5
    tables = StepTables(room, np.full(room.bytes, 0xAB, np.uint8), pages)
    at = [np.array(one, np.int64) for one in ([4, 9, 2], [30, 31, 0], [0, 0, 1], [1, 1, 2])]
    batch = Batch([], at[0], at[1], at[2], at[3], np.array([1, 2], np.int64))
    draws = DrawTables(16).of({}, Batch([], at[0][:0], at[0][:0], at[0][:0], at[0][:0], at[0][:0]))
    draws = draws._replace(
        floats=np.zeros((5, 2), np.float32), whole=np.ones((4, 2), np.int64),
        bias_starts=np.array([0, 1, 1]),
    )  # fmt: skip
    tables.write(batch, draws, np.array([[1, 5, 5], [2, 5, 5]], np.int32), 4, 4)
    seen = room.views(tables.block)
    assert seen["positions"][:4].tolist() == [30, 31, 0, 0]
    assert seen["lanes"][:4].tolist() == [0, 0, 1, 2]
    assert seen["selected"][:4].tolist() == [1, 2, 0, 0]
    assert seen["logit_positions"][:4].tolist() == [31, 0, 0, 0]
    assert seen["tables"].tolist() == [[1, 5, 5], [2, 5, 5], [pages + 1, pages, pages]]
    assert seen["bias_starts"][:5].tolist() == [0, 1, 1, 1, 1]
    assert seen["draws"][:, 3].tolist() == [0, 1, 1, 0, 0]
    heard = tables.heard()
    assert not heard.row_sums.any() and not heard.flags.any()
    assert (heard.poisoned == CLEAN).all()


def test_leases_that_follow_each_other_are_done_at_once() -> None:
    leases = [
        f.PagesLeased(stream=StreamId(at), first=0, pages=(PageId(at), PageId(9 - at)))
        for at in range(4)
    ]
    released = f.StreamReleased(stream=StreamId(7), lane=Lane(0))
    first, between, last = leases_together([*leases[:3], released, leases[3]])
    assert isinstance(first, f.PagesLeased) and first.pages == (0, 9, 1, 8, 2, 7)
    assert (between, last) == (released, leases[3])
    assert list(leases_together([])) == []


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    shapes: dict[str, Shape] = {"keys": ((1 << 20,), np.int16), "rest": ((3,), np.int8)}
    card = CardInfo("a card", 2 << 30, RESERVE + size_of(shapes), "CUDA 13.0")
    assert check_room(shapes, card) == (2 << 20) + 256
    less = CardInfo("a card", 2 << 30, RESERVE + size_of(shapes) - 1, "CUDA 13.0")
    with pytest.raises(NoRoom, match=r"a card: 0.00 GiB are needed \(keys 0.00.*fewer --pages"):
        check_room(shapes, less)


@pytest.mark.skipif(has_gpu(), reason="there is a CUDA device here")
def test_where_there_is_no_gpu_it_is_said() -> None:
    with pytest.raises(NoCard, match="--device cuda"):
        cuda_group(tiny(), SETTINGS)
    assert device_here("cuda") == "cpu"
