"""Block types of GGUF tensors: bytes to float32, by `gguf.quants`, a cache's worth at a time."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUES_AT_ONCE = 1 << 16  # float32 values of 256 KiB stay in a core's second cache


@cache
def quants() -> Any:
    """The module that knows the block types; imported late because it takes a while."""
    import gguf.quants

    return gguf.quants


@cache
def block_size(kind: int) -> tuple[int, int] | None:
    """Values and bytes of a block, None for a type that cannot be read as float32."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
        values, size = GGML_QUANT_SIZES[known]
        quants().dequantize(np.zeros((1, size), np.uint8), known)
    except (ValueError, KeyError, NotImplementedError):
        return None
    return values, size


def to_float32(kind: int, data: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
    """Dequantise rows: data uint8 [rows, row_bytes], out float32 [rows, columns]."""
    from gguf.constants import GGMLQuantizationType

    dequantize, known = quants().dequantize, GGMLQuantizationType(kind)
    step = max(1, VALUES_AT_ONCE // out.shape[1])
    for first in range(0, len(data), step):
        part = np.ascontiguousarray(data[first : first + step])
        # One long row: the library would else loop over groups of 16.
        out[first : first + step] = dequantize(part.reshape(1, -1), known).reshape(len(part), -1)


Embedder = Callable[[NDArray[np.int64], NDArray[np.float32]], None]


def embedder(kind: int, data: NDArray[np.uint8]) -> Embedder:
    """How to write single rows of a table: data uint8 [vocab, row_bytes]; cheap for one id."""
    from gguf.constants import GGMLQuantizationType

    if kind != GGMLQuantizationType.Q8_0:
        return lambda ids, out: to_float32(kind, data[ids], out)
    blocks = data.view(np.dtype([("scale", "<f2"), ("codes", "i1", 32)]))

    def embed(ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        picked = blocks[ids]
        scale = picked["scale"].astype(np.float32)[:, :, None]
        out[:] = (scale * picked["codes"]).reshape(out.shape)

    return embed
