"""What a model on disk offers: its shape, and float32 rows of its tensors on demand."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ModelError(Exception):
    """A model cannot be used; the message is for whoever named it."""


class ModelNotFound(ModelError):
    """No model of that name or path; the message says how to get it."""


class BadModel(ModelError):
    """The files are damaged or do not agree with one another; the message names file and tensor."""


class UnsupportedModel(ModelError):
    """The files are sound, but no family here computes such a model; the message names why."""


class Checkpoint(Protocol):
    """A model's files, open for reading. Nothing is held in float32 but what a call returns.

    config, in the names of Hugging Face's config.json, for family "llama": hidden_size,
    intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim,
    vocab_size, rms_norm_eps (a float32 value), rope_theta (float), tie_word_embeddings,
    max_position_embeddings, eos_token_ids (tuple of int). For family "glm": text_config, with
    eos_token_ids and num_nextn_predict_layers as the files have it.
    """

    name: str
    family: str
    path: Path
    config: dict[str, Any]

    def names(self) -> list[str]:
        """Every tensor: model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, ...

        lm_head.weight is there only where it is a tensor of its own.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, output rows first."""
        ...

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows [first, last) of a matrix: float32 [last - first, columns], C-contiguous."""
        ...

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one axis: float32 [n]."""
        ...

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the embedding row of each id: ids int64 [n], out float32 [n, hidden_size]."""
        ...
