"""Loading a model with how far it is shown: a bar on a terminal, elsewhere a line now and then."""

import logging
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .models import Loaded, load
from .opening import RunOptions

LOG = logging.getLogger("kvtape.serve")
EVERY_SECONDS = 5.0  # between two lines of a log


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


def load_with_progress(name: str, options: RunOptions) -> Loaded:
    """Load a model, showing how far the kernels and the weights are."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        line = NowAndThen(lambda said: LOG.info("%s", said))
        return load(
            name, options, line, lambda done, total: line(f"weights of {name}: {done} of {total}")
        )
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"opening {name}", total=None)
        return load(
            name,
            options,
            lambda line: bar.update(task, description=line),
            lambda done, total: bar.update(
                task, description=f"weights of {name}", completed=done, total=total
            ),
        )
