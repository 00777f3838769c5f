"""One writer a tape: a lock on a byte that SQLite never asks for, which ends with its process."""

import fcntl
import os
import struct
from pathlib import Path

from .errors import TapeError

_FIELDS = "hhqqi0q"  # struct flock: type, whence, first byte, bytes, process
_BYTE = 1 << 62


class WriterLock:
    """Held by whoever writes a tape, from before its first byte changes until it is sealed.

    Readers neither take it nor wait for it. It belongs to this opening of the file, so it is not
    lost when the process closes the file elsewhere, as SQLite's own locks would be.
    """

    def __init__(self, path: Path) -> None:
        """Raises TapeError where another writer has it, or the file cannot be written."""
        try:
            self._file = os.open(path, os.O_RDWR)
        except IsADirectoryError:
            raise TapeError(f"{path} is a directory, not a tape") from None
        except OSError as error:
            raise TapeError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _asked(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            self.release()
            raise TapeError(
                f"{path} is being written by another process: choose another name, or end it"
            ) from None

    def release(self) -> None:
        """Let others write; harmless when done before."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def being_written(path: Path) -> bool:
    """Whether somebody holds the lock; asks without taking it, so no writer is ever in the way."""
    file = os.open(path, os.O_RDONLY)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _asked(fcntl.F_RDLCK))
    finally:
        os.close(file)
    kind: int = struct.unpack(_FIELDS, found)[0]
    return kind != fcntl.F_UNLCK


def _asked(kind: int) -> bytes:
    return struct.pack(_FIELDS, kind, os.SEEK_SET, _BYTE, 1, 0)
