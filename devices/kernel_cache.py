"""Where compiled kernels stay on disk, so that the first run compiles them and no other does."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core import config
from numba.core import event as events

from ..core.kernels import registry
from ..core.paging import compiled, tried

LOG = logging.getLogger("kvtape.kernels")
SETTINGS: Any = config  # a module that fills itself
EVENTS: Any = events


def cache_root(environment: Mapping[str, str]) -> Path:
    """The user's folder for what can be made again: KVTAPE_CACHE, or kvtape in the user's cache."""
    if named := environment.get("KVTAPE_CACHE"):
        return Path(named)
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "kvtape"
    return Path.home() / ".cache" / "kvtape"


def kernels_key(sources: Path, processor: str) -> str:
    """A digest of every kernel source, both compilers' versions and the processor: 16 hex digits.

    numba itself looks at one function's own file; a scalar that another file changed, it misses.
    """
    digest = blake2b(digest_size=8)
    for text in (numba.__version__, llvmlite.__version__, np.__version__, processor):
        digest.update(text.encode() + b"\0")
    for path in sorted(sources.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def processor() -> str:
    """The processor that numba compiles for: its name and features."""
    binding = llvmlite.binding
    name = SETTINGS.CPU_NAME or binding.get_host_cpu_name()
    features = SETTINGS.CPU_FEATURES
    if features is None:
        features = binding.get_host_cpu_features().flatten()
    return f"{name} {features}"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where this build's kernels for this processor are kept; it need not be there yet."""
    assert registry.__file__ is not None
    key = kernels_key(Path(registry.__file__).parent, processor())
    return cache_root(environment) / f"kernels-{key}"


def done_mark(folder: Path, module: Any = registry) -> Path:
    """The file that says that all sources beside a module are compiled into a folder.

    numba knows its work again by where a source stands and when it was changed, so another copy of
    the same sources is not compiled yet.
    """
    assert module.__file__ is not None
    sources = Path(module.__file__).parent
    digest = blake2b(str(sources).encode(), digest_size=8)
    for path in sorted(sources.glob("*.py")):
        digest.update(f"\0{path.name} {path.stat().st_mtime_ns}".encode())
    return folder / f"complete-{digest.hexdigest()}"


def use_cache(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Keep compiled kernels in a folder of their key; None where that folder cannot be made."""
    folder = cache_folder(environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        LOG.warning(
            "compiled kernels cannot be kept in %s (%s), so each start compiles them again:"
            " KVTAPE_CACHE names another folder", folder.parent, error.strerror,
        )  # fmt: skip
        return None
    os.environ["NUMBA_CACHE_DIR"] = str(folder)  # numba reads its settings again when this changes
    SETTINGS.CACHE_DIR = str(folder)
    registry.keep_on_disk()
    keep_book(environment)
    return folder


def keep_book(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Keep the book's compiled functions in a folder of their own key, apart from kernels.

    None where that folder cannot be made. They are compiled when they are missing there, so that
    no request waits for that.
    """
    assert compiled.__file__ is not None
    key = kernels_key(Path(compiled.__file__).parent, processor())
    folder = cache_root(environment) / f"book-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    before = SETTINGS.CACHE_DIR
    SETTINGS.CACHE_DIR = str(folder)  # each function looks for its place as it is told to be kept
    compiled.keep_on_disk()
    SETTINGS.CACHE_DIR = before
    mark = done_mark(folder, compiled)
    if not mark.exists():
        LOG.warning("the page book's functions are compiled, once: some 15 seconds")
        tried.every_function()
        mark.touch()
    return folder


class _Compiles(EVENTS.Listener):  # type: ignore[misc]  # numba is untyped
    """Counts what is compiled, and says so: a program of many parts takes minutes, once."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._count = 0

    def on_start(self, _: Any) -> None:
        """A part begins to be compiled."""

    def on_end(self, _: Any) -> None:
        """A part is compiled."""
        self._count += 1
        self._show(f"the program of a step, compiled once: {self._count} parts")


@contextmanager
def told_of_compiles(show: Callable[[str], None]) -> Iterator[None]:
    """Say how many parts were compiled, as they are."""
    listener = _Compiles(show)
    EVENTS.register("numba:compile", listener)
    try:
        yield
    finally:
        EVENTS.unregister("numba:compile", listener)


def warm(folder: Path | None, show: Callable[[str], None]) -> int:
    """Compile every kernel that the folder lacks, saying which; returns how many were compiled.

    Each runs over its own random cases once: they have the types that devices call it with.
    """
    if folder is not None and done_mark(folder).exists():
        return 0
    every, rng = registry.kernels(), np.random.default_rng(0)
    before = registry.compiled()[1]
    for number, kernel in enumerate(every, 1):
        show(f"kernel {number} of {len(every)}: {kernel.name}")
        for arguments in kernel.cases(rng):
            kernel.cpu(*arguments)
    if folder is not None:
        done_mark(folder).touch()
    return registry.compiled()[1] - before
