"""The radix store: a kept state lends the pages that it stands on; the prompt tree finds it."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import NO_STATE, PageId, RequestId, StateId
from ..events.records import known
from .evict import SEEDS
from .marks import places, places_of_pages, spaced
from .state import KeptState, Phase, State, Stream, flagged
from .store import NO_HIT, Hit, digest_at_mark, drop, may_go, resuming
from .tree import PromptTree


class RadixStore:
    """Kept states share pages with streams and with each other; `states` of a run bounds them."""

    def match(self, state: State, stream: Stream) -> Hit:
        """The deepest kept state that the prompt repeats, and its pages."""
        rules = state.opened.rules
        most = (stream.prompt_tokens - 1) // rules.page_rows
        tree = _tree(state)
        path = tree.walk(stream.told(stream.prompt_tokens), stream.request.salt, most)
        if rules.snapshots:  # such a state stands at its own mark only
            path = tree.with_state(path)
        if not path.pages:
            return NO_HIT
        mark = len(path.pages) * rules.page_rows
        return Hit(tree.state_below(path.node), mark, path.pages)

    def fits(self, state: State, hit: Hit, want: int) -> bool:
        """Whether so many pages could be promised if every other kept state went."""
        book, kept = state.book, state.kept
        spare = book.available - want
        if spare >= 0 or spare + book.idle < 0:
            return spare >= 0
        stay = [kept[one].pages for one in _wanted(state, hit)]
        spare += book.idle
        if sum(map(len, stay)) > spare:  # they may be idle themselves, and share pages
            leases, pages = book.leases, set(chain.from_iterable(stay))
            spare -= sum(not leases[page] for page in pages)
        return spare >= 0

    def make_room(self, state: State, want: int, hit: Hit, request: RequestId) -> Iterator[AnyFact]:
        """Drop kept states, weakest first, until so many pages can be promised."""
        while state.book.available < want:
            yield drop(_reclaimable(state, hit), "reclaimed", request)

    def seat(self, state: State, stream: Stream, hit: Hit) -> Iterator[AnyFact]:
        """The pages of the hit become the head of the stream's table."""
        if hit.pages:
            kind = "pages_adopted"
            yield known(f.PagesAdopted, kind=kind, stream=stream.stream, pages=hit.pages)

    def marks(self, state: State, stream: Stream, hit: Hit) -> tuple[int, ...]:
        """As many as there may be states; what came back is weighed apart from what is added."""
        rules, start, history = state.opened.rules, hit.mark, 0
        if rules.snapshots:
            history, others = places(state, stream, hit.state, tail=True)
        else:
            others = places_of_pages(state, stream)
        found = spaced(rules, stream.prompt_tokens, start, history, others)
        if flagged(state.opened, "marks"):
            found = found[: state.opened.states]
        marks = tuple(sorted(found))
        if start and _tree(state).policy != SEEDS and not _ends(state, stream, start):
            return (start, *marks)
        return marks

    def keep(self, state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
        """Keep rows on the tree's pages where the tree has them, else on the stream's own."""
        rules, opened, tree = state.opened.rules, state.opened, _tree(state)
        count = mark // rules.page_rows
        assert mark % rules.mark_rows == 0 and count > 0, f"mark {mark} is off the grid"
        tokens = stream.told(mark + rules.lookahead)
        path = tree.walk(tokens, stream.request.salt, count)
        yield from _swap(state, stream, path.pages)
        spare = not rules.snapshots and tree.policy == SEEDS  # states that others hold, or extend
        if len(path.pages) == count and (path.ends or spare):
            return  # the same rows are kept already
        if opened.states == 0:
            return
        if not rules.snapshots:  # what had come back before is weighed apart from what is new
            cut = tree.remembered(tokens, count)
            if cut < count:
                yield from self._take(state, stream, cut, {})
        taken = state.next_state
        yield from self._take(state, stream, count, digest_at_mark(state, stream, mark))
        if spare and taken in state.kept:  # any of its pages can be resumed at
            for passed in tree.passed_by(StateId(taken)):
                yield drop(state.kept[passed], "moved_past", stream.request.request)

    def _take(
        self, state: State, stream: Stream, count: int, digest: dict[str, str]
    ) -> Iterator[AnyFact]:
        """Keep the first `count` pages; when there are too many states, others go first."""
        opened = state.opened
        while len(state.kept) >= opened.states:
            others = may_go(state, stream)
            if not others:
                return
            yield drop(_weakest(state, others), "evicted", stream.request.request)
        yield known(
            f.SnapshotTaken,
            kind="snapshot_taken",
            state=StateId(state.next_state),
            stream=stream.stream,
            mark=count * opened.rules.page_rows,
            shared=True,
            pages=tuple(
                state.table(stream)[:count]
            ),  # where the tree has them, they are the tree's
            digest=digest,
        )

    def check(self, state: State) -> None:
        """A state's pages end at its mark, and the tree holds exactly the kept states."""
        rows = state.opened.rules.page_rows
        assert len(state.kept) <= state.opened.states, "more kept states than the limit"
        for kept in state.kept.values():
            assert len(kept.pages) * rows == kept.mark, "a state's pages end at its mark"
        for stream in state.streams.values():
            if stream.phase is Phase.RESUMING:
                assert stream.pages in (0, stream.kept_pages), "leased before its resume's answer"
        if state.tree is not None:
            paths = dict(state.tree.paths())
            held = {kept.state: kept.pages for kept in state.kept.values()}
            assert paths == held, f"the tree holds {paths}, the kept states {held}"


def _tree(state: State) -> PromptTree:
    assert state.tree is not None, "only rank 0 keeps"
    return state.tree


def _wanted(state: State, hit: Hit) -> set[StateId]:
    """States that must stay: the one that is hit, and those that are being resumed."""
    wanted = {hit.state} - {NO_STATE}
    if _tree(state).policy != SEEDS or flagged(state.opened, "keep_resuming"):
        wanted |= resuming(state)
    return wanted


def _ends(state: State, stream: Stream, mark: int) -> bool:
    """Whether a kept state of these tokens ends at the mark."""
    pages = mark // state.opened.rules.page_rows
    told = stream.told(mark + state.opened.rules.lookahead)
    path = _tree(state).walk(told, stream.request.salt, pages)
    return len(path.pages) == pages and path.ends


def _swap(state: State, stream: Stream, pages: Sequence[PageId]) -> Iterator[AnyFact]:
    """Use the tree's pages in place of the stream's equal ones, run by run."""
    mine = state.table(stream)[: len(pages)]
    first = 0
    while first < len(pages):
        last = first
        while last < len(pages) and mine[last] != pages[last]:
            last += 1
        if last > first:
            yield known(
                f.PagesSwapped,
                kind="pages_swapped",
                stream=stream.stream,
                first=first,
                pages=tuple(pages[first:last]),
            )
        first = last + 1


def _frees(state: State, kept: KeptState) -> bool:
    """Whether dropping the state alone frees a page now."""
    pages = np.asarray(kept.pages)
    return bool(np.any((state.book.leases[pages] == 0) & (state.book.kept[pages] == 1)))


def _reclaimable(state: State, hit: Hit) -> KeptState:
    """The state to give up first of those that free a page and are not wanted."""
    tree = _tree(state)
    if tree.policy == SEEDS:
        wanted = _wanted(state, hit)
        others = (kept for kept in state.kept.values() if kept.state not in wanted)
        idle = [kept.state for kept in others if _frees(state, kept)]
        assert idle, "pages were reclaimable and are not"
        return _weakest(state, idle)
    goes = tree.weakest(state.book.leases, hit.state)
    assert goes is not None, "pages were reclaimable and are not"
    return state.kept[goes]


def _weakest(state: State, among: Sequence[StateId]) -> KeptState:
    """The state to give up first: moved past by another, then never hit, then longest unused.

    One that many prompts may part from is not moved past by any of them.
    """
    tree = _tree(state)

    def moved_past(state_id: StateId) -> bool:
        return tree.moved_past(state_id) and not state.kept[state_id].common

    if tree.policy != SEEDS and not any(moved_past(one) for one in among):
        goes = tree.weakest_of(among)
        if goes is not None:  # otherwise others extend all of them
            return state.kept[goes]

    def rank(state_id: StateId) -> tuple[bool, bool, int]:
        kept = state.kept[state_id]
        passed = moved_past(state_id)
        return (not passed, kept.hit and not passed, kept.used)

    return state.kept[min(among, key=rank)]
