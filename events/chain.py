"""The chain: each row of a tape is hashed with the row before it, so that none changes unseen."""

import struct
from hashlib import blake2b

GENESIS = bytes(32)  # what stands before the first row of a run

COMMAND, FACT = 0, 1  # the two tables of a tape, as the chain tells them apart
NO_STREAM = -(2**63)

_HEAD = struct.Struct("<32sqqqqBI")


def link(
    previous: bytes,
    run: int,
    seq: int,
    step: int,
    side: int,
    stream: int | None,
    kind: bytes,
    body: bytes,
) -> bytes:
    """32 bytes: blake2b of the previous link and this row; fixed widths and one length frame it."""
    at = NO_STREAM if stream is None else stream
    head = _HEAD.pack(previous, run, seq, step, at, side, len(kind))
    return blake2b(head + kind + body, digest_size=32).digest()
