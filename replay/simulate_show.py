"""What people and scripts see of a simulated run: figures, reuse by depth, pages over time."""

from collections.abc import Sequence

from rich.table import Table

from .show import CONSOLE, counted
from .simulate import SimulateOptions
from .simulate_count import Counts, Sample

WIDTH, HEIGHT = 72, 8  # of the plot, in characters
LEASED, KEPT = "█", "░"


def as_json(counts: Counts, options: SimulateOptions) -> dict[str, object]:
    """The run for machines; seconds and rates are of this machine, all else repeats."""
    waits = sorted(counts.waits_us)
    found: dict[str, object] = {
        "policy": options.policy,
        "pages": options.pages,
        "live": options.live,
        "requests": len(counts.asked),
        "refused": counts.refused,
        "references": counts.references,
        "hits": counts.hits,
        "hit_percent": percent(counts.hits, counts.references),
        "by_depth": {
            str(2**depth): {"references": asked, "hits": found}
            for depth, (asked, found) in sorted(counts.depths.items())
        },
        "dropped": dict(sorted(counts.dropped.items())),
        "waited_us": {"median": at(waits, 50), "p95": at(waits, 95), "most": at(waits, 100)},
        "ended_us": counts.device.now_us,
        "steps": counts.steps,
        "events": counts.events,
        "operations": counts.operations,
        "seconds": round(counts.seconds, 3),
        "operations_a_second": round(counts.operations / max(counts.seconds, 1e-9)),
        "pages_over_time": [[one.at_us, one.leased, one.kept] for one in counts.samples],
    }
    if counts.lru is not None:
        found["lru"] = {
            "hits": counts.lru.hits,
            "hit_percent": percent(counts.lru.hits, counts.references),
            "short": counts.lru.short,
        }
    return found


def show(counts: Counts, options: SimulateOptions) -> None:
    """Print the run."""
    share = percent(counts.hits, counts.references)
    say(f"{counted(len(counts.asked), 'request')}, {options.pages} pages, order {options.policy}")
    say(f"hits      {counts.hits} of {counts.references} pages, {share:.2f} %")
    if counts.lru is not None:
        other = percent(counts.lru.hits, counts.references)
        say(f"plain LRU {counts.lru.hits}, {other:.2f} %; {counts.lru.short} pages short")
    dropped = ", ".join(f"{count} {why}" for why, count in sorted(counts.dropped.items()))
    say(f"dropped   {dropped or 'nothing'}")
    waits = sorted(counts.waits_us)
    told = ", ".join(f"{name} {at(waits, part) / 1e6:.1f} s" for name, part in PARTS)
    say(f"queued    {told}; {counts.refused} refused")
    rate = counts.operations / max(counts.seconds, 1e-9)
    say(f"took      {counts.seconds:.1f} s, {rate:.0f} page operations a second, in ")
    say(f"          {counted(counts.steps, 'step')} and {counted(counts.events, 'event')}")
    CONSOLE.print(_depths(counts))
    for line in plot(counts.samples, options.pages):
        say(line)


PARTS = (("median", 50), ("p95", 95), ("most", 100))


def say(line: str) -> None:
    """A line as it is."""
    CONSOLE.print(line, markup=False, soft_wrap=True)


def _depths(counts: Counts) -> Table:
    table = Table("pages of a prompt", "asked for", "found", "share", box=None)
    for depth, (asked, found) in sorted(counts.depths.items()):
        first = 2**depth
        share = f"{percent(found, asked):.1f} %"
        table.add_row(f"{first} to {2 * first - 1}", str(asked), str(found), share)
    return table


def plot(samples: Sequence[Sample], pages: int) -> list[str]:
    """Pages over time as lines of text: those that streams hold, and kept ones above them."""
    if not samples:
        return []
    last = max(samples[-1].at_us, 1)
    columns: list[Sample] = []
    for column in range(WIDTH):
        until = last * (column + 1) // WIDTH
        columns.append([one for one in samples if one.at_us <= until or one is samples[0]][-1])
    lines = []
    for line in range(HEIGHT, 0, -1):
        floor = pages * (2 * line - 1) // (2 * HEIGHT)
        cells = (
            LEASED if one.leased > floor else KEPT if one.leased + one.kept > floor else " "
            for one in columns
        )  # fmt: skip
        lines.append(f"{pages * line // HEIGHT:>9} {''.join(cells)}".rstrip())
    lines.append(f"{'':>9} pages by streams {LEASED}, kept {KEPT}, over {last / 1e6:.0f} s")
    return lines


def percent(part: int, whole: int) -> float:
    """A share in percent, 0 of nothing."""
    return round(100 * part / whole, 3) if whole else 0.0


def at(ordered: Sequence[int], part: int) -> int:
    """The value below which so many percent lie."""
    return ordered[min(len(ordered) - 1, len(ordered) * part // 100)] if ordered else 0
