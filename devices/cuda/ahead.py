"""Compiling before the first launch: what a start will need, all at once, for here or elsewhere.

`python -m kvtape.devices.cuda sm_90 MODEL...` needs no GPU: it fills the store (KVTAPE_CACHE names
the folder) for a chip, with every kernel over its random cases and what the models' starts launch.
"""

import os
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from ...core.kernels import registry
from ...core.kernels.cuda import target, twins
from ..settings import DeviceSettings
from ..weights.find import find_model
from .compiling import Launch, stood_in
from .gathering import Gathering
from .graph import Graphs
from .kernel_store import KernelStore, fill_store

LIMIT_S = 3600.0
SETTINGS = DeviceSettings(lanes=8, context=1024, pages=64, prompt_rows=64)


def compile_ahead(every: Iterable[Graphs]) -> None:
    """Compile what graphs will launch in any bucket, if it is not in the store.

    Their launches are listed, not made: whoever calls this may go on to run them.
    """
    if target.SIMULATED or target.recording():
        return
    with target.recorded() as launches:
        for graphs in every:
            for rows in graphs.buckets:
                for launch in graphs.lowered(rows):
                    if not isinstance(launch, Gathering):
                        launch()
    fill_store(launches)


def of_cases() -> Iterator[Launch]:
    """Launches of every twin over its random cases."""
    kernels = {kernel.name: kernel for kernel in registry.kernels()}
    for one in twins.twins():
        for case in kernels[one.name].cases(np.random.default_rng(0)):
            with target.recorded() as launches:
                one.launch(0, *one.place(case))
            yield from launches


def of_model(name: str, settings: DeviceSettings = SETTINGS) -> list[Launch]:
    """Launches of a model's start."""
    from ..group import cuda_group

    with target.recorded() as launches:
        cuda_group(find_model(name), settings)
    return launches


def fill_for(chip: str, models: list[str]) -> int:
    """Fill the user's store; the exit code."""
    store = KernelStore.of(os.environ)
    if store is None:
        sys.stderr.write("no folder can be made there\n")
        return 1
    with stood_in(chip):
        launches = [*of_cases(), *(launch for name in models for launch in of_model(name))]
    lacking = store.fill(launches, chip, os.cpu_count() or 1, LIMIT_S)
    names = ", ".join(sorted(kernel.name for kernel, _ in lacking))
    sys.stdout.write(f"in {store.folder}, for {chip}; not compiled: {names or 'none'}\n")
    return 1 if lacking else 0
