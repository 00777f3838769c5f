"""The files of a tape: the one that holds it, and those that SQLite keeps beside it."""

import os
from pathlib import Path

from .errors import NotATape, TapeError, TapeExists, TornTape

MAGIC = b"kvtape seal, v1\n"
SEAL_BYTES = len(MAGIC) + 32


def beside(path: Path, suffix: str) -> Path:
    """The file that SQLite keeps beside a tape: `-wal`, `-shm` or `-journal`."""
    return path.with_name(path.name + suffix)


def create_file(path: Path) -> None:
    """An empty file that only its owner can read; SQLite gives those beside it the same mode."""
    if path.is_dir():
        raise TapeError(f"{path} is a directory, not a tape")
    for suffix in ("-wal", "-shm", "-journal"):
        if beside(path, suffix).exists() and not path.exists():
            raise TapeError(f"{beside(path, suffix)} is left of another tape: move it away first")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        raise TapeExists(f"{path} exists: choose another name") from None
    except OSError as error:
        raise TapeError(f"{path} cannot be written: {error.strerror}") from None


def check_readable(path: Path) -> None:
    """Say what SQLite would say less of, or nothing: no file, half of one, the log of another."""
    if not path.exists():
        raise TapeError(f"{path} does not exist")
    if path.is_dir():
        raise TapeError(f"{path} is a directory, not a tape")
    if not path.is_file():
        raise TapeError(f"{path} is not a file")
    if path.stat().st_size == 0 and not beside(path, "-wal").exists():
        raise NotATape(f"{path} is empty")
    refuse_foreign_log(path)
    whole = _bytes_by_header(path)
    if path.stat().st_size < whole and not beside(path, "-wal").exists():
        raise TornTape(f"{path} is cut short: {path.stat().st_size} bytes are left of {whole}")


def refuse_foreign_log(path: Path) -> None:
    """A sealed tape has no log: SQLite would read one that another tape left as if it were its.

    The log is looked for before the seal, which a run that is added takes off before it begins one,
    and after it, which a run that ends puts on when its log is gone.
    """
    for log in (beside(path, "-wal"), beside(path, "-journal")):
        if _holds_bytes(log) and is_sealed(path) and _holds_bytes(log):
            raise TapeError(
                f"{path} is closed and sealed, so {log.name} beside it is of another tape:"
                " move it away first"
            )


def _holds_bytes(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def is_sealed(path: Path) -> bool:
    """Whether a seal stands at the file's end, whole or broken."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - SEAL_BYTES))
        return size >= SEAL_BYTES and file.read(len(MAGIC)) == MAGIC


def _bytes_by_header(path: Path) -> int:
    """How long SQLite's header says that the file is at least; 0 where it is no header."""
    with path.open("rb") as file:
        header = file.read(32)
    if len(header) < 32 or not header.startswith(b"SQLite format 3\0"):
        return 0
    page_bytes = int.from_bytes(header[16:18])
    return int.from_bytes(header[28:32]) * (65_536 if page_bytes == 1 else page_bytes)


def remove_files(path: Path) -> None:
    """Take a tape that could not be begun off the disk, with what stands beside it."""
    for file in (path, *(beside(path, suffix) for suffix in ("-wal", "-shm", "-journal"))):
        file.unlink(missing_ok=True)
