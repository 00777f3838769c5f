"""Poison on a GPU: pages of every layer, and what no step may read before it wrote it."""

from collections.abc import Iterable, Sequence

import numpy as np

from ...core.kernels.cuda.poison import fill_flat, fill_pages
from ...core.kernels.poison import poison_value
from .card import Array, Card


def poison_pages(
    card: Card, arenas: Sequence[Array], pages: Sequence[int], room: Array, pattern: str
) -> None:
    """Fill pages of arenas [layers, pages, ., .]; room [.] int32: ids go through it."""
    layers, every = arenas[0].shape[:2]
    ids = (np.arange(layers)[:, None] * every + np.array(pages)).astype(np.int32).reshape(-1)
    most = room.shape[0]
    for first in range(0, len(ids), most):
        some = ids[first : first + most]
        held = room[: len(some)]
        card.upload(some, held)
        for arena in arenas:
            flat = arena.reshape(layers * every, arena.shape[2] * arena.shape[3])
            value = poison_value(pattern, arena.dtype)
            fill_pages(card.stream, flat, held, value, 0, len(some))
        card.wait()  # the next ids take the place of these


def poison_all(card: Card, buffers: Iterable[Array], pattern: str) -> None:
    """Fill whole buffers."""
    for buffer in buffers:
        flat = buffer.reshape(int(np.prod(buffer.shape)))
        fill_flat(card.stream, flat, poison_value(pattern, buffer.dtype))
