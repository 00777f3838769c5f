"""Run by `make gpu` on a machine with a GPU: everything about the CUDA device, into one report.

Each part is a process of its own: one that fails, hangs or dies takes no other along. Those that
time nothing run at once, beside each other; then the timed ones, each alone. To add a part, add a
line to PARTS. Arguments: the report's file, then the names of parts, or none for all.
A model for the parts that want a real one: SmolLM2 where it is installed, or KVTAPE_GPU_MODEL.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvtape.devices.cuda.card import NoCard, cards
from kvtape.devices.weights.checkpoint import ModelError
from kvtape.devices.weights.find import find_model

USAGE = "python -m kvtape.tests.gpu_suite REPORT [PART...]: a file to write, and parts by name"
ROOT = Path(__file__).parent.parent
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the report: what runs under this Python, for how long, and how much is shown.

    needs: a program without which the part is left out, which is said and is no failure.
    timed: it measures time, so nothing may run beside it.
    """

    name: str
    command: tuple[str, ...]
    limit_s: int = 300
    lines: int = 60
    needs: str = ""
    timed: bool = False


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """A script of the tests."""
    return ("-m", f"kvtape.tests.{name}", *arguments)


OF_OTHER_PARTS = ("bits_of_its_meaning", "that_share_it", "with_a_gpu_each", "at_real_sizes")
HERE = " and ".join(f"not {name}" for name in OF_OTHER_PARTS)
TESTS = ("-m", "pytest", "-q", "-m", "gpu", "--no-header", "-k", HERE)
PARTS = (
    Part("Contract", module("gpu_contract"), lines=12),
    Part("Tests", (*TESTS, *(str(one) for one in sorted(ROOT.glob("tests/test_cuda_*.py")))), 600),
    Part("Tapes of both devices", module("gpu_sessions", "both"), 600),
    Part("Ranks", module("cuda_ranks"), 600),
    Part("Sanitizer", module("cuda_sanitized"), 600, needs="compute-sanitizer"),
    Part("Start", module("gpu_start"), timed=True),
    Part("Decode", module("gpu_decode"), timed=True),
    Part("Kernels", module("cuda_bench"), timed=True),
    Part("Checked maps", module("cuda_bench_checked"), timed=True),
    Part("Mixers", module("cuda_bench_mixers"), lines=120, timed=True),
    Part("Real widths", module("cuda_real", "own", "engine", "peers"), 900, 250, timed=True),
    Part("Windows of a million rows", module("cuda_window"), 600, 120, timed=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a part went: its last lines, in the order in which it said them."""

    part: Part
    verdict: str
    seconds: float
    said: list[str]

    @property
    def failed(self) -> bool:
        """Whether the whole has failed with it."""
        return self.verdict not in ("ok", "left out")


def ran(part: Part) -> Outcome:
    """Run a part to its end, or to its limit."""
    if part.needs and shutil.which(part.needs) is None:
        return Outcome(part, "left out", 0.0, [f"{part.needs} is not on the path"])
    start = time.perf_counter()
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONFAULTHANDLER="1")
    running = subprocess.Popen(
        [sys.executable, *part.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", env=environment,
    )  # fmt: skip
    try:
        said, _ = running.communicate(timeout=part.limit_s)
        code = running.returncode
        verdict = "ok" if code == 0 else f"failed ({code})"
        if code == 0 and TRACEBACK in said:  # a script that goes on past its own failures
            verdict = "failed in part"
    except subprocess.TimeoutExpired:
        running.kill()
        said, _ = running.communicate()
        verdict = f"not done after {part.limit_s} s"
    return Outcome(part, verdict, time.perf_counter() - start, said.splitlines()[-part.lines :])


def heading() -> list[str]:
    """When, on what, of which commit."""
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return ["# The CUDA device, measured", "", f"{at}, commit {commit()}", "", *machine(), ""]


def commit() -> str:
    """The tree's commit, and whether it is just that."""
    try:
        said = subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
            capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
    except OSError:
        said = ""
    return said or os.environ.get("KVTAPE_COMMIT") or "unknown"


def model_fault() -> str:
    """Why KVTAPE_GPU_MODEL is none, said before minutes are spent; "" where it is a model."""
    named = os.environ.get("KVTAPE_GPU_MODEL")
    try:
        if named:
            find_model(named)
    except ModelError as error:
        return f"KVTAPE_GPU_MODEL: {error}"
    return ""


def machine() -> list[str]:
    """What doctor finds of the GPU and of what it needs, a line each."""
    from kvtape.replay.doctor import examine

    wanted = ("gpu", "numba", "numba_cuda", "cupy", "numpy", "python")
    found = [one for one in examine(os.environ) if one.about in wanted]
    return [f"- {one.about}: {one.found}" for one in found]


def report(head: list[str], outcomes: Iterable[Outcome]) -> str:
    """The file's text: the parts in a table, then what each said."""
    table = ["| part | | seconds |", "|---|---|---|"]
    sections: list[str] = []
    for one in outcomes:
        table.append(f"| {one.part.name} | {one.verdict} | {one.seconds:.0f} |")
        sections += ["", f"## {one.part.name}", "", "```", *one.said, "```"]
    return "\n".join([*head, *table, *sections]) + "\n"


def main(path: Path, names: list[str], parts: tuple[Part, ...] = PARTS) -> int:
    """1 if any part failed. The report is written anew after each part."""
    wanted = [one for one in parts if not names or one.name in names]
    head, outcomes = heading(), dict[str, Outcome]()

    def told(done: Outcome) -> None:
        outcomes[done.part.name] = done
        print(f"{done.part.name}: {done.verdict}, {done.seconds:.0f} s", flush=True)  # noqa: T201
        path.write_text(
            report(head, [outcomes[one.name] for one in wanted if one.name in outcomes])
        )

    beside = [one for one in wanted if not one.timed]
    with ThreadPoolExecutor(len(beside) or 1) as pool:
        for future in as_completed([pool.submit(ran, one) for one in beside]):
            told(future.result())
    for one in wanted:
        if one.timed:
            told(ran(one))
    return int(any(one.failed for one in outcomes.values()))


def cli(arguments: list[str], parts: tuple[Part, ...] = PARTS) -> int:
    """As main; before any part begins 2 of wrong use, 3 where there is no GPU."""
    try:
        path, names = asked(arguments, {part.name for part in parts})
        cards()
    except (ValueError, NoCard) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        return getattr(error, "exit_code", 2)
    return main(path, names, parts)


def asked(arguments: list[str], parts: set[str]) -> tuple[Path, list[str]]:
    """The report's file and the parts that are wanted. Raises ValueError, which says what is."""
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(USAGE)
    path, names = Path(arguments[0]), arguments[1:]
    if unknown := sorted(set(names) - parts):
        raise ValueError(f"no part is named {', '.join(unknown)}: {', '.join(sorted(parts))} are")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"{path} is no file that a report can be written to")
    if fault := model_fault():
        raise ValueError(fault)
    return path, names


if __name__ == "__main__":
    sys.exit(cli(sys.argv[1:]))
