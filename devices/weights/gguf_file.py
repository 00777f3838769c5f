"""A GGUF file of the llama family as a checkpoint, under Hugging Face's names and row order."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import BadModel, UnsupportedModel
from .gguf_blocks import block_size, embedder, to_float32
from .gguf_header import Header, Strings, Tensor, block_bytes, read_header
from .layout import check_llama_config, check_shapes, llama_shapes, refuse

# Settings of the architecture that the config is made of; any other would change what a forward
# computes, or might, and is refused.
KNOWN = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "vocab_size",
    "expert_count",
    "expert_used_count",
}
TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


class GgufCheckpoint:
    """See `Checkpoint`. Query and key rows are given in Hugging Face's order, not llama.cpp's."""

    family = "llama"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self.header = read_header(path, block_size)
        check_support(path, self.header)
        self.config = llama_config(path, self.header)
        check_llama_config(path, self.config)
        self.tensors = {hf_name(name): t for name, t in self.header.tensors.items()}
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        check_shapes(path, llama_shapes(self.config), shapes)
        table = self.tensors["model.embed_tokens.weight"]
        self._embed = embedder(table.kind, block_bytes(self.header, table))

    def names(self) -> list[str]:
        """Every tensor, by layer."""
        return list(llama_shapes(self.config))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, output rows first."""
        return self._tensor(name).shape

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows [first, last) of a matrix: float32 [last - first, columns]."""
        tensor = self._tensor(name)
        count, columns = tensor.shape
        assert 0 <= first <= last <= count, f"rows {first} to {last} of {name}, which has {count}"
        out = np.empty((last - first, columns), np.float32)
        data = block_bytes(self.header, tensor)
        order = self._order(name, first, last)
        to_float32(tensor.kind, data[first:last] if order is None else data[order], out)
        start = tensor.first + first * tensor.row_bytes
        self.header.file.let_go(start, start + (last - first) * tensor.row_bytes)
        return out

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one axis: float32 [n]."""
        tensor = self._tensor(name)
        (count,) = tensor.shape
        out = np.empty((1, count), np.float32)
        to_float32(tensor.kind, block_bytes(self.header, tensor), out)
        vector: NDArray[np.float32] = out[0]
        return vector

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the embedding row of each id: ids int64 [n], out float32 [n, hidden_size]."""
        self._embed(ids, out)

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BadModel(f"{self.path}: there is no tensor {name}")
        return self.tensors[name]

    def _order(self, name: str, first: int, last: int) -> NDArray[np.int64] | None:
        """File rows of rows [first, last), where llama.cpp interleaves a head's two rotary halves.

        Row half * (head_dim / 2) + i of a head stands at row 2 * i + half of it in the file.
        """
        if not name.endswith(("q_proj.weight", "k_proj.weight")):
            return None
        size = self.config["head_dim"]
        head, row = np.divmod(np.arange(first, last), size)
        half, i = np.divmod(row, size // 2)
        order: NDArray[np.int64] = head * size + 2 * i + half
        return order


def hf_name(name: str) -> str:
    """A tensor's name in Hugging Face's words; unknown ones stay, to be named as such."""
    found = LAYER.fullmatch(name)
    if found and found[2] in IN_LAYER:
        return f"model.layers.{found[1]}.{IN_LAYER[found[2]]}.weight"
    return TOP.get(name, name)


def check_support(path: Path, header: Header) -> None:
    """Refuse by name what a llama forward here would compute wrongly."""
    settings = header.settings
    architecture = settings.get("general.architecture")
    if architecture != "llama":
        raise refuse(path, f"architecture {architecture!r}; only 'llama' is computed here")
    scaling = settings.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise refuse(path, "rope scaling is not computed here")
    experts = settings.get("llama.expert_count", 0)
    if experts:
        raise refuse(path, f"{experts} experts; llama here is dense")
    for name in header.tensors:
        if name.endswith(".bias"):
            raise refuse(path, f"{name}: biases are not computed here")
    for key in settings:
        if key.startswith("llama.") and key.removeprefix("llama.") not in KNOWN:
            raise refuse(path, f"the setting {key} is not known here")


def llama_config(path: Path, header: Header) -> dict[str, Any]:
    """The config in Hugging Face's keys."""
    settings = header.settings

    def need(key: str) -> Any:
        if f"llama.{key}" not in settings:
            raise BadModel(f"{path}: the setting llama.{key} is missing")
        return one(path, key, settings[f"llama.{key}"])

    def maybe(key: str, default: Any) -> Any:
        return need(key) if f"llama.{key}" in settings else default

    heads, hidden = need("attention.head_count"), need("embedding_length")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        raise BadModel(f"{path}: {heads!r} heads of {hidden!r} columns are no model")
    head_dim = maybe("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if maybe(key, head_dim) != head_dim:
            raise UnsupportedModel(f"{path}: llama.{key} is not the head's width {head_dim}")
    return {
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": maybe("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "vocab_size": maybe("vocab_size", vocabulary(settings)),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "rope_theta": maybe("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "max_position_embeddings": need("context_length"),
        "eos_token_ids": end_tokens(path, settings),
    }


def one(path: Path, key: str, value: Any) -> Any:
    """A setting that may be a list by layer, where all layers agree."""
    if not isinstance(value, np.ndarray):
        return value
    if len(value) == 0 or (value != value[0]).any():
        raise UnsupportedModel(f"{path}: llama.{key} differs from layer to layer")
    return value[0].item()


def vocabulary(settings: Mapping[str, Any]) -> int:
    """How many tokens the file's tokenizer has."""
    tokens = settings.get("tokenizer.ggml.tokens")
    return tokens.count if isinstance(tokens, Strings) else 0


def end_tokens(path: Path, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a reply, each once."""
    found: list[int] = []
    for key in END_TOKENS:
        token = settings.get(f"tokenizer.ggml.{key}")
        if token is not None and not isinstance(token, int):
            raise BadModel(f"{path}: tokenizer.ggml.{key} is {token!r}, not a token id")
        if token is not None and token not in found:
            found.append(token)
    return tuple(found)
