"""Compiled CUDA kernels on disk, found by the content of their sources: they are compiled once.

numba's own store goes by the time and size of one file; a scalar that another file changed, it
misses. An entry here is named by all that its code follows from, says so itself, and carries a
digest of its bytes: what is damaged, or of another key, is compiled anew.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

from numba import cuda

from ...core.kernels.cuda import target
from ..kernel_cache import cache_root
from . import compiling
from .kernel_sources import Unkeyed, captured, sources_of

FORM = b"kvtape cuda kernel 1\n"
FOLDER = "cuda-kernels"
DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel's code for one chip, and the name by which a launch finds it there."""

    entry: str
    cubin: bytes


def key_of(kernel: target.Kernel, types: target.Signature, chip: str) -> str:
    """Everything that a kernel's code follows from, as JSON. Raises Unkeyed."""
    captures, functions = captured(kernel.function)
    options = compiling.options_of(kernel)
    return json.dumps(
        {
            "kernel": kernel.name,
            "captures": captures,
            "sources": sources_of(functions),
            "types": [str(one) for one in types],
            "options": {name: repr(options[name]) for name in sorted(options)},
            "compiler": version("numba-cuda"),
            "chip": chip,
        }
    )


class KernelStore:
    """A folder of entries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """The user's store; None where its folder cannot be made."""
        folder = cache_root(environment) / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            return None
        return cls(folder)

    def path(self, kernel: target.Kernel, key: str) -> Path:
        """Where the entry of a key is."""
        name = blake2b(key.encode(), digest_size=DIGEST).hexdigest()
        return self.folder / f"{kernel.name}-{name}.kernel"

    def read(self, kernel: target.Kernel, key: str) -> Entry | None:
        """A kernel's code, if it is there, whole, and of this very key."""
        try:
            text = self.path(kernel, key).read_bytes()
        except OSError:
            return None
        start = len(FORM) + DIGEST
        body = text[start:]
        if text[:start] != FORM + blake2b(body, digest_size=DIGEST).digest():
            return None
        head, _, cubin = body.partition(b"\n")
        said = json.loads(head)
        return Entry(said["entry"], cubin) if said["key"] == key else None

    def write(self, kernel: target.Kernel, key: str, entry: Entry) -> None:
        """Keep a kernel's code; a folder that cannot be written to keeps nothing."""
        head = json.dumps({"key": key, "entry": entry.entry}).encode()
        body = head + b"\n" + entry.cubin
        whole = FORM + blake2b(body, digest_size=DIGEST).digest() + body
        try:
            with NamedTemporaryFile(dir=self.folder, delete=False) as file:
                file.write(whole)
            Path(file.name).replace(self.path(kernel, key))
        except OSError:
            return

    def compile(self, kernel: target.Kernel, types: target.Signature, chip: str) -> None:
        """Compile a kernel for a chip, which need not be here, and keep it."""
        made = compiling.without_gpu(kernel, types, chip)
        if (entry := _entry(made)) is not None:
            self.write(kernel, key_of(kernel, types, chip), entry)

    def lacking(self, launches: Iterable[compiling.Launch], chip: str) -> list[compiling.Launch]:
        """Of launches those whose kernels are not here, each once."""
        found = {}
        for kernel, types in launches:
            try:
                key = key_of(kernel, types, chip)
            except Unkeyed:
                continue
            if key not in found and self.read(kernel, key) is None:
                found[key] = (kernel, types)
        return list(found.values())

    def fill(
        self,
        launches: Iterable[compiling.Launch],
        chip: str,
        workers: int,
        limit_s: float = compiling.LIMIT_S,
    ) -> list[compiling.Launch]:
        """Compile what is not here, in processes side by side; returns what then is lacking still.

        What a process could not compile, the first launch will, or say why not.
        """
        wanted = self.lacking(launches, chip)
        if wanted:
            compiling.side_by_side(
                lambda one: self.compile(one[0], one[1], chip), wanted, workers, limit_s
            )
        return self.lacking(wanted, chip)


class _Kept:
    """What a kernel's compiler asks for code before it compiles, and hands code to after."""

    def __init__(self, store: KernelStore, kernel: target.Kernel) -> None:
        self._store, self._kernel = store, kernel

    def _key(self, types: target.Signature) -> str | None:
        try:
            return key_of(self._kernel, types, compiling.chip_here())
        except Unkeyed:
            return None

    def load_overload(self, types: target.Signature, _: Any) -> Any:
        """The compiled kernel, loaded onto the current card, or None."""
        key = self._key(types)
        entry = self._store.read(self._kernel, key) if key is not None else None
        if entry is None:
            return None
        try:
            return compiling.loaded(entry.entry, entry.cubin, types)
        except Exception:  # whatever the driver has against it: compiling tells, if it is ill
            return None

    def save_overload(self, types: target.Signature, made: Any) -> None:
        """Keep what was compiled."""
        key, entry = self._key(types), _entry(made)
        if key is not None and entry is not None:
            self._store.write(self._kernel, key, entry)

    def flush(self) -> None:
        """Entries are found by their key: none of them is ever wrong."""


def _entry(made: Any) -> Entry | None:
    """A compiled kernel's code; None of one that is more than its code."""
    library = made._codelibrary
    alone = not (library._linking_files or library._setup_functions or made.cooperative)
    code = next(iter(library._cubin_cache.values())).code
    return Entry(made.entry_name, bytes(code)) if alone else None


def use_store(environment: Mapping[str, str] = os.environ) -> KernelStore | None:
    """Let all CUDA kernels of this process be looked for, and kept, in the user's store."""
    store = KernelStore.of(environment)
    if store is not None and not target.SIMULATED:
        target.keep(lambda kernel: _Kept(store, kernel))
    return store


def fill_store(launches: Iterable[compiling.Launch]) -> None:
    """Compile for the current card what a start will launch and the store lacks."""
    store = KernelStore.of(os.environ)
    if store is not None and not target.SIMULATED and cuda.is_available():
        store.fill(launches, compiling.chip_here(), os.cpu_count() or 1)
