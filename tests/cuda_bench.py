"""Run as a process on a GPU: what CUDA kernels take beside the bytes they must move, as ratios.

Launches are captured in a graph and its replays timed by device events, the median of nine; weights
rotate among sets that no cache holds. The floor is bytes over 4.3 TB/s, an H200's copy rate, or,
where it is more, products of bytes over 1,354 TOPS, what its library does.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cupy as cp  # pyright: ignore[reportMissingImports]
import numpy as np
from numba import cuda

from kvtape.core.kernels.cuda import (
    experts,
    kda_recurrence,
    latent_split,
    linear,
    linear_heads,
    norm,
    planes,
    quantise,
    select,
)

RATE = 4.3e6  # bytes a microsecond
# Bytes that would take as long as the four products of bytes of one weight by one row.
BYTES_A_PRODUCT = 4 * 2 / 1354e6 * RATE
SETS_BYTES = 600 << 20
FLOAT, DEVICE = np.float32, cuda.to_device
Launch = Callable[[Any], None]
Line = tuple[str, float, float]  # what, microseconds, bytes of its floor


def dealt(rng: np.random.Generator, rows: int, many: int, chosen: int) -> tuple[Any, Any, Any]:
    """Busy experts, slots in their order, and where each begins: rows that go to random experts."""
    ids = np.concatenate([np.sort(rng.permutation(many)[:chosen]) for _ in range(rows)])
    order = DEVICE(np.argsort(ids, kind="stable"))
    starts = DEVICE(np.searchsorted(np.sort(ids), np.arange(many + 1)))
    busy = DEVICE(np.zeros(min(many, rows * chosen), np.int64))
    experts.list_busy(0, starts, busy)
    return busy, order, starts


def timed(launches: list[Launch]) -> float:
    """Microseconds a launch."""
    stream = cp.cuda.Stream(non_blocking=True)
    its = cuda.external_stream(stream.ptr)
    for launch in launches[:2]:
        launch(its)
    stream.synchronize()
    with stream:
        stream.begin_capture()
        for launch in launches:
            launch(its)
        graph = stream.end_capture()
        graph.launch()
        took: list[float] = []
        for _ in range(9):
            start, end = cp.cuda.Event(), cp.cuda.Event()
            start.record(stream)
            graph.launch()
            end.record(stream)
            end.synchronize()
            took.append(cp.cuda.get_elapsed_time(start, end) * 1e3 / len(launches))
    return statistics.median(took)


def call(function: Any, *given: Any) -> Launch:
    """A launch with its arguments, without its stream."""
    return lambda its: function(its, *given)


def digits(*shape: int) -> Any:
    """Random int16 rows on the device."""
    return DEVICE(np.random.default_rng(0).integers(-32639, 32640, shape, np.int16))


def words(*shape: int) -> Any:
    """Random int16 rows as flat pairs."""
    return digits(*shape).reshape(int(np.prod(shape))).view(np.int32)


def floats(*shape: int) -> Any:
    """Random float32 on the device."""
    return DEVICE(np.random.default_rng(1).standard_normal(shape).astype(FLOAT))


def exponents(n: int) -> Any:
    """n exponents."""
    return DEVICE(np.full(n, -15, np.int8))


def packed(n: int) -> Any:
    """n random bytes of packed weights."""
    return cuda.as_cuda_array(cp.random.randint(-128, 128, n, cp.int8))


def room(n: int) -> Any:
    """n float32 of whatever value."""
    return cuda.as_cuda_array(cp.empty(n, cp.float32))


def moved(weights: int, rows: int) -> float:
    """The bytes of so many weights, or what takes as long where their products take longer."""
    return max(2.0 * weights, BYTES_A_PRODUCT * weights * rows)


def mapped(n: int, k: int, rows: int, weights: list[Any]) -> Line:
    """A linear map of k inputs to n outputs."""
    x, ex, ew, y = words(rows, k), exponents(rows), exponents(n), room(rows * n)
    rest = (ew, k // 2, rows, 0, n // 16, y, n, 0, False)
    made = [call(linear.linear, x, ex, w, *rest) for w in weights]
    return f"linear {n} x {k}, {rows} rows", timed(made), moved(n * k, rows)


def linears() -> Iterator[Line]:
    """Linear maps at the widths of both models."""
    small = [(960, 576), (576, 576), (576, 1536), (3072, 576), (49152, 576), (32, 16384)]
    for n, k in [*small, (4096, 4096), (8192, 4096), (24576, 4096), (4096, 12288)]:
        size = planes.planes_size(n, k)
        weights = [packed(size) for _ in range(max(8, min(200, SETS_BYTES // size)))]
        for rows in (1, 8, 32, 64):
            yield mapped(n, k, rows, weights)


def prompts() -> Iterator[Line]:
    """Maps of a prompt step, gated units, and maps by head."""
    rows = 2048
    for n, k in ((24576, 4096), (4096, 8192), (4096, 12288), (1536, 4096), (16384, 1536)):
        yield mapped(n, k, rows, [packed(planes.planes_size(n, k)) for _ in range(3)])
    for n, k in ((32, 16384), (288, 4096)):
        yield mapped(n, k, rows, [packed(planes.planes_size(n, k)) for _ in range(3)])
    for rows in (1, 8, 32, 2048):
        for n in (12288, 2048):
            x, ex, ew, h = words(rows, 4096), exponents(rows), exponents(2 * n), room(rows * n)
            rest = (ew, 2048, rows, n // 16, h, n, 0, FLOAT(10))
            weights = [packed(planes.planes_size(2 * n, 4096)) for _ in range(4)]
            made = [call(linear.gated, x, ex, w, *rest) for w in weights]
            yield f"gated {n} x 4096, {rows} rows", timed(made), moved(2 * n * 4096, rows)
        for n, k in ((512, 256), (256, 512)):
            w, ew = packed(planes.planes_size(64 * n, k)), exponents(64 * n)
            x, ex, y = words(64 * rows, k), exponents(64 * rows), room(64 * rows * n)
            given = (x, ex, w, ew, k // 2, rows, 64, n, y, 64 * n, 0)
            made = [call(linear_heads.linear_heads, *given)] * 6
            yield f"64 heads of {n} x {k}, {rows} rows", timed(made), moved(64 * n * k, rows)


def routed() -> Iterator[Line]:
    """288 experts of 4096 by 2048, of which every row goes to eight."""
    many, inner, wide, chosen, rng = 288, 2048, 4096, 8, np.random.default_rng(2)
    up = (packed(planes.planes_size(2 * inner * many, wide)), exponents(2 * inner * many))
    down = (packed(planes.planes_size(wide * many, inner)), exponents(wide * many))
    for rows in (1, 8, 32, 512, 2048):
        slots, ups, downs, busy_all = rows * chosen, list[Launch](), list[Launch](), 0
        x, ex, h = words(rows, wide), exponents(rows), room(slots * inner)
        hq, he, parts = words(slots, inner), exponents(slots), room(slots * wide)
        for _ in range(6):
            to = dealt(rng, rows, many, chosen)
            busy_all += int((to[0].copy_to_host() >= 0).sum())
            rest = (chosen, inner // 16, FLOAT(10), h, inner, 0)
            ups.append(call(experts.expert_up, x, ex, *up, wide // 2, *to, *rest))
            back = (wide // 16, parts, wide, 0)
            downs.append(call(experts.expert_down, hq, he, *down, inner // 2, *to, *back))
        read = max(busy_all / 6 * 2, BYTES_A_PRODUCT * slots) * inner * wide
        yield f"experts up, {rows} rows", timed(ups), 2 * read
        yield f"experts down, {rows} rows", timed(downs), read


def rows_alone() -> Iterator[Line]:
    """Norms and the recurrence."""
    for rows, width in ((1, 576), (1, 4096), (1, 16384), (32, 4096), (2048, 4096)):
        x, w, flags = floats(rows, width), floats(width), DEVICE(np.zeros(rows, np.uint8))
        given = (x, w, FLOAT(1e-5), digits(rows, width), exponents(rows), flags, 0, rows)
        made = [call(norm.rmsnorm_q16, *given)] * 20
        yield f"rmsnorm_q16 {rows} x {width}", timed(made), rows * width * 6
        plain = (x, digits(rows, width), exponents(rows), flags, 0, rows)
        made = [call(quantise.q16_rows, *plain)] * 20
        yield f"q16_rows {rows} x {width}", timed(made), rows * width * 6
    heads, width = 64, 128
    for rows in (1, 512):
        wide = heads * width
        states, runs = floats(1, 2, heads, width, width), DEVICE(np.array([[0, 0, 5, rows]]))
        q, k, a, o = (floats(rows, wide) for _ in range(4))
        kept = (q, k, floats(rows, 3 * wide), a, floats(rows, heads), states, runs, o, 0, heads)
        size = 2 * heads * width * width * 4 + rows * wide * 20
        yield (
            f"kda_rows, {rows} rows of 64 heads",
            timed([call(kda_recurrence.kda_rows, *kept)] * 4),
            size,
        )


def sparse() -> Iterator[Line]:
    """Selection of 512 pools of four, and attention over them."""
    heads, width, page_rows, kpool, most, context = 64, 512, 512, 4, 512, 8192
    kinds = (np.int32, np.int32, np.int64, np.int64)
    for rows in (1, 8, 32):
        pages = rows * context // page_rows
        tables = DEVICE(np.arange(pages, dtype=np.int32).reshape(rows, -1))
        at = (DEVICE(np.full(rows, context - 2)), DEVICE(np.arange(rows)), tables)
        chosen = np.sort(np.random.default_rng(3).permutation(context // kpool - 1)[:most])
        picked = DEVICE(np.tile(chosen.astype(np.int32), (rows, 1)))
        kept = (picked, DEVICE(np.full(rows, most)))
        shapes = latent_split.scratch_shapes(rows, heads, width, (most + 1) * kpool)
        scratch = tuple(DEVICE(np.zeros(*one)) for one in zip(shapes, kinds, strict=True))
        queries = (digits(rows, heads * width), DEVICE(np.full((rows, heads), -20, np.int8)))
        latent, out = digits(pages, page_rows, width), floats(rows, heads * width)
        rest = (-10, page_rows, kpool, *kept, FLOAT(0.04), out, scratch, 0, rows)
        made = [call(latent_split.attend_split, *queries, *at, latent, *rest)] * 4
        yield f"latent attention, {rows} rows", timed(made), rows * 2051 * width * 2
        asked = (digits(rows, 32 * 128), DEVICE(np.full((rows, 32), -20, np.int8)))
        weights, keys = (floats(rows, 32), 0, FLOAT(0.01)), digits(pages, page_rows // kpool, 128)
        scores = DEVICE(np.zeros((rows, context // kpool), np.int32))
        more = (-12, *at, page_rows, kpool, most, *kept, scores, 0, rows)
        found = [call(select.select_rows, *asked, *weights, keys, *more)] * 4
        yield f"select_rows, {rows} rows", timed(found), rows * context // kpool * 256


def main(parts: list[str]) -> None:
    """Print a line a measurement."""
    for part in (linears, prompts, routed, rows_alone, sparse):
        for what, took, size in part() if not parts or part.__name__ in parts else ():
            floor = size / RATE
            line = f"{what:36s} {took:9.2f} us, floor {floor:8.2f}, ratio {took / floor:8.2f}"
            print(line, flush=True)  # noqa: T201
        cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main(sys.argv[1:])
