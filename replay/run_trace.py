"""The commands `trace export` and `trace import`: tapes as lines of text, and back."""

import sys
from contextlib import ExitStack
from pathlib import Path

from ..events.errors import TapeError
from ..events.export import export, import_jsonl
from .recording import WrongUse, open_whole
from .show import CONSOLE, EQUAL, WRONG_USE, counted, fail


def run_export(path: Path, run: int) -> int:
    """Write a run's lines to standard output."""
    try:
        with open_whole(path, run) as tape:
            for line in export(tape):
                sys.stdout.write(line + "\n")
    except TapeError as error:
        return fail(error, error.exit_code, as_json=False)
    except BrokenPipeError:  # whoever read has seen enough
        sys.stderr.close()
    return EQUAL


def run_import(lines: Path, path: Path) -> int:
    """Make a tape from lines, read from a file or from standard input."""
    try:
        with ExitStack() as stack:
            source = sys.stdin
            if str(lines) != "-":
                source = stack.enter_context(lines.open(encoding="utf-8"))
            rows = import_jsonl(source, path)
    except TapeError as error:
        return fail(error, error.exit_code, as_json=False)
    except (OSError, UnicodeDecodeError) as error:
        return fail(WrongUse(_unread(lines, error)), WRONG_USE, as_json=False)
    CONSOLE.print(f"wrote {path}: {counted(rows, 'event')}", markup=False, soft_wrap=True)
    return EQUAL


def _unread(lines: Path, error: OSError | UnicodeDecodeError) -> str:
    """Why lines could not be read."""
    match error:
        case FileNotFoundError():
            return f"{lines} does not exist"
        case IsADirectoryError():
            return f"{lines} is a directory, not lines"
        case OSError():
            return f"{lines} cannot be read: {error.strerror}"
        case _:
            return f"{lines} is not text: {error.reason} at byte {error.start}"
