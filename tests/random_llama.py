"""A llama of any sizes whose weights are random numbers, made when they are asked for."""

from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kvtape.core.families.llama import Llama

SMALLEST = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "rms_norm_eps": float(np.float32(1e-5)),
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    "eos_token_ids": (2,),
}
SMOLLM2_SIZES = SMALLEST | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "rope_theta": 100000.0,
}


class RandomLlama:
    """A checkpoint without files."""

    name, family, path = "random", "llama", Path("random")

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self._shapes = Llama(config).tensors()

    def names(self) -> list[str]:
        """Every tensor."""
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self._shapes[name]

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows of a matrix, each from a seed of its own."""
        found = np.empty((last - first, self._shapes[name][1]), np.float32)
        for row in range(first, last):
            rng = np.random.default_rng((crc32(name.encode()), row))
            found[row - first] = rng.standard_normal(found.shape[1], np.float32) / 16
        return found

    def vector(self, name: str) -> NDArray[np.float32]:
        """Norm weights near one."""
        rng = np.random.default_rng(crc32(name.encode()))
        found: NDArray[np.float32] = rng.standard_normal(self._shapes[name][0], np.float32)
        return (1 + found / 8).astype(np.float32)

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """The rows of these ids."""
        for at, token in enumerate(ids):
            out[at] = self.rows("model.embed_tokens.weight", int(token), int(token) + 1)[0]
