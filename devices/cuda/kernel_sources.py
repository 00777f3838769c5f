"""What a CUDA kernel follows from: the values that its function captured, and source files."""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]  # the package's folder
HOME = __name__.split(".", maxsplit=1)[0] + ".core.kernels."


class Unkeyed(Exception):
    """A kernel whose code follows from more than can be told: it is not kept."""


def captured(function: Any) -> tuple[list[str], list[FunctionType]]:
    """(what the function and those that it captured hold, those functions). Raises Unkeyed.

    What a function finds by a module's name is in that module's file.
    """
    said: list[str] = []
    functions: list[FunctionType] = []
    _walk(function, said, functions)
    return said, functions


def _walk(value: Any, said: list[str], functions: list[FunctionType]) -> None:
    inside = _function_of(value)
    if inside is None:
        said.append(_plain(value))
        return
    if inside in functions:
        said.append(f"function {functions.index(inside)}")
        return
    if not inside.__module__.startswith(HOME) or "<lambda>" in inside.__qualname__:
        raise Unkeyed(f"{inside.__module__}.{inside.__qualname__}")
    functions.append(inside)
    said.append(f"{inside.__module__}.{inside.__qualname__}")
    for default in inside.__defaults__ or ():
        _walk(default, said, functions)
    for name, cell in zip(inside.__code__.co_freevars, inside.__closure__ or (), strict=True):
        said.append(name)
        _walk(cell.cell_contents, said, functions)


def _function_of(value: Any) -> FunctionType | None:
    """The Python function of a function, a dispatcher or an intrinsic."""
    for name in ("py_func", "_defn"):
        inside = getattr(value, name, None)
        if isinstance(inside, FunctionType):
            return inside
    return value if isinstance(value, FunctionType) else None


def _plain(value: Any) -> str:
    """A value that its text tells whole. Raises Unkeyed."""
    if isinstance(value, tuple):
        return "(" + ", ".join(_plain(one) for one in value) + ")"
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return value.__name__
    if type(value).__module__.startswith("numba.") and hasattr(value, "mangling_args"):
        return str(value)  # one of the compiler's types
    raise Unkeyed(repr(value))


def sources_of(functions: Iterable[FunctionType]) -> str:
    """A digest of every file that functions stand in, and of what those import of this package."""
    files = {Path(sys.modules[one.__module__].__file__ or "") for one in functions}
    return digest_of(frozenset(files))


@cache
def digest_of(files: frozenset[Path], root: Path = ROOT) -> str:
    """A digest of files and of all of the package that they import, at whatever remove."""
    digest, every = blake2b(digest_size=16), set[Path]()
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path not in every:
            every.add(path)
            waiting += imported(path)
    for path in sorted(every):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


@cache
def imported(path: Path) -> tuple[Path, ...]:
    """Files of the package that a file's relative imports name."""
    return tuple(dict.fromkeys(_imports(path)))


def _imports(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            named = [base.with_suffix(".py"), *(base / f"{one.name}.py" for one in node.names)]
            yield from (one for one in named if one.is_file())
