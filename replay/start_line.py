"""The line with which a server starts: what is served, and who was given how much memory."""

from ..core.plan_pages import in_windows
from ..core.plan_words import size
from ..core.state import FLAT, store_flag
from ..events.facts import RunOpened
from .show import counted


def start_line(opened: RunOpened) -> str:
    """What is served, with how much room; everything in it stands on the tape."""
    return (
        f"{opened.model} on {counted(opened.world, 'rank')}: {opened.lanes} streams at once,"
        f" windows of {opened.context}, {_rows_line(opened)}; {_room_line(opened)};"
        f" {kept_line(opened)}{_buffers_line(opened)}{_checked_line(opened)}"
    )


def _rows_line(opened: RunOpened) -> str:
    """What all streams share, or what each has to itself."""
    plan = opened.plan
    if in_windows(opened):
        windows = plan["windows_first"]
        return f"{windows} windows = {plan['rows']} tokens, each stream its own"
    tokens = opened.pages * opened.rules.page_rows
    first = f", {counted(plan['windows_first'], 'window')} of them planned first"
    return (
        f"{opened.pages} pages = {tokens} tokens that all streams share"
        f"{first if plan['windows_first'] and opened.rules.snapshots else ''}"
    )


def _room_line(opened: RunOpened) -> str:
    """The first rank's bytes, share by share."""
    plan, of = opened.plan, f"of {size(opened.plan['room_bytes'])} a rank"
    shares = [f"pages {size(plan['pages_bytes'])}"]
    if opened.rules.snapshots:
        each = f"{size(plan['stream_bytes'])} a stream"
        shares.append(f"fixed parts {size(plan['fixed_bytes'])} ({each})")
        if plan["share"]:
            shares.append(f"kept states {size(plan['snapshots_bytes'])}")
        else:
            shares.append(f"prompt cache {size(plan['cache_bytes'])}")
    return f"{of}: {', '.join(shares)}, left {size(plan['left_bytes'])}"


def _buffers_line(opened: RunOpened) -> str:
    """What a GPU holds for its steps, beside that room."""
    held = opened.plan.get("buffer_bytes", 0)
    return f"; buffers of {size(held)} a rank beside them" if held else ""


def _checked_line(opened: RunOpened) -> str:
    """Whether products are looked at, and what that takes."""
    held = opened.plan.get("check_bytes", 0)
    return f"; linear maps checked, by checksums of {size(held)} a rank" if held else ""


def kept_line(opened: RunOpened) -> str:
    """Where prompts are kept, and how many."""
    if store_flag(opened) == FLAT:
        return f"prompts kept as copies, in {size(opened.plan['cache_bytes'])}"
    return f"at most {opened.states} prompts kept on those pages"
