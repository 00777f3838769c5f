"""Which kept state is most like a prompt that it does not match, and where the two part."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from ..events.ids import RequestId, SessionId, StateId
from .lookups import Near
from .prefix_names import TOKEN, agree, packed
from .state import KeptState, State, Stream

LOOKED_THROUGH = 256  # kept states that begin like a prompt: the last used of them
COMPARED = 8  # of those, token by token: the ones that agree furthest
TAIL = 16  # last tokens of a kept prompt, by which it is known again


@dataclass(frozen=True, slots=True)
class Left:
    """A kept state: its prefixes' names, and of the prompt that left it who asked and its length.

    told: rows up to the end of what the next turn repeats.
    """

    names: tuple[bytes, ...]
    request: RequestId
    session: SessionId
    told: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that was resumed at row `hit`: its names, `rows` apart, and its packed tokens past
    the hit."""

    stream: Stream
    names: Sequence[bytes]
    rows: int
    hit: int
    told: bytes


def nearest(prompt: Prompt, left: dict[StateId, Left], state: State) -> Near | None:
    """Of the kept states past a prompt's hit the one that agrees furthest, if it is like it.

    left: in the order of their use.  Of two that agree as far, the one with the nearer mark.
    """
    found = [_parting(prompt, state_id, left, state) for state_id in _candidates(prompt, left)]
    near = [one for one in found if one is not None]
    return max(near, key=lambda one: (one.differs_at, -one.mark), default=None)


def _candidates(prompt: Prompt, left: dict[StateId, Left]) -> list[StateId]:
    """The session's own kept states and those with the same first page; if none, the newest."""
    names, session = prompt.names, prompt.stream.request.session
    ranked: list[tuple[bool, int, StateId]] = []
    for state_id in reversed(left):
        one = left[state_id]
        if one.session == session or (names and one.names[0] == names[0]):
            ranked.append((one.session == session, agree(names, one.names), state_id))
            if len(ranked) == LOOKED_THROUGH:
                break
    if not ranked:
        return [state_id for state_id, _ in zip(reversed(left), range(COMPARED), strict=False)]
    return [state_id for _, _, state_id in nlargest(COMPARED, ranked)]


def _parting(
    prompt: Prompt, state_id: StateId, left: dict[StateId, Left], state: State
) -> Near | None:
    """Where a prompt and a kept state part, if it is before the mark and past the hit."""
    kept, one, asked = state.kept[state_id], left[state_id], prompt.stream.request
    if kept.mark <= prompt.hit or kept.salt != asked.salt:
        return None
    at = agree(prompt.names, one.names) * prompt.rows
    last = min(len(asked.prompt), len(kept.tokens))
    while at < last and asked.prompt[at] == kept.tokens[at]:
        at += 1
    if at == last or at < prompt.hit:  # one repeats the other, or it is no way further
        return None
    if one.session != asked.session and not _alike(prompt, kept, one.told, at):
        return None
    return Near(state_id, kept.mark, one.request, at, (kept.tokens[at], asked.prompt[at]))


def _alike(prompt: Prompt, kept: KeptState, told: int, at: int) -> bool:
    """Whether a prompt that parts from a kept state at a row goes on with the same conversation.

    It repeats nearly all of what the state's own next turn repeats, or the end of that comes again.
    """
    end = min(told, len(kept.tokens))
    if at > end - TAIL:
        return True
    tail, from_byte = packed(kept.tokens[end - TAIL : end]), (at - prompt.hit) * TOKEN
    while (found := prompt.told.find(tail, from_byte)) >= 0:
        if found % TOKEN == 0:
            return True
        from_byte = found + 1
    return False
