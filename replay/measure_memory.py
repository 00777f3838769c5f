"""The lowest free memory while something runs, by rank: of this machine, its GPUs, other hosts."""

import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
SECONDS_BETWEEN = 0.25
COMMAND_SECONDS_MAX = 10.0
MIB = 1 << 20
AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)
GPU_FREE = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")

Probe = Callable[[], dict[str, int]]  # bytes free, by rank or device


def free_here() -> dict[str, int]:
    """What this machine could still give, swapping nothing; its ranks share it."""
    try:
        found = AVAILABLE.search(MEMINFO.read_text())
    except OSError:
        return {}
    return {"host": int(found[1]) * 1024} if found else {}


def free_on_gpus() -> dict[str, int]:
    """What the GPUs of this machine could still give, one a rank where ranks have their own."""
    lines = _said_by(GPU_FREE).split()
    return {f"gpu {at}": int(line) * MIB for at, line in enumerate(lines) if line.isdigit()}


def free_by(rank: str, command: str) -> Probe:
    """A rank elsewhere: a command that prints its /proc/meminfo, or a number of bytes."""

    def probe() -> dict[str, int]:
        said = _said_by(shlex.split(command))
        if found := AVAILABLE.search(said):
            return {f"rank {rank}": int(found[1]) * 1024}
        return {f"rank {rank}": int(said)} if said.strip().isdigit() else {}

    return probe


def _said_by(command: tuple[str, ...] | list[str]) -> str:
    """What a command prints, "" where it cannot say."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    return done.stdout


def probes(elsewhere: Mapping[str, str]) -> list[Probe]:
    """Everything that can be asked; elsewhere: commands by rank."""
    gpus = [free_on_gpus] if shutil.which(GPU_FREE[0]) else []
    return [free_here, *gpus, *(free_by(rank, command) for rank, command in elsewhere.items())]


@contextmanager
def lowest_free(asked: list[Probe], seconds: float = SECONDS_BETWEEN) -> Iterator[dict[str, int]]:
    """Bytes by rank; what is yielded falls while the body runs. Each probe has its own thread."""
    found: dict[str, int] = {}
    over = threading.Event()

    def look(probe: Probe) -> None:
        while True:
            last = over.is_set()
            for rank, free in probe().items():
                found[rank] = min(free, found.get(rank, free))
            if last:
                return
            over.wait(seconds)

    threads = [threading.Thread(target=look, args=(probe,), daemon=True) for probe in asked]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join(2 * COMMAND_SECONDS_MAX)
