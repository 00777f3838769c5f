"""The seal: a digest over a whole closed tape, kept behind the last page of its file.

SQLite counts pages by its header and reads nothing behind them, so a sealed tape opens everywhere.
"""

import hashlib
import os
from enum import StrEnum
from pathlib import Path

from .errors import TapeError
from .files import MAGIC, SEAL_BYTES, beside, is_sealed

_CHUNK_BYTES = 1 << 20


class Seal(StrEnum):
    """Whether a tape's bytes are those it was closed with."""

    WHOLE = "whole"
    BROKEN = "broken"
    NONE = "none"


def seal(path: Path) -> None:
    """Put the seal on a file that nobody has open."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        digest = _digest(path, size)
        file.write(MAGIC + digest)
        file.flush()
        os.fsync(file.fileno())


def read_seal(path: Path) -> Seal:
    """Read the whole file and say whether its seal holds; a tape that is being written has none."""
    if beside(path, "-wal").exists():
        return Seal.NONE
    if not is_sealed(path):
        return Seal.NONE
    size = path.stat().st_size - SEAL_BYTES
    with path.open("rb") as file:
        file.seek(size + len(MAGIC))
        kept = file.read()
    return Seal.WHOLE if kept == _digest(path, size) else Seal.BROKEN


def unseal(path: Path) -> None:
    """Take the seal off, so that a run can be added; a broken one stays, with what it shows."""
    match read_seal(path):
        case Seal.NONE:
            return
        case Seal.BROKEN:
            raise TapeError(f"{path} has a broken seal: its bytes changed since it was closed")
        case Seal.WHOLE:
            os.truncate(path, path.stat().st_size - SEAL_BYTES)


def _digest(path: Path, size: int) -> bytes:
    """blake2b of the first `size` bytes of a file and of their number."""
    hashed = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=32)
    with path.open("rb") as file:
        while size > 0:
            chunk = file.read(min(_CHUNK_BYTES, size))
            if not chunk:
                raise TapeError(f"{path} became shorter while it was read")
            hashed.update(chunk)
            size -= len(chunk)
    return hashed.digest()
