"""Opening a run: from options to devices, and to the fact that says what everything was set to."""

from dataclasses import dataclass

from .. import __version__
from ..core.families.family import Family
from ..core.plan_wanted import CACHE_BYTES, Sizes
from ..core.state import FLAT, RADIX, table_pages
from ..devices.settings import DeviceSettings
from ..events.facts import FORMAT, RunOpened
from ..events.records import FamilyRules

CONTRACT = 1  # of the arithmetic
WEIGHTS = "w16"
POOL_BYTES = 2**31  # pages by default, over all ranks; untouched ones cost nothing
CONTEXT_ROWS = 8192  # by default, where the model allows more
STATES = 256  # kept states at most, by default
STORES = {"radix": RADIX, "flat": FLAT}


class BadOption(Exception):
    """An option that cannot hold here; the message names it and what would do."""

    exit_code = 3


class MalformedOption(BadOption):
    """An option that is no value of its kind."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to be; 0 lets the model or the machine decide."""

    world: int = 1
    threads: int = 1
    lanes: int = 8
    context: int = 0
    pages: int = 0
    prompt_rows: int = 64
    queue: int = 256
    digests: str = "rows"
    poison: str = "off"
    order: str = "lowest"
    drafts: int = -1
    marks: str = "page"
    store: str = "radix"
    share: int = 0
    cache_bytes: int = CACHE_BYTES


def context_of(options: RunOptions, family: Family) -> int:
    """Rows a stream may have. Raises BadOption where the model has fewer."""
    most = family.context
    if options.context > most:
        raise BadOption(f"--context {options.context}: the model was trained to {most} rows")
    return options.context or min(most, CONTEXT_ROWS)


def pages_of(options: RunOptions, family: Family) -> int:
    """Pages of the pool: a window for each lane, as far as POOL_BYTES go, at least one window."""
    rows = family.rules().page_rows
    window = table_pages(context_of(options, family), rows)
    if options.pages:
        return options.pages
    page_bytes = sum(family.page_bytes(options.world, rank) for rank in range(options.world))
    return max(window, min(options.lanes * window, POOL_BYTES // page_bytes))


def run_opened(
    options: RunOptions,
    rules: FamilyRules,
    *,
    model: str,
    model_digest: str,
    family: str,
    device: str,
    context: int,
    pages: int,
    page_bytes: int,
    copied: Sizes | None,
) -> RunOpened:
    """The first fact of a run. page_bytes: of one page, over all ranks.

    copied: what a copy of a kept state has on the first rank; None where states are pages alone.
    """
    plan = {"page_bytes": page_bytes, "window_pages": table_pages(context, rules.page_rows)}
    return RunOpened(
        format=FORMAT,
        contract=CONTRACT,
        weights=WEIGHTS,
        build=__version__,
        model=model,
        model_digest=model_digest,
        family=family,
        rules=rules,
        lanes=options.lanes,
        context=context,
        pages=pages,
        prompt_rows=options.prompt_rows,
        queue=options.queue,
        states=options.share or STATES,
        order=options.order,
        plan=plan | _flat_plan(options, model, copied),
        world=options.world,
        devices=(device,) * options.world,
        flags={"store": STORES[options.store], "keep_unsummed": 1},
        poison=options.poison,
        digests=options.digests,
        text="ids",
    )


def _flat_plan(options: RunOptions, model: str, copied: Sizes | None) -> dict[str, int]:
    """What the flat store goes by. Raises BadOption where a model's states are pages alone."""
    if options.store != "flat":
        return {}
    if copied is None:
        raise BadOption(
            f"--store flat: what {model} keeps is pages alone, which a copy would only double;"
            " --store radix would do"
        )
    return {
        "row_bytes": copied.row_bytes,
        "snapshot_bytes": copied.snapshot_bytes,
        "cache_bytes": options.cache_bytes,
    }


def settings_of(opened: RunOpened) -> DeviceSettings:
    """What a device must know of a run."""
    return DeviceSettings(
        lanes=opened.lanes,
        context=opened.context,
        pages=opened.pages,
        prompt_rows=opened.prompt_rows,
        digests=opened.digests,
        poison=opened.poison,
        drafts=opened.rules.drafts,
    )
