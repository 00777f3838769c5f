"""Launches side by side: means, standard errors, whether ranges overlap, and equal replies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure under one label, a value a launch."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return fmean(self.values)

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for a single launch."""
        if len(self.values) < 2:
            return None
        return stdev(self.values) / sqrt(len(self.values))

    def overlaps(self, other: "Sample") -> bool:
        """Whether the two ranges, lowest to highest, have a value in common."""
        return max(min(self.values), min(other.values)) <= min(max(self.values), max(other.values))

    def as_json(self) -> dict[str, object]:
        """The sample for machines."""
        return {
            "mean": self.mean,
            "standard_error": self.error,
            "min": min(self.values),
            "max": max(self.values),
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class Beside:
    """One figure under every label, in the order in which they were first launched."""

    name: str
    unit: str
    by_label: Mapping[str, Sample]

    def difference(self, label: str) -> tuple[float, float | None]:
        """Percent from the first label to this one, and the standard error of that."""
        first, other = next(iter(self.by_label.values())), self.by_label[label]
        if not first.mean:
            return 0.0, None
        percent = 100 * (other.mean - first.mean) / first.mean
        if first.error is None or other.error is None:
            return percent, None
        return percent, 100 * hypot(first.error, other.error) / abs(first.mean)

    def overlaps(self, label: str) -> bool:
        """Whether this label's range overlaps the first one's."""
        return next(iter(self.by_label.values())).overlaps(self.by_label[label])

    def as_json(self) -> dict[str, object]:
        """The figure for machines."""
        against: dict[str, object] = {}
        for label in list(self.by_label)[1:]:
            percent, error = self.difference(label)
            against[label] = {
                "percent": percent,
                "standard_error": error,
                "ranges_overlap": self.overlaps(label),
            }
        by_label = {label: sample.as_json() for label, sample in self.by_label.items()}
        return {"name": self.name, "unit": self.unit, "by_label": by_label, "against": against}


def figures_beside(launches: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> list[Beside]:
    """Every figure of the reports of launches, by label: a launch's value is its median."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for label, reports in launches:
        for report in reports:
            for figure in report.get("figures", ()):
                name = (f"{report['title']}, {figure['name']}", str(figure["unit"]))
                found.setdefault(name, {}).setdefault(label, []).append(float(figure["median"]))
    return [
        Beside(name, unit, {label: Sample(tuple(values)) for label, values in by_label.items()})
        for (name, unit), by_label in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Replies:
    """The same requests in every launch. unequal: names; by: token ids or text."""

    total: int
    resumed: int
    unequal: tuple[str, ...]
    by: str

    def as_json(self) -> dict[str, object]:
        """The comparison for machines."""
        return {
            "replies": self.total,
            "resumed": self.resumed,
            "unequal": list(self.unequal),
            "compared": self.by,
        }


def replies_beside(launches: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> Replies:
    """Whether each request had one and the same reply wherever it was asked.

    Failed replies and those left to chance are not compared, nor counted.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for _, reports in launches:
        for report in reports:
            for told in report.get("replies", ()):
                if told["repeatable"] and not told["error"]:
                    by_name.setdefault(f"{report['title']}, {told['name']}", []).append(told)
    whole = [told for row in by_name.values() for told in row]
    hashed = all(told["token_sha"] for told in whole)
    kind = "token_sha" if hashed else "output_sha256"
    unequal = tuple(name for name, row in by_name.items() if len({told[kind] for told in row}) > 1)
    resumed = sum(bool(told["cached_tokens"]) for told in whole)
    return Replies(len(whole), resumed, unequal, "token ids" if hashed else "text")
