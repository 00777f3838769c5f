"""Launches for people: figures by label, whether ranges overlap, replies, and free memory."""

from rich.markup import escape
from rich.table import Table

from .bench_figures import number
from .measure_compare import Beside, Replies, Sample
from .measure_launches import GIB, Launched
from .measure_report import say_verdict
from .show import CONSOLE, say_json


def tell_launches(launched: Launched, *, as_json: bool) -> int:
    """Print them; returns the exit code."""
    if as_json:
        say_json(launched.as_json())
        return launched.exit_code
    labels = launched.options.labels
    table = Table("", *labels, "unit", "difference", "ranges", title="launches")
    for figure in launched.figures:
        table.add_row(*(escape(cell) for cell in cells(figure, labels)))
    CONSOLE.print(table)
    for line in [*memory_lines(launched), *compared_lines(launched)]:
        CONSOLE.print(f"  {line}", markup=False, soft_wrap=True)
    say_verdict([], launched.faults)
    return launched.exit_code


def cells(figure: Beside, labels: list[str]) -> list[str]:
    """One figure: a sample for each label, then how the others stand to the first."""
    samples = [
        sample_text(figure.by_label[one]) if one in figure.by_label else "" for one in labels
    ]
    others = list(figure.by_label)[1:]
    apart = [difference_text(figure, label) for label in others]
    ranges = ["overlap" if figure.overlaps(label) else "apart" for label in others]
    return [figure.name, *samples, figure.unit, ", ".join(apart), ", ".join(ranges)]


def sample_text(sample: Sample) -> str:
    """Mean, standard error, and the range."""
    error = "" if sample.error is None else f" ± {number(sample.error)}"
    low, high = number(min(sample.values)), number(max(sample.values))
    return f"{number(sample.mean)}{error} ({low} to {high})"


def difference_text(figure: Beside, label: str) -> str:
    """A label against the first one, in percent."""
    percent, error = figure.difference(label)
    return f"{percent:+.2f} %" + ("" if error is None else f" ± {error:.2f}")


def memory_lines(launched: Launched) -> list[str]:
    """The lowest free memory of each label, by rank."""
    return [
        f"lowest free memory, {label}: "
        + (", ".join(f"{rank} {free / GIB:.2f} GiB" for rank, free in ranks.items()) or "unknown")
        for label, ranks in launched.lowest.items()
    ]


def compared_lines(launched: Launched) -> list[str]:
    """What was equal: between launches, alone, undrafted."""
    found = [replies_text(launched.replies)]
    for kind, what in (("alone", "alone"), ("serial", 'to "draft": false')):
        equal, total = launched.compared(kind)
        if total:
            found.append(f"{equal} of {total} equal {what}")
    return found


def replies_text(replies: Replies) -> str:
    """Whether the same requests had the same replies."""
    if not replies.total:
        return "no replies to compare between launches"
    same = f"{len(replies.unequal)} requests DIFFER between" if replies.unequal else "the same in"
    return (
        f"{replies.total} replies, {replies.resumed} resumed: {same} all launches (by {replies.by})"
    )
