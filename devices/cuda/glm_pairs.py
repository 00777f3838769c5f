"""Neighbouring ops of a GLM's program that one launch does: what surrounds each layer's parts.

Streams are written and normed for the next site, or read and normed for a layer. What is between
the two ops, the row that was read, nobody else asks for.
"""

from collections.abc import Sequence
from functools import partial

from ...core.kernels.cuda.sites import fits, mix_streams, read_site
from ..glm.layout import GlmOp
from .card import Launch
from .glm_here import Here, Words


def paired(here: Here, ones: int, first: Sequence[int], second: Sequence[int]) -> list[Launch]:
    """What does both ops; nothing where each is a launch of its own. ones: a weight of ones."""
    party = here.party
    codes, digits_at = second[4] if len(second) > 4 else 0, second[:1] == (GlmOp.NORM,)
    if not digits_at or first[-2:] != second[-2:] or not fits(party.hidden, party.streams):
        return []
    if any(at % 4 for at in (first[1], first[3], codes)):
        return []
    if first[0] == GlmOp.HC_WRITE and (second[1], second[3]) == (first[1], ones):
        return _written(here, first[1:], second[1:])
    if first[0] == GlmOp.HC_READ and second[1] == first[3]:
        return _read(here, first[1:], second[1:])
    return []


def _written(here: Here, write: Words, norm: Words) -> list[Launch]:
    """HC_WRITE: x, site, y; NORM: x, width, weight, codes, exponents."""
    party, wide = here.party, norm[1]
    q, e = here.codes(norm[3], norm[4], wide)
    x, y = here.floats(write[0], wide), here.floats(write[2], party.hidden)
    site = here.floats(write[1], party.streams * (party.streams + 2))
    rows = (party.eps, q, e, here.flags, 0, here.rows)
    return [partial(mix_streams, here.stream, x, site, y, *rows)]


def _read(here: Here, read: Words, norm: Words) -> list[Launch]:
    """HC_READ: x, site, u; NORM: u, width, weight, codes, exponents."""
    party, wide = here.party, norm[1]
    q, e = here.codes(norm[3], norm[4], wide)
    x = here.floats(read[0], party.streams * party.hidden)
    site = here.floats(read[1], party.streams * (party.streams + 2))
    rows = (party.eps, q, e, here.flags, 0, here.rows)
    return [partial(read_site, here.stream, x, site, here.constants(norm[2], wide), *rows)]
