"""kvtape bench launches: a server started again and again under settings that take turns."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bench_figures import number
from .measure_client import NotMeasured
from .measure_compare import Beside, Replies, figures_beside, replies_beside
from .measure_launch_options import LaunchOptions
from .measure_memory import lowest_free, probes
from .measure_report import SCHEMA_VERSION
from .measure_server import Started, filled, free_port, started
from .show import DIFFERS, EQUAL

GIB = 1 << 30
Say = Callable[[str], None]


@dataclass(slots=True)
class Launch:
    """One life of the server. reports: the JSON of each run, with its title.

    fault: why it could not be measured to its end, "" where it could.
    """

    label: str
    ready_s: float = 0.0
    lowest: dict[str, int] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""


@dataclass(slots=True)
class Launched:
    """All launches, and what they say together."""

    options: LaunchOptions
    launches: list[Launch] = field(default_factory=list)

    @property
    def _reports(self) -> list[tuple[str, list[dict[str, Any]]]]:
        return [(launch.label, launch.reports) for launch in self.launches]

    @property
    def figures(self) -> list[Beside]:
        """Every figure by label."""
        return figures_beside(self._reports)

    @property
    def replies(self) -> Replies:
        """Whether the launches gave the same replies."""
        return replies_beside(self._reports)

    @property
    def lowest(self) -> dict[str, dict[str, int]]:
        """The lowest free bytes of a label's launches, by rank."""
        found: dict[str, dict[str, int]] = {}
        for launch in self.launches:
            ours = found.setdefault(launch.label, {})
            for rank, free in launch.lowest.items():
                ours[rank] = min(free, ours.get(rank, free))
        return found

    @property
    def faults(self) -> list[str]:
        """What the runs found, and what differs between launches."""
        found: list[str] = []
        for at, launch in enumerate(self.launches, 1):
            name = f"launch {at} ({launch.label})"
            found += [f"{name}: {launch.fault}"] if launch.fault else []
            found += [f"{name}, {one['title']}: {why}" for one in launch.reports
                      for why in one["faults"]]  # fmt: skip
        found += [f"launches differ: {name}" for name in self.replies.unequal]
        if self.options.require_overlap:
            found += [
                f"--require-overlap: {figure.name}: {label} lies apart"
                for figure in self.figures for label in list(figure.by_label)[1:]
                if not figure.overlaps(label)
            ]  # fmt: skip
        return found

    def compared(self, kind: str) -> tuple[int, int]:
        """Of the runs' `alone` or `serial` comparisons: how many were equal, and how many made."""
        told = [report.get(kind) for launch in self.launches for report in launch.reports]
        found = [one for one in told if isinstance(one, Mapping)]
        total = sum(one[name] for one in found for name in ("equal", "unequal", "failed"))
        return sum(one["equal"] for one in found), total

    @property
    def exit_code(self) -> int:
        """0, or 1 where something differs or was not met."""
        return DIFFERS if self.faults else EQUAL

    def as_json(self) -> dict[str, object]:
        """The launches for machines."""
        options = self.options
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": "launches",
            "qualified": not self.faults,
            "faults": self.faults,
            "command": list(options.command),
            "order": list(options.order),
            "settings": {label: dict(options.settings.get(label, {})) for label in options.labels},
            "flags": {label: list(options.flags.get(label, ())) for label in options.labels},
            "figures": [figure.as_json() for figure in self.figures],
            "replies": self.replies.as_json(),
            "lowest_free_bytes": self.lowest,
            "launches": [
                {"label": one.label, "ready_s": one.ready_s, "lowest_free_bytes": one.lowest,
                 "fault": one.fault, "reports": one.reports}
                for one in self.launches
            ],
        }  # fmt: skip


def measure_launches(options: LaunchOptions, say: Say) -> Launched:
    """Every launch in its order, and in each every run.

    Raises NotMeasured where the first launch fails; what fails later is its launch's fault.
    """
    launched = Launched(options)
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(options.logs or spare)
        folder.mkdir(parents=True, exist_ok=True)
        for at, label in enumerate(options.order, 1):
            launch = Launch(label)
            launched.launches.append(launch)
            try:
                _launch(options, launch, at, folder, say)
            except NotMeasured as error:
                if at == 1:
                    raise
                launch.fault = str(error)
                say(f"launch {at} ({label}): {error}")
    return launched


def _launch(options: LaunchOptions, launch: Launch, at: int, folder: Path, say: Say) -> None:
    """One life of the server."""
    port, label = free_port(), launch.label
    name = f"launch {at}/{len(options.order)} ({label})"
    command = filled(
        [*options.command, *options.flags.get(label, ())],
        {"port": str(port), "label": label, "launch": str(at)},
    )
    url = options.url or f"http://127.0.0.1:{port}"
    log = folder / f"launch-{at}-{label}.log"
    settings, titles = options.settings.get(label, {}), titles_of(options.runs)
    with (
        lowest_free(probes(options.memory)) as launch.lowest,
        started(command, settings, url, log, options.ready_seconds) as server,
    ):
        launch.ready_s = server.ready_s
        say(f"{name}: serves after {server.ready_s:.1f} s")
        for run in options.runs:
            launch.reports.append(_run(run, titles[run], server))
    free = ", ".join(f"{rank} {number(least / GIB)}" for rank, least in launch.lowest.items())
    say(f"{name}: lowest free memory in GiB: {free or 'unknown'}")


def _run(run: str, title: str, server: Started) -> dict[str, Any]:
    """One tool on one server, as a process of its own: nothing of one run is left in the next."""
    command = [sys.executable, "-m", "kvtape", "bench", *shlex.split(run), "--url", server.url]
    done = subprocess.run(
        [*command, "--json"], stdout=subprocess.PIPE, text=True, check=False, env=os.environ
    )
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise NotMeasured(f"bench {run} ended with {done.returncode} and no report") from None
    if "faults" not in told:
        raise NotMeasured(f"bench {run}: {told.get('why', 'no report')}")
    return {"title": title, **told}


def titles_of(runs: Sequence[str]) -> dict[str, str]:
    """What each run is called: its tool, and its options too where a tool runs twice."""
    tools = [run.split()[0] for run in runs]
    return {
        run: tool if tools.count(tool) == 1 else run for run, tool in zip(runs, tools, strict=True)
    }
