"""Run as a process on a GPU: kvtape, one bit of whose weights turns over before a step.

Arguments: the step, then kvtape's own. What turns a bit over is for other tests, too.
"""

import sys
from typing import Any

import numpy as np

from kvtape.__main__ import app
from kvtape.devices.cuda.device import CudaDevice
from kvtape.devices.cuda.memory import CardMemory, Placed

TENSOR = "model.layers.0.self_attn.o_proj.weight"
BIT = 6  # of the high byte of a weight


def placed(memory: CardMemory, tensor: str) -> Placed:
    """The matrix that has a tensor."""
    (found,) = (
        one
        for one in memory.matrices.values()
        if tensor in [name for name, _ in one.matrix.tensors]
    )
    return found


def host(memory: CardMemory, name: str) -> Any:
    """What stands in an array of the card."""
    array = memory.arrays[name]
    found = np.empty(array.shape, array.dtype)
    memory.card.download(array, found)
    memory.card.wait()
    return found


def flip(memory: CardMemory, tensor: str) -> None:
    """Turn over one bit of the matrix's first weight, where the GPU keeps it."""
    first, host = placed(memory, tensor).planes[:16], np.empty(16, np.int8)
    memory.card.download(first, host)
    memory.card.wait()
    host[0] ^= 1 << BIT
    memory.card.upload(host, first)
    memory.card.wait()


def turn_before(step: int) -> None:
    """Let the bit turn over before the kernels of the step of that number run, in this process."""
    enqueue, count = CudaDevice._enqueue, iter(range(1 << 30))

    def flipped(self: CudaDevice, *arguments: Any) -> None:
        if next(count) == step:
            flip(self.memory, TENSOR)
        enqueue(self, *arguments)

    CudaDevice._enqueue = flipped  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    turn_before(int(sys.argv.pop(1)))
    app()
