"""How ranks on GPUs gather columns: over NCCL, or by way of the host; asked for, or as can be."""

from typing import Any

from .card import Card, NoCard

WAYS = ("auto", "nccl", "links")


def nccl() -> Any:
    """CuPy's NCCL. Raises NoCard where it cannot be loaded."""
    try:
        from cupy.cuda import nccl as found  # pyright: ignore[reportMissingImports]

        found.get_version()
    except (ImportError, AttributeError, RuntimeError) as error:
        raise NoCard(f"--gather nccl: CuPy finds no NCCL ({error}); links would do") from error
    return found


def way_of(asked: str, world: int, card: Card) -> str:
    """A group's way: auto is nccl where each rank has a GPU and it is there. Raises NoCard."""
    assert asked in WAYS, asked
    count = card.count()
    if asked == "links" or (asked == "auto" and count < world):
        return "links"
    if count < world:
        raise NoCard(
            f"--gather nccl: {world} ranks need a GPU each, there are {count}; links would do"
        )
    try:
        nccl()
    except NoCard:
        if asked == "auto":
            return "links"
        raise
    return "nccl"
