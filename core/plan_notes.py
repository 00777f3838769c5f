"""What a plan does not keep of what was wanted or promised, in words, with what would."""

from .plan import Plan, kept_states
from .plan_fits import whole_lanes
from .plan_wanted import STATES, Wanted
from .plan_words import gib


def notes(wanted: Wanted, plan: Plan) -> list[str]:
    """Promises that this room does not keep, each with what would."""
    found = []
    if plan.short_rows:
        found.append(_short(wanted, plan))
    enough = wanted.lends and kept_states(wanted, plan) == STATES
    if plan.cache_bytes < wanted.cache_bytes and not wanted.share and not enough:
        found.append(_small_cache(wanted, plan))
    return found


def _short(wanted: Wanted, plan: Plan) -> str:
    held = plan.windows_held
    told = (
        f"windows would hold {held * wanted.context} rows in this room, for {held} of"
        f" {wanted.lanes} streams; the pool holds {plan.rows}: "
    )
    if wanted.order == "today" or not wanted.sizes.engine_paged:
        return told + "the prompt cache gets its bytes first"
    lanes = whole_lanes(wanted, plan.windows_held)
    beside = "fixed parts and kept states" if wanted.share else "fixed parts"
    mend = f"; with --parallel {lanes} it would not be short" if lanes else ""
    return told + f"the {beside} of all {wanted.lanes} streams come first{mend}"


def _small_cache(wanted: Wanted, plan: Plan) -> str:
    told = f"the prompt cache gets {gib(plan.cache_bytes)} of {gib(wanted.cache_bytes)}: room for"
    if wanted.lends:
        states = kept_states(wanted, plan) or "no"
        return f"{told} {states} kept states beside their pages"
    rows = (plan.cache_bytes - wanted.sizes.snapshot_bytes) // wanted.sizes.row_bytes
    holds = f"a kept state of {rows} tokens at most" if rows > 0 else "no kept state at all"
    return f"{told} {holds}"
