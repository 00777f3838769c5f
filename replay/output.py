"""Standard output that cannot be written: said in one line, once, whichever command it was."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

UNWRITABLE = 2  # as any wrong use: 1 would say that something was found


@contextmanager
def told_output() -> Iterator[None]:
    """Within this, what standard output cannot take ends the command with a line and 2."""
    if sys.stdout is None:  # closed by whoever started this
        yield
        return
    output = _Output(sys.stdout)
    sys.stdout = cast(TextIO, output)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # whoever read has seen enough
            sys.stdout.flush()  # the interpreter would do so too late to be told
        if output.lost:  # also where a thread of its own found out
            raise SystemExit(UNWRITABLE)


class _Output:
    """A stream that says what it could not write; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False

    def write(self, text: str) -> int:
        """As the stream, or SystemExit."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._tell(error)
            raise SystemExit(UNWRITABLE) from None

    def flush(self) -> None:
        """As the stream, or SystemExit; quiet once that was told."""
        try:
            if not self.lost:
                self._stream.flush()
        except OSError as error:
            self._tell(error)
            raise SystemExit(UNWRITABLE) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _tell(self, error: OSError) -> None:
        """Say it once; of a reader that has gone there is nothing to say."""
        if isinstance(error, BrokenPipeError):
            raise error
        if not self.lost:
            self.lost = True
            with suppress(OSError):  # the same disk, maybe
                sys.stderr.write(f"kvtape: standard output cannot be written: {error.strerror}\n")
