"""Run as a process on a GPU: kvtape, a step of which writes where there is no memory.

Arguments: which of the steps that have several streams, then kvtape's own.
"""

import sys

import numpy as np
from numba import cuda

from kvtape.__main__ import app
from kvtape.core.kernels.cuda.target import kernel
from kvtape.devices.cuda.device import CudaDevice, CudaRunning

FAR = 1 << 45  # bytes past the end of everything


@kernel
def write_far(into, far):  # type: ignore[no-untyped-def]
    """One byte, far behind an array."""
    into[far] = 1


def main(step: int) -> None:
    """Let that step launch it among its kernels."""
    enqueue, count = CudaDevice._enqueue, iter(range(1 << 30))

    def trapped(self: CudaDevice, running: CudaRunning) -> None:
        if len(running.batch.runs) > 1 and next(count) == step:
            into = cuda.to_device(np.zeros(8, np.uint8))
            write_far[1, 1, self.card.stream](into, FAR)
        enqueue(self, running)

    CudaDevice._enqueue = trapped  # type: ignore[method-assign]
    app()


if __name__ == "__main__":
    main(int(sys.argv.pop(1)))
