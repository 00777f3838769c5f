"""A tiny random llama with a byte-level tokenizer, written as a GGUF file or as a directory."""

import json
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from kvtape.devices.text import byte_letters
from kvtape.devices.weights.layout import llama_shapes

Weights = dict[str, NDArray[np.float32]]

SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "Ġt h", "h e", "Ã ©", "o u"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tokens() -> list[str]:
    """Special tokens, the 256 bytes, and what the merges make."""
    letters = [chr(code) for code in sorted(byte_letters())]
    return SPECIAL + letters + [merge.replace(" ", "") for merge in MERGES]


def config(**other: Any) -> dict[str, Any]:
    """config.json of the tiny model."""
    base = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(tokens()),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "max_position_embeddings": 512,
        "eos_token_id": 2,
    }
    return base | other


def weights(of: dict[str, Any], seed: int = 0) -> Weights:
    """Random float32 tensors under Hugging Face's names."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s, np.float32) for n, s in llama_shapes(of).items()}


def write_shard(path: Path, named: Weights, dtype: str) -> None:
    """One safetensors file: a length, a JSON header, the values. bf16 cuts the low half off."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in named.items():
        high = (array.view(np.uint32) >> 16).astype("<u2")
        values = {"F32": array, "F16": array.astype("<f2"), "BF16": high}[dtype].tobytes()
        span = [len(data), len(data) + len(values)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": span}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_folder(folder: Path, named: Weights, *, dtype: str, shards: int, **other: Any) -> None:
    """A Hugging Face directory; more than one shard come with an index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(**other)))
    if shards == 1:
        write_shard(folder / "model.safetensors", named, dtype)
        return
    index: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: a for i, (n, a) in enumerate(named.items()) if i % shards == shard}
        write_shard(folder / name, part, dtype)
        index |= dict.fromkeys(part, name)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)


def gguf_name(name: str) -> str:
    """A tensor's name in a GGUF file."""
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{IN_LAYER[rest.removesuffix('.weight')]}.weight"


def interleaved(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Query or key rows in llama.cpp's order: a head's two rotary halves by turns."""
    heads = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def write_gguf(
    path: Path, named: Weights, kinds: dict[str, Kind], of: dict[str, Any], **settings: Any
) -> None:
    """A GGUF file; kinds gives a matrix's block type by its Hugging Face name, F32 by default."""
    writer = gguf.GGUFWriter(path, settings.pop("architecture", "llama"))
    writer.add_block_count(of["num_hidden_layers"])
    writer.add_context_length(of["max_position_embeddings"])
    writer.add_embedding_length(of["hidden_size"])
    writer.add_feed_forward_length(of["intermediate_size"])
    writer.add_head_count(of["num_attention_heads"])
    writer.add_head_count_kv(of["num_key_value_heads"])
    writer.add_key_length(of["head_dim"])
    writer.add_layer_norm_rms_eps(of["rms_norm_eps"])
    writer.add_rope_freq_base(of["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens()) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(of["eos_token_id"])
    writer.add_chat_template(TEMPLATE)
    for key, value in settings.items():
        if isinstance(value, str):
            writer.add_string(key.replace("__", "."), value)
        else:
            writer.add_uint32(key.replace("__", "."), value)
    for name, array in named.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            array = interleaved(array, of["head_dim"])
        kind = kinds.get(name, Kind.F32)
        data = gguf.quants.quantize(array, kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
