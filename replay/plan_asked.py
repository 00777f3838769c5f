"""What `kvtape plan` was asked, made into what a plan is told from: model, memory, wants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core.plan_fits import largest
from ..core.plan_pages import on_pages, refuse_share, share_warning
from ..core.plan_wanted import CACHE_BYTES, GIB, Order, Sizes, Wanted
from ..core.plan_words import gib
from .opening import BadOption, MalformedOption
from .plan_options import (
    CACHES,
    ORDERS,
    SPARE_TO,
    bytes_of,
    gib_of,
    kv_pages_of,
    kv_share_of,
    one_of,
)
from .plan_shapes import Shape, read_shape


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
    prompt_cache_gib: str = ""
    share: str = ""
    fixed: str = ""
    drafts: int | None = None
    order: str = "proposed"
    spare_to: str = "free"
    what_fits: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the room comes from, in bytes; all 0 where the room itself was told."""

    total: int = 0
    weights: int = 0
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a plan is told from: the model, the memory, what is wanted of the room.

    given_fixed: whether the fixed part of a stream was given, and not this engine's own.
    """

    shape: Shape
    world: int
    memory: Memory
    wanted: Wanted
    given_fixed: bool
    warning: str


def read_asked(options: PlanOptions, environment: Mapping[str, str]) -> Asked:
    """From options and environment to what a plan is told from."""
    pages = kv_pages_of(options.kv_pages, environment)
    share = kv_share_of(options.share, environment)
    order: Order = one_of("--order", options.order, ORDERS)
    fp8 = one_of("--kv-cache", options.kv_cache, CACHES) == "fp8"
    refuse_share(share, pages)
    shape = read_shape(options.model, options.world, options.drafts)
    if not shape.keeps and options.kv_pages.strip() == "off":  # the variable is of other families
        raise BadOption(f"--kv-pages off: {shape.name} is served on pages alone")
    paged = not shape.keeps or on_pages(pages, options.world, fp8=fp8, order=order)
    memory, room = _room_of(options, shape)
    wanted = Wanted(
        room_bytes=room,
        lanes=options.lanes,
        context=_context_of(options, shape),
        sizes=_sizes_of(options, shape, fp8=fp8),
        paged=paged,
        cache_bytes=_cache_of(options, shape),
        order=order,
        share=share,
        spare_to=one_of("--spare-to", options.spare_to, SPARE_TO),
    )
    warning = share_warning(share, options.lanes)
    return Asked(shape, options.world, memory, wanted, bool(options.fixed), warning)


def _sizes_of(options: PlanOptions, shape: Shape, *, fp8: bool) -> Sizes:
    """The model's sizes, with the fixed part that was given, and whose the room has to hold."""
    if fp8 and shape.fp8 is None:
        raise BadOption(f"--kv-cache fp8: {shape.name} has no such rows, 16 alone would do")
    sizes = shape.fp8 if fp8 and shape.fp8 else shape.sizes
    if options.fixed:
        given = bytes_of("--fixed", options.fixed)
        sizes = replace(sizes, fixed_bytes=given, snapshot_bytes=given)
    own = sizes.fixed_bytes if options.memory else 0  # a room that was told has it taken already
    return replace(sizes, own_fixed_bytes=own)


def _room_of(options: PlanOptions, shape: Shape) -> tuple[Memory, int]:
    """The room, as told or as the memory leaves it. Raises BadOption where it leaves none."""
    if bool(options.room) == bool(options.memory):
        raise MalformedOption("--room or --memory: one of them says how much there is")
    if options.room:
        if options.reserve:
            raise MalformedOption("--reserve is taken from --memory; a --room has it taken already")
        return Memory(), bytes_of("--room", options.room)
    total = bytes_of("--memory", options.memory)
    reserve = bytes_of("--reserve", options.reserve) if options.reserve else reserve_bytes(total)
    memory = Memory(total, shape.weights(options.world), reserve)
    room = total - memory.weights - reserve
    if room >= 0:
        return memory, room
    raise BadOption(
        f"--memory {options.memory} holds {gib(total)}, and weights of {gib(memory.weights)} a rank"
        f" with a reserve of {gib(reserve)} are more: {_enough_ranks(shape, total - reserve)}"
    )


def reserve_bytes(total: int) -> int:
    """What is left alone of a card's memory: a thirty-second, at least a GiB."""
    return max(GIB, total // 32)


def _enough_ranks(shape: Shape, room: int) -> str:
    """The fewest ranks whose weights a room holds, in words."""
    most = shape.most_world
    few = largest(most, lambda world: shape.weights(world) > room)
    return f"--tp {few + 1} would do" if few < most else f"no --tp up to {most} would do"


def _context_of(options: PlanOptions, shape: Shape) -> int:
    if options.context > shape.context:
        raise BadOption(
            f"--context {options.context}: the model was trained to {shape.context} rows"
        )
    return options.context or shape.context


def _cache_of(options: PlanOptions, shape: Shape) -> int:
    """Bytes wanted for a prompt cache of its own; none where prompts are kept as pages."""
    given = options.prompt_cache_gib
    told = gib_of("--prompt-cache-gib", given) if given else CACHE_BYTES
    if shape.keeps:
        return told
    if given and told:
        raise BadOption(f"--prompt-cache-gib {given}: {shape.name} keeps its prompts as pages")
    return 0
