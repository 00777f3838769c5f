"""A tiny random glm5_next checkpoint, or the recorded one, written in every way that is read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from kvtape.core.families.glm_config import glm_sizes
from kvtape.core.families.glm_tensors import (
    SCALES,
    official_tensors,
    published_e4m3,
    scale_shape,
)
from kvtape.devices.weights.e4m3 import BLOCK, VALUES

Weights = dict[str, NDArray[np.float32]]
Stored = dict[str, tuple[str, NDArray[Any]]]  # dtype and what stands in the file

TINY = Path(__file__).with_name("data") / "glm_tiny"


def text_config(**other: Any) -> dict[str, Any]:
    """text_config of a model of four layers, one of each kind, and a drafting head."""
    base = {
        "hidden_size": 32,
        "vocab_size": 48,
        "max_position_embeddings": 256,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "layer_types": [
            "linear_attention", "deepseek_sparse_attention", "linear_attention",
            "deepseek_sparse_attention",
        ],
        "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
        "intermediate_size": 48,
        "moe_intermediate_size": 16,
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 0,
        "v_head_dim": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 8,
        "index_kpool": 4,
        "linear_attn_config": {
            "num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
        },
        "hc_mult": 2,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "rms_norm_eps": 1e-5,
        "eos_token_id": [1, 2],
    }  # fmt: skip
    return base | other


def config(**other: Any) -> dict[str, Any]:
    """config.json around it."""
    return {"model_type": "glm5_next", "text_config": text_config(**other)}


def weights(of: Mapping[str, Any], seed: int = 0) -> Weights:
    """Random float32 tensors under the official names."""
    rng = np.random.default_rng(seed)
    shapes = official_tensors(glm_sizes(of))
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def recorded() -> tuple[dict[str, Any], Weights]:
    """The checkpoint whose logits are recorded: its config.json and its tensors."""
    told = json.loads((TINY / "config.json").read_text())
    return told, safetensors.numpy.load_file(TINY / "model.safetensors")


def cut(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """float32 values as F32, F16 or BF16 store them."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2")
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype])


def kept(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """What is left of float32 values that F32, F16 or BF16 stored."""
    if dtype == "BF16":
        return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return cut(values, dtype).astype(np.float32)


def stored(named: Weights, dtype: str) -> Stored:
    """All tensors in one dtype."""
    return {name: (dtype, cut(values, dtype)) for name, values in named.items()}


def stored_e4m3(of: Mapping[str, Any], named: Weights) -> tuple[Stored, Weights]:
    """As published: e4m3 with scales where it is, else bf16; and the values that this means."""
    sizes = glm_sizes(of)
    found, means = stored(named, "BF16"), {n: kept(v, "BF16") for n, v in named.items()}
    for name, values in named.items():
        if published_e4m3(sizes, name):
            codes, scales, means[name] = encode(values)
            found[name] = ("F8_E4M3", codes)
            found[name + SCALES] = ("F32", scales)
    return found, means


def encode(
    values: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """A matrix as codes and block scales, and what they mean: each code times its block's scale."""
    codes, means = np.empty(values.shape, np.uint8), np.empty_like(values)
    scales = np.empty(scale_shape(values.shape), np.float32)
    order = np.argsort(VALUES[:254], kind="stable")
    order = order[np.isfinite(VALUES[order])]
    for row, column in np.ndindex(scales.shape):
        at = np.s_[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK]
        scales[row, column] = scale = np.abs(values[at]).max() / np.float32(448)
        near = np.searchsorted(VALUES[order], values[at] / scale)
        codes[at] = order[np.minimum(near, len(order) - 1)]
        means[at] = VALUES[codes[at]] * scale
    return codes, scales, means


def write_file(path: Path, named: Stored, odd: bool = False) -> None:
    """One safetensors file; odd: its values begin at an odd byte."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data: list[bytes] = []
    at = 0
    for name, (dtype, array) in named.items():
        values = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(values)],
        }  # fmt: skip
        data.append(values)
        at += len(values)
    text = json.dumps(header).encode()
    text += b" " * ((len(text) % 2) ^ odd)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def write(
    folder: Path, of: Mapping[str, Any], named: Stored, shards: int = 1, odd: bool = False
) -> Path:
    """A directory without a tokenizer; more than one shard come with an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(of))
    if shards == 1:
        write_file(folder / "model.safetensors", named, odd)
        return folder
    index: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: one for i, (n, one) in enumerate(named.items()) if i % shards == shard}
        write_file(folder / name, part)
        index |= dict.fromkeys(part, name)
    write_index(folder, index)
    return folder


def write_index(folder: Path, index: Mapping[str, str]) -> None:
    """Which file holds which tensor."""
    text = json.dumps({"metadata": {}, "weight_map": dict(index)})
    (folder / "model.safetensors.index.json").write_text(text)
