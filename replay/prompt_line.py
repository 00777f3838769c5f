"""The log's line about the prompt store, written when a prompt is done; no word of the prompt."""

from ..core.lookups import Lookup, said
from ..core.plan_words import mib
from ..core.state import FLAT, State, store_flag
from .door_counts import Counts, store_bytes


def prompt_line(state: State, counts: Counts, lookup: Lookup, kept: int, not_kept: int) -> str:
    """What of a prompt was resumed and kept, what the store holds of how much, and why no more.

    kept: the last mark that it left by now, 0 for none.  not_kept: states refused so far.
    """
    return (
        f"prompt cache: {lookup.prompt_tokens} tokens of {lookup.request},"
        f" resumed at {lookup.cached_tokens}, kept {kept}; {_held(state)}"
        f" (hits {counts.hits}, misses {sum(counts.misses.values())},"
        f" evicted {counts.dropped['evicted']}, reclaimed {counts.dropped['reclaimed']},"
        f" refused {not_kept}, failed {counts.failed}); {said(lookup)}"
    )


def _held(state: State) -> str:
    """What the store holds now, and at most."""
    opened, count = state.opened, len(state.kept)
    if store_flag(opened) == FLAT:
        now, most = store_bytes(state)
        return f"{count} states, {mib(now)} of {mib(most)}"
    pages, plan = int((state.book.kept > 0).sum()), opened.plan
    size = ""
    if "row_bytes" in plan:
        rows = pages * opened.rules.page_rows
        size = f" ({mib(rows * plan['row_bytes'] + count * plan.get('snapshot_bytes', 0))})"
    return (
        f"{count} states and {pages} pages{size} of {opened.states} states and {opened.pages} pages"
    )
