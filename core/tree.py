"""The prompt tree: which page-aligned prefixes are kept, found by their tokens (rank 0 only).

A node is one page. Its key is the page's tokens and the `lookahead` tokens after it, because what a
page holds depends on them too, so two prompts share a page only if they agree that far. States that
no other extends wait for their turn to go (paging/queues.py), in an order that may learn
(paging/odds.py). All of it are integers in one array, moved by compiled code (paging/layout.py).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..events.ids import NO_STATE, PageId, StateId, StreamId, Token
from .paging import layout as at
from .paging import moves, nodes, odds, queues
from .paging.words import begin, more, more_parts, more_uses, new_root

Tokens = Sequence[Token] | Sequence[int] | NDArray[np.int32]


class Walk(NamedTuple):
    """How far a prompt repeats what is kept: the pages, and the node of the last.

    ends: whether a state ends there.
    """

    pages: tuple[PageId, ...]
    node: int
    ends: bool


class PromptTree:
    """Kept prefixes by tokens; a forest with one root for each salt.

    policy: flag `evict`.  words, keys: all of it, and the tokens of each page's node.
    """

    def __init__(self, page_rows: int, lookahead: int, pages: int, policy: int = at.SEEDS) -> None:
        self.policy, self.page_rows = policy, page_rows
        self.found = np.zeros(pages, np.int32)  # pages of the last search
        self.words = begin(page_rows, lookahead, pages, policy)
        self.keys = np.zeros((pages, page_rows + lookahead), np.int32)
        self._roots: dict[str, int] = {}
        self._states: dict[StateId, int] = {}
        self._spare: list[int] = []  # records of states that went
        self._uses: dict[StreamId, int] = {}  # while the stream is there, for odds

    def find(self, tokens: NDArray[np.int32], salt: str, pages: int) -> int:
        """How many pages of these tokens are kept from row 0 on, at most `pages`; in `found`."""
        root = self._roots.get(salt, 0)
        if not root:
            self.words[at.WALKED] = 0
            return 0
        count: int = nodes.walk(self.words, self.keys, tokens, root, pages, self.found)
        return count

    def walk(self, tokens: Tokens, salt: str, pages: int) -> Walk:
        """The pages that repeat these tokens from row 0 on, at most `pages` of them."""
        found = tuple(self.found[: self.find(_told(tokens), salt, pages)].tolist())
        node = self.words.item(at.WALKED)
        return Walk(found, node, bool(found and self.words[node + at.STATE]))

    def with_state(self, walk: Walk) -> Walk:
        """A walk, cut back to where a state ends."""
        m, node, count = self.words, walk.node, len(walk.pages)
        while count and not m[node + at.STATE]:
            node, count = m.item(node + at.PARENT), count - 1
        return Walk(walk.pages[:count], node, count > 0)

    def remembered(self, tokens: Tokens, pages: int) -> int:
        """Past the last search, to where what went is remembered; `pages`: nowhere, or all."""
        m = self.words
        walked = m.item(at.WALKED)
        count = m.item(walked + at.DEPTH) if walked else 0
        if not walked:
            return pages
        known: int = moves.remembered(m, _told(tokens), count, pages)
        return known

    def state_below(self, node: int) -> StateId:
        """A state that holds a node's page: the one reached by the oldest children."""
        return StateId(self.words.item(nodes.state_below(self.words, node)))

    def add(
        self,
        state: StateId,
        tokens: Tokens,
        salt: str,
        pages: Sequence[PageId] | NDArray[np.int32],
        stream: StreamId,
        prompt_pages: int,
    ) -> None:
        """Keep a state's prefix; where the tree has its tokens, its pages are the tree's.

        stream: it leaves the state. prompt_pages: whole ones of its prompt.
        """
        assert state not in self._states, f"state {state} is kept already"
        root = self.root(salt)
        record = self.record()
        self.words[record + at.STATE_ID], self.words[record + at.STAYS] = state, 0
        told, ids = _told(tokens), _told(pages)
        before = self._uses.get(stream, 0)
        given = (self.words, self.keys, told, root, ids, record, before, prompt_pages)
        while (uses := moves.add(*given)) == at.GROW:
            self.grow()
        assert uses != at.ELSEWHERE, f"state {state} keeps pages where the tree has others"
        self._states[state] = record
        if uses:
            self._uses[stream] = uses

    def drop(self, state: StateId) -> None:
        """Forget a state and every node that no other state holds."""
        record = self._states.pop(state)
        moves.drop(self.words, record)
        self._spare.append(record)

    def resumed(self, state: StateId, pages: int, stream: StreamId, prompt_pages: int) -> None:
        """The first `pages` pages of a state came back; so did every state that they hold.

        It may go again, if it was to stay for this stream.
        stream: they came back for it. prompt_pages: whole ones of its prompt.
        """
        if self.policy == at.SEEDS:
            return
        record, uses = self._states[state], self._uses.get(stream, 0)
        while (now := moves.resumed(self.words, record, pages, uses, prompt_pages)) == at.GROW:
            self.grow()
        if now:
            self._uses[stream] = now

    def ended(self, stream: StreamId) -> None:
        """A reply ended: its prompt's pages were in use until now."""
        uses = self._uses.pop(stream, 0)
        if uses:
            moves.ended(self.words, uses)

    def stays(self, state: StateId, more: int) -> None:
        """One stream more (1), or less (-1), is resuming a state, which `weakest` leaves alone."""
        if state in self._states:  # it may have gone for another reason
            self.words[self._states[state] + at.STAYS] += more

    def weakest(self, leases: NDArray[np.int32], hit: StateId = NO_STATE) -> StateId | None:
        """Who goes first of states that no other extends and whose last page has no lease [pages].

        hit: one that must stay, beside those that streams are resuming.
        """
        found = queues.weakest(self.words, leases, self._states[hit] if hit >= 0 else 0)
        return StateId(self.words.item(found)) if found else None

    def weakest_of(self, among: Iterable[StateId]) -> StateId | None:
        """Who goes first of some states; None if others extend all of them."""
        m, oldest = self.words, dict[int, tuple[int, StateId]]()
        for state in among:
            record = self._states[state]
            level, since = m.item(record + at.QUEUED) - 1, m.item(record + at.SINCE)
            if level >= 0:
                oldest[level] = min(oldest.get(level, (since, state)), (since, state))
        ranked = [(self.worth(level, since), since, one) for level, (since, one) in oldest.items()]
        return min(ranked)[2] if ranked else None

    def worth(self, level: int, since: int) -> int:
        """What it is worth to keep pages of these odds on that were last used then."""
        if self.policy != at.ODDS_POLICY:
            return 0
        return int(odds.worth(self.words, level, self.words.item(at.CLOCK) - since))

    def moved_past(self, state: StateId) -> bool:
        """Whether another state extends this one."""
        return bool(self.words[self._end(state) + at.KID])

    def passed_by(self, state: StateId) -> list[StateId]:
        """States whose whole prefix this state holds too, other than itself."""
        m, node, found = self.words, self._end(state), list[StateId]()
        while node:
            record = m.item(node + at.STATE)
            while record:
                found.append(StateId(m.item(record + at.STATE_ID)))
                record = m.item(record + at.BESIDE)
            node = m.item(node + at.PARENT)
        return sorted(one for one in found if one != state)

    def paths(self) -> Iterable[tuple[StateId, tuple[PageId, ...]]]:
        """Every state with the pages of its path, for checks."""
        m = self.words
        for state in self._states:
            pages, node = list[PageId](), self._end(state)
            while m[node + at.PARENT]:
                pages.append(PageId(m.item(node + at.PAGE)))
                node = m.item(node + at.PARENT)
            yield state, tuple(reversed(pages))

    def _end(self, state: StateId) -> int:
        return self.words.item(self._states[state] + at.END)

    def root(self, salt: str) -> int:
        """What stands above all prompts of a salt."""
        if salt not in self._roots:
            self._roots[salt] = new_root(self.words, salt)
        return self._roots[salt]

    def uses(self, stream: StreamId) -> int:
        """What a stream uses, 0 for nothing."""
        return self._uses.get(stream, 0)

    def over(self, stream: StreamId) -> int:
        """The same; it uses nothing from now on."""
        return self._uses.pop(stream, 0)

    def left(self, stream: StreamId, uses: int, state: StateId, records: tuple[int, ...]) -> None:
        """A stream left states, numbered from one on."""
        for number, record in enumerate(records, state):
            self._states[StateId(number)] = record
        if uses:
            self._uses[stream] = uses

    def forgotten(self, record: int) -> StateId:
        """A state went."""
        state = StateId(self.words.item(record + at.STATE_ID))
        self._spare.append(self._states.pop(state))
        return state

    def record(self) -> int:
        """A record for a state."""
        if not self._spare:
            self._spare = more(self.words, at.RECORD, 64 + len(self._states))
        return self._spare.pop()

    def grow(self) -> None:
        """More records, for a move that found too few of them."""
        more_parts(self.words)
        more_uses(self.words)


def _told(numbers: Tokens | Sequence[PageId]) -> NDArray[np.int32]:
    return numbers if isinstance(numbers, np.ndarray) else np.array(numbers, np.int32)
