"""From what a start was asked, as values, to what it is planned from: one way for all who plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..core.plan import Plan, plan, plan_of_pages
from ..core.plan_fits import largest
from ..core.plan_pages import KvPages, SwitchRefused, on_pages, refuse_share, share_warning
from ..core.plan_room import ample_bytes, reserve_bytes
from ..core.plan_wanted import CACHE_BYTES, STATES, Order, Sizes, SpareTo, Wanted
from ..core.plan_words import size
from ..devices.memory_here import Here, this_machine
from ..devices.settings import DeviceSettings
from .opening import BadOption, MalformedOption
from .plan_shapes import Shape, read_shape

POOL_BYTES = 2**31  # pages over all ranks, where nobody says how much there is


@dataclass(frozen=True, slots=True)
class Start:
    """What a start was asked of memory; 0, "" and None leave it to the model or the machine.

    lanes: streams at once.  drafts: tokens drafted a round.  room: of a rank, after weights and
    reserve.  memory: of a rank's device.  pages: of the pool, whatever room that takes.  fixed: of
    a stream, in place of this engine's own.  All in bytes.  verify: checksums stand beside weights.
    device: whose memory it is.  prompt_rows: of a step.  poison: its pattern, or off.
    """

    model: str
    world: int = 1
    lanes: int = 8
    context: int = 0
    drafts: int | None = None
    kv_pages: KvPages = "auto"
    fp8: bool = False
    store: str = ""
    share: int = 0
    cache_bytes: int | None = None
    room: int | None = None
    memory: int | None = None
    reserve: int | None = None
    pages: int = 0
    fixed: int | None = None
    order: Order = "proposed"
    spare_to: SpareTo = "free"
    verify: bool = False
    device: str = "cpu"
    prompt_rows: int = 64
    poison: str = "off"


@dataclass(frozen=True, slots=True)
class Memory:
    """Where the room comes from, in bytes; all 0 where the room itself was told.

    weights: with what they are checked by.  buffers: what steps are computed in, which a GPU has
    planned, and what stands on it besides.  here: whether it is this machine's, and not that of a
    device that was told.
    """

    total: int = 0
    weights: int = 0
    reserve: int = 0
    here: bool = False
    buffers: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a plan is told from: the model, the memory, what is wanted of the room.

    store: where prompts are kept, radix or flat.  pages: of the pool, 0 where the room decides.
    given_fixed: whether the fixed part of a stream was given, and not this engine's own.  checks:
    bytes of a rank that weights are checked by, 0 where they are not.
    """

    shape: Shape
    world: int
    memory: Memory
    wanted: Wanted
    store: str
    pages: int
    given_fixed: bool
    warning: str
    checks: int = 0

    def plan(self) -> Plan:
        """Who gets how much. Raises PlanRefused."""
        return plan_of_pages(self.wanted, self.pages) if self.pages else plan(self.wanted)


def ask(start: Start, here: Callable[[], Here] = this_machine) -> Asked:
    """What a start is planned from; reads a model's config, and asks `here` if nobody says.

    Raises BadOption, ModelError, UnsupportedShape.
    """
    _refuse_what_disagrees(start)
    shape = read_shape(start.model, start.world, start.drafts)
    paged = _paged(start, shape)
    store, sizes = _store(start, shape, paged=paged), _sizes(start, shape)
    lends = store == "radix"
    wanted = Wanted(
        room_bytes=0,
        lanes=start.lanes,
        context=_context(start, shape),
        sizes=sizes,
        paged=paged,
        cache_bytes=_cache(start, shape, sizes, lends=lends),
        order=start.order,
        share=start.share,
        spare_to=start.spare_to,
        lends=lends,
    )
    memory, room = _room(start, shape, wanted, here)
    return Asked(
        shape=shape,
        world=start.world,
        memory=memory,
        wanted=replace(wanted, room_bytes=room),
        store=store,
        pages=start.pages,
        given_fixed=start.fixed is not None,
        warning=share_warning(start.share, start.lanes),
        checks=shape.checks(start.world) if start.verify else 0,
    )


def _refuse_what_disagrees(start: Start) -> None:
    """Refuse switches that no model takes together, before any file is opened."""
    try:
        refuse_share(start.share, start.kv_pages)
    except SwitchRefused as error:
        raise BadOption(str(error)) from None
    refuse_lending(start.store, start.share)
    told = {"--room": start.room, "--memory": start.memory, "--pages": start.pages or None}
    given = [option for option, value in told.items() if value is not None]
    if len(given) > 1:
        raise MalformedOption(f"{' and '.join(given)}: one of them says how much there is")
    if start.reserve is not None and start.memory is None:
        raise MalformedOption("--reserve is taken from --memory; a --room has it taken already")


def refuse_lending(store: str, share: int) -> None:
    """Refuse kept states by reference where states are copies. Raises BadOption."""
    if store == "flat" and share:
        raise BadOption(
            f"--store flat with --share {share} (TF_GLM_KV_SHARE): states by reference stand in"
            " the radix store; --store radix, or --share 0"
        )


def _paged(start: Start, shape: Shape) -> bool:
    """Whether streams stand on pages; ranks decide it for a GLM alone."""
    if not shape.keeps and start.kv_pages == "off":
        raise BadOption(
            f"--kv-pages off (TF_KV_PAGES): {shape.name} is served on pages alone, since what it"
            " keeps of a prompt is its pages; on or auto would do"
        )
    if shape.family != "glm":
        return start.kv_pages != "off"
    try:
        return on_pages(start.kv_pages, start.world, fp8=start.fp8, order=start.order)
    except SwitchRefused as error:
        raise BadOption(str(error)) from None


def _store(start: Start, shape: Shape, *, paged: bool) -> str:
    """Where prompts are kept: lent by the pool where streams share it, else as copies."""
    if start.store == "radix" and not paged:
        raise BadOption(
            "--store radix lends pages, and in windows nothing is shared (TF_KV_PAGES is"
            f" {start.kv_pages} at --tp {start.world}): --store flat, or --kv-pages on"
        )
    if start.store == "flat" and not shape.keeps:
        raise BadOption(
            f"--store flat: what {shape.name} keeps is pages alone, which a copy would only double;"
            " --store radix would do"
        )
    return start.store or ("radix" if paged else "flat")


def _context(start: Start, shape: Shape) -> int:
    if start.context > shape.context:
        raise BadOption(f"--context {start.context}: the model was trained to {shape.context} rows")
    return start.context or shape.usual_context


def _sizes(start: Start, shape: Shape) -> Sizes:
    """The model's sizes, with the fixed part that was given, and whose the room has to hold."""
    if start.fp8 and shape.fp8 is None:
        raise BadOption(f"--kv-cache fp8: {shape.name} has no such rows, 16 alone would do")
    sizes = shape.fp8 if start.fp8 and shape.fp8 else shape.sizes
    if start.fixed is not None:
        sizes = replace(sizes, fixed_bytes=start.fixed, snapshot_bytes=start.fixed)
    told = start.room is not None  # then it has that of the engine's own stream taken already
    return replace(sizes, own_fixed_bytes=0 if told else sizes.fixed_bytes)


def _cache(start: Start, shape: Shape, sizes: Sizes, *, lends: bool) -> int:
    """Bytes wanted beside the pages for what prompts keep; none where that is pages alone."""
    if shape.keeps and start.cache_bytes is None:
        most = STATES * sizes.snapshot_bytes  # no more than so many can use
        return min(CACHE_BYTES, most) if lends else CACHE_BYTES
    if shape.keeps:
        return start.cache_bytes or 0
    if start.cache_bytes:
        raise BadOption(
            f"--prompt-cache-gib: {shape.name} keeps its prompts as pages; 0 alone would do"
        )
    return 0


def _room(
    start: Start, shape: Shape, wanted: Wanted, here: Callable[[], Here]
) -> tuple[Memory, int]:
    """The room: as told, as a device leaves it, or as much as is wanted and there is."""
    if start.room is not None or start.pages:
        return Memory(), start.room or 0
    if start.memory is not None:
        free = start.memory
        reserve = reserve_bytes(free, unified=False, asked=start.reserve)
        told = f"--memory holds {size(free)}"
    else:
        found = here()
        ranks = start.world if found.shared else 1
        free = found.free // ranks
        reserve = reserve_bytes(found.total, unified=found.shared) // ranks
        told = f"this machine holds {size(free)} a rank"
    weights = _held(start, shape, start.world)
    buffers = _buffers(start, shape, wanted, weights)
    memory = Memory(free, weights, reserve, start.memory is None, buffers)
    room = free - weights - buffers - reserve
    if room < 0:
        beside = f", buffers of {size(buffers)} and" if buffers else " with"
        fewer = "a lower --prompt-rows, --parallel or --context needs less; " if buffers else ""
        raise BadOption(
            f"{told}, and weights of {size(weights)} a rank{beside} a reserve of {size(reserve)}"
            f" are more: {fewer}{_enough_ranks(start, shape, free - reserve)}"
        )
    if start.memory is not None:
        return memory, room
    return memory, min(room, ample_bytes(wanted, POOL_BYTES // start.world))


def _buffers(start: Start, shape: Shape, wanted: Wanted, weights: int) -> int:
    """Bytes that a rank's GPU holds beside weights, pages, kept states and what lanes are given."""
    if start.device != "cuda":
        return 0
    settings = DeviceSettings(
        lanes=wanted.lanes, context=wanted.context, pages=0, prompt_rows=start.prompt_rows,
        poison=start.poison, states=0, verify=start.verify, every_row=False,
    )  # fmt: skip
    return max(0, shape.on_card(settings, start.world) - weights - wanted.fixed_bytes)


def _held(start: Start, shape: Shape, world: int) -> int:
    """Bytes of weights of the first of so many ranks, with what they are checked by."""
    return shape.weights(world) + (shape.checks(world) if start.verify else 0)


def _enough_ranks(start: Start, shape: Shape, room: int) -> str:
    """The fewest ranks whose weights a room holds, in words."""
    if start.memory is None:
        return "a larger one would do, or --room says how much there is"
    most = shape.most_world
    few = largest(most, lambda world: _held(start, shape, world) > room)
    return f"--tp {few + 1} would do" if few < most else f"no --tp up to {most} would do"
