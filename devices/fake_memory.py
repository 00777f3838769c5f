"""What a rank of the fake device allocates, and what it copies in and out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.families.fake import LAYERS, POOL, RING, WIDTH
from ..core.families.family import Span
from ..core.kernels.fake_memory import PARTS, Batch, Memory, Shape
from ..core.kernels.sampling import sample_scratch
from ..core.state import Stream
from ..events.facts import RunOpened

PATTERNS = {"a": 0x8000800080008000, "b": 0x8080808080808080}  # no valid word looks like these
DIGEST_LEVELS = ("rows", "full")


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """A snapshot: states [LAYERS, heads, WIDTH], rings [heads, RING] and their sums [2, 2], uint64."""

    states: NDArray[np.uint64]
    rings: NDArray[np.uint64]
    sums: NDArray[np.uint64]


def shape_and_memory(opened: RunOpened, heads: Span, broken: frozenset[str]) -> tuple[Any, Any]:
    """A rank's fixed sizes and its arrays; all memory of a run is taken here."""
    rules, lanes, pages = opened.rules, opened.lanes, opened.pages + 2
    own, split = heads[1] - heads[0], int("rows" in rules.split)
    states, window = int("states" in rules.parts), 1 + rules.drafts
    shape = Shape(
        page_rows=rules.page_rows,
        mark_rows=rules.mark_rows,
        vocab=rules.vocab,
        pages=opened.pages,
        head=heads[0],
        heads=own,
        split=split,
        states=states,
        pattern=np.uint64(PATTERNS.get(opened.poison, 0)),
        drafter=opened.flags.get("fake_drafter", 0),
        digests=int(opened.digests in DIGEST_LEVELS),
        keep_states=int("states" not in broken),
        keep_rings=int("rings" not in broken),
        keep_drafts=int("drafts" not in broken),
        keep_counts=int("counts" not in broken),
        keep_sums=int("sums" not in broken),
    )
    u64, row_heads = np.uint64, own if split else 1
    logits = np.zeros(rules.vocab, np.float32)
    z, weights, candidates, bins = sample_scratch(rules.vocab)
    memory = Memory(
        rows=np.zeros((LAYERS, pages, rules.page_rows, row_heads, WIDTH), u64),
        keys=np.zeros((pages, -(-rules.page_rows // POOL)), u64),
        drafts=np.zeros((pages, rules.page_rows), u64),
        states=np.zeros((lanes, LAYERS, own, WIDTH), u64),
        rings=np.zeros((lanes, own, RING), u64),
        saved_states=np.zeros((lanes, window, LAYERS, own, WIDTH), u64),
        saved_rings=np.zeros((lanes, window, own, RING), u64),
        page_sums=np.zeros((3, pages, 2), u64),
        sums=np.zeros((lanes, len(PARTS), 2), u64),
        counts=np.zeros((2, lanes, rules.vocab), np.int32),
        ends=np.zeros((lanes, rules.vocab), np.uint8),
        logits=logits,
        logit_words=logits.view(u64),
        poisoned=np.zeros((lanes, 3), np.int64),
        scratch_sums=np.zeros((len(PARTS), 2), u64),
        token_word=np.zeros(1, u64),
        sampling=np.zeros((lanes, 5), np.float32),
        drawing=np.zeros((lanes, 4), np.int64),
        ids=np.arange(rules.vocab, dtype=np.int32),
        bias=np.zeros((lanes, rules.vocab), np.float32),
        z=z,
        weights=weights,
        candidates=candidates,
        bins=bins,
    )
    if shape.pattern:  # the pages past the pool hold nothing that may be read
        for pool in (
            memory.rows[:, opened.pages :],
            memory.keys[opened.pages :],
            memory.drafts[opened.pages :],
        ):
            pool[:] = shape.pattern
    return shape, memory


def seat(memory: Any, lane: int, stream: Stream, vocab: int) -> None:
    """A lane made ready for a stream at row 0: its fixed part, its sums and how it draws."""
    for array in (memory.states, memory.rings, memory.sums, memory.poisoned, memory.ends):
        array[lane] = 0
    memory.counts[:, lane] = 0
    memory.bias[lane] = 0
    request, how = stream.request, stream.request.sampling
    if not request.ignore_eos:
        memory.ends[lane, [token for token in request.eos if token < vocab]] = 1
    bits = (
        how.temperature_bits,
        how.top_p_bits,
        how.repetition_bits,
        how.frequency_bits,
        how.presence_bits,
    )
    memory.sampling[lane] = np.array(bits, np.uint32).view(np.float32)
    memory.drawing[lane] = how.top_k, how.seed, stream.choice, vocab if how.bias else 0
    for token, pattern in how.bias:
        memory.bias[lane, token] = np.uint32(pattern & 0xFFFFFFFF).view(np.float32)


class Batches:
    """The arrays of a step's batch, kept from step to step while its size stays."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._sizes = (-1, -1)
        self._batch: Any = None

    def fill(self, entries: Sequence[tuple[int, ...]], streams: Sequence[Stream]) -> Any:
        """The batch of these entries, with the tokens that are known."""
        rows = entries[-1][5] + entries[-1][2]
        if self._sizes != (len(entries), rows):
            self._sizes = (len(entries), rows)
            self._batch = self._make(len(entries), rows)
        batch = self._batch
        batch.entries[:] = entries
        for (_, first, count, window, _, at, _), stream in zip(entries, streams, strict=True):
            if window:
                batch.tokens[at] = stream.tokens[-1]
            else:
                batch.tokens[at : at + count] = stream.tokens[first : first + count]
        return batch

    def _make(self, entries: int, rows: int) -> Any:
        return Batch(
            entries=np.zeros((entries, 7), np.int64),
            tokens=np.zeros(rows, np.int64),
            drawn=np.zeros(rows, np.int64),
            partial=np.zeros((rows, 2), np.uint64),
            logit_sums=np.zeros((rows, 2), np.uint64),
            every=np.zeros((rows, self._parts, 2), np.uint64),
            kept=np.zeros(entries, np.int64),
        )
