"""What bench launches is asked: an order of labels, their settings and flags, and what to run."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LABEL = re.compile(r"[A-Za-z0-9_.-]+")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOOLS = ("openai", "cache", "concurrent")
SET_BY_US = ("--url", "--json")


class BadLaunch(Exception):
    """A setting, a run or an order that says nothing."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """runs: what is measured in each launch, as `kvtape bench` takes it: "cache --require-cold".

    settings: environment by label. flags: arguments by label. memory: commands by rank. url: ""
    for a free port. logs: a folder, "" for none.
    """

    command: Sequence[str]
    order: Sequence[str]
    runs: Sequence[str]
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    memory: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    ready_seconds: float = 600.0
    logs: str = ""
    require_overlap: bool = False

    @property
    def labels(self) -> list[str]:
        """Each label once, the first launched first."""
        return list(dict.fromkeys(self.order))


def read_order(order: str) -> list[str]:
    """off,on,on,off: a label for each launch."""
    labels = [label.strip() for label in order.split(",")]
    if not all(map(LABEL.fullmatch, labels)):
        raise BadLaunch(f"--order {order!r}: labels with commas, such as off,on,on,off")
    return labels


def read_settings(told: Iterable[str], labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """LABEL:NAME=VALUE, each a setting of a label."""
    found: dict[str, dict[str, str]] = {}
    for one in told:
        label, rest = _labelled("--set", one, labels)
        name, sign, value = rest.partition("=")
        if not sign or not NAME.fullmatch(name):
            raise BadLaunch(f"--set {one!r}: LABEL:NAME=VALUE, such as on:TF_KV_PAGES=on")
        found.setdefault(label, {})[name] = value
    return found


def read_flags(told: Iterable[str], labels: Sequence[str]) -> dict[str, list[str]]:
    """LABEL:ARGUMENTS, added to the command of a label's launches."""
    found: dict[str, list[str]] = {}
    for one in told:
        label, rest = _labelled("--flags", one, labels)
        found.setdefault(label, []).extend(_words("--flags", rest))
    return found


def read_memory(told: Iterable[str]) -> dict[str, str]:
    """RANK:COMMAND, each a rank on another host."""
    found: dict[str, str] = {}
    for one in told:
        rank, sign, command = one.partition(":")
        if not sign or not rank.isdigit() or not _words("--memory", command):
            raise BadLaunch(
                f"--memory {one!r}: RANK:COMMAND, such as 1:ssh other cat /proc/meminfo"
            )
        found[rank] = command
    return found


def read_runs(runs: Iterable[str]) -> list[str]:
    """What is measured: each a tool's name with its options."""
    found = list(runs)
    for run in found:
        words = _words("--run", run)
        if not words or words[0] not in TOOLS:
            raise BadLaunch(f"--run {run!r}: begins with {', '.join(TOOLS)}")
        if taken := [word for word in words if word.split("=")[0] in SET_BY_US]:
            raise BadLaunch(f"--run {run!r}: {taken[0].split('=')[0]} is set by bench launches")
    if len(set(found)) < len(found):
        raise BadLaunch("--run: the same one twice")
    return found


def _labelled(option: str, told: str, labels: Sequence[str]) -> tuple[str, str]:
    label, sign, rest = told.partition(":")
    if not sign or label not in labels:
        raise BadLaunch(f"{option} {told!r}: begins with a label of --order: {', '.join(labels)}")
    return label, rest


def _words(option: str, told: str) -> list[str]:
    try:
        return shlex.split(told)
    except ValueError as error:
        raise BadLaunch(f"{option} {told!r}: {error}") from None
