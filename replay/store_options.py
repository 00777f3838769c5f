"""How a server is to keep rows and prompts: from flags and environment to values."""

from collections.abc import Mapping
from typing import NamedTuple

from ..core.plan_pages import KvPages, SwitchRefused, refuse_share
from ..core.plan_wanted import Order
from .opening import BadOption
from .plan_options import (
    CACHES,
    ORDERS,
    STORES_ASKED,
    bytes_of,
    gib_of,
    kv_pages_of,
    kv_share_of,
    one_of,
)
from .plan_start import refuse_lending


class Keeping(NamedTuple):
    """store: radix or flat, "" as pages or windows have it.  share: kept states by reference, or 0.

    cache_bytes: for what prompts keep beside the pages, on the first rank.  room: of a rank, after
    weights and reserve; both None where nobody says.
    """

    store: str = ""
    share: int = 0
    cache_bytes: int | None = None
    kv_pages: KvPages = "auto"
    room: int | None = None
    plan_order: Order = "proposed"


class KeepingAsked(NamedTuple):
    """The flags, as they were written; "" is unset."""

    store: str = ""
    share: str = ""
    prompt_cache_gib: str = ""
    kv_pages: str = ""
    kv_cache: str = "16"
    room: str = ""
    plan_order: str = "proposed"


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
    if one_of("--kv-cache", asked.kv_cache, CACHES) == "fp8":
        raise BadOption(
            "--kv-cache fp8: rows are served with 16 bits alone, leave it away;"
            " kvtape plan --kv-cache fp8 shows what such rows would take, in windows"
        )
    given = asked.prompt_cache_gib.strip()
    return Keeping(
        store=store,
        share=share,
        cache_bytes=gib_of("--prompt-cache-gib", given) if given else None,
        kv_pages=pages,
        room=bytes_of("--room", asked.room) if asked.room.strip() else None,
        plan_order=one_of("--plan-order", asked.plan_order, ORDERS),
    )
