"""Opening a run: from options to devices, and to the fact that says what everything was set to."""

from dataclasses import dataclass

from .. import __version__
from ..core.evict import POLICIES
from ..core.plan_pages import KvPages
from ..core.plan_wanted import Order
from ..core.state import FLAT, RADIX, flagged, store_flag
from ..devices.settings import DeviceSettings
from ..events.facts import FORMAT, RunOpened
from ..events.records import FamilyRules

CONTRACT = 1  # of the arithmetic
WEIGHTS = "w16"
EVERY_ROW = "every_row"  # the flag of a replay that asks for the logits of any row
STORES = {"radix": RADIX, "flat": FLAT}


class BadOption(Exception):
    """An option that cannot hold here; the message names it and what would do."""

    exit_code = 3


class MalformedOption(BadOption):
    """An option that is no value of its kind."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to be; 0, "" and None let the model or the machine decide."""

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
    store: str = ""
    share: int = 0
    cache_bytes: int | None = None
    kv_pages: KvPages = "auto"
    room: int | None = None
    plan_order: Order = "proposed"
    prefix_wait: bool = True
    evict: str = "odds"
    device: str = "cpu"
    gather: str = "auto"
    verify: bool = False


# How prompts are kept since runs say so: where others part from them, what is read back stays,
# and what a reply ends too early to keep is kept at its end.
NEWER = {"marks": 1, "keep_resuming": 1, "keep_at_end": 1}


@dataclass(frozen=True, slots=True)
class Division:
    """What a run was given of memory, as its first fact records it.

    pages: of the pool.  states: kept at most.  windows: whether each stream has its own.  plan:
    the numbers of the plan and of what it was made from, by name.
    """

    context: int
    pages: int
    store: str
    states: int
    windows: bool
    plan: dict[str, int]


def run_opened(
    options: RunOptions,
    rules: FamilyRules,
    division: Division,
    *,
    model: str,
    model_digest: str,
    family: str,
    device: str,
) -> RunOpened:
    """The first fact of a run."""
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
        context=division.context,
        pages=division.pages,
        prompt_rows=options.prompt_rows,
        queue=options.queue,
        states=division.states,
        order=options.order,
        plan=division.plan,
        world=options.world,
        devices=(device,) * options.world,
        flags={
            "store": STORES[division.store],
            "keep_unsummed": 1,
            "windows": int(division.windows),
            "prefix_wait": int(options.prefix_wait),
            "evict": POLICIES[options.evict],
            **NEWER,
        },
        poison=options.poison,
        digests=options.digests,
        text="ids",
    )


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
        states=_states_at_once(opened),
        every_row=flagged(opened, EVERY_ROW),
    )


def _states_at_once(opened: RunOpened) -> int:
    """States that can be kept at once: as many as are allowed, and as their bytes have room for."""
    each, most = opened.plan.get("snapshot_bytes", 0), opened.plan.get("cache_bytes", 0)
    bounded = most or store_flag(opened) == FLAT  # states by reference have no cache
    return min(opened.states, most // each) if each and bounded else opened.states
