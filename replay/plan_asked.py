"""What `kvtape plan` was asked, as text, made into what a plan is told from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..devices.memory_here import Here, this_machine
from .plan_options import (
    CACHES,
    ORDERS,
    SPARE_TO,
    STORES_ASKED,
    bytes_asked,
    gib_asked,
    kv_pages_of,
    kv_share_of,
    one_of,
)
from .plan_start import Asked, Start, ask


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What `kvtape plan` was asked; "", 0 and None leave it to the model or the environment."""

    model: str
    room: str = ""
    memory: str = ""
    reserve: str = ""
    world: int = 1
    context: int = 0
    lanes: int = 8
    kv_pages: str = ""
    kv_cache: str = "16"
    store: str = ""
    prompt_cache_gib: str = ""
    share: str = ""
    fixed: str = ""
    drafts: int | None = None
    order: str = "proposed"
    spare_to: str = "free"
    verify: bool = False
    what_fits: bool = False
    as_json: bool = False


def read_asked(
    options: PlanOptions,
    environment: Mapping[str, str],
    here: Callable[[], Here] = this_machine,
) -> Asked:
    """From options and environment to what a plan is told from."""
    start = Start(
        model=options.model,
        world=options.world,
        lanes=options.lanes,
        context=options.context,
        drafts=options.drafts,
        kv_pages=kv_pages_of(options.kv_pages, environment),
        fp8=one_of("--kv-cache", options.kv_cache, CACHES) == "fp8",
        store=one_of("--store", options.store, STORES_ASKED),
        share=kv_share_of(options.share, environment),
        cache_bytes=gib_asked("--prompt-cache-gib", options.prompt_cache_gib),
        room=bytes_asked("--room", options.room),
        memory=bytes_asked("--memory", options.memory),
        reserve=bytes_asked("--reserve", options.reserve),
        fixed=bytes_asked("--fixed", options.fixed),
        order=one_of("--order", options.order, ORDERS),
        spare_to=one_of("--spare-to", options.spare_to, SPARE_TO),
        verify=options.verify,
    )
    return ask(start, here)
