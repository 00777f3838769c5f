"""What two sides of a diff have in common, in sentences for people."""

from collections.abc import Iterable, Mapping, Sequence

from .forward import Told

Key = tuple[str, int]  # a session, and which of its streams
NAMED_MOST = 8


def in_common(left: Mapping[Key, Told], right: Mapping[Key, Told], *, differ: bool) -> list[str]:
    """Sessions and replies that one side lacks, and which side only goes on; differ: in a value."""
    notes = []
    shared = left.keys() & right.keys()
    if not left and not right:
        notes.append("nothing was compared: neither side has a session with rows")
    elif not shared:
        notes.append("nothing in common: no session is on both sides")
    for side, mine, theirs in (("left", left, right), ("right", right, left)):
        if lacking := [key for key in mine if key not in theirs]:
            notes.append(f"only in the {side} tape: {listed(named(lacking, theirs))}")
    if not differ:
        notes += _prefix([(left[key], right[key]) for key in left if key in shared])
    return notes


def named(keys: Iterable[Key], others: Iterable[Key]) -> list[str]:
    """Sessions that the other side lacks whole, and single replies of the rest."""
    whole = {session for session, _ in others}
    names = (
        f"session {session}, reply {reply}" if session in whole else f"session {session}"
        for session, reply in keys
    )
    return list(dict.fromkeys(names))


def listed(names: Sequence[str]) -> str:
    """Names in a row; of many, the first and how many more."""
    more = len(names) - NAMED_MOST
    return "; ".join(names[:NAMED_MOST]) + (f"; and {more} more" if more > 0 else "")


def _prefix(pairs: Iterable[tuple[Told, Told]]) -> list[str]:
    """Whether the shared sessions, equal as far as both go, go further on one side."""
    notes = []
    ahead = [len(mine.tokens) - len(theirs.tokens) for mine, theirs in pairs]
    for short, sign in (("left", -1), ("right", 1)):
        count = sum(sign * tokens > 0 for tokens in ahead)
        if count:
            replies = "one reply ends" if count == 1 else f"{count} replies end"
            notes.append(
                f"equal as far as both go: {replies} earlier in the {short} tape"
                + ("" if count < len(ahead) else ", a prefix of the other in all they share")
            )
    return notes
