"""The list of CUDA twins: what launches each, and how its bits are compared with the meaning.

A twin takes the stream and then the arguments of the registered kernel of its name, arrays on the
device. Where a device keeps an argument in a form of its own, `place` makes it from the CPU's.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numba import cuda

from .. import registry

Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Twin:
    """What launches a kernel: launch(stream, *arguments).

    place(arguments): the arguments as the device wants them; what it replaces is not compared.
    Whatever launch returns, a number or an array on the device, is compared with the meaning's.
    """

    name: str
    launch: Callable[..., Any]
    place: Callable[[Arguments], Arguments]


_TWINS: dict[str, Twin] = {}


def as_it_is(arguments: Arguments) -> Arguments:
    """Arguments that the device takes in the CPU's form."""
    return arguments


def twin(
    name: str, launch: Callable[..., Any], place: Callable[[Arguments], Arguments] = as_it_is
) -> Twin:
    """Enter the twin of a registered kernel into the list."""
    assert name not in _TWINS, f"two twins are called {name}"
    _TWINS[name] = Twin(name, launch, place)
    return _TWINS[name]


def twins() -> list[Twin]:
    """Every twin, by name."""
    package = importlib.import_module(__package__)
    for entry in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f".{entry.name}", __package__)
    return [_TWINS[name] for name in sorted(_TWINS)]


def smallest(cases: Iterable[Arguments], count: int) -> list[Arguments]:
    """The cases whose arrays hold least."""

    def size(arguments: Arguments) -> int:
        return sum(one.size for one in arguments if isinstance(one, np.ndarray))

    return sorted(cases, key=size)[:count]


def check(
    one: Twin, rng: np.random.Generator, count: int, least: int | None = None
) -> registry.Verdict:
    """Run `count` random cases through meaning and twin and compare their bits.

    least: of the cases of one round only so many, the smallest.
    """
    kernel = next(kernel for kernel in registry.kernels() if kernel.name == one.name)
    equal = 0
    while equal < count:
        cases = kernel.cases(rng) if least is None else smallest(kernel.cases(rng), least)
        before = equal
        for arguments in islice(cases, count - equal):
            first = _parting(kernel, one, arguments)
            if first:
                return registry.Verdict(one.name, equal, first)
            equal += 1
        assert equal > before, f"{one.name} has no cases"
    return registry.Verdict(one.name, equal, "")


def _parting(kernel: registry.Kernel, one: Twin, arguments: Arguments) -> str:
    """Where meaning and twin part over one case; "" where they do not."""
    placed = one.place(arguments)
    on_device = [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in placed]
    meant = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in arguments)
    want_result = kernel.meaning(*meant)
    have_result = _host(one.launch(0, *on_device))
    for index in range(len(arguments) - kernel.scratch):
        if placed[index] is not arguments[index]:
            continue
        want, have = meant[index], _host(on_device[index])
        if not registry.same_bits(one_nan(want), one_nan(have)):
            return f"argument {index}: {registry._parting(one_nan(want), one_nan(have))}"
    if not registry.same_bits(one_nan(want_result), one_nan(have_result)):
        return f"result: {want_result!r} meant, {have_result!r} made"
    return ""


def _host(value: Any) -> Any:
    """An argument or a result, on the host."""
    return value.copy_to_host() if hasattr(value, "copy_to_host") else value


def one_nan(value: Any) -> Any:
    """A float array whose NaNs all have one pattern: which of them comes out, makers disagree on.

    A row with a NaN has its flag, and nobody reads on in it.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.where(np.isnan(value), value.dtype.type(np.nan), value)
    return value
