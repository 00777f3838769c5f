"""The CUDA target: kernels, their launches, and the named rounding operations as machine code.

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
from numba import cuda
from numba.core import config

from .. import scalars

SIMULATED = bool(config.ENABLE_CUDASIM)
WARP = 32
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
