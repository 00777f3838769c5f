"""kvtape doctor: what this machine can run, what is missing, and how to get it."""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import (
    PackageNotFoundError,
    metadata,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..devices.weights.checkpoint import ModelNotFound
from ..devices.weights.find import CARRIED, find_path
from .faults import FAULTS
from .progress import bar

if TYPE_CHECKING:  # a kernel is compiled no sooner than it is asked for
    from ..core.kernels.registry import Verdict

OK, MISSING, NOTE = "ok", "missing", "note"
COLOURS = {OK: "green", MISSING: "red", NOTE: "yellow"}
GIB = 1 << 30
CASES = 8  # random cases a kernel is held to its meaning on

# What each optional package is for, and how to get it.
OPTIONAL = {
    "openai": ("the client that kvtape demo speaks through", "pip install openai"),
    "httpx": ("bench openai, cache, concurrent and launches", "pip install 'kvtape[client]'"),
    "xllamacpp": ("a peer of kvtape bench", "pip install xllamacpp"),
    "transformers": ("a peer of kvtape bench", "pip install transformers torch"),
    "cupy": ("--device cuda: memory and graphs", "pip install 'kvtape[cuda]'"),
    "numba_cuda": ("--device cuda: kernels", "pip install 'kvtape[cuda]'"),
    "mpi4py": ("ranks on many hosts; nothing here uses it yet", "pip install mpi4py"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """status: ok, missing (and needed), or note; how: what to do about it, "" when nothing."""

    about: str
    status: str
    found: str
    how: str = ""


def run_doctor(kernels: bool, faults: bool, as_json: bool) -> int:
    """Print what was found. 0, or 1 when something needed is missing or a kernel parts.

    faults: which faults are caught, and nothing about this machine.
    """
    findings = [] if faults else examine(os.environ)
    told: dict[str, Any] = {} if faults else {"findings": [asdict(one) for one in findings]}
    failed = any(finding.status == MISSING for finding in findings)
    if faults:
        told["faults"] = [asdict(kind) for kind in FAULTS]
    if kernels:
        told["kernels"], apart = check_kernels()
        told["gpu kernels"], apart_there = check_gpu_kernels()
        failed = failed or apart or apart_there
    if as_json:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return int(failed)
    console = Console()
    console.print(faults_table() if faults else findings_table(findings))
    for where in ("kernels", "gpu kernels") if kernels else ():
        for verdict in told[where]["kernels"]:
            if verdict["first"]:
                console.print(f"{verdict['kernel']}: {verdict['first']}", markup=False)
        console.print(told[where]["summary"], markup=False, highlight=False)
    return int(failed)


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """Everything there is to say of this machine."""
    return [
        *needed(),
        processor(),
        memory(),
        kernel_cache(environment),
        *models(),
        *optional(),
        *gpus(),
    ]


def needed() -> Iterator[Finding]:
    """Python and every package that kvtape asks for, with the limits of its metadata."""
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        limits, asked = metadata("kvtape")["Requires-Python"], requires("kvtape") or []
    except PackageNotFoundError:
        how = "pip install -e . in kvtape's folder"
        yield Finding("kvtape", MISSING, "runs from a folder, not installed", how)
        return
    yield bounded("python", python, limits, f"install Python {limits}")
    for line in asked:
        asks, _, condition = line.partition(";")
        if "extra" in condition:
            continue
        name = re.split(r"[^\w.-]", asks, maxsplit=1)[0]
        limits, how = asks.removeprefix(name).strip(), f"pip install '{asks.strip()}'"
        try:
            yield bounded(name, version(name), limits, how)
        except PackageNotFoundError:
            yield Finding(name, MISSING, "not installed", how)


def bounded(name: str, have: str, limits: str, how: str) -> Finding:
    """A version beside its limits."""
    if within(have, limits):
        return Finding(name, OK, have)
    return Finding(name, MISSING, f"{have}, outside {limits}", how)


def within(have: str, limits: str) -> bool:
    """Whether a version lies within limits such as `>=1.26,<2.5`; only these two are used."""
    mine = numbers(have)
    bounds = re.findall(r"(>=|<)\s*([\d.]+)", limits)
    return all((mine >= numbers(to)) == (sign == ">=") for sign, to in bounds)


def numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.5.0rc1 is (2, 5), as 2.5 is."""
    found = re.match(r"\d+(\.\d+)*", text)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def processor() -> Finding:
    """Cores that this process may use and the route that its integer sums take."""
    from ..core.kernels.madd import ROUTE

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("processor", OK, f"{cores} cores, {ROUTE} sums (every route gives equal bits)")


def memory() -> Finding:
    """Memory of the machine, or of the group that this process is confined to."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    if text.isdigit():
        have = min(have, int(text))
    return Finding("memory", OK, f"{have / GIB:.1f} GiB")


def kernel_cache(environment: Mapping[str, str]) -> Finding:
    """Where compiled kernels are kept, and whether they are there."""
    from ..devices.kernel_cache import cache_folder, done_mark

    folder = cache_folder(environment)
    if done_mark(folder).exists():
        return Finding("kernels", OK, f"compiled, in {folder}")
    how = "kvtape doctor --kernels compiles them; so does the first kvtape serve"
    return Finding("kernels", NOTE, f"not compiled yet; they go to {folder}", how)


def models() -> Iterator[Finding]:
    """Models that are known by name."""
    for name, (_, how) in CARRIED.items():
        try:
            path = find_path(name)
        except ModelNotFound:
            yield Finding(f"model {name}", NOTE, "not installed", how)
        else:
            yield Finding(f"model {name}", OK, f"{path} ({path.stat().st_size / 1e6:.0f} MB)")


def gpus() -> Iterator[Finding]:
    """GPUs that ranks may run on, each with its memory and its driver."""
    from ..devices.cuda.card import NoCard, cards

    try:
        for info in cards():
            memory = f"{info.free / GIB:.1f} of {info.total / GIB:.1f} GiB free"
            yield Finding("gpu", OK, f"{info.name}, {memory}, {info.driver}{driver()}")
    except NoCard as error:
        yield Finding("gpu", NOTE, f"none is used: {error}", "serve --device cpu needs none")


def driver() -> str:
    """The kernel driver's version, where the system tells it."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\b\d{3}(\.\d+)+\b", path.read_text() if path.exists() else "")
    return f", driver {found[0]}" if found else ""


def optional() -> Iterator[Finding]:
    """Packages that only some commands use."""
    for name, (purpose, how) in OPTIONAL.items():
        if importlib.util.find_spec(name):
            yield Finding(name, OK, f"{release(name)}for {purpose}")
        else:
            yield Finding(name, NOTE, f"not installed; for {purpose}", how)


def release(name: str) -> str:
    """The version of an importable package, and a comma; "" where it does not say it."""
    for distribution in packages_distributions().get(name, ()):
        return f"{version(distribution)}, "
    return ""


def check_kernels() -> tuple[dict[str, Any], bool]:
    """Every kernel against its meaning on random cases, and whether one parts from it."""
    import numpy as np

    from ..core.kernels import registry
    from ..devices.kernel_cache import use_cache, warm

    warm(use_cache(), lambda line: Console(stderr=True).print(line, highlight=False))
    rng = np.random.default_rng(0)
    kernels = registry.kernels()
    made = (registry.check(kernel, rng, CASES) for kernel in kernels)
    verdicts = watched("kernels", len(kernels), made)
    told = {
        "summary": registry.summary(verdicts),
        "kernels": [asdict(verdict) for verdict in verdicts],
    }
    return told, any(verdict.first for verdict in verdicts)


def check_gpu_kernels() -> tuple[dict[str, Any], bool]:
    """As check_kernels, of the CUDA kernels; where they cannot run, that is said."""
    from ..core.kernels import registry
    from ..devices.cuda.card import NoCard, open_card

    try:
        open_card(0)
        from ..devices.cuda.checking import check_card, verdicts_of_card

        verdicts = watched("kernels on the GPU", verdicts_of_card(), check_card(CASES))
    except NoCard as error:
        return {"summary": f"no CUDA kernel was run: {error}", "kernels": []}, False
    told = {
        "summary": "on the GPU: " + registry.summary(verdicts),
        "kernels": [asdict(verdict) for verdict in verdicts],
    }
    return told, any(verdict.first for verdict in verdicts)


def watched(what: str, total: int, made: Iterable["Verdict"]) -> list["Verdict"]:
    """All verdicts, made one by one; how far that is, is shown."""
    found: list[Verdict] = []
    with bar(what, total, quiet=False) as tick:
        for one in made:
            found.append(one)
            tick(len(found))
    return found


def findings_table(findings: list[Finding]) -> Table:
    """Findings for people."""
    table = Table("", "status", "found", "how to get it")
    for finding in findings:
        colour = COLOURS[finding.status]
        status = Text(finding.status, colour)
        # Text, not markup: paths and requirements have square brackets of their own.
        found, how = Text(finding.found, overflow="fold"), Text(finding.how, overflow="fold")
        table.add_row(finding.about, status, found, how)
    return table


def faults_table() -> Table:
    """Faults for people."""
    table = Table("fault", "while serving", "from its tape", show_lines=True)
    for kind in FAULTS:
        table.add_row(kind.fault, kind.live or Text("not seen", "yellow"), kind.later)
    return table
