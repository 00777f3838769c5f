"""What CUDA kernels do together that no CPU kernel does alone, against the meaning of its parts."""

from typing import Any

import numpy as np
from numba import cuda

from kvtape.core.kernels import meaning, registry
from kvtape.core.kernels.cuda import experts, linear, linear_tiles, planes

Array = Any
NO_LIMIT = np.float32(np.inf)


def packed(weights: Array) -> Array:
    """Weights [N, K] int16 in the device's form."""
    made = np.zeros(planes.planes_size(*weights.shape), np.int8)
    planes.pack_planes(weights, made)
    return made


def mapped(x: Array, ex: Array, weights: Array, ew: Array) -> Array:
    """The linear map that is meant: exact sums, one rounding, one power of two."""
    sums = (x.astype(np.int64) @ weights.astype(np.int64).T).astype(np.float32)
    return sums * meaning.pow2(ex[:, None].astype(np.int32) + ew[None].astype(np.int32))


def digits(rng: np.random.Generator, *shape: int) -> Array:
    """Random int16 of the whole range."""
    return rng.integers(-32639, 32640, shape, np.int16)


def united(both: Array, limit: np.float32 = NO_LIMIT) -> Array:
    """The gated unit of gates and ups side by side."""
    half = both.shape[1] // 2
    return meaning.silu(np.minimum(both[:, :half], limit)) * np.clip(both[:, half:], -limit, limit)


def gated(rng: np.random.Generator, rows: int) -> bool:
    """Whether gate, up and their unit in one launch are those one after another."""
    inputs, blocks = 96, 2
    x, weights = digits(rng, rows, inputs), digits(rng, 32 * blocks, inputs)
    ex, ew = rng.integers(-20, -12, rows, np.int8), rng.integers(-18, -12, 32 * blocks, np.int8)
    words, w, on_x, on_w = map(
        cuda.to_device, (x.view(np.int32).reshape(-1), packed(weights), ex, ew)
    )
    stride, column0 = 16 * blocks + 9, 5
    h = cuda.to_device(np.full(rows * stride, 3, np.float32))
    both, equal = mapped(x, ex, weights, ew), True
    want = np.full((rows, stride), 3, np.float32)
    for limits in ((), (np.float32(np.median(abs(both))),)):
        to = (h, stride, column0, *limits)
        linear.gated(0, words, on_x, w, on_w, inputs // 2, rows, blocks, *to)
        want[:, column0 : column0 + 16 * blocks] = united(both, *limits)
        equal = equal and registry.same_bits(want, h.copy_to_host().reshape(want.shape))
    return equal


def beside(rng: np.random.Generator, rows: int, side: int) -> bool:
    """Whether blocks of outputs made side by side, the last ones alone, are what one makes."""
    inputs, outputs, block0, stride, column0 = 96, 80, 1, 90, 4
    x, weights = digits(rng, rows, inputs), digits(rng, outputs, inputs)
    ex, ew = rng.integers(-20, -12, rows, np.int8), rng.integers(-18, -12, outputs, np.int8)
    before = rng.standard_normal((rows, stride)).astype(np.float32)
    given = (x.view(np.int32).reshape(-1), packed(weights), ex, ew, before.reshape(-1))
    words, w, on_x, on_w, y = map(cuda.to_device, given)
    usual, linear.shape_of = linear.shape_of, lambda *_: (1 << side, side)
    try:
        linear.linear(
            0, words, on_x, w, on_w, inputs // 2, rows, block0, outputs // 16, y, stride, column0,
            True,
        )  # fmt: skip
    finally:
        linear.shape_of = usual
    mine = slice(column0 + 16 * block0, column0 + outputs)
    before[:, mine] += mapped(x, ex, weights, ew)[:, 16 * block0 :]
    return registry.same_bits(before, y.copy_to_host().reshape(before.shape))


def tiled(rng: np.random.Generator, rows: int, most: int, outputs: int, inputs: int) -> bool:
    """Whether tiles of at most so many rows give the meaning's map, onto y, and its gated unit."""
    stride, column0, blocks = outputs + 7, 4, outputs // 16
    x, weights = digits(rng, rows, inputs), digits(rng, 2 * outputs, inputs)
    x[:: max(1, rows // 2)] = rng.choice(np.array([-32639, 32639], np.int16), inputs)
    ex, ew = rng.integers(-20, -12, rows, np.int8), rng.integers(-18, -12, 2 * outputs, np.int8)
    before = rng.standard_normal((rows, stride)).astype(np.float32)
    given = (x.view(np.int32).reshape(-1), packed(weights), ex, ew, before.reshape(-1))
    words, w, on_x, on_w, y = map(cuda.to_device, given)
    h = cuda.to_device(before.reshape(-1))
    to = (words, on_x, w, on_w, inputs // 2, rows)
    linear_tiles.linear_tiles(0, most, *to, 1, blocks, y, stride, column0, True, ())
    both, unit = mapped(x, ex, weights, ew), before.copy()
    limit = np.float32(np.median(abs(both)))
    linear_tiles.gated_tiles(0, most, *to, blocks, h, stride, column0, limit, ())
    before[:, column0 + 16 : column0 + outputs] += both[:, 16:outputs]
    unit[:, column0 : column0 + outputs] = united(both, limit)
    return all(
        registry.same_bits(want, have.copy_to_host().reshape(want.shape))
        for want, have in ((before, y), (unit, h))
    )


def heads_tiled(rng: np.random.Generator, rows: int, most: int, outputs: int, inputs: int) -> bool:
    """Whether tiles of at most so many rows give each of three heads its own map."""
    heads, stride, column0 = 3, 3 * outputs + 5, 2
    x, weights = digits(rng, heads, rows, inputs), digits(rng, heads, outputs, inputs)
    ex, ew = (rng.integers(-18, -12, one.shape[:2], np.int8) for one in (x, weights))
    before = rng.standard_normal((rows, stride)).astype(np.float32)
    given = (
        x.view(np.int32).reshape(-1), ex.reshape(-1), packed(weights.reshape(-1, inputs)),
        ew.reshape(-1), before.reshape(-1),
    )  # fmt: skip
    words, on_x, w, on_w, y = map(cuda.to_device, given)
    to = (inputs // 2, rows, heads, outputs // 16, y, stride, column0)
    linear_tiles.heads_tiles(0, most, words, on_x, w, on_w, *to)
    for head in range(heads):
        mine = slice(column0 + head * outputs, column0 + (head + 1) * outputs)
        before[:, mine] = mapped(x[head], ex[head], weights[head], ew[head])
    return registry.same_bits(before, y.copy_to_host().reshape(before.shape))


def routed(rng: np.random.Generator, rows: int, many: int, chosen: int, tiles: bool) -> bool:
    """Whether grouped experts, by tiles or not, give what each gives alone."""
    grouped: Any = experts
    usual, grouped.many_slots = grouped.many_slots, lambda *_: tiles
    try:
        return _routed(rng, rows, many, chosen)
    finally:
        grouped.many_slots = usual


def _routed(rng: np.random.Generator, rows: int, many: int, chosen: int) -> bool:
    inputs, blocks, outputs = 64, 2, 32
    inner, limit = 16 * blocks, np.float32(10)
    ids = np.array([np.sort(rng.permutation(many)[:chosen]) for _ in range(rows)], np.int64)
    order = np.argsort(ids.reshape(-1), kind="stable")
    starts = np.searchsorted(np.sort(ids.reshape(-1)), np.arange(many + 1))
    x, ex = digits(rng, rows, inputs), rng.integers(-20, -12, rows, np.int8)
    up, down = digits(rng, many, 2 * inner, inputs), digits(rng, many, outputs, inner)
    on_up, on_down = (
        rng.integers(-18, -12, shape[:2], np.int8) for shape in (up.shape, down.shape)
    )
    slots = rows * chosen
    hq, he = digits(rng, slots, inner), rng.integers(-20, -12, slots, np.int8)
    given = [np.full(min(many, slots), 7, np.int64), order, starts]
    busy, slot_order, slot_starts = map(cuda.to_device, given)
    h = cuda.to_device(np.zeros(slots * inner, np.float32))
    parts = cuda.to_device(np.zeros(slots * (outputs + 3), np.float32))
    experts.list_busy(0, slot_starts, busy)
    experts.expert_up(
        0, cuda.to_device(x.view(np.int32).reshape(-1)), cuda.to_device(ex),
        cuda.to_device(packed(up.reshape(-1, inputs))), cuda.to_device(on_up.reshape(-1)),
        inputs // 2, busy, slot_order, slot_starts, chosen, blocks, limit, h, inner, 0,
    )  # fmt: skip
    experts.expert_down(
        0, cuda.to_device(hq.view(np.int32).reshape(-1)), cuda.to_device(he),
        cuda.to_device(packed(down.reshape(-1, inner))), cuda.to_device(on_down.reshape(-1)),
        inner // 2, busy, slot_order, slot_starts, outputs // 16, parts, outputs + 3, 1,
    )  # fmt: skip
    want_h = np.zeros((slots, inner), np.float32)
    want_parts = np.zeros((slots, outputs + 3), np.float32)
    for at, slot in enumerate(order):
        e, row = ids.reshape(-1)[slot], slot // chosen
        both = mapped(x[row : row + 1], ex[row : row + 1], up[e], on_up[e])[0]
        gate, side = np.minimum(both[:inner], limit), np.clip(both[inner:], -limit, limit)
        want_h[at] = meaning.silu(gate) * side
        want_parts[slot, 1 : 1 + outputs] = mapped(
            hq[at : at + 1], he[at : at + 1], down[e], on_down[e]
        )[0]
    listed = np.full(min(many, slots), experts.NOBODY)
    listed[: np.unique(ids).size] = np.unique(ids)
    return (
        registry.same_bits(listed, busy.copy_to_host())
        and registry.same_bits(want_h, h.copy_to_host().reshape(want_h.shape))
        and registry.same_bits(want_parts, parts.copy_to_host().reshape(want_parts.shape))
    )
