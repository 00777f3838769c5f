"""Run as a process on a GPU: what the GLM's mixers take at the real widths, beside their floors.

First bits: random cases of the named twins, and rows of the real widths, against the meanings. Then
floors, and times by graph replay, for rounds of 1, 8 and 32 rows and for a prompt step of 2,048.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import cupy as cp  # pyright: ignore[reportMissingImports]
import numpy as np
from numba import cuda

from kvtape.core.kernels import registry
from kvtape.core.kernels.cuda import (
    conv,
    kda,
    latent_split,
    norm,
    route,
    select,
    sites,
    streams,
    twins,
)
from kvtape.tests import cuda_mixers
from kvtape.tests.cuda_bench import DEVICE, RATE, call, timed

f32, i8, i16, i32, i64, u8 = np.float32, np.int8, np.int16, np.int32, np.int64, np.uint8
HIDDEN, HEADS, WIDTH, LATENT, KPOOL, MOST, PAGE = 4096, 64, 128, 512, 4, 512, 512
CASES, PROMPT = 120, 2048
FLOAT_RATE = 132 * 128 * 1.7e3  # float32 operations a microsecond
MMA_RATE = 132 * 1.7e3 * 0.62 * 4096  # products of bytes a microsecond, as mma.sync reaches them
Line = tuple[str, float, float]  # what, microseconds of its floor, microseconds taken
TOLD: list[str] = []
WRONG: list[str] = []  # what had other bits than are meant
SPLIT: Any = latent_split  # numba's types are not ours
KDA: Any = kda


def tell(line: str) -> None:
    """Print a line now, and once more at the end."""
    TOLD.append(line)
    print(line, flush=True)  # noqa: T201


def bits(what: str, same: bool) -> None:
    """Tell whether bits are those that are meant."""
    WRONG.extend([] if same else [what])
    tell(f"bits of {what}: {'the same' if same else 'OTHERS'}")


def floats(*shape: int) -> Any:
    """Random float32."""
    return cuda.as_cuda_array(cp.random.standard_normal(shape, dtype=cp.float32))


def bytes_as(kind: Any, *shape: int) -> Any:
    """Random bytes as an array of a kind."""
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    made = cp.random.randint(0, 256, count, cp.uint8).view(kind).reshape(shape)
    return cuda.as_cuda_array(made)


def zeros(kind: Any, *shape: int) -> Any:
    """Zeros."""
    return cuda.as_cuda_array(cp.zeros(shape, kind))


def exponents(*shape: int) -> Any:
    """Exponents as of rows of a usual size."""
    return cuda.as_cuda_array(cp.full(shape, -16, cp.int8))


# --- bits ----------------------------------------------------------------------------------------


def check_twins(names: list[str], cases: int) -> None:
    """Random cases of twins."""
    for one in twins.twins():
        if one.name in names:
            start = time.time()
            verdict = twins.check(one, np.random.default_rng(31), cases)
            took = time.time() - start
            bits(f"{one.name}, {verdict.equal} cases {took:.1f} s", not verdict.first)


def repeated(rows: Any, many: int) -> Any:
    """So many rows, the same over and over."""
    return np.resize(rows, (many, *rows.shape[1:]))


def check_attention() -> None:
    """Rows of the real widths, alone and together."""
    kernel = next(one for one in registry.kernels() if one.name == "latent_attend")
    rng = np.random.default_rng(5)
    for context in (5, 33, 700, 2051, 9000):
        rows, pages = 3, -(-9001 // PAGE)
        latent = rng.integers(-23173, 23174, (pages, PAGE, LATENT), i16)
        q = rng.integers(-32639, 32640, (rows, HEADS * LATENT), i16)
        eq = rng.integers(-30, -18, (rows, HEADS), i8)
        positions = np.array([context - 1, context // 2, max(context - 3, 0)])
        picked, counts = np.zeros((rows, MOST), i32), np.zeros(rows, i64)
        for row, position in enumerate(positions):
            n = int(position + 1) // KPOOL
            counts[row] = min(n, MOST)
            picked[row, : counts[row]] = np.sort(rng.permutation(n)[:MOST])
        tables, lanes = rng.permutation(pages).reshape(1, -1).astype(i32), np.zeros(rows, i64)
        given = (q, eq, positions, lanes, tables, latent, -10, PAGE, KPOOL, picked, counts)
        want = np.full((rows, HEADS * LATENT), 5, f32)
        kernel.meaning(*given, f32(1 / 16), want, 0, rows * 4)
        for many in (rows, 40):
            whole = [repeated(one, many) if k in (0, 1, 2, 3, 9, 10) else one
                     for k, one in enumerate(given)]  # fmt: skip
            placed = [DEVICE(np.ascontiguousarray(one)) if isinstance(one, np.ndarray) else one
                      for one in whole]  # fmt: skip
            out, scratch = zeros(f32, many, HEADS * LATENT), scratch_of(many)
            SPLIT.attend_split(0, *placed, f32(1 / 16), out, scratch, 0, many)
            have = out.copy_to_host()
            same = all(registry.same_bits(want[row % rows], have[row]) for row in range(many))
            bits(f"attention, context {context}, {many} rows", same)


def check_recurrence() -> None:
    """Two heads of the real width, runs of several lengths, as many blocks as there are and two."""
    for spread in (256, 4):
        same = cuda_mixers.recurred(
            np.random.default_rng(6), 2, WIDTH, (1, 3, 8, 9, 0, 21), spread
        )  # fmt: skip
        bits(f"recurrence, {spread} blocks", same)


def check_sites() -> None:
    """Sites at the real width and at others, rows of every size of number."""
    rng, shapes = (
        np.random.default_rng(8),
        ((4, 4096), (4, 8), (4, 1000), (2, 140), (1, 256), (3, 64)),
    )
    for name, one in (("mix_streams", cuda_mixers.mixed), ("read_site", cuda_mixers.opened)):
        found = [one(rng, int(rng.integers(1, 4)), *shapes[k % 6]) for k in range(CASES)]
        bits(f"{name}, {sum(found)} of {CASES}", all(found))


PARTS = (
    (latent_split, "score_kernel"), (latent_split, "weigh_latents"), (latent_split, "sums_kernel"),
)  # fmt: skip


class Nothing:
    """Stands for a kernel that is left out."""

    def __call__(self, *_: Any) -> Any:
        """What makes a kernel, or launches one."""
        return self

    def __getitem__(self, _: Any) -> Any:
        """What launches it."""
        return self


def scratch_of(rows: int) -> tuple[Any, ...]:
    """Scratch of attention."""
    shapes = latent_split.scratch_shapes(rows, HEADS, LATENT, (MOST + 1) * KPOOL)
    kinds = (i32, i32, i64, i64)
    return tuple(zeros(kind, *shape) for shape, kind in zip(shapes, kinds, strict=True))


# --- times ---------------------------------------------------------------------------------------


def memory(moved: float) -> float:
    """Microseconds to move so many bytes."""
    return moved / RATE


def stream_lines(rows: int) -> Iterator[Line]:
    """Hyper-connections of four streams, and norms."""
    n = 4
    x, site, u = floats(rows, n * HIDDEN), floats(rows, 24), floats(rows, HIDDEN)
    m, base, scale = floats(rows, 32), floats(24), floats(3)
    flags = zeros(u8, rows)
    wide = rows * HIDDEN * 4
    made = call(streams.hc_weights, m, base, scale, f32(1e-6), 20, site, 0, rows)
    yield "hc_weights", memory(rows * 200), timed([made] * 8)
    yield "hc_read", memory(5 * wide), timed([call(streams.hc_read, x, site, u, 0, rows)] * 8)
    yield "hc_write", memory(9 * wide), timed([call(streams.hc_write, x, site, u, 0, rows)] * 8)
    codes, e, w = zeros(i16, rows, n * HIDDEN), zeros(i8, rows), floats(HIDDEN)
    given: Any = (x, site, u, f32(1e-5), codes, e, flags, 0, rows)
    yield "mix_streams", memory(11 * wide), timed([call(sites.mix_streams, *given)] * 8)
    read = zeros(i16, rows, HIDDEN)
    given = (x, site, w, f32(1e-5), read, e, flags, 0, rows)
    yield "read_site", memory(4.5 * wide), timed([call(sites.read_site, *given)] * 8)
    for width, source in ((HIDDEN, u), (n * HIDDEN, x)):
        codes, e, w = zeros(i16, rows, width), zeros(i8, rows), floats(width)
        given = (source, w, f32(1e-5), codes, e, flags, 0, rows)
        moved = rows * width * 6
        yield f"norm {width}", memory(moved), timed([call(norm.rmsnorm_q16, *given)] * 8)


def recurrent_lines(rows: int, lanes: int) -> Iterator[Line]:
    """Convolution, what the recurrence takes, itself, and its gate."""
    wide, many = HEADS * WIDTH, rows // lanes
    raw, y, taps = floats(rows, 3 * wide + 320), floats(rows, 3 * wide), floats(3 * wide, 4)
    ring = floats(lanes, 4, 3 * wide)
    runs = DEVICE(np.array([(n, n * many, 5, many) for n in range(lanes)], i64))
    given: Any = (raw, 0, taps, ring, runs, y, 0, 3 * wide)
    yield "conv", memory(rows * wide * 24), timed([call(conv.conv_rows, *given)] * 4)
    f, b, dt, decay = floats(rows, wide), floats(rows, 64), floats(wide), floats(HEADS)
    q, k, a, o = (floats(rows, wide) for _ in range(4))
    beta, flags = floats(rows, HEADS), zeros(u8, rows)
    given = (y, f, 0, dt, decay, f32(-5), b, 0, q, k, a, beta, flags, 0, rows * HEADS)
    yield "kda_prepare", memory(rows * wide * 24), timed([call(kda.kda_prepare, *given)] * 4)
    states = floats(lanes, 1, HEADS, WIDTH, WIDTH)
    given = (q, k, y, a, beta, states, runs, o, 0, lanes * HEADS)
    operations = rows * HEADS * WIDTH * WIDTH * 4 / FLOAT_RATE
    floor = max(operations, memory(lanes * HEADS * WIDTH * WIDTH * 8 + rows * wide * 20))
    yield "kda_rows", floor, timed([call(kda.kda_rows, *given)] * 4)
    w = floats(WIDTH)
    given = (o, f, 0, w, f32(1e-5), a, 0, flags, 0, rows * HEADS)
    yield "kda_gate", memory(rows * wide * 12), timed([call(kda.kda_gate, *given)] * 4)


def routed_lines(rows: int) -> Iterator[Line]:
    """Eight of 288 experts for each row, their order, and their sum."""
    chosen, many = 8, 288
    m, bias = floats(rows, many), floats(many)
    experts, shares = zeros(i64, rows, chosen), floats(rows, chosen)
    given: Any = (m, bias, chosen, f32(2.5), experts, shares, 0, rows)
    yield "route", memory(rows * many * 4), timed([call(route.route_rows, *given)] * 4)
    order, starts = zeros(i64, rows * chosen), zeros(i64, many + 1)
    made = call(route.group_rows, experts, order, starts)
    yield "group_rows", memory(rows * chosen * 16), timed([made] * 4)
    parts, y = floats(rows * chosen, HIDDEN), floats(rows, HIDDEN)
    shared = floats(rows, HIDDEN)
    given = (parts, shares, shared, y, 0, HIDDEN, 0, rows)
    yield "combine", memory(rows * HIDDEN * 40), timed([call(route.combine_rows, *given)] * 4)


def sparse_lines(rows: int, lanes: int, context: int) -> Iterator[Line]:
    """Selection and attention at the end of a context; a prompt's last rows, or a row a lane."""
    pages = lanes * -(-context // PAGE)
    each = rows // lanes
    tables = DEVICE(np.arange(pages, dtype=i32).reshape(lanes, -1))
    of, place = np.repeat(np.arange(lanes), each), np.tile(np.arange(each), lanes)
    positions = context - each + place
    at = (DEVICE(positions), DEVICE(of), tables)
    counts = np.minimum((positions + 1) // KPOOL, MOST)
    rng, picked = np.random.default_rng(3), np.zeros((rows, MOST), i32)
    for row, many in enumerate(counts):
        pools = np.arange((positions[row] + 1) // KPOOL)
        if pools.size > MOST:
            fresh = row < 64
            pools = np.sort(rng.choice(pools, MOST, replace=False)) if fresh else picked[row % 64]
        picked[row, :many] = pools
    kept = (DEVICE(picked), DEVICE(counts))
    seen = float((counts * KPOOL + (positions + 1) % KPOOL).sum())
    q, eq = bytes_as(i16, rows, HEADS * LATENT), exponents(rows, HEADS)
    latent, out = bytes_as(i16, pages, PAGE, LATENT), floats(rows, HEADS * LATENT)
    products = seen * HEADS * LATENT * 10 / MMA_RATE
    bands = (64, 256) if rows > 256 else (rows,)
    for band in bands:
        scratch = scratch_of(band)
        spans = [(row, min(row + band, rows)) for row in range(0, rows, band)]

        def attend(its: Any, spans: Any = spans, scratch: Any = scratch) -> None:
            for span in spans:
                SPLIT.attend_split(
                    its, q, eq, *at, latent, -10, PAGE, KPOOL, *kept, f32(1 / 16), out, scratch,
                    *span,
                )  # fmt: skip

        floor = max(
            products, memory(min(seen, pages * PAGE) * LATENT * 2 + rows * HEADS * LATENT * 6)
        )
        what, repeats = f"attention, context {context}, band {band}", 1 if rows > 256 else 4
        yield what, floor, timed([attend] * repeats)
        for module, part in PARTS if rows >= 32 else ():
            usual = getattr(module, part)
            setattr(module, part, Nothing())
            yield f"  without {part}", 1, timed([attend] * repeats)
            setattr(module, part, usual)
    qi, ei = bytes_as(i16, rows, 32 * 128), exponents(rows, 32)
    weights, keys = (floats(rows, 32), 0, f32(0.01)), bytes_as(i16, pages, PAGE // KPOOL, 128)
    band = min(rows, 64)
    scores = zeros(i32, band, context // KPOOL + 1)
    spans = [(row, min(row + band, rows)) for row in range(0, rows, band)]

    def choose(its: Any) -> None:
        for span in spans:
            select.select_rows(
                its, qi, ei, *weights, keys, -12, *at, PAGE, KPOOL, MOST, *kept, scores, *span
            )

    scored = float((positions + 1).sum()) / KPOOL if context > 2051 else 0
    floor = max(scored * 32 * 128 * 4 / MMA_RATE, memory(lanes * context / KPOOL * 256))
    yield f"select, context {context}", floor, timed([choose] * (1 if rows > 256 else 4))


def times(rows: int, lanes: int, contexts: tuple[int, ...]) -> None:
    """A line a kernel."""
    parts: list[Callable[[], Iterator[Line]]] = [
        lambda: stream_lines(rows), lambda: recurrent_lines(rows, lanes),
        lambda: routed_lines(rows),
        *(lambda c=c: sparse_lines(rows, lanes, c) for c in contexts),
    ]  # fmt: skip
    for part in parts:
        try:
            for what, floor, took in part():
                line = f"{rows:5d} {what:36s} floor {floor:9.2f} took {took:9.2f}"
                tell(f"{line} x {took / floor:7.2f}")
        except Exception:
            tell(traceback.format_exc()[-1500:])
        cp.get_default_memory_pool().free_all_blocks()


def main(names: list[str]) -> int:
    """Bits of the twins of these names and of the real widths; then every time. 1: some are wrong.

    A number before the names: so many random cases.
    """
    cases = int(names.pop(0)) if names and names[0].isdigit() else CASES
    checks: tuple[Callable[[], None], ...] = (
        lambda: check_twins(names, cases), check_attention, check_recurrence, check_sites,
    )  # fmt: skip
    for check in checks:
        try:
            check()
        except Exception:
            tell(traceback.format_exc()[-1500:])
    for rows in (1, 8, 32):
        times(rows, rows, (2048, 100_000))
    times(PROMPT, 1, (2048, 100_000))
    print("\n".join(["", *TOLD]), flush=True)  # noqa: T201
    return int(bool(WRONG))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
