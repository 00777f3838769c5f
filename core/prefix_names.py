"""Names of a prompt's prefixes: each hashed from the one before it and the page that it adds."""

from collections.abc import Sequence
from hashlib import blake2b
from struct import calcsize, pack

SIZE = 16  # bytes of a name
TOKEN = calcsize("<i")  # bytes of a packed token


def packed(tokens: Sequence[int]) -> bytes:
    """Token ids as bytes, `TOKEN` of them each."""
    return pack(f"<{len(tokens)}i", *tokens)


def prefix_names(
    told: bytes, salt: str, rows: int, ahead: int, count: int, known: Sequence[bytes] = ()
) -> list[bytes]:
    """The names of the first `count` prefixes of `rows`, `2 * rows`, ... tokens, under a salt.

    A prefix's name stands for the `ahead` tokens after it as well.  known: the first of the names;
    told: the packed tokens past those.
    """
    names = list(known[:count])
    above = names[-1] if names else salt.encode()
    for key in page_keys(told, rows, ahead, count - len(names)):
        above = name_of(above, key)
        names.append(above)
    return names


def page_keys(told: bytes, rows: int, ahead: int, pages: int) -> list[bytes]:
    """Each page's packed tokens, with the `ahead` tokens after it, on which its rows depend too."""
    width, whole = rows * TOKEN, (rows + ahead) * TOKEN
    return [told[first : first + whole] for first in range(0, pages * width, width)]


def name_of(above: bytes, key: bytes) -> bytes:
    """The name of a prefix: of the one that it extends (at first the salt), and its page's key."""
    return blake2b(above + key, digest_size=SIZE).digest()


def agree(mine: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """How many of the first names of two prompts are equal."""
    low, high = 0, min(len(mine), len(theirs))
    while low < high:  # a name that is equal stands for equal names before it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if mine[middle - 1] == theirs[middle - 1] else (low, middle - 1)
    return low
