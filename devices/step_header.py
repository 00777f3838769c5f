"""What ranks compare before they share a step: its number, and a digest of what it computes."""

from collections.abc import Sequence
from zlib import crc32

from ..events.facts import AnyFact
from .batch import Batch

DIGEST_BITS = 32


def header_of(step: int, facts: Sequence[AnyFact], batch: Batch) -> int:
    """An int64: the step's number over a digest of its kinds of facts and its rows' tables."""
    digest = crc32(",".join([fact.kind for fact in facts]).encode())
    for table in (batch.tokens, batch.positions, batch.lanes, batch.pages, batch.selected):
        digest = crc32(table.tobytes(), digest)
    return (step << DIGEST_BITS | digest) & ((1 << 63) - 1)
