"""Compiling CUDA kernels apart from launching them: for a chip that need not be here, many at once.

What it takes of numba's insides is here and nowhere else.
"""

import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from numba import cuda

from ...core.kernels.cuda import target

Launch = tuple[target.Kernel, target.Signature]
LIMIT_S = 300.0  # a start waits no longer for processes that compile


def capability(chip: str) -> tuple[int, int]:
    """(9, 0) of sm_90."""
    digits = chip.removeprefix("sm_").rstrip("a")
    return int(digits[:-1]), int(digits[-1])


def options_of(kernel: target.Kernel) -> dict[str, Any]:
    """What the compiler was asked for."""
    compiled: Any = kernel.compiled
    options: dict[str, Any] = compiled.targetoptions
    return options


def chip_here() -> str:
    """The current card's chip: sm_90."""
    major, minor = cuda.get_current_device().compute_capability
    return f"sm_{major}{minor}"


@contextmanager
def stood_in(chip: str) -> Iterator[None]:
    """Let the compiler, and kernels made for a chip, take this one for the current card's."""
    # By name: numba-cuda puts modules of its own in the place of numba's.
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    codegen: Any = import_module("numba.cuda.codegen")
    device = SimpleNamespace(compute_capability=capability(chip))
    context = SimpleNamespace(device=device)
    module: Any = import_module("numba.cuda")
    before = dispatcher.get_current_device, codegen.devices, module.get_current_device
    module.get_current_device = lambda: device
    dispatcher.get_current_device = lambda: device
    codegen.devices = SimpleNamespace(get_context=lambda: context)
    try:
        yield
    finally:
        dispatcher.get_current_device, codegen.devices, module.get_current_device = before


def without_gpu(kernel: target.Kernel, types: target.Signature, chip: str) -> Any:
    """A kernel compiled to the code of a chip, in the compiler's form; it cannot be launched."""
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    with stood_in(chip):
        made = dispatcher._Kernel(kernel.function, types, **options_of(kernel))
        made._codelibrary.get_cubin()
    return made


def loaded(entry: str, cubin: bytes, types: target.Signature) -> Any:
    """A kernel of the current card from its code. Raises whatever the driver says against it."""
    from cuda.core import ObjectCode  # pyright: ignore[reportMissingImports]

    codegen: Any = import_module("numba.cuda.codegen")
    dispatcher: Any = import_module("numba.cuda.dispatcher")
    typing: Any = import_module("numba.cuda.typing")
    kinds: Any = import_module("numba.cuda.types")
    library = codegen.CUDACodeLibrary(None, entry, entry_name=entry)
    library._cubin_cache[library._ensure_cc(None)] = ObjectCode.from_cubin(cubin, name=entry)
    library._finalized = True
    library.get_cufunc()
    return dispatcher._Kernel._rebuild(
        cooperative=False, name=entry, signature=typing.signature(kinds.void, *types),
        codelibrary=library, debug=False, lineinfo=False, call_helper=None, extensions=[],
    )  # fmt: skip


def side_by_side(
    do: Callable[[Any], None], items: Sequence[Any], workers: int, limit_s: float = LIMIT_S
) -> None:
    """do(item) of all in processes forked from this one; none of them may use the GPU.

    Kernels and their types cannot be handed to a process otherwise: they hold functions. What
    fails, or is not done after limit_s, is left out.
    """
    context = multiprocessing.get_context("fork")
    turn = context.Value("i", 0)
    count = max(1, min(workers, len(items)))
    working = [
        context.Process(target=_take_turns, args=(do, items, turn), daemon=True)
        for _ in range(count)
    ]
    with warnings.catch_warnings():
        # Threads that others run hold no lock that a compiler takes.
        warnings.simplefilter("ignore", DeprecationWarning)
        for one in working:
            one.start()
    until = time.monotonic() + limit_s
    for one in working:
        one.join(max(0.0, until - time.monotonic()))
        if one.is_alive():
            one.kill()
            one.join()


def _take_turns(do: Callable[[Any], None], items: Sequence[Any], turn: Any) -> None:
    """A process's work: the next item that nobody has taken, until there is none.

    Signals are for the one it was forked from, which ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        with turn.get_lock():
            index, turn.value = turn.value, turn.value + 1
        if index >= len(items):
            return
        with suppress(Exception):  # whoever launches the kernel is told
            do(items[index])
