"""The list of kernels: each with shapes, units, its meaning, its compiled loop and random cases.

The convention: a kernel writes into arrays that it is given and may return a scalar or a tuple of
scalars. Meaning and twin take the same arguments; whatever either leaves in its array arguments and
whatever it returns must be the same bits. Work space comes last and is not compared: `scratch` says
how many arguments it is. Rows are given as a range, `first` to `last` (excluded).
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

Cases = Callable[[np.random.Generator], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel. cases(rng) yields argument tuples, output arrays included, one after another."""

    name: str
    meaning: Callable[..., Any]
    cpu: Callable[..., Any]
    shapes: str
    units: str
    cases: Cases
    scratch: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many cases were equal, and where the first unequal one parts ("" when none does)."""

    kernel: str
    equal: int
    first: str


_KERNELS: dict[str, Kernel] = {}
_LOOPS: list[Any] = []
_INNER: list[Any] = []
_on_disk = False


def cpu(function: Callable[..., Any]) -> Any:
    """Compile a loop for the CPU when it is first called: no lock held, IEEE division."""
    loop = numba.njit(nogil=True, error_model="numpy")(function)
    _LOOPS.append(loop)
    if _on_disk:
        loop.enable_caching()
    return loop


def keep_on_disk() -> None:
    """Let compiled loops be kept in numba's folder, those made later as well.

    numba does not see a change in another file, so whoever calls this has named a folder that is
    keyed by all sources (devices/kernel_cache.py).
    """
    global _on_disk
    assert numba.config.CACHE_DIR, "no folder is named for compiled kernels"
    _on_disk = True
    for loop in _LOOPS:
        loop.enable_caching()


def compiled() -> tuple[int, int]:
    """How many loops were taken from disk, and how many were compiled, since the process began."""
    stats = [loop.stats for loop in _LOOPS]
    taken = sum(sum(one.cache_hits.values()) for one in stats)
    return taken, sum(len(loop.overloads) for loop in _LOOPS) - taken


def inner(function: Callable[..., Any]) -> Any:
    """Compile a part of other kernels, which are tested with it: it needs no entry of its own."""
    dispatcher = cpu(function)
    _INNER.append(dispatcher)
    return dispatcher


def register(
    name: str,
    *,
    meaning: Callable[..., Any],
    cpu: Callable[..., Any],
    shapes: str,
    units: str,
    cases: Cases,
    scratch: int = 0,
) -> Kernel:
    """Enter a kernel into the list."""
    assert name not in _KERNELS, f"two kernels are called {name}"
    _KERNELS[name] = Kernel(name, meaning, cpu, shapes, units, cases, scratch)
    return _KERNELS[name]


def modules() -> list[Any]:
    """Every module of this folder, imported."""
    package = importlib.import_module(__package__)
    found = sorted(entry.name for entry in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f".{name}", __package__) for name in found]


def kernels() -> list[Kernel]:
    """Every kernel, by name."""
    modules()
    return [_KERNELS[name] for name in sorted(_KERNELS)]


def unregistered() -> list[str]:
    """Compiled loops of this folder that are neither in the list nor marked as inner."""
    known = [*(kernel.cpu for kernel in kernels()), *_INNER]
    loops = {
        f"{module.__name__}.{name}": value
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, numba.core.dispatcher.Dispatcher)
    }
    return [at for at, value in sorted(loops.items()) if all(value is not one for one in known)]


def check(kernel: Kernel, rng: np.random.Generator, count: int) -> Verdict:
    """Run `count` random cases through meaning and twin and compare their bits."""
    equal = 0
    while equal < count:
        before = equal
        for arguments in kernel.cases(rng):
            meant, made = _copy(arguments), _copy(arguments)
            results = (kernel.meaning(*meant), kernel.cpu(*made))
            compared = len(arguments) - kernel.scratch
            for index, (want, have) in enumerate(zip(meant[:compared], made, strict=False)):
                if not same_bits(want, have):
                    return Verdict(kernel.name, equal, f"argument {index}: {_parting(want, have)}")
            if not same_bits(*results):
                return Verdict(
                    kernel.name, equal, f"result: {results[0]!r} meant, {results[1]!r} made"
                )
            equal += 1
            if equal == count:
                break
        assert equal > before, f"{kernel.name} has no cases"
    return Verdict(kernel.name, equal, "")


def summary(verdicts: Iterable[Verdict]) -> str:
    """One line over all kernels, for people and for scripts."""
    verdicts = list(verdicts)
    apart = [verdict.kernel for verdict in verdicts if verdict.first]
    cases = sum(verdict.equal for verdict in verdicts)
    line = f"SUMMARY kernels={len(verdicts)} cases={cases} apart={len(apart)}"
    return f"{line} ({', '.join(apart)})" if apart else line


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results are the same bytes (scalars by type-blind value, floats by pattern)."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float | np.floating):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return a == b


def _copy(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.copy() if isinstance(one, np.ndarray) else one for one in arguments)


def _parting(want: np.ndarray, have: np.ndarray) -> str:
    """Where two arrays first differ."""
    width = want.dtype.itemsize
    bytes_apart = np.frombuffer(want.tobytes(), np.uint8) != np.frombuffer(have.tobytes(), np.uint8)
    flat = int(np.flatnonzero(bytes_apart)[0]) // width
    at = tuple(int(i) for i in np.unravel_index(flat, want.shape))
    return f"at {at} {want.flat[flat]!r} meant, {have.flat[flat]!r} made"
