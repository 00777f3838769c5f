"""Launches that check themselves: nothing is left of right ones, something after a wrong bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda import (
    checked,
    experts,
    experts_plain,
    experts_tiles,
    linear,
    linear_heads,
    linear_tiles,
    planes,
)
from kvtape.tests.cuda_pieces import digits, packed

Array = Any
Random = np.random.Generator
Run = Callable[[Array, Array, Any], None]  # weights, outputs, check or None
LIMIT = np.float32(10)


def holds(
    rng: Random, weights: Array, groups: int, shape: tuple[int, int], run: Run,
    used: Array | None = None, first: int = 0,
) -> bool:  # fmt: skip
    """Whether a launch checks itself.

    weights [N, K]; shape: of the outputs; used: groups whose weights the launch reads, of those
    from output `first` on.
    """
    check = checked.check_planes(weights[first:], groups)
    group = int(rng.choice(np.arange(groups) if used is None else used))
    size, inputs = (len(weights) - first) // groups, weights.shape[1]
    output, k = first + group * size + int(rng.integers(size)), int(rng.integers(inputs))
    before = rng.standard_normal(shape).astype(np.float32).reshape(-1)

    def made(weights: Array, check: Array | None) -> tuple[Array, int]:
        word, out = cuda.to_device(np.zeros(1, np.int64)), cuda.to_device(before)
        given = None if check is None else (cuda.to_device(check), word)
        run(cuda.to_device(packed(weights)), out, given)
        return out.copy_to_host(), int(word.copy_to_host()[0])

    wrong, taken = weights.copy(), planes.unpack_planes(check, 16 * groups, inputs)
    wrong[output, k] ^= np.int16(1 << rng.integers(15))
    taken[16 * group + int(rng.integers(checked.DIGITS)), k] ^= np.int16(1 << rng.integers(15))
    plain, _ = made(weights, None)
    same, left = made(weights, check)
    return (
        registry.same_bits(plain, same)
        and left == 0
        and made(wrong, check)[1] != 0
        and made(weights, packed(taken))[1] != 0
    )


def exponents(rng: Random, n: int) -> Array:
    """n random exponents on the device."""
    return cuda.to_device(rng.integers(-20, -12, n, np.int8))


def rows_of(rng: Random, rows: int, inputs: int) -> tuple[Array, Array]:
    """Random rows as flat pairs, some digits at the ends of their range, and exponents."""
    x = digits(rng, rows, inputs)
    x[rng.random(x.shape) < 0.1] = rng.choice(np.array([-32639, 32639], np.int16))
    return cuda.to_device(x.view(np.int32).reshape(-1)), exponents(rng, rows)


def mapped(
    rng: Random, rows: int, outputs: int, inputs: int, block0: int = 0, most: int = 0
) -> bool:
    """A linear map, onto what stands there, from block0 on; in tiles of `most` rows where given."""
    x, on_x = rows_of(rng, rows, inputs)
    on_w, stride = exponents(rng, outputs), outputs + 5

    def run(w: Array, y: Array, check: Any) -> None:
        given = (x, on_x, w, on_w, inputs // 2, rows, block0, outputs // 16, y, stride, 3, True)
        if most:
            linear_tiles.linear_tiles(0, most, *given, check or ())
        else:
            linear.linear(0, *given, check)

    return holds(rng, digits(rng, outputs, inputs), 1, (rows, stride), run, first=16 * block0)


def beside(rng: Random, rows: int, blocks: int, side: int) -> bool:
    """A linear map whose blocks of outputs stand side by side, the check's among them."""
    usual, linear.shape_of = linear.shape_of, lambda *_: (1 << side, side)
    try:
        return mapped(rng, rows, 16 * blocks, 32)
    finally:
        linear.shape_of = usual


def gated(rng: Random, rows: int, outputs: int, inputs: int, most: int = 0) -> bool:
    """A gated unit with its two maps; in tiles of `most` rows where given."""
    x, on_x = rows_of(rng, rows, inputs)
    on_w, stride = exponents(rng, 2 * outputs), outputs + 5

    def run(w: Array, h: Array, check: Any) -> None:
        given = (x, on_x, w, on_w, inputs // 2, rows, outputs // 16, h, stride, 3, LIMIT)
        if most:
            linear_tiles.gated_tiles(0, most, *given, check or ())
        else:
            linear.gated(0, *given, check)

    return holds(rng, digits(rng, 2 * outputs, inputs), 2, (rows, stride), run)


def by_head(rng: Random, rows: int, heads: int, outputs: int, inputs: int, most: int = 0) -> bool:
    """A map of every head; in tiles of `most` rows where given."""
    x, on_x = rows_of(rng, heads * rows, inputs)
    on_w, stride = exponents(rng, heads * outputs), heads * outputs + 5

    def run(w: Array, y: Array, check: Any) -> None:
        given = (x, on_x, w, on_w, inputs // 2, rows, heads)
        if most:
            to = (outputs // 16, y, stride, 3, check or ())
            linear_tiles.heads_tiles(0, most, *given, *to)
        else:
            linear_heads.linear_heads(0, *given, outputs, y, stride, 3, check)

    return holds(rng, digits(rng, heads * outputs, inputs), heads, (rows, stride), run)


def routed(rng: Random, rows: int, many: int, chosen: int, width: int, way: str) -> bool:
    """Experts' maps up, of `width` inputs, and back; way: "blocks", "tiles" or "plain"."""
    ids = np.array([np.sort(rng.permutation(many)[:chosen]) for _ in range(rows)], np.int64)
    flat, slots, blocks, outputs = ids.reshape(-1), rows * chosen, 2, 48
    where = (np.argsort(flat, kind="stable"), np.searchsorted(np.sort(flat), np.arange(many + 1)))
    busy = np.full(min(many, slots) + 1, experts.NOBODY)
    busy[: np.unique(flat).size] = np.unique(flat)
    listed, order, starts = map(cuda.to_device, (busy, *where))
    experts_of, inner = cuda.to_device(ids), 16 * blocks
    x, on_x = rows_of(rng, rows, width)
    hq, on_h = rows_of(rng, slots, width)
    on_w, stride = exponents(rng, many * max(2 * inner, outputs)), 60

    def run_up(w: Array, h: Array, check: Any) -> None:
        to, rest = (chosen, blocks, LIMIT, h, stride, 1), check or ()
        given = (x, on_x, w, on_w, width // 2)
        if way == "plain":
            experts_plain.plain_up(0, *given, experts_of, order, *to, check)
        elif way == "tiles":
            experts_tiles.expert_up_tiles(0, *given, listed, order, starts, *to, rest)
        else:
            experts.expert_up(0, *given, listed, order, starts, *to, check)

    def run_down(w: Array, parts: Array, check: Any) -> None:
        to, rest = (outputs // 16, parts, stride, 1), check or ()
        given = (hq, on_h, w, on_w, width // 2)
        if way == "plain":
            experts_plain.plain_down(0, *given, experts_of, order, chosen, *to, check)
        elif way == "tiles":
            experts_tiles.expert_down_tiles(0, *given, listed, order, starts, *to, rest)
        else:
            experts.expert_down(0, *given, listed, order, starts, *to, check)

    used = np.unique(flat)
    both = np.concatenate([2 * used, 2 * used + 1])
    up, down = digits(rng, many * 2 * inner, width), digits(rng, many * outputs, width)
    shape: tuple[int, int] = (slots, stride)
    grouped: Any = experts
    usual, grouped.many_slots = grouped.many_slots, lambda *_: False
    try:
        return holds(rng, up, 2 * many, shape, run_up, both) and holds(
            rng, down, many, shape, run_down, used
        )
    finally:
        grouped.many_slots = usual


def small(rng: Random) -> dict[str, bool]:
    """Every launch by every way, small."""
    return {
        "linear": mapped(rng, 3, 48, 64) and mapped(rng, 9, 64, 32, 1) and mapped(rng, 18, 16, 32),
        "linear, many rows": mapped(rng, 34, 32, 32),
        "linear side by side": all(
            beside(rng, 2, blocks, side) for blocks, side in ((2, 1), (3, 1), (4, 2), (3, 2))
        ),
        "linear of any inputs": mapped(rng, 2, 32, 22) and mapped(rng, 3, 48, 40, 1),
        "linear by tiles": all(mapped(rng, 3, 16 * n, 32, n > 3, 32) for n in (1, 2, 3, 4)),
        "gated": gated(rng, 2, 32, 64) and gated(rng, 17, 16, 32),
        "gated by tiles": gated(rng, 3, 16, 32, 32) and gated(rng, 2, 32, 32, 64),
        "heads": by_head(rng, 2, 3, 32, 32) and by_head(rng, 34, 2, 16, 32),
        "heads of any inputs": by_head(rng, 2, 3, 16, 10) and by_head(rng, 2, 2, 32, 38),
        "heads by tiles": by_head(rng, 3, 2, 48, 32, 32) and by_head(rng, 3, 2, 32, 32, 64),
        "experts": routed(rng, 2, 3, 2, 32, "blocks") and routed(rng, 9, 1, 1, 32, "blocks"),
        "experts by tiles": routed(rng, 2, 3, 2, 32, "tiles"),
        "experts of any inputs": routed(rng, 2, 3, 2, 20, "plain"),
    }


def by_chance(rng: Random) -> str:
    """A launch of random shape by the way that it takes on a card; which, where it does not hold.

    Ways differ by rows, blocks of outputs and length of inputs.
    """
    rows = int(rng.choice([1, int(rng.integers(2, 33)), int(rng.integers(33, 400))]))
    few, some = (int(rng.integers(*ends)) for ends in ((1, 9), (9, 80)))
    outputs = 16 * int(rng.choice([few, some, 266, 1060]))
    inputs = 32 * int(rng.choice([few, some, 130]))
    inputs = 32 if outputs > 10_000 else inputs - 30 * int(rng.random() < 0.1)
    heads, half = int(rng.integers(1, 6)), min(outputs, 16 * int(rng.integers(1, 80)))
    many = int(rng.choice([2, 8, 64]))
    chosen, slots = int(rng.integers(1, min(many, 8) + 1)), min(rows, 200)
    ways = {
        "linear": lambda: mapped(rng, rows, outputs, inputs, int(rng.random() * outputs / 16)),
        "gated": lambda: gated(rng, rows, half, inputs + -inputs % 32),
        "heads": lambda: by_head(rng, rows, heads, half, inputs),
        "experts": lambda: routed(rng, slots, many, chosen, 96, "blocks"),
        "experts by tiles": lambda: routed(rng, slots, many, chosen, 160, "tiles"),
        "plain experts": lambda: routed(rng, slots, many, chosen, 70, "plain"),
    }
    name = str(rng.choice(list(ways), p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1]))
    told = f"{name}: {rows=} {outputs=} {inputs=} {heads=} {half=} {many=} {chosen=}"
    return "" if ways[name]() else told
