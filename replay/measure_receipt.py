"""A contribution's receipt, written from launches: what was measured, and what was not."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .measure_compare import Beside
from .measure_launches import Launched
from .measure_launches_show import (
    compared_lines,
    difference_text,
    memory_lines,
    sample_text,
)

PLACE = re.compile(r"(?<![\w./])~?(?:/(?!/)[^\s/=,:]+)*/(?!/)([^\s/=,:]*)")
LEFT_TO_SIGN = (
    "Every token goes through the rounds: no serial path, nothing that needs drafts off.",
    "No precision is traded for speed; if bits change, it is said which sums change, and why.",
    "New tests fail before the change and pass after it.",
    "Comments say why; no measurement and no history in the source.",
    "No personal data, machine names, internal hosts or local paths.",
)


class BadTests(Exception):
    """A report of tests that cannot be read."""


@dataclass(frozen=True, slots=True)
class RanTests:
    """How many tests ran and how they ended."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        return f"{self.passed:,} passed, {self.failed:,} failed, {self.skipped:,} skipped"


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every kernel beside its meaning: a summary, and whether all are equal."""

    summary: str
    equal: bool


@dataclass(slots=True)
class Receipt:
    """Sections by title, each a list of lines; the titles are the same in every receipt."""

    environment: list[str]
    exactness: list[str]
    decode: list[str]
    prompt: list[str]
    memory: list[str]
    tests: list[str]
    not_run: list[str]
    checklist: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The file's text."""
        sections = {
            "Environment": self.environment,
            "Exactness": self.exactness,
            "Decode speed before and after": self.decode,
            "Prompt speed before and after": self.prompt,
            "Memory": self.memory,
            "Tests run": self.tests,
            "Not run, and why": self.not_run,
            "Checklist": self.checklist,
        }
        told = [
            f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines or ["nothing"])
            for title, lines in sections.items()
        ]
        return "# Receipt\n\n" + "\n\n".join(told) + "\n"


def receipt(
    launched: Launched,
    machine: Mapping[str, str],
    *,
    tests: RanTests | None,
    kernels: Kernels | None,
    not_run: Sequence[str],
) -> Receipt:
    """What launches say of a change: the first label was before it, the others come after.

    tests, kernels: None where they were not run.
    """
    decode = [speed_line(one, launched) for one in _figures(launched, "openai", "decode")]
    cold = _figures(launched, "cache", "first: first token")
    prompt = [speed_line(one, launched) for one in cold]
    found = Receipt(
        environment=_environment(launched, machine),
        exactness=[*compared_lines(launched), *launched.faults],
        decode=decode,
        prompt=prompt,
        memory=memory_lines(launched),
        tests=[str(tests)] if tests else [],
        not_run=list(not_run),
    )
    found.tests += [f"kernels: {kernels.summary}"] if kernels else []
    for had, what in (
        (decode, "decode speed: no run of openai"),
        (prompt, "prompt speed: no run of cache"),
        (launched.compared("alone")[1], "concurrent against alone: no run of concurrent --alone"),
        (launched.compared("serial")[1], "drafted against not: no run of concurrent --serial"),
        (tests, "tests: no report was given (--tests)"),
        (kernels, "kernels against their meanings: not asked for (--kernels)"),
    ):
        found.not_run += [] if had else [what]
    found.checklist = _checklist(launched, cold, tests, kernels)
    return found


def _environment(launched: Launched, machine: Mapping[str, str]) -> list[str]:
    options = launched.options
    servers = [report["server"] for one in launched.launches for report in one.reports]
    models = {f"{one['model']} {one['model_digest']}".strip() for one in servers}
    lines = [f"{name}: {value}" for name, value in machine.items()]
    lines.append(f"model: {', '.join(sorted(map(without_places, models))) or 'not told'}")
    lines.append(f"server: `{without_places(' '.join(options.command))}`")
    lines.append(f"launched: {', '.join(options.order)}")
    for label in options.labels:
        settings = [f"{name}={value}" for name, value in options.settings.get(label, {}).items()]
        told = " ".join([*settings, *options.flags.get(label, ())])
        lines.append(f"{label}: {f'`{without_places(told)}`' if told else 'as it comes'}")
    return lines + [f"measured: `{without_places(run)}`" for run in options.runs]


def _figures(launched: Launched, tool: str, ending: str) -> list[Beside]:
    return [
        figure
        for figure in launched.figures
        if figure.name.startswith(tool) and figure.name.endswith(ending)
    ]


def speed_line(figure: Beside, launched: Launched) -> str:
    """One figure in words: each label's mean and range, and how they differ."""
    samples = [
        f"{label} {sample_text(figure.by_label[label])}"
        for label in launched.options.labels
        if label in figure.by_label
    ]
    others = [
        f"{label} {difference_text(figure, label)}, the ranges "
        f"{'overlap' if figure.overlaps(label) else 'lie apart'}"
        for label in list(figure.by_label)[1:]
    ]
    return f"{without_places(figure.name)}, in {figure.unit}: {'; '.join([*samples, *others])}"


def _checklist(
    launched: Launched, cold: Sequence[Beside], tests: RanTests | None, kernels: Kernels | None
) -> list[str]:
    """What the launches themselves show is marked; the rest is for a person to sign."""
    (alone, asked_alone), (serial, asked_serial) = map(launched.compared, ("alone", "serial"))
    replies = launched.replies
    no_slower = all(
        one.overlaps(label) or one.difference(label)[0] <= 0
        for one in cold
        for label in list(one.by_label)[1:]
    )
    shown = {
        f'Drafted output equals "draft": false: {serial} of {asked_serial}.': (
            0 < serial == asked_serial
        ),
        f"Concurrent equals alone: {alone} of {asked_alone}.": 0 < alone == asked_alone,
        f"A resumed prompt equals a fresh one: of {replies.total} replies {replies.resumed} were"
        f" resumed, {len(replies.unequal)} requests differ.": (
            0 < replies.resumed < replies.total and not launched.faults
        ),
        "Kernels are registered and equal their meanings: "
        f"{kernels.summary if kernels else 'not run'}.": kernels is not None and kernels.equal,
        f"Tests: {tests or 'not run'}.": tests is not None and not tests.failed,
        "Prompt processing is no slower: the first request's first token, above.": (
            bool(cold) and no_slower
        ),
        "Which machines ran it stands under Environment, what did not run under Not run.": True,
    }
    told = [f"[{'x' if holds else ' '}] {what}" for what, holds in shown.items()]
    return told + [f"[ ] {what}" for what in LEFT_TO_SIGN]


def without_places(text: str) -> str:
    """The text with each absolute path cut to its last part: whose folder it was is nobody's."""
    return PLACE.sub(r"\1", text)


def read_tests(path: Path) -> RanTests:
    """A JUnit report, as `pytest --junitxml` writes it."""
    try:
        suites = list(ElementTree.parse(path).iter("testsuite"))
    except (OSError, ElementTree.ParseError) as error:
        raise BadTests(f"{path}: {error}") from None

    def total(name: str) -> int:
        return sum(int(suite.get(name) or 0) for suite in suites)

    failed = total("failures") + total("errors")
    return RanTests(total("tests") - failed - total("skipped"), failed, total("skipped"))
