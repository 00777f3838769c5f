"""How a server is to keep rows and prompts: from flags and environment to values."""

from collections.abc import Mapping
from typing import NamedTuple

from ..core.evict import POLICIES
from ..core.plan_pages import KvPages, SwitchRefused, refuse_share
from ..core.plan_wanted import Order
from .opening import BadOption, MalformedOption
from .plan_options import (
    CACHES,
    ORDERS,
    STORES_ASKED,
    bytes_asked,
    gib_asked,
    kv_pages_of,
    kv_share_of,
    one_of,
)
from .plan_start import refuse_lending

PREFIX_WAIT_VARIABLE = "TENSORFOLD_PREFIX_WAIT_MS"


class Keeping(NamedTuple):
    """store: radix or flat, "" as pages or windows have it.  share: kept states by reference, or 0.

    cache_bytes: for what prompts keep beside the pages, on the first rank.  room: of a rank, after
    weights and reserve; both None where nobody says.  prefix_wait: equal prompts wait for one.
    evict: which of the states on pages goes first.
    """

    store: str = ""
    share: int = 0
    cache_bytes: int | None = None
    kv_pages: KvPages = "auto"
    room: int | None = None
    plan_order: Order = "proposed"
    prefix_wait: bool = True
    evict: str = "odds"


class KeepingAsked(NamedTuple):
    """The flags, as they were written; "" is unset."""

    store: str = ""
    share: str = ""
    prompt_cache_gib: str = ""
    kv_pages: str = ""
    kv_cache: str = "16"
    room: str = ""
    plan_order: str = "proposed"
    prefix_wait: str = ""
    evict: str = "odds"
    spill_gib: str = ""


def keeping_of(asked: KeepingAsked, environment: Mapping[str, str]) -> Keeping:
    """What a start was asked to keep. Raises BadOption where switches do not go together."""
    store = one_of("--store", asked.store, STORES_ASKED)
    share = kv_share_of(asked.share, environment)
    pages = kv_pages_of(asked.kv_pages, environment)
    try:
        refuse_share(share, pages)
    except SwitchRefused as error:
        raise BadOption(str(error)) from None
    refuse_lending(store, share)
    refuse_images(asked.spill_gib, share)
    if one_of("--kv-cache", asked.kv_cache, CACHES) == "fp8":
        raise BadOption(
            "--kv-cache fp8: rows are served with 16 bits alone, leave it away;"
            " kvtape plan --kv-cache fp8 shows what such rows would take, in windows"
        )
    return Keeping(
        store=store,
        share=share,
        cache_bytes=gib_asked("--prompt-cache-gib", asked.prompt_cache_gib),
        kv_pages=pages,
        room=bytes_asked("--room", asked.room),
        plan_order=one_of("--plan-order", asked.plan_order, ORDERS),
        prefix_wait=prefix_wait_of(asked.prefix_wait, environment),
        evict=one_of("--evict", asked.evict, tuple(POLICIES)),
    )


def refuse_images(spill_gib: str, share: int) -> None:
    """Refuse images of kept states on disk: no build writes them yet, and 0 asks for none."""
    if not gib_asked("--spill-gib", spill_gib):
        return
    if share:
        raise BadOption(
            f"--spill-gib {spill_gib} with --share {share} (TF_GLM_KV_SHARE): a state kept by"
            " reference leaves its pages out, and an image of it on disk could not be resumed;"
            " --spill-gib 0, or --share 0"
        )
    raise BadOption(
        f"--spill-gib {spill_gib}: kept states are not written to disk; leave it away, and"
        " --prompt-cache-gib says how much memory they get"
    )


def prefix_wait_of(flag: str, environment: Mapping[str, str]) -> bool:
    """Whether a prompt waits for an equal one: the flag, else the variable, else yes.

    TENSORFOLD_PREFIX_WAIT_MS is taken for what it says of 0: no. Any other count of milliseconds
    means yes, and no clock is asked: the wait ends when the prefix is kept, or will not be.
    """
    if value := flag.strip():
        return one_of("--prefix-wait", value, ("on", "off")) == "on"
    value = environment.get(PREFIX_WAIT_VARIABLE, "").strip()
    if value and not (value.isascii() and value.isdigit()):
        raise MalformedOption(
            f"{PREFIX_WAIT_VARIABLE} {value!r}: a whole number from 0; 0 is off, blank is unset"
        )
    return not value or int(value) > 0
