"""CUDA twins on a GPU: the bits of their meanings over many random cases, and golden vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtape.core.kernels import registry, scalars

cuda: Any = pytest.importorskip("numba.cuda")
if not cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from kvtape.core.kernels.cuda import linear, linear_tiles, planes, target, twins  # noqa: E402
from kvtape.devices.cuda.kernel_store import use_store  # noqa: E402
from kvtape.tests import cuda_checked, cuda_mixers, cuda_pieces  # noqa: E402

use_store()

pytestmark = pytest.mark.gpu
CASES = 120
VECTORS = np.load(Path(__file__).parent / "data" / "operators.npz")


@pytest.mark.parametrize("twin", twins.twins(), ids=lambda twin: twin.name)
def test_a_twin_has_the_bits_of_its_meaning(twin: twins.Twin) -> None:
    verdict = twins.check(twin, np.random.default_rng(30), CASES)
    assert verdict == registry.Verdict(twin.name, CASES, "")


def golden(name: str) -> Any:
    return VECTORS[name].view(np.float32)


def of_each(function: Any, *given: Any) -> Any:
    """A scalar function over arrays, computed on the GPU."""

    @target.kernel
    def each(a, b, c, out):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = function(a[i], b[i], c[i])

    out = cuda.to_device(np.empty(given[0].size, np.float32))
    each[-(-out.size // 128), 128, 0](*map(cuda.to_device, given), out)
    return out.copy_to_host()


def test_golden_vectors_of_the_scalars() -> None:
    a, b, c = (golden(f"fma_{name}") for name in "abc")
    named: Any = scalars
    fma, exp2c, sigmoid = named.fma, named.exp2c, named.sigmoid
    made = of_each(cuda.jit(device=True)(lambda a, b, c: fma(a, b, c)), a, b, c)
    assert made.tobytes() == golden("fma_y").tobytes()
    u, x = golden("exp2c_u"), golden("sig_x")
    made = of_each(cuda.jit(device=True)(lambda a, b, c: exp2c(a)), u, u, u)
    assert registry.same_bits(twins.one_nan(made), twins.one_nan(golden("exp2c_y")))
    made = of_each(cuda.jit(device=True)(lambda a, b, c: sigmoid(a)), x, x, x)
    assert registry.same_bits(twins.one_nan(made), twins.one_nan(golden("sig_y")))


def test_products_of_the_greatest_digits_do_not_overflow() -> None:
    """Every sum at its bound: weights and inputs at the ends of their range, rows of all tiles."""
    rng = np.random.default_rng(2)
    for rows, inputs in ((1, 32768), (8, 12288), (17, 8192), (64, 4096), (70, 512), (90, 32768)):
        x = rng.choice(np.array([-32639, 32639, -32640, 32767, -129], np.int16), (rows, 1))
        x = np.repeat(x, inputs, 1)
        weights = np.full((16, inputs), -32639, np.int16)
        weights[::3], weights[1::3] = 32639, -256
        made = np.zeros(planes.planes_size(16, inputs), np.int8)
        planes.pack_planes(weights, made)
        y = cuda.to_device(np.zeros(rows * 16, np.float32))
        no_scale = cuda.to_device(np.zeros(max(rows, 16), np.int8))
        words = cuda.to_device(x.view(np.int32).reshape(-1))
        linear.linear(
            0, words, no_scale, cuda.to_device(made), no_scale, inputs // 2, rows, 0, 1, y, 16, 0,
            False,
        )  # fmt: skip
        want = (x.astype(np.int64) @ weights.astype(np.int64).T).astype(np.float32)
        np.testing.assert_array_equal(y.copy_to_host().reshape(rows, 16), want)


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 31, 64])
def test_gated_is_both_maps_and_their_unit(rows: int) -> None:
    assert cuda_pieces.gated(np.random.default_rng(rows), rows)


@pytest.mark.parametrize("rows", [1, 8, 16, 33])
def test_blocks_side_by_side_are_each_alone(rows: int) -> None:
    assert all(cuda_pieces.beside(np.random.default_rng(rows), rows, side) for side in (0, 1, 2))


@pytest.mark.parametrize("most", linear_tiles.ROWS)
@pytest.mark.parametrize(
    "shape", [(1, 48, 32), (33, 128, 96), (70, 272, 512), (128, 144, 1024), (300, 160, 4064)]
)
def test_tiles_are_the_map_and_its_unit(most: int, shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    rng = np.random.default_rng(rows + most)
    assert cuda_pieces.tiled(rng, rows, most, outputs, inputs)
    assert cuda_pieces.heads_tiled(rng, rows, min(most, 96), outputs, inputs)


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 8, 2), (1, 288, 8), (8, 288, 8), (40, 16, 4), (70, 3, 2), (150, 5, 3)]
)
def test_grouped_experts_are_each_alone(shape: tuple[int, int, int], tiles: bool) -> None:
    assert cuda_pieces.routed(np.random.default_rng(shape[0]), *shape, tiles)


@pytest.mark.parametrize("shape", [(4, 4096), (4, 8), (4, 1000), (2, 140), (3, 64), (1, 256)])
def test_sites_in_one_launch_are_their_kernels_one_after_another(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape[1])
    for rows in (1, 2, 5):
        assert cuda_mixers.mixed(rng, rows, *shape)
        assert cuda_mixers.opened(rng, rows, *shape)


@pytest.mark.parametrize(
    "shape",
    [(1, 64, 512, 512), (3, 64, 512, 300), (40, 64, 512, 70), (300, 20, 96, 9), (5, 3, 32, 3)],
)
def test_attention_of_the_whole_chip_is_what_is_meant(shape: tuple[int, ...]) -> None:
    assert cuda_mixers.attended(np.random.default_rng(shape[0]), *shape)


@pytest.mark.parametrize("seed", range(6))
def test_launches_of_any_shape_check_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    assert [told for _ in range(20) if (told := cuda_checked.by_chance(rng))] == []


@pytest.mark.parametrize(
    "shape",
    [(1, 32, 16384), (1, 17408, 2112), (8, 4256, 2112), (17, 4256, 96), (2048, 272, 4096)],
)
def test_maps_of_every_width_check_themselves(shape: tuple[int, int, int]) -> None:
    assert cuda_checked.mapped(np.random.default_rng(1), *shape)


@pytest.mark.parametrize("most", linear_tiles.ROWS)
@pytest.mark.parametrize("shape", [(33, 128, 96), (300, 272, 512), (2048, 144, 4064)])
def test_tiles_check_themselves(most: int, shape: tuple[int, int, int]) -> None:
    rows, outputs, inputs = shape
    rng = np.random.default_rng(rows + most)
    assert cuda_checked.mapped(rng, *shape, 1, most)
    assert cuda_checked.gated(rng, *shape, most)
    assert cuda_checked.by_head(rng, rows, 3, outputs, inputs, min(most, 96))


@pytest.mark.parametrize("blocks", [256, 4])
def test_runs_of_real_heads_are_stepped_by_blocks_in_turns(blocks: int) -> None:
    rng, lengths = np.random.default_rng(blocks), (1, 3, 8, 0, 9, 21)
    assert cuda_mixers.recurred(rng, 2, 128, lengths, blocks)
