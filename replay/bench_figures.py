"""What a benchmark found: figures with their spread, their bars, and how sure a ratio is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach (at_least), or stay below."""

    limit: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Whether a value is on the right side."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing: a value for each round, judged by their median.

    sure: the range that holds the true median with 95 %, None where rounds are too few.
    """

    name: str
    values: tuple[float, ...]
    unit: str = ""
    bar: Bar | None = None
    sure: tuple[float, float] | None = None

    @property
    def value(self) -> float:
        """The median over the rounds."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the bar holds; None where there is none."""
        return None if self.bar is None else self.bar.met(self.value)

    def as_json(self) -> dict[str, object]:
        """The figure for machines."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.value,
            "min": min(self.values),
            "max": max(self.values),
            "rounds": list(self.values),
            "sure": self.sure,
            "bar": None if self.bar is None else str(self.bar),
            "met": self.met,
        }


def ratio(
    name: str, ours: Sequence[float], theirs: Sequence[float], bar: Bar | None = None
) -> Figure:
    """Ours to theirs, pair by pair of one round each, so that a slow spell weighs on both."""
    pairs = tuple(mine / other for mine, other in zip(ours, theirs, strict=True))
    return Figure(name, pairs, "ratio", bar, sure_range(pairs))


def sure_range(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """A range that holds the median of whatever these values were drawn from.

    It stands between two of the sorted values: how many of n draws fall below a median is binomial,
    whatever the distribution. None where even the whole span is not sure enough.
    """
    count = len(values)
    ordered = sorted(values)
    doubt, cut = 0.0, -1  # the chance that the median lies below ordered[cut]
    while cut + 1 < count // 2:
        doubt += comb(count, cut + 1) / 2**count
        if 2 * doubt > 1 - confidence:
            break
        cut += 1
    return None if cut < 0 else (ordered[cut], ordered[count - 1 - cut])


def number(value: float) -> str:
    """Three digits that mean something: 12,345 or 0.0123."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
