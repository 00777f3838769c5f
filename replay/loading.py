"""Loading a model with how far it is shown: a bar on a terminal, elsewhere a line now and then."""

import logging

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .models import Loaded, load
from .opening import RunOptions
from .progress import NowAndThen

LOG = logging.getLogger("kvtape.serve")


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
