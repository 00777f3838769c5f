"""What a rank of the fake device allocates, and what it copies in and out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.device import EveryRow, HeldRows
from ..core.families.family import Span
from ..core.kernels.fake_memory import (
    DRAWN,
    EVERY,
    LAYERS,
    PARTS,
    POOL,
    RING,
    ROW_WORDS,
    TOKEN,
    WIDTH,
    Shape,
)
from ..core.state import Stream
from ..events.facts import RunOpened
from ..events.ids import StreamId

PATTERNS = {"a": 0x8000800080008000, "b": 0x8080808080808080}  # no valid word looks like these
ELEMENT_BITS, WORD_BITS = 16, 64
DIGEST_LEVELS = ("rows", "full")

Words = NDArray[np.uint64]
Table = NDArray[np.int32]
Entry = tuple[int, int, int, int, int, int, int, int]  # as in core/kernels/fake.py


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's arena and its regions as arrays; Shape says what each holds."""

    arena: Words
    rows: Words
    keys: Words
    drafts: Words
    fixed: Words
    saved: Words
    page_sums: Words
    sums: Words
    poisoned: Words
    scratch: Words


def shape_and_memory(opened: RunOpened, heads: Span, broken: frozenset[str]) -> tuple[Any, Memory]:
    """A rank's fixed sizes and its arrays; all memory of a run is taken here."""
    rules, lanes, pages = opened.rules, opened.lanes, opened.pages + 2
    own, split = heads[1] - heads[0], int("rows" in rules.split)
    row_heads, fixed_words = own if split else 1, LAYERS * own * WIDTH + own * RING
    window, page_keys = 1 + rules.drafts, -(-rules.page_rows // POOL)
    regions: dict[str, tuple[int, ...]] = {
        "rows": (LAYERS, pages, rules.page_rows, row_heads, WIDTH),
        "keys": (pages, page_keys),
        "drafts": (pages, rules.page_rows),
        "fixed": (lanes, fixed_words),
        "saved": (lanes, window, fixed_words),
        "page_sums": (3, pages, 2),
        "sums": (lanes, len(PARTS), 2),
        "poisoned": (lanes, 3),
        "scratch": (len(PARTS), 2),
    }
    ends = np.cumsum([int(np.prod(size)) for size in regions.values()]).tolist()
    places = dict(zip(regions, [0, *ends], strict=False))
    arena = np.zeros(ends[-1], np.uint64)
    views = {
        name: arena[places[name] : end].reshape(size)
        for (name, size), end in zip(regions.items(), ends, strict=True)
    }
    shape = Shape(
        page_rows=rules.page_rows,
        page_keys=page_keys,
        mark_rows=rules.mark_rows,
        vocab=rules.vocab,
        pages=opened.pages,
        head=heads[0],
        heads=own,
        row_heads=row_heads,
        split=split,
        states=int("states" in rules.parts),
        window=window,
        pattern=np.uint64(PATTERNS.get(opened.poison, 0)),
        drafter=opened.flags.get("fake_drafter", 0),
        digests=int(opened.digests in DIGEST_LEVELS),
        keep_states=int("states" not in broken),
        keep_rings=int("rings" not in broken),
        keep_drafts=int("drafts" not in broken),
        keep_sums=int("sums" not in broken),
        fixed_words=fixed_words,
        **places,
    )
    memory = Memory(arena, **views)
    if shape.pattern:  # the pages past the pool hold nothing that may be read
        memory.rows[:, opened.pages :] = shape.pattern
        memory.keys[opened.pages :] = memory.drafts[opened.pages :] = shape.pattern
    return shape, memory


@dataclass(slots=True)
class Batch:
    """The arrays of a step, kept from step to step while their sizes stay.

    entries [n, 8] int64, rows [lines, 22] uint64, logits [lines, vocab] float32: see
    core/kernels/fake.py.
    """

    entries: NDArray[np.int64]
    rows: Words
    logits: NDArray[np.float32]
    logit_words: Words

    def fitting(self, entries: Sequence[Entry], streams: Sequence[Stream]) -> "Batch":
        """A batch of these entries, with the tokens that are known."""
        lines = end_of(entries)
        batch = self
        if len(self.entries) != len(entries) or len(self.rows) != lines:
            batch = batch_of(len(entries), lines, self.logits.shape[1])
        batch.entries[:] = entries
        given: list[int] = []
        for (_, first, count, window, _, _, _, _), stream in zip(entries, streams, strict=True):
            if window:
                given.append(stream.tokens[-1])
                given += [0] * (count - 1)  # drafted as the step goes
            else:
                given += stream.tokens[first : first + count]
        batch.rows[:, TOKEN] = given
        return batch

    def each_row(self, streams: list[StreamId], columns: dict[str, int]) -> EveryRow:
        """Sums after each row that stayed; columns: where a part's sums stand."""
        spans = [slice(at, at + kept) for *_, at, _, kept in self.entries.tolist()]
        every = self.rows[:, EVERY:].reshape(-1, len(PARTS), 2)
        return EveryRow(
            streams=streams,
            firsts=self.entries[:, 1].tolist(),
            sums={part: [every[span, at].copy() for span in spans] for part, at in columns.items()},
            tokens=[self.rows[span, DRAWN].astype(np.int64) for span in spans],
        )


def end_of(entries: Sequence[Entry]) -> int:
    """Where the rows of the entry after these begin in the batch."""
    return entries[-1][5] + entries[-1][2] if entries else 0


def batch_of(entries: int, lines: int, vocab: int) -> Batch:
    """A batch of so many entries and lines."""
    logits = np.zeros((lines, vocab), np.float32)
    rows = np.zeros((lines, ROW_WORDS), np.uint64)
    return Batch(np.zeros((entries, 8), np.int64), rows, logits, logits.view(np.uint64))


def words_of(
    shape: Any, memory: Memory, tables: Table, lane: int, part: str, layer: int, position: int
) -> dict[int, Words]:
    """Views of the words of one row of one digest layer, by head; a pool's rows have one key."""
    own = range(shape.head, shape.head + shape.heads)
    page, at = int(tables[lane, position // shape.page_rows]), position % shape.page_rows
    if part == "rows":
        heads = own if shape.split else range(1)
        return {head: memory.rows[layer, page, at, i] for i, head in enumerate(heads)}
    if part == "keys":
        return {0: memory.keys[page, at // POOL : at // POOL + 1]}
    if part == "drafts":
        return {0: memory.drafts[page, at : at + 1]}
    fixed, states = memory.fixed[lane], LAYERS * shape.heads * WIDTH
    if part == "states":
        by_layer = fixed[:states].reshape(LAYERS, shape.heads, WIDTH)
        return {head: by_layer[layer, i] for i, head in enumerate(own)}
    assert part == "rings", f"{part} is not in memory"
    rings, slot = fixed[states:].reshape(shape.heads, RING), position % RING
    return {head: rings[i, slot : slot + 1] for i, head in enumerate(own)}


def positions_of(part: str, first: int, last: int, rows: int) -> range:
    """Positions [first, last) at which a stream of so many rows has a row of a part."""
    if part == "rings":
        return range(max(first, rows - RING, 0), min(last, rows))
    if part == "states":
        return range(first, min(last, 1))
    if part == "keys":  # a pool's key stands at its last position
        return range(first + (POOL - 1 - first) % POOL, last, POOL)
    return range(first, last)


def rows_of(
    shape: Any, memory: Memory, tables: Table, lane: int, part: str, layer: int, held: range
) -> dict[int, HeldRows]:
    """The rows of one digest layer at these positions, by head."""
    read = [words_of(shape, memory, tables, lane, part, layer, position) for position in held]
    return {
        head: HeldRows(np.array(held, np.int64), np.stack([row[head] for row in read]))
        for head in (read[0] if read else {})
    }


def flip(words: Words, column: int, bit: int) -> None:
    """Flip a bit of a row's 16-bit element."""
    word, element = divmod(column, WORD_BITS // ELEMENT_BITS)
    words[word] ^= np.uint64(1 << (element * ELEMENT_BITS + bit))
