"""A plan as people and scripts see it: who gets what of the room, and what would fit."""

from dataclasses import asdict, replace

from rich.table import Table
from rich.text import Text

from ..core.plan import Plan, PlanRefused, kept_states, plan
from ..core.plan_fits import Fits, what_fits
from ..core.plan_notes import notes
from ..core.plan_wanted import Wanted
from ..core.plan_words import size
from .plan_start import Asked
from .show import CONSOLE, counted

MOST_LANES = 1024  # streams at once that --parallel takes


def heading(asked: Asked, found: Plan) -> str:
    """What is served in how much room, in one line, as a start says it."""
    wanted, rows = asked.wanted, found.rows
    held = (
        f"{found.pages:,} pages = {rows:,} tokens that all streams share"
        if wanted.paged
        else f"{wanted.lanes} windows = {rows:,} tokens, each stream its own"
    )
    return (
        f"{asked.shape.name} on {counted(asked.world, 'rank')}: {wanted.lanes} streams at once,"
        f" windows of {wanted.context:,}, {held}"
    )


def show_plan(asked: Asked, found: Plan) -> None:
    """The plan as a table whose bytes add up to the room, and what it does not keep."""
    CONSOLE.print(heading(asked, found), markup=False, soft_wrap=True)
    table = Table("each rank", "what", "bytes")
    table.columns[2].justify = "right"
    for label, what, held in _memory_rows(asked) + _room_rows(asked, found):
        table.add_row(label, Text(what, overflow="fold"), size(held))
    CONSOLE.print(table)
    CONSOLE.print(_kept(asked, found), markup=False, soft_wrap=True)
    for line in _said(asked, found):
        CONSOLE.print(f"note: {line}", markup=False, soft_wrap=True)


def _kept(asked: Asked, found: Plan) -> str:
    """Where prompts are kept, and how many."""
    wanted, each = asked.wanted, asked.wanted.sizes.snapshot_bytes
    if not wanted.lends:
        return f"prompts are kept as copies, in {size(found.cache_bytes)}"
    count = kept_states(wanted, found)
    if not count:
        return "no prompts are kept"
    most = f"at most {count} prompt{' is' if count == 1 else 's are'} kept on those pages"
    return f"{most}, {size(each)} each beside them" if each else most


def _said(asked: Asked, found: Plan) -> list[str]:
    return [*notes(asked.wanted, found), *([asked.warning] if asked.warning else [])]


def _memory_rows(asked: Asked) -> list[tuple[str, str, int]]:
    memory = asked.memory
    if not memory.total:
        return []
    return [
        ("memory", "a rank's part of this machine" if memory.here else "of a device", memory.total),
        ("weights", "16-bit rows, constants, the embedding", memory.weights - asked.checks),
        *([("checksums", "of the weights' products", asked.checks)] if asked.checks else []),
        *([("buffers", "what steps are computed in", memory.buffers)] if memory.buffers else []),
        ("reserve", "left alone", memory.reserve),
    ]


def _room_rows(asked: Asked, found: Plan) -> list[tuple[str, str, int]]:
    wanted, sizes = asked.wanted, asked.wanted.sizes
    memory = asked.memory
    ample = (
        memory.here
        and wanted.room_bytes < memory.total - memory.weights - memory.buffers - memory.reserve
    )
    room = "as much as is wanted" if ample else "after weights and reserve"
    rows = [("room", room, wanted.room_bytes)]
    if wanted.paged:
        first = f", {found.windows_first} x {found.window_pages:,} of them before the cache"
        pages = f"{found.pages:,} of {sizes.page_rows} rows, {size(sizes.page_bytes)} each"
        rows.append(("pages", pages + (first if asked.shape.keeps else ""), found.pages_bytes))
    else:
        window = f"{wanted.lanes} of {wanted.context:,} tokens and a page past them"
        rows.append(("windows", window, found.pages_bytes))
    if sizes.fixed_bytes:
        rows.append(("fixed parts", _fixed_words(asked), found.fixed_bytes))
    if wanted.share:
        kept = f"{wanted.share}, {size(sizes.snapshot_bytes)} each beside their pages"
        rows.append(("kept states", kept, found.snapshots_bytes))
    elif asked.shape.keeps:
        rows.append(("prompt cache", f"of {size(wanted.cache_bytes)} wanted", found.cache_bytes))
    rows.append(("left", "", found.left_bytes))
    return rows


def _fixed_words(asked: Asked) -> str:
    """How many streams' fixed parts, how large, and this engine's own where another was given."""
    wanted, own = asked.wanted, asked.shape.sizes.fixed_bytes
    whose = "this engine's own" if not asked.given_fixed else f"this engine's own {size(own)}"
    streams = f"{wanted.others} beside the engine's own stream"
    if wanted.sizes.own_fixed_bytes:
        streams = counted(wanted.lanes, "stream")
    return f"{streams}, {size(wanted.sizes.fixed_bytes)} each, {whose}"


def show_fits(asked: Asked) -> None:
    """What would fit, flag by flag, each with all else as asked."""
    fits, wanted = _fits(asked), asked.wanted
    table = Table("flag", "asked", "largest that fits, all else as asked")
    none = "none"
    table.add_row("--parallel", str(wanted.lanes), str(fits.lanes or none))
    table.add_row("--context", str(wanted.context), str(fits.context or none))
    if fits.share is not None:
        table.add_row("--share", str(wanted.share), str(fits.share or none))
    CONSOLE.print(table)
    for flags, other in ways(asked):
        line = f"{flags} would do: {plan(other).rows:,} tokens that all streams share"
        CONSOLE.print(line, markup=False, soft_wrap=True)
    if not wanted.fits and not ways(asked) and not (fits.lanes or fits.context):
        CONSOLE.print("no one flag alone would do: lower --parallel and --context together")


def _fits(asked: Asked) -> Fits:
    return what_fits(_in_all_of_it(asked), MOST_LANES, asked.shape.context)


def _in_all_of_it(asked: Asked) -> Wanted:
    """What is wanted, in all that this machine has where the room was cut to what is wanted."""
    memory = asked.memory
    if not memory.here:
        return asked.wanted
    return replace(asked.wanted, room_bytes=memory.total - memory.weights - memory.reserve)


def ways(asked: Asked) -> list[tuple[str, Wanted]]:
    """Switches that make a refused set fit, with what would then be wanted."""
    wanted = asked.wanted
    if wanted.fits:
        return []
    found = []
    if wanted.share:
        found.append(("--share 0", replace(wanted, share=0)))
    if not wanted.paged and wanted.sizes.pageable:
        found.append(("--kv-pages on", replace(wanted, paged=True)))
    if not wanted.sizes.pageable:
        sizes = replace(wanted.sizes, row_bytes=asked.shape.sizes.row_bytes, pageable=True)
        both = "--kv-cache 16 --kv-pages on"
        found.append((both, replace(wanted, sizes=sizes, paged=True)))
    return [(flags, other) for flags, other in found if other.fits]


def plan_json(asked: Asked, found: Plan) -> dict[str, object]:
    """A plan for scripts: every number by its name."""
    made = {"pool_pages": found.pool_pages, "states": kept_states(asked.wanted, found)}
    return (
        _asked_json(asked, "fits")
        | made
        | {
            "plan": found.numbers(),
            "notes": _said(asked, found),
        }
    )


def refused_json(asked: Asked, why: PlanRefused) -> dict[str, object]:
    """A refusal for scripts."""
    return _asked_json(asked, "refused") | {"why": str(why)}


def fits_json(asked: Asked) -> dict[str, object]:
    """What would fit, for scripts."""
    flags = {named: plan(other).numbers() for named, other in ways(asked)}
    return {"fits": asdict(_fits(asked)) | {"flags": flags}}


def _asked_json(asked: Asked, verdict: str) -> dict[str, object]:
    told = asdict(asked.wanted)
    sizes = told.pop("sizes") | {"page_bytes": asked.wanted.sizes.page_bytes}
    return {
        "verdict": verdict,
        "model": asked.shape.name,
        "store": asked.store,
        "world": asked.world,
        "own_fixed_part_bytes": asked.shape.sizes.fixed_bytes,
        "memory": asdict(asked.memory),
        "check_bytes": asked.checks,
        "wanted": told,
        "sizes": sizes,
    }
