"""How far long work is: a bar on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .show import ERRORS

EVERY_SECONDS = 5.0  # between two lines


class NowAndThen:
    """Says what it is told, but only after some time in which it said nothing."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._last = clock()

    def __call__(self, line: str) -> None:
        """A line, said or left out."""
        now = self._clock()
        if now - self._last >= EVERY_SECONDS:
            self._last = now
            self._say(line)


@contextmanager
def bar(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Progress on standard error; yields what is told of steps. quiet: none."""
    if quiet:
        yield lambda step: None
        return
    if not ERRORS.is_terminal:
        line = NowAndThen(lambda said: ERRORS.print(said, markup=False, soft_wrap=True))
        yield lambda step: line(f"{what}: {step} of {total}")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=ERRORS, transient=True) as progress:
        task = progress.add_task(what, total=max(total, 1))
        yield lambda step: progress.update(task, completed=step)
