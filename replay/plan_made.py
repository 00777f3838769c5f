"""The plan of a server's start: made once, before weights, and recorded with what it is made of."""

from dataclasses import dataclass

from ..core.plan import Plan, PlanRefused, kept_states
from ..core.plan_notes import notes
from ..core.plan_wanted import GIB
from ..devices.memory_here import Here, this_machine
from .opening import BadOption, Division, RunOptions
from .plan_start import Asked, Start, ask


@dataclass(frozen=True, slots=True)
class Planned:
    """A start whose plan stands. notes: what the plan does not keep of what was wanted."""

    asked: Asked
    plan: Plan
    notes: tuple[str, ...]

    def division(self, page_bytes: int) -> Division:
        """As a run records it. page_bytes: of one page, over all ranks, digests included."""
        wanted, sizes = self.asked.wanted, self.asked.wanted.sizes
        beside = {"check_bytes": self.asked.checks, "buffer_bytes": self.asked.memory.buffers}
        made_of = {name: held for name, held in beside.items() if held} | {
            "room_bytes": self.plan.room_bytes,
            "page_bytes": page_bytes,
            "row_bytes": sizes.row_bytes,
            "stream_bytes": sizes.fixed_bytes,
            "snapshot_bytes": sizes.snapshot_bytes,
            "share": wanted.share,
        }
        return Division(
            context=wanted.context,
            pages=self.plan.pool_pages,
            store=self.asked.store,
            states=kept_states(wanted, self.plan),
            windows=not wanted.paged,
            plan=self.plan.numbers() | made_of,
        )


def here_of(options: RunOptions) -> Here:
    """The memory that ranks find: this machine's, or a GPU's like the first one. Raises NoCard.

    Ranks that are more than GPUs share them, and each has its part.
    """
    if options.device == "cpu":
        return this_machine()
    from ..devices.cuda.card import open_card  # what it needs is not everywhere, and slow to load

    card = open_card(0)
    info, sharing = card.info(), -(-options.world // card.count())
    return Here(info.total // sharing, info.free // sharing, shared=False)


def planned(model: str, options: RunOptions) -> Planned:
    """The plan of a start. Raises BadOption where there is none, ModelError, UnsupportedShape."""
    start = start_of(model, options)
    asked = ask(start, lambda: here_of(options))
    try:
        found = asked.plan()
    except PlanRefused as error:
        raise BadOption(f"{error} (more: {command_of(start)})") from None
    return Planned(asked, found, tuple(notes(asked.wanted, found)))


def start_of(model: str, options: RunOptions) -> Start:
    """What a server's start asks of memory."""
    return Start(
        model=model,
        world=options.world,
        lanes=options.lanes,
        context=options.context,
        drafts=None if options.drafts < 0 else options.drafts,
        kv_pages=options.kv_pages,
        store=options.store,
        share=options.share,
        cache_bytes=options.cache_bytes,
        room=options.room,
        pages=options.pages,
        order=options.plan_order,
        verify=options.verify,
        device=options.device,
        prompt_rows=options.prompt_rows,
        poison=options.poison,
    )


def command_of(start: Start) -> str:
    """The command that tells what would fit in place of a start that was refused."""
    usual = Start(start.model)
    told = {
        "--tp": (start.world, usual.world),
        "--parallel": (start.lanes, usual.lanes),
        "--context": (start.context, usual.context),
        "--mtp-drafts": (start.drafts, usual.drafts),
        "--kv-pages": (start.kv_pages, usual.kv_pages),
        "--store": (start.store, usual.store),
        "--share": (start.share, usual.share),
        "--room": (start.room, usual.room),
        "--plan-order": (start.order, usual.order),
    }
    given = [f"{flag} {value}" for flag, (value, unset) in told.items() if value != unset]
    if start.cache_bytes is not None:
        given.append(f"--prompt-cache-gib {start.cache_bytes / GIB:g}")
    if start.verify:
        given.append("--verify")
    return " ".join(["kvtape plan", start.model, *given, "--what-fits"])
