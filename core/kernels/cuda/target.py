"""The CUDA target: the named rounding operations as its machine code, and what threads do together.

scalars.py is written once: its named operations are lowered here to PTX that says how it rounds
(`mul.rn.f32`, never a bare `mul.f32`, which the assembler may fuse), so whatever is built of them
has the CPU's bits. Under numba's simulator (NUMBA_ENABLE_CUDASIM=1) a thread of a block is a thread
of Python, the named operations are their plain meaning, and a block has 32 threads at most.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import cuda
from numba.core import config

from .. import scalars

SIMULATED = bool(config.ENABLE_CUDASIM)
WARP = 32
ALL_LANES = 0xFFFFFFFF
MOST_UNASKED = 48 << 10  # bytes of shared memory that a launch may bring without more ado

Signature = tuple[Any, ...]  # the compiler's types of a launch
_recorded: list[tuple["Kernel", Signature]] | None = None
_made: list["Kernel"] = []
_keeps: Callable[["Kernel"], Any] | None = None


# --- kernels and their launches ------------------------------------------------------------------


class _Inside:
    """numba.cuda for simulated threads: whatever module they are in, the kernel that now runs.

    The simulator itself swaps the name in a function's module while the function runs, which
    threads that call one another's functions would take from under each other.
    """

    def __getattr__(self, name: str) -> Any:
        from numba.cuda.simulator.kernel import _get_kernel_context

        return getattr(_get_kernel_context() or _MODULE, name)


def _inside(function: Callable[..., Any]) -> Callable[..., Any]:
    if SIMULATED and function.__globals__.get("cuda") is _MODULE:
        function.__globals__["cuda"] = _INSIDE
    return function


_MODULE, _INSIDE = cuda, _Inside()


class Kernel:
    """A function of the device, compiled when it is first launched over arguments of some types.

    kernel[blocks, threads, stream](*arguments) launches it. room: bytes of shared memory that a
    launch brings, for the function's shared array of size 0. most: threads that a block has at
    most, 0 where registers do not depend on it.
    """

    def __init__(self, function: Callable[..., None], room: int = 0, most: int = 0) -> None:
        self.name: str = function.__name__
        self.function, self.room, self.most = function, room, most
        self._allowed: set[Signature] = set()
        bounds = {"launch_bounds": most} if most and not SIMULATED else {}
        self.compiled = cuda.jit(**bounds)(_inside(function))
        _made.append(self)
        if _keeps is not None:
            self.compiled._cache = _keeps(self)

    def __getitem__(self, shape: tuple[Any, ...]) -> Callable[..., None]:
        return partial(self._launch, shape)

    def _launch(self, shape: tuple[Any, ...], *arguments: Any) -> None:
        if _recorded is None:
            # Small grids are meant; numba reads its settings again when its environment changes.
            config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
            if self.room > MOST_UNASKED and not SIMULATED:
                self._allow(tuple(numba.typeof(one) for one in arguments))
            whole = (*shape, self.room) if len(shape) == 3 else shape
            self.compiled[whole](*arguments)
        else:
            _recorded.append((self, tuple(numba.typeof(one) for one in arguments)))

    def _allow(self, signature: Signature) -> None:
        """Tell the driver that launches over these types bring so much shared memory."""
        if signature in self._allowed:
            return
        from numba.cuda.cudadrv.driver import binding, driver

        self.compiled.compile(signature)
        most = binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for made in self.compiled.overloads.values():
            code = made._codelibrary.get_cufunc()
            driver.cuKernelSetAttribute(most, self.room, code.handle, code.device.id)
        self._allowed.add(signature)


def kernel(function: Callable[..., None], room: int = 0, most: int = 0) -> Kernel:
    """Mark a function as one that is launched."""
    return Kernel(function, room, most)


def device(function: Callable[..., Any]) -> Any:
    """Mark a function as a part of kernels that itself asks for its thread or its block."""
    return _inside(function) if SIMULATED else cuda.jit(device=True)(function)


def keep(keeps: Callable[[Kernel], Any]) -> None:
    """Let every kernel, those made later too, ask keeps(kernel) for its code before it is compiled.

    keeps(kernel): load_overload(types, context) gives it or None, save_overload(types, made) takes
    what was compiled.
    """
    global _keeps
    _keeps = keeps
    for one in _made:
        one.compiled._cache = keeps(one)


def recording() -> bool:
    """Whether launches are only listed."""
    return _recorded is not None


@contextmanager
def recorded() -> Iterator[list[tuple[Kernel, Signature]]]:
    """Launch nothing: list which kernels would be, and the types of their arguments."""
    global _recorded
    assert _recorded is None, "launches are being recorded already"
    _recorded = []
    try:
        yield _recorded
    finally:
        _recorded = None


def threads(most: int) -> int:
    """Threads of a block: as many as are asked for, or the simulator's one warp."""
    return WARP if SIMULATED else most


# --- the named operations ------------------------------------------------------------------------


def _lower_named() -> None:
    """Give every named operation its instruction on this target."""
    from llvmlite import ir
    from numba.core import types
    from numba.cuda.extending import lower_builtin

    real, whole, wide = ir.FloatType(), ir.IntType(32), ir.IntType(64)

    def named(name: str, count: int) -> Any:
        kind = ir.FunctionType(real, [real] * count)

        def emit(_: Any, builder: Any, __: Any, values: Any) -> Any:
            known = builder.module.globals.get(name)
            return builder.call(known or ir.Function(builder.module, kind, name), values)

        return emit

    def written(text: str, result: Any, given: list[Any]) -> Any:
        letters = {real: "f", whole: "r", wide: "l"}
        form = ",".join([f"={letters[result]}", *(letters[one] for one in given)])
        inline = ir.InlineAsm(ir.FunctionType(result, given), text, form)
        return lambda _, builder, __, values: builder.call(inline, values)

    f, i, w = types.float32, types.int32, types.int64
    lower_builtin(scalars.mul, f, f)(named("llvm.nvvm.mul.rn.f", 2))
    lower_builtin(scalars.add, f, f)(named("llvm.nvvm.add.rn.f", 2))
    lower_builtin(scalars.div, f, f)(named("llvm.nvvm.div.rn.f", 2))
    lower_builtin(scalars.fma, f, f, f)(named("llvm.nvvm.fma.rn.f", 3))
    lower_builtin(scalars.sqrt, f)(named("llvm.nvvm.sqrt.rn.f", 1))
    lower_builtin(scalars.sub, f, f)(written("sub.rn.f32 $0, $1, $2;", real, [real, real]))
    lower_builtin(scalars.rint, f)(written("cvt.rni.f32.f32 $0, $1;", real, [real]))
    lower_builtin(scalars.rn, w)(written("cvt.rn.f32.s64 $0, $1;", real, [wide]))
    lower_builtin(scalars.to_int, f)(written("cvt.rzi.s32.f32 $0, $1;", whole, [real]))
    lower_builtin(scalars.bits, f)(lambda _, builder, __, v: builder.bitcast(v[0], whole))
    lower_builtin(scalars.flt, i)(lambda _, builder, __, v: builder.bitcast(v[0], real))


if not SIMULATED:
    _lower_named()


# --- what the threads of a warp or a block do together -------------------------------------------

if SIMULATED:
    _told: dict[int, Any] = {}

    @device
    def _everyone(value):
        """What every thread of the block came with."""
        _told[cuda.threadIdx.x] = value
        cuda.syncthreads()
        values = [_told[thread] for thread in range(cuda.blockDim.x)]
        cuda.syncthreads()
        return values

    @device
    def warp_sum(value):
        """The sum over a warp, in every thread of it; modulo 2^64."""
        first = cuda.threadIdx.x // WARP * WARP
        values = _everyone(value)[first : first + WARP]
        return type(value)(_wrapped(sum(int(one) for one in values), np.dtype(type(value))))

    @device
    def warp_max(value):
        """The largest over a warp, in every thread of it."""
        first = cuda.threadIdx.x // WARP * WARP
        return max(_everyone(value)[first : first + WARP])

    def _wrapped(total, dtype):
        """An integer brought into the range of a type."""
        size = 8 * dtype.itemsize
        low = total & ((1 << size) - 1)
        return low - (1 << size) if dtype.kind == "i" and low >> (size - 1) else low

    @device
    def block_sum(value, room):
        """As on a device; `room` is not needed here."""
        return type(value)(sum(int(one) for one in _everyone(value)))

    @device
    def block_max(value, room):
        """As on a device; `room` is not needed here."""
        return max(_everyone(value))

    @device
    def lane_value(value, lane):
        """The value of another lane of the warp."""
        return _everyone(value)[cuda.threadIdx.x // WARP * WARP + lane]

    @device
    def warp_top(value):
        """The largest int32 over a warp, in every thread of it."""
        return max(_everyone(value))

    @device
    def warp_meets():
        """What lanes of a warp wrote before it, they all see after it."""
        cuda.syncthreads()

    @device
    def lane_apart(value, apart):
        """The value of the lane whose number differs in the bits of `apart`."""
        return _everyone(value)[cuda.threadIdx.x ^ apart]

    @device
    def block_rank(flag, room):
        """As on a device; `room` is not needed here."""
        flags = _everyone(flag)
        return sum(flags[: cuda.threadIdx.x]), sum(flags)

else:

    @device
    def warp_sum(value):
        """The sum over a warp, in every thread of it; integers alone, whose order is no matter."""
        for apart in (16, 8, 4, 2, 1):
            value += cuda.shfl_xor_sync(ALL_LANES, value, apart)
        return value

    @device
    def warp_max(value):
        """The largest over a warp, in every thread of it."""
        for apart in (16, 8, 4, 2, 1):
            value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, apart))
        return value

    @device
    def block_sum(value, room):
        """The sum over a block, in every thread; room: shared, an element a warp, of value's type.

        All threads of the block take part; whole warps.
        """
        value = warp_sum(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        mine = room[cuda.laneid] if cuda.laneid < cuda.blockDim.x >> 5 else value - value
        cuda.syncthreads()
        return warp_sum(mine)

    @device
    def block_max(value, room):
        """The largest over a block, in every thread; room as for block_sum."""
        value = warp_max(value)
        if cuda.laneid == 0:
            room[cuda.threadIdx.x >> 5] = value
        cuda.syncthreads()
        mine = room[min(cuda.laneid, (cuda.blockDim.x >> 5) - 1)]
        cuda.syncthreads()
        return warp_max(mine)

    @device
    def lane_value(value, lane):
        """The value of another lane of the warp; all lanes ask."""
        return cuda.shfl_sync(ALL_LANES, value, lane)

    def _warp_top() -> Any:
        from llvmlite import ir
        from numba.core import types
        from numba.cuda.extending import intrinsic

        word = ir.IntType(32)
        text = "redux.sync.max.s32 $0, $1, 0xffffffff;"
        inline = ir.InlineAsm(ir.FunctionType(word, [word]), text, "=r,r", side_effect=True)

        def emit(_: Any, builder: Any, __: Any, values: Any) -> Any:
            return builder.call(inline, values, attrs=["convergent"])

        @intrinsic
        def warp_top(typing, value):
            """The largest int32 over a warp, in every thread of it."""
            return types.int32(types.int32), emit

        return warp_top

    warp_top = _warp_top()

    @device
    def warp_meets():
        """What lanes of a warp wrote before it, they all see after it."""
        cuda.syncwarp()

    @device
    def lane_apart(value, apart):
        """The value of the lane whose number differs in the bits of `apart`; all lanes ask."""
        return cuda.shfl_xor_sync(ALL_LANES, value, apart)

    @device
    def block_rank(flag, room):
        """(threads before this one whose flag is set, all whose flag is set) of the block.

        room: shared, an int32 a warp.
        """
        votes = cuda.ballot_sync(ALL_LANES, flag)
        warp, lane = cuda.threadIdx.x >> 5, cuda.laneid
        if lane == 0:
            room[warp] = cuda.popc(votes)
        cuda.syncthreads()
        mine = room[lane] if lane < cuda.blockDim.x >> 5 else 0
        cuda.syncthreads()
        before = warp_sum(mine if lane < warp else 0)
        return before + cuda.popc(votes & ((1 << lane) - 1)), warp_sum(mine)
