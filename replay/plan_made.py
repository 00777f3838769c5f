"""The plan of a server's start: made once, before weights, and recorded with what it is made of."""

from dataclasses import dataclass

from ..core.plan import Plan, PlanRefused, kept_states
from ..core.plan_notes import notes
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
        made_of = {
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


def planned(model: str, options: RunOptions) -> Planned:
    """The plan of a start. Raises BadOption where there is none, ModelError, UnsupportedShape."""
    asked = ask(start_of(model, options))
    try:
        found = asked.plan()
    except PlanRefused as error:
        raise BadOption(f"{error} (kvtape plan {model} --what-fits tells more)") from None
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
    )
