"""Why a room does not hold a start, in words: the numbers, and the flags that would mend it."""

from dataclasses import replace

from .plan_fits import fits_on_pages, fitting_context, fitting_lanes, fitting_share
from .plan_wanted import GIB, Wanted, by_pages, by_rows

KIB, MIB = 1 << 10, 1 << 20


def gib(count: int) -> str:
    """Bytes as GiB with two decimals, rounded to the nearest, halves up."""
    return f"{_hundredths(count, GIB)} GiB"


def mib(count: int) -> str:
    """Bytes as MiB with two decimals, rounded to the nearest, halves up."""
    return f"{_hundredths(count, MIB)} MiB"


def size(count: int) -> str:
    """Bytes in the unit that suits them, with two decimals."""
    if abs(count) >= GIB:
        return gib(count)
    if abs(count) >= MIB:
        return mib(count)
    return f"{_hundredths(count, KIB)} KiB" if count else "0"


def _hundredths(count: int, unit: int) -> str:
    whole, part = divmod((200 * abs(count) + unit) // (2 * unit), 100)
    return f"{'-' * (count < 0)}{whole}.{part:02}"


def refusal(wanted: Wanted) -> str:
    """Why a room does not hold the least of a start, and which flags would mend it."""
    assert not wanted.fits, "it fits"
    if wanted.share:
        return _refused_share(wanted)
    lanes = fitting_lanes(wanted, wanted.lanes)
    if not lanes:
        return _refused_window(wanted)
    if wanted.paged:
        what = f"one {wanted.context}-token window and the other streams' fixed parts"
        need, leaves = wanted.least_bytes, wanted.room_bytes
    else:
        what = f"its streams at a {wanted.context}-token window"
        need, leaves = _beside_own(wanted)
    told = (
        f"--parallel {wanted.lanes} needs {size(need)} for {what}, and the memory budget leaves"
        f" {size(leaves)}: serve --parallel {lanes}, or lower --context{_to_context(wanted)}"
    )
    if not wanted.paged and fits_on_pages(wanted):
        return told + ", or serve with --kv-pages on: one pool that all streams share"
    return told


def _beside_own(wanted: Wanted) -> tuple[int, int]:
    """Bytes that the other streams' windows need, and what the engine's own leaves them."""
    counted = by_rows if by_rows(wanted, wanted.lanes) > wanted.room_bytes else by_pages
    own = counted(wanted, 1)
    return counted(wanted, wanted.lanes) - own, wanted.room_bytes - own


def _refused_window(wanted: Wanted) -> str:
    need = replace(wanted, lanes=1).least_bytes
    told = (
        f"--context {wanted.context} needs {size(need)} for one stream alone, and the memory budget"
        f" leaves {size(wanted.room_bytes)}: "
    )
    if context := fitting_context(wanted, wanted.context):
        return told + f"lower --context to {context}"
    context = fitting_context(replace(wanted, lanes=1), wanted.context)
    return told + (f"--parallel 1 --context {context} would do" if context else "no --context fits")


def _refused_share(wanted: Wanted) -> str:
    if not replace(wanted, share=0).fits:
        needs = size(wanted.snapshots_bytes)
        told = refusal(replace(wanted, share=0))
        return f"{told}; the kept states of --share {wanted.share} need {needs} besides"
    left = wanted.room_bytes - replace(wanted, share=0).least_bytes
    most = fitting_share(wanted)
    mend = f"--share {most} fits" if most else "none fits, leave --share away"
    return (
        f"--share {wanted.share} needs {size(wanted.snapshots_bytes)} for its kept states,"
        f" {size(wanted.sizes.snapshot_bytes)} each, and the least of the streams leaves"
        f" {size(left)}: {mend}"
    )


def _to_context(wanted: Wanted) -> str:
    context = fitting_context(wanted, wanted.context)
    return f" to {context}" if context else ""
