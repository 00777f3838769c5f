"""Sampled outputs of a GLM's kernels at its real widths, against NumPy's int64 on the host."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.glm_ops import Rows
from kvtape.core.kernels import meaning, registry
from kvtape.core.kernels.cuda.planes import OUTPUTS, planes_size, unpack_planes
from kvtape.core.kernels.latent_attend import latent_attend_meaning
from kvtape.core.kernels.select import select_meaning
from kvtape.devices.glm.layout import GlmOp

from .cuda_real_rig import LATENT, RealRig, Words

Floats = NDArray[np.float32]
SAMPLES = 24


def all_checks(rig: RealRig, rows: int) -> dict[str, bool]:
    """Which kernels' samples have the bits that are meant, over what a step has left in memory."""
    found = {}
    for which, words in enumerate(maps(rig)):
        found[f"linear {words[6]} x {words[3]}"] = linear(rig, words, rows, which)
    found["linear_heads"] = all(
        linear_heads(rig, words, rows, which) for which, words in enumerate(head_maps(rig))
    )
    found["expert_up"] = experts_up(rig, rows)
    found["expert_down"] = experts_down(rig, rows)
    found["select_rows"] = selected(rig, rows)
    found["attend"] = attended(rig, rows)
    return found


def maps(rig: RealRig) -> list[Words]:
    """A linear op of each size."""
    sizes = {
        (words[6], words[3]): words for words in rig.layers if words[0] == GlmOp.LINEAR
    }  # fmt: skip
    return list(sizes.values())


def run(rig: RealRig, words: Words, rows: int) -> None:
    """An op alone, over what stands in its buffers."""
    for launch in rig.lowering.lowered(words, Rows.ALL, rows):
        launch()
    rig.card.wait()


def run_until(rig: RealRig, words: Words, rows: int) -> None:
    """The layers up to the last op that is this one."""
    ops = rig.layers
    last = max(at for at, one in enumerate(ops) if one == words)
    for one in ops[: last + 1]:
        for launch in rig.lowering.lowered(one, Rows.ALL, rows):
            launch()
    rig.card.wait()


def mapped(x: Any, ex: Any, w: Any, ew: Any) -> Floats:
    """Exact products [rows, outputs], rounded once, times their powers of two."""
    sums = (x.astype(np.int64) @ w.astype(np.int64).T).astype(np.float32)
    made: Floats = sums * meaning.pow2(ex.astype(np.int32)[:, None] + ew.astype(np.int32)[None])
    return made


def block_of(rig: RealRig, weight: int, block: int) -> tuple[Any, Any]:
    """(weights [16, inputs], exponents [16]) of a block of a matrix, or of one behind it."""
    placed, arrays = rig.memory.matrices[weight], rig.memory.arrays
    inputs = placed.matrix.inputs
    size = planes_size(OUTPUTS, inputs)
    at, on = placed.at + block * size, placed.matrix.exponents_at + block * OUTPUTS
    planes = rig.host(arrays["planes"][at : at + size])
    return unpack_planes(planes, OUTPUTS, inputs), rig.host(
        arrays["weight_exponents"][on : on + OUTPUTS]
    )


def digits(rig: RealRig, at: int, exponents_at: int, width: int, rows: int) -> tuple[Any, Any]:
    """Digits [rows, width] and their exponents, as they stand."""
    arrays = rig.memory.arrays
    codes = rig.host(arrays["codes"][at : at + rows * width]).reshape(rows, width)
    return codes, rig.host(arrays["code_exponents"][exponents_at : exponents_at + rows])


def strided(rig: RealRig, at: int, rows: int, stride: int) -> Floats:
    """A buffer [rows, stride]."""
    found: Floats = rig.host(rig.memory.arrays["floats"][at : at + rows * stride])
    return found.reshape(rows, stride)


def linear(rig: RealRig, words: Words, rows: int, seed: int) -> bool:
    """Blocks of outputs of one map, for some rows of the step."""
    codes, exponents_at, width, weight, _, columns, y, stride, column, onto = words[1:11]
    assert not onto
    run(rig, words, rows)
    x, ex = digits(rig, codes, exponents_at, width, rows)
    made, rng = strided(rig, y, rows, stride), np.random.default_rng(seed)
    mine = np.unique(np.append(rng.integers(0, rows, 16), rows - 1))
    for block in np.unique([0, columns // OUTPUTS - 1, *rng.integers(0, columns // OUTPUTS, 4)]):
        w, ew = block_of(rig, weight, int(block))
        at = column + int(block) * OUTPUTS
        outputs = min(OUTPUTS, stride - at)
        want = mapped(x[mine], ex[mine], w[:outputs], ew[:outputs])
        if not registry.same_bits(want, np.ascontiguousarray(made[mine, at : at + outputs])):
            return False
    return True


def head_maps(rig: RealRig) -> list[Words]:
    """The maps by head of the last layer that has them."""
    return [words for words in rig.layers if words[0] == GlmOp.LINEAR_HEADS][-2:]


def linear_heads(rig: RealRig, words: Words, rows: int, seed: int) -> bool:
    """A block of outputs of some heads, for all rows."""
    codes, exponents_at, width, heads, weight, _, columns, y, stride, column = words[1:11]
    run(rig, words, rows)
    x, ex = digits(rig, codes, exponents_at, width, heads * rows)
    made, blocks = strided(rig, y, rows, stride), columns // OUTPUTS
    for head in np.unique([0, heads - 1, *np.random.default_rng(seed).integers(0, heads, 3)]):
        block = (int(head) * 7) % blocks
        w, ew = block_of(rig, weight, int(head) * blocks + block)
        mine = slice(int(head) * rows, int(head + 1) * rows)
        at = column + int(head) * columns + block * OUTPUTS
        want = mapped(x[mine], ex[mine], w, ew)
        if not registry.same_bits(want, np.ascontiguousarray(made[:, at : at + OUTPUTS])):
            return False
    return True


def routing(rig: RealRig, rows: int) -> tuple[Any, Any, Any, Any]:
    """(experts [rows, k], order, starts, sampled places in the order of the experts)."""
    arrays, k = rig.memory.arrays, rig.family.sizes.experts_per_token
    order = rig.host(arrays["order"][: rows * k])
    places = np.random.default_rng(rows).permutation(rows * k)[:SAMPLES]
    return rig.host(arrays["experts"][:rows]), order, rig.host(arrays["starts"]), places


def experts_up(rig: RealRig, rows: int) -> bool:
    """Clamped units of sampled slots, a block of each."""
    s, words = rig.family.sizes, rig.of(GlmOp.EXPERT_UP, -1)
    codes, exponents_at, width, weight, _, columns, h, stride, column = words[1:10]
    run_until(rig, words, rows)
    experts, order, starts, places = routing(rig, rows)
    x, ex = digits(rig, codes, exponents_at, width, rows)
    made, blocks = strided(rig, h, rows * s.experts_per_token, stride), columns // OUTPUTS
    for place in places.tolist():
        slot = int(order[place])
        row, expert = slot // s.experts_per_token, int(experts.reshape(-1)[slot])
        if not starts[expert] <= place < starts[expert + 1]:
            return False
        block = place % blocks
        gate, up = (
            mapped(x[[row]], ex[[row]], *block_of(rig, weight, (2 * expert + i) * blocks + block))
            for i in range(2)
        )
        limit = np.float32(s.limit)
        want = meaning.silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit)
        at = column + block * OUTPUTS
        if not registry.same_bits(want[0], made[place, at : at + OUTPUTS].copy()):
            return False
    return True


def experts_down(rig: RealRig, rows: int) -> bool:
    """What sampled slots' experts give back, a block of each."""
    s, words = rig.family.sizes, rig.of(GlmOp.EXPERT_DOWN, -1)
    codes, exponents_at, width, weight, _, columns, parts, stride, column = words[1:10]
    run_until(rig, words, rows)
    experts, order, _, places = routing(rig, rows)
    x, ex = digits(rig, codes, exponents_at, width, rows * s.experts_per_token)
    made, blocks = strided(rig, parts, rows * s.experts_per_token, stride), columns // OUTPUTS
    for place in places.tolist():
        slot = int(order[place])
        block = place % blocks
        at = column + block * OUTPUTS
        w, ew = block_of(rig, weight, int(experts.reshape(-1)[slot]) * blocks + block)
        want = mapped(x[[place]], ex[[place]], w, ew)[0]
        if not registry.same_bits(want, made[slot, at : at + OUTPUTS].copy()):
            return False
    return True


def sampled_rows(rows: int) -> NDArray[np.int64]:
    """A few rows of a step, the last among them."""
    some = np.random.default_rng(rows + 1).integers(0, rows, 3)
    return np.unique(np.append(some, rows - 1))


def of_rows(rig: RealRig, mine: Any) -> tuple[Any, Any, Any]:
    """(positions, lanes, page tables) of some rows."""
    at = rig.tables.at
    return at["positions"][mine].copy(), at["lanes"][mine].copy(), at["tables"].copy()


def selected(rig: RealRig, rows: int) -> bool:
    """Pools that sampled rows choose."""
    words, party = rig.of(GlmOp.SELECT, -1), rig.lowering.party
    codes, exponents_at, weights, stride, cache, exponent = words[1:7]
    run_until(rig, words, rows)
    heads, dim = party.index_heads, party.index_dim
    q, eq = digits(rig, codes, exponents_at, dim, rows * heads)
    mine = sampled_rows(rows)
    keys = rig.host(rig.memory.arrays["keys"][cache])
    picked = np.zeros((len(mine), party.most), np.int32)
    counts = np.zeros(len(mine), np.int64)
    select_meaning(
        q.reshape(rows, heads * dim)[mine], eq.reshape(rows, heads)[mine],
        strided(rig, weights, rows, stride)[mine], 0, party.index_scale, keys, exponent,
        *of_rows(rig, mine), party.page_rows, party.kpool, party.most, picked, counts, 0,
        len(mine),
    )  # fmt: skip
    arrays = rig.memory.arrays
    made = rig.host(arrays["picked"][:rows])[mine], rig.host(arrays["counts"][:rows])[mine]
    return registry.same_bits(counts, made[1]) and all(
        registry.same_bits(want[:count], have[:count].copy())
        for want, have, count in zip(picked, made[0], counts, strict=True)
    )


def attended(rig: RealRig, rows: int) -> bool:
    """Attention of sampled rows over what they have chosen."""
    words, party = rig.of(GlmOp.ATTEND, -1), rig.lowering.party
    codes, exponents_at, cache, to = words[1:5]
    run_until(rig, words, rows)
    heads, width, mine = party.heads, party.latent, sampled_rows(rows)
    q, eq = digits(rig, codes, exponents_at, width, rows * heads)
    arrays = rig.memory.arrays
    kept = (rig.host(arrays["picked"][:rows])[mine], rig.host(arrays["counts"][:rows])[mine])
    want = np.zeros((len(mine), heads * width), np.float32)
    latent_attend_meaning(
        q.reshape(rows, heads * width)[mine], eq.reshape(rows, heads)[mine], *of_rows(rig, mine),
        rig.host(arrays["latent"][cache]), LATENT, party.page_rows, party.kpool, *kept,
        party.attend_scale, want, 0, len(mine) * -(-heads // OUTPUTS),
    )  # fmt: skip
    return registry.same_bits(want, strided(rig, to, rows, heads * width)[mine])
