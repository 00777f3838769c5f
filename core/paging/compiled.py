"""Compiles the book's functions as they are first called; whoever names a folder keeps them there.

A function of this folder is as its plain meaning in the tests does: they are held to each other.
"""

from collections.abc import Callable
from typing import Any

import numba
from numba.core import config

SETTINGS: Any = config  # a module that fills itself
_FUNCTIONS: list[Any] = []
_on_disk: list[str] = []  # the folder, once they are kept


def code(function: Callable[..., Any]) -> Any:
    """Compile a function of integers and integer arrays when it is first called."""
    made = numba.njit(error_model="numpy")(function)
    _FUNCTIONS.append(made)
    return made


def keep_on_disk() -> None:
    """Let compiled functions be kept in numba's folder.

    numba does not see a change in another file, so whoever calls this has named a folder that is
    keyed by all sources.
    """
    folder = SETTINGS.CACHE_DIR
    assert folder, "no folder is named for compiled functions"
    if [folder] != _on_disk:
        _on_disk[:] = [folder]
        for made in _FUNCTIONS:
            made.enable_caching()


def compiled() -> tuple[int, int]:
    """How many functions were taken from disk, and how many compiled, since the process began."""
    taken = sum(sum(made.stats.cache_hits.values()) for made in _FUNCTIONS)
    return taken, sum(len(made.overloads) for made in _FUNCTIONS) - taken
