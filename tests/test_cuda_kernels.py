"""CUDA twins without a GPU: under the simulator they have the bits of their meanings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvtape.core.kernels import pack, registry
from kvtape.core.kernels.cuda import checked, planes
from kvtape.devices import kernel_cache

HERE = Path(__file__).parent
KERNELS = [kernel.name for kernel in registry.kernels()]

# Registered kernels that no CUDA twin stands for yet: names may only leave this list.
NO_TWIN = (
    "count_rows",
    "cut_tiles",
    "find_word",
    "penalise",
    "weigh",
)

Verdicts = dict[str, tuple[int, str]]


@pytest.fixture(scope="module")
def simulated() -> Verdicts:
    """What the simulator made of every twin: how many cases were equal, where the first parts."""
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, "-W", "error", str(HERE / "cuda_simulated.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (equal, first) for name, equal, first in lines}


@pytest.mark.parametrize("name", sorted(set(KERNELS) - set(NO_TWIN)))
def test_a_simulated_twin_has_the_bits_of_its_meaning(name: str, simulated: Verdicts) -> None:
    equal, first = simulated[name]
    assert first == ""
    assert equal >= 3


@pytest.mark.parametrize(
    "name",
    [
        "gated",
        "beside",
        "tiled",
        "routed",
        "routed, many rows",
        "routed by tiles",
        "mix_streams",
        "read_site",
        "attend_split",
        "kda_rows, runs by turns",
    ],
)
def test_launches_that_no_cpu_kernel_has_are_the_sum_of_their_parts(
    name: str, simulated: Verdicts
) -> None:
    assert simulated[name] == (1, "")


def test_no_two_threads_of_a_block_touch_a_word_without_a_barrier(simulated: Verdicts) -> None:
    assert simulated["hazards"] == (0, "")
    assert simulated["neighbours, barrier True"] == (0, "")
    assert simulated["neighbours, barrier False"][0] > 0


@pytest.mark.parametrize(
    "launch",
    [
        "linear",
        "linear, many rows",
        "linear side by side",
        "linear of any inputs",
        "linear by tiles",
        "gated",
        "gated by tiles",
        "heads",
        "heads of any inputs",
        "heads by tiles",
        "experts",
        "experts by tiles",
        "experts of any inputs",
    ],
)
def test_a_launch_that_checks_itself_finds_a_wrong_bit_and_nothing_else(
    launch: str, simulated: Verdicts
) -> None:
    assert simulated[f"checked {launch}"] == (1, "")


@pytest.mark.parametrize(
    ("outputs", "groups", "inputs", "value"),
    [(96, 3, 33, None), (32, 1, 64, 32639), (70_000, 1, 2, -32768), (140_000, 2, 1, 32639)],
)
def test_a_check_holds_the_summed_rows_of_every_group(
    outputs: int, groups: int, inputs: int, value: int | None
) -> None:
    rng = np.random.default_rng(outputs)
    weights = rng.integers(-32768, 32768, (outputs, inputs), np.int16)
    if value is not None:
        weights[:] = value
    planes_of = checked.check_planes(weights, groups)
    taken = planes.unpack_planes(planes_of, 16 * groups, inputs).reshape(groups, 16, inputs)
    parts = weights.reshape(groups, -1, inputs)
    for group, block in enumerate(taken):
        assert not block[checked.DIGITS :].any()
        for k in range(inputs):
            digits = [int(one) << 16 * j for j, one in enumerate(block[: checked.DIGITS, k])]
            assert sum(digits) == sum(parts[group, :, k].tolist())
    assert np.any(taken[:, 2]) == (outputs > 65536)


def test_the_list_of_kernels_without_a_twin_only_shrinks(simulated: Verdicts) -> None:
    assert sorted(set(KERNELS) - set(simulated)) == sorted(NO_TWIN), "take it off NO_TWIN"


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (17, 33), (48, 576), (35, 100)])
def test_planes_hold_every_weight_and_zeros_besides(outputs: int, inputs: int) -> None:
    rng = np.random.default_rng(outputs)
    weights = rng.integers(-32639, 32640, (outputs, inputs), np.int16)
    made = np.full(planes.planes_size(outputs, inputs), 99, np.int8)
    planes.pack_planes(weights, made)
    np.testing.assert_array_equal(planes.unpack_planes(made, outputs, inputs), weights)
    whole = planes.unpack_planes(made, -(-outputs // 16) * 16, -(-inputs // 32) * 32)
    assert not whole[outputs:].any()
    assert not whole[:, inputs:].any()


def test_a_lane_reads_its_operands_in_one_go() -> None:
    """The order that the tensor core wants, told by the bytes of one weight at a time."""
    for output, k in ((0, 0), (9, 3), (7, 31), (15, 12), (8, 20)):
        weights = np.zeros((16, 32), np.int16)
        weights[output, k] = 0x1234
        made = np.zeros(planes.TILE, np.int8)
        planes.pack_planes(weights, made)
        lane, register = 4 * (output % 8) + k // 8, 2 * (k % 8 // 4) + output // 8
        at = 16 * lane + 4 * register + k % 4
        assert (made[at], made[at + planes.PLANE]) == (0x12, 0x34)
        assert np.count_nonzero(made) == 2


def test_the_two_forms_of_weights_hold_the_same_matrix() -> None:
    weights = np.random.default_rng(1).integers(-32639, 32640, (32, 64), np.int16)
    packed = np.zeros(pack.packed_size(32, 64), np.int16)
    pack.pack(weights, packed)
    made = np.zeros(planes.planes_size(32, 64), np.int8)
    planes.pack_planes(pack.unpack(packed, 32, 64), made)
    np.testing.assert_array_equal(planes.unpack_planes(made, 32, 64), weights)


def test_the_cpu_loads_no_cuda_kernel_and_its_cache_does_not_know_them(tmp_path: Path) -> None:
    code = (
        "import sys; from kvtape.core.kernels import registry; registry.kernels(); "
        "print(*(name for name in sys.modules if name.startswith(('numba.cuda', 'cupy')) "
        "or '.kernels.cuda.' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]
    (tmp_path / "norm.py").write_text("x = 1\n")
    before = kernel_cache.kernels_key(tmp_path, "a processor")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "norm.py").write_text("x = 2\n")
    assert kernel_cache.kernels_key(tmp_path, "a processor") == before
