"""The fake family: a model without weights whose every value is an integer mix, and its oracle.

Two kinds, by their rules. One has the parts of a model with recurrent states: latent rows and
pooled keys on pages, states and rings beside them, a drafter's cache with a lookahead. The other is
pages alone, its rows split over ranks by head. All words are uint64 with bits 15, 31, 47 and 63
clear, so that no poison pattern is a valid word.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...events.records import FamilyRules
from ..kernels.digest import PARTS as KINDS
from ..kernels.fake import LOGIT_SHIFT, LOGIT_UNIT, LOGIT_ZERO, OUTPUT, STRIDE
from ..kernels.fake_memory import HEADS, LAYERS, POOL, RING, VALID, WIDTH

WORD = 2**64 - 1

Sampler = Callable[[NDArray[np.float32], Sequence[int]], int]


def fake_rules(
    page_rows: int = 8,
    mark_rows: int = 16,
    lookahead: int = 1,
    drafts: int = 0,
    vocab: int = 64,
    min_prompt: int = 0,
    min_gap: int = 0,
) -> FamilyRules:
    """Rules of the kind with states: a snapshot at each mark, drafts that are rolled back."""
    assert page_rows % POOL == 0, f"pages of {page_rows} rows cut pools of {POOL}"
    assert mark_rows % page_rows == 0, f"marks at {mark_rows} rows cut pages of {page_rows}"
    assert vocab % 2 == 0, f"a vocabulary of {vocab} is no whole number of digest words"
    return FamilyRules(
        page_rows=page_rows,
        mark_rows=mark_rows,
        lookahead=lookahead,
        drafts=drafts,
        snapshots=True,
        finish_marks=False,
        min_prompt=min_prompt,
        min_gap=min_gap,
        vocab=vocab,
        parts=("rows", "keys", "states", "rings", "drafts", "logits", "tokens"),
        split=("states", "rings"),
    )


def paged_rules(page_rows: int = 8, vocab: int = 64) -> FamilyRules:
    """Rules of the kind that is pages alone; its rows are split over ranks by head."""
    assert vocab % 2 == 0, f"a vocabulary of {vocab} is no whole number of digest words"
    return FamilyRules(
        page_rows=page_rows,
        mark_rows=page_rows,
        lookahead=0,
        drafts=0,
        snapshots=False,
        finish_marks=True,
        min_prompt=0,
        min_gap=0,
        vocab=vocab,
        parts=("rows", "marks", "logits", "tokens"),
        split=("rows", "marks"),
    )


def mix(x: int) -> int:
    """A bijection of 64-bit words with no pattern left in it."""
    x &= WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def salt(part: str, layer: int, head: int, column: int, token: int, position: int) -> int:
    """What makes the words of one token at one place unlike all others."""
    kind = KINDS.get(part, OUTPUT)
    return mix((position << 24 | token) ^ mix(kind << 48 | layer << 32 | head << 16 | column))


def greedy(logits: NDArray[np.float32], tokens: Sequence[int]) -> int:
    """The largest logit, ties to the lower id."""
    return int(np.argmax(logits))


@dataclass(slots=True)
class Oracle:
    """Every value of one stream, from its tokens alone: no pages, lanes, ranks or windows.

    rows[p][layer][head][column]; keys[p] of the pool that row p completes; states[p][layer][head]
    [column] after row p; rings[p][head] the raw row; drafts[p] once token p + 1 is known.
    """

    rules: FamilyRules
    sampler: Sampler = greedy
    tokens: list[int] = field(default_factory=list)
    rows: list[list[list[list[int]]]] = field(default_factory=list)
    keys: dict[int, int] = field(default_factory=dict)
    states: list[list[list[list[int]]]] = field(default_factory=list)
    rings: list[list[int]] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)

    @property
    def paged(self) -> bool:
        """Whether the stream is pages alone."""
        return "states" not in self.rules.parts

    def extend(self, tokens: Sequence[int]) -> None:
        """Take more tokens and compute their rows."""
        for token in tokens:
            self.tokens.append(token)
            if len(self.tokens) > 1 and not self.paged:
                self._draft_row(len(self.tokens) - 2)
            self._row(token, len(self.tokens) - 1)

    def reply(self, new_tokens: int) -> list[int]:
        """Draw so many tokens, each after the row of the one before it; the last has no row."""
        drawn: list[int] = []
        while True:
            drawn.append(self.next_token(len(self.tokens) - 1))
            if len(drawn) == new_tokens:
                return drawn
            self.extend(drawn[-1:])

    def next_token(self, position: int) -> int:
        """The token that the row at a position draws."""
        return self.sampler(self.logits(position), self.tokens[: position + 1])

    def logits(self, position: int) -> NDArray[np.float32]:
        """The logits [vocab] of the row at a position."""
        seed = self._outputs(position) + sum(
            self._reading(position, head) for head in range(len(self.rows[0][0]))
        )
        last = (position + 1) // POOL - 1
        if not self.paged and last >= 0:
            older = mix(self.keys[POOL * (last // 2) + POOL - 1])
            seed += mix(older ^ self.keys[POOL * last + POOL - 1])
        mixes = [mix((seed & WORD) ^ (v * STRIDE & WORD)) for v in range(self.rules.vocab)]
        whole = np.array([(m >> LOGIT_SHIFT) - LOGIT_ZERO for m in mixes], np.float32)
        return whole * np.float32(LOGIT_UNIT)

    def draft_row(self, position: int, following: int) -> int:
        """The drafter's cache row at a position, if token `position + 1` were `following`."""
        before = self.drafts[position - 1] if position else 0
        token = self.tokens[position]
        word = before ^ mix(
            self.rows[position][-1][0][0] + salt("drafts", 0, 0, following, token, position)
        )
        return mix(word) & VALID

    # --- one row ---------------------------------------------------------------------------------

    def _row(self, token: int, p: int) -> None:
        row: list[list[list[int]]] = []
        for layer in range(LAYERS):
            heads: list[list[int]] = []
            for head in range(HEADS if self.paged else 1):
                words: list[int] = []
                for c in range(WIDTH):
                    before = self.rows[p - 1][layer][head][c] if p else 0
                    older = self.rows[p // 2][layer][head][c] if p else 0
                    below = row[layer - 1][head][c] if layer else 0
                    word = before ^ mix(older + below + salt("rows", layer, head, c, token, p))
                    words.append(mix(word) & VALID)
                heads.append(words)
            row.append(heads)
        self.rows.append(row)
        if not self.paged:
            self._recurrent(token, p, row)

    def _recurrent(self, token: int, p: int, row: list[list[list[int]]]) -> None:
        before = self.states[p - 1] if p else [[[0] * WIDTH] * HEADS] * LAYERS
        self.states.append([
            [
                [
                    mix(before[at][h][c] ^ (row[at][0][c] + salt("states", at, h, c, token, p)))
                    & VALID
                    for c in range(WIDTH)
                ]
                for h in range(HEADS)
            ]
            for at in range(LAYERS)
        ])  # fmt: skip
        self.rings.append([
            mix(row[-1][0][0] + salt("rings", 0, h, 0, token, p)) & VALID for h in range(HEADS)
        ])  # fmt: skip
        if p % POOL == POOL - 1:
            pooled = sum(
                mix(self.rings[p - i][h] ^ salt("keys", 0, h, i, 0, p))
                for h in range(HEADS)
                for i in range(POOL)
            )
            self.keys[p] = mix(pooled) & VALID

    def _draft_row(self, p: int) -> None:
        self.drafts.append(self.draft_row(p, self.tokens[p + 1]))

    def _outputs(self, p: int) -> int:
        """What the heads' states and rings give to the logits."""
        if self.paged:
            return 0
        total = 0
        for h in range(HEADS):
            word = salt("output", 0, h, 0, self.tokens[p], p)
            for layer in range(LAYERS):
                for c in range(WIDTH):
                    word = mix(word ^ self.states[p][layer][h][c])
            for back in (0, 2, RING - 1):
                word = mix(word ^ (self.rings[p - back][h] if p >= back else 0))
            total += word
        return total

    def _reading(self, p: int, head: int) -> int:
        """What rows on pages give to the logits: the newest, an old one and the first."""
        word = self.rows[p][-1][head][0] ^ mix(self.rows[p][-1][head][1])
        word = mix(word + self.rows[p // 3][0][head][0])
        return mix(word ^ self.rows[0][-1][head][WIDTH - 1])
