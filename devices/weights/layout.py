"""What a family's checkpoint must hold: every tensor and its shape, told from the config."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import BadModel, UnsupportedModel

Shape = tuple[int, ...]

# What `config` of a llama checkpoint must say, each at least 1.
LLAMA_COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
NAMED = 6  # tensors that one message lists before it says "and more"
MOST, MOST_LAYERS = 2**31, 2**12  # of any count in a config, and of layers: more is damage


def llama_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
    """The tensors of a llama checkpoint: shapes with output rows first."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
        shapes[f"{at}.self_attn.q_proj.weight"] = (queries, hidden)
        shapes[f"{at}.self_attn.k_proj.weight"] = (keys, hidden)
        shapes[f"{at}.self_attn.v_proj.weight"] = (keys, hidden)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, queries)
        shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{at}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{at}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def check_llama_config(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse numbers that cannot be a model's before anything is sized by them."""
    for key in LLAMA_COUNTS:
        value = config[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < MOST:
            raise BadModel(f"{path}: {key} is {value!r}, not a count")
    if config["num_hidden_layers"] > MOST_LAYERS:
        raise BadModel(f"{path}: num_hidden_layers is {config['num_hidden_layers']}, not a model's")
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % shared:
        raise BadModel(f"{path}: {heads} attention heads do not share {shared} key-value heads")
    if config["head_dim"] % 2:
        raise BadModel(f"{path}: head_dim {config['head_dim']} is odd, rotary halves need it even")
    for key in ("rms_norm_eps", "rope_theta"):
        value = config[key]
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise BadModel(f"{path}: {key} is {value!r}, not a positive number")
    for token in config["eos_token_ids"]:
        if not 0 <= token < config["vocab_size"]:
            raise BadModel(f"{path}: eos token {token} is outside the vocabulary")


def check_shapes(path: Path, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Every tensor is there, none besides, and each has its shape; the message names which."""
    wrong = [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    trouble = (
        ("missing", [name for name in expected if name not in found]),
        ("not known", [name for name in found if name not in expected]),
        ("of another shape", wrong),
    )
    said = [f"{what}: {few(names)}" for what, names in trouble if names]
    if said:
        raise BadModel(f"{path}: tensors {'; tensors '.join(said)}")


def few(names: list[str]) -> str:
    """The first names and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def refuse(path: Path, why: str) -> UnsupportedModel:
    """An error that says what of a sound model is not computed here."""
    return UnsupportedModel(f"{path}: {why}")
