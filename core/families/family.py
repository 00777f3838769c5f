"""What a model family says of itself: weights, rows in memory, cut over ranks, forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ...events.records import FamilyRules

BLOCK = 16  # output columns are cut over ranks and threads in blocks of this many

Span = tuple[int, int]  # [first, last)


class UnsupportedShape(Exception):
    """A config that the family cannot compute; the message names the key and what would do."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Sizes of grouped-query attention; a row of K and one of V for each layer and KV head."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    theta: float

    @property
    def group(self) -> int:
        """Query heads that share a row."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class Choices:
    """What a run chooses where a family leaves it open; 0, and -1 drafts, let the family decide.

    page_rows: rows a page.  mark_rows: rows between marks.  drafts: most drafted tokens a round.
    """

    page_rows: int = 0
    mark_rows: int = 0
    drafts: int = -1


class Family(Protocol):
    """A model of this family; made from a checkpoint's config."""

    hidden: int
    vocab: int
    eps: float
    context: int

    def __init__(self, config: dict[str, Any], choices: Choices = ...) -> None: ...

    def rules(self) -> FamilyRules:
        """What the machine must know of the family."""
        ...

    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Every weight that the family reads, by its file's name, with its shape."""
        ...

    def columns(self, name: str, world: int, rank: int) -> Span:
        """The output columns (rows of the tensor) of a matrix that a rank computes."""
        ...

    def page_bytes(self, world: int, rank: int) -> int:
        """Bytes of one page on a rank, digests included."""
        ...


def share(total: int, world: int, rank: int) -> Span:
    """A balanced cut of `total` over ranks: the first ranks have one more."""
    each, more = divmod(total, world)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def share_blocks(columns: int, world: int, rank: int) -> Span:
    """A balanced cut of columns over ranks in whole blocks."""
    first, last = share(columns // BLOCK, world, rank)
    return first * BLOCK, last * BLOCK
