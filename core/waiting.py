"""Who waits in the queue for a prefix that another stream is about to keep, and for how long.

A stream waits only behind streams that came before it, which are seated and go on in any case, and
for one mark at a time, which is kept or passed. So it waits as often as there are such marks at
most, and whoever comes later can not add to them. It keeps its place: when it waits no more, nobody
passes it.
"""

from ..events import facts as f
from .marks import alike
from .state import State, Stream, flagged
from .store import Hit


def waits(state: State, stream: Stream) -> bool:
    """Whether the mark that a queued stream waits for is still to come."""
    behind = state.streams.get(stream.behind)
    return behind is not None and stream.awaited > behind.rows and stream.awaited in behind.marks


def wait_for(state: State, stream: Stream, hit: Hit) -> f.StreamWaits | None:
    """The mark to wait for, of whoever runs a prefix that serves better than what is hit.

    Two seldom run one prefix: the later of them would have waited too.
    """
    if not flagged(state.opened, "prefix_wait"):
        return None
    for other in state.lanes:
        if other is None or other > stream.stream:
            continue  # empty, or it came later
        ahead = state.streams[other]
        if ahead.marks and ahead.marks[-1] > max(ahead.rows, hit.mark):
            mark = _serves(state, stream, ahead, hit.mark)
            if mark:
                return f.StreamWaits(stream=stream.stream, behind=other, mark=mark)
    return None


def _serves(state: State, stream: Stream, ahead: Stream, kept: int) -> int:
    """The last mark to come of a seated stream that a prompt repeats, 0 if it repeats too little.

    kept: rows that the prompt could resume at without it.
    """
    rules = state.opened.rules
    prompt, theirs = stream.request.prompt, ahead.request.prompt
    least = kept + max(rules.min_prompt, rules.page_rows)  # rows that both must have
    if ahead.request.salt != stream.request.salt or min(len(prompt), len(theirs)) < least:
        return 0
    if prompt[least - 1] != theirs[least - 1]:  # most pairs part here, at no cost
        return 0
    both = alike(prompt, theirs)
    if both < least:
        return 0
    for mark in reversed(ahead.marks):
        if mark <= ahead.rows:
            break
        if mark + rules.lookahead <= both and _rows_won(state, stream, mark) > kept:
            return mark
    return 0


def _rows_won(state: State, stream: Stream, mark: int) -> int:
    """Rows that a prompt resumes at once a mark that it repeats is kept; one is left to run."""
    if mark < stream.prompt_tokens:
        return mark
    rules = state.opened.rules  # a state of its whole prompt serves as far as its pages can be cut
    return 0 if rules.snapshots else (stream.prompt_tokens - 1) // rules.page_rows * rules.page_rows
