"""Where states of a prompt are kept: at its history's end, and where other prompts part from it."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..events.facts import RequestArrived
from ..events.ids import NO_STATE, StateId
from ..events.records import FamilyRules
from .state import State, Stream, flagged

# A system part is kept at its end and so many tokens before it, where its last words may change.
COMMON_BACK = (0, 512, 2048)
COMMON_LEAST = 512  # tokens; less is not worth a state
BLOCK = 512  # tokens that are compared at once


def places(
    state: State, stream: Stream, resumed: StateId, *, tail: bool
) -> tuple[int, tuple[int, ...]]:
    """History's end, 0 for none, and other rows at which a state would serve, dearest first.

    tail: a prompt without a history is kept at its end.
    """
    request, last = stream.request, last_mark(state, stream)
    history = min(request.history_tokens, last)
    if not flagged(state.opened, "marks"):
        return history, (last,) if tail else ()
    rows = [request.rewind_tokens, _stable(state, request, resumed)]
    rows += common_cuts(request.system_tokens)
    if tail and history == 0:
        rows.append(last)
    return history, tuple(row for row in rows if row <= last)


def places_of_pages(state: State, stream: Stream) -> tuple[int, ...]:
    """The same where states are pages alone: the prompt's end, and the end of its system part.

    Each page of a kept state can be resumed at, so marks between would be other names for pages
    that are held. The system part alone is kept early: whoever shares it waits for no more.
    """
    rules = state.opened.rules
    end = stream.prompt_tokens if rules.finish_marks else last_mark(state, stream)
    cuts = common_cuts(stream.request.system_tokens) if flagged(state.opened, "marks") else ()
    return (end, *(row for row in cuts[:1] if row <= end))


def spaced(
    rules: FamilyRules, prompt_tokens: int, start: int, history: int, others: Iterable[int]
) -> list[int]:
    """Marks past `start`: history's end, and others that are a gap away from it and from `start`.

    All are floored to the family's grid. In the order in which they are given.
    """
    if prompt_tokens < rules.min_prompt:
        return []
    first, *more = (row // rules.mark_rows * rules.mark_rows for row in (history, *others))
    marks = [first] if first > start else []
    for mark in more:
        gap = min(abs(mark - other) for other in (start, *marks))
        if mark > start and gap >= max(rules.min_gap, 1):
            marks.append(mark)
    return marks


def last_mark(state: State, stream: Stream) -> int:
    """The last row at which a prompt may be kept: a row and the lookahead are left to run."""
    return stream.prompt_tokens - max(1, state.opened.rules.lookahead)


def common_cuts(system_tokens: int) -> list[int]:
    """Rows at which prompts that have a system part in common may part, the last one first."""
    return [row for back in COMMON_BACK if (row := system_tokens - back) >= COMMON_LEAST]


def is_common(rules: FamilyRules, request: RequestArrived, mark: int) -> bool:
    """Whether a mark stands where other prompts may part from this one's system part."""
    grid = rules.mark_rows
    return any(row // grid * grid == mark for row in common_cuts(request.system_tokens))


def _stable(state: State, request: RequestArrived, resumed: StateId) -> int:
    """Rows that a prompt shares with the last one that used the state it resumes.

    0 where these are less than half of its history, or all of it.
    """
    if resumed == NO_STATE:
        return 0
    rows = alike(request.prompt, state.kept[resumed].last)
    return rows if request.history_tokens <= 2 * rows < 2 * request.history_tokens else 0


def alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many tokens, or letters, two prompts begin with alike."""
    most = min(len(one), len(other))
    for first in range(0, most, BLOCK):
        mine, theirs = one[first : first + BLOCK], other[first : first + BLOCK]
        if mine != theirs:
            pairs = zip(mine, theirs, strict=False)
            return next((at for at, (a, b) in enumerate(pairs, first) if a != b), most)
    return most
