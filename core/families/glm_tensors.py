"""A glm5_next checkpoint's tensors by name, and the names that a forward pass reads."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

from .glm_config import DSA, SPARSE, GlmSizes

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

PREFIX = "model.language_model."
VISION = "model.visual."
LAYER = PREFIX + "layers.{}."
EMBEDDING = PREFIX + "embed_tokens.weight"
NORM = PREFIX + "norm.weight"
HEAD = "lm_head.weight"
SCALES = "_scale_inv"  # of a tensor stored as e4m3: float32, one a block of 128 x 128
SCALE_BLOCK = 128
E4M3 = (
    "self_attn.q_a_proj.weight", "self_attn.q_b_proj.weight", "self_attn.kv_a_proj_with_mqa.weight",
    ".gate_proj.weight", ".up_proj.weight", ".down_proj.weight",
)  # fmt: skip
ABSORBED_K, ABSORBED_V, DECAY = "absorbed_k.weight", "absorbed_v.weight", "decay"

Named = Iterator[tuple[str, Shape]]


@lru_cache(maxsize=4)
def official_tensors(sizes: GlmSizes) -> Shapes:
    """Every tensor of the text model, the drafting head's too where `mtp` is 1, as published."""
    return MappingProxyType(dict(_official(sizes)))


@lru_cache(maxsize=4)
def read_tensors(sizes: GlmSizes) -> Shapes:
    """What a forward pass reads: matrices [output, input]; constants [elements], flattened.

    As published, but for three of a layer. The latent norm's weight is folded into the maps that
    stand behind it: absorbed_k [heads * latent, nope] takes a query head to the latent row's
    columns, absorbed_v [heads * value_dim, latent] takes what was attended to a head's values; head
    h's rows are the h-th of `heads` equal parts. decay [kda_heads] is e^A_log.
    """
    return MappingProxyType(dict(_read(sizes)))


def scale_shape(shape: Shape) -> Shape:
    """The shape of the block scales of an e4m3 matrix."""
    return tuple(-(-n // SCALE_BLOCK) for n in shape)


def published_e4m3(sizes: GlmSizes, name: str) -> bool:
    """Whether the published e4m3 checkpoint stores a tensor with block scales."""
    if name.endswith("self_attn.o_proj.weight"):
        layer = int(name.removeprefix(PREFIX + "layers.").split(".")[0])
        return layer in sizes.dsa_layers
    return name.startswith(PREFIX) and name.endswith(E4M3)


def vision_tensors(config: Mapping[str, Any]) -> Shapes:
    """The vision tower's tensors, from its own config; nothing here computes with them."""
    hidden, inner, out = (
        int(config[key]) for key in ("hidden_size", "intermediate_size", "out_hidden_size")
    )
    wide, patch = int(config["projection_intermediate_size"]), int(config["patch_size"])
    head, merge = hidden // int(config["num_heads"]), int(config["spatial_merge_size"])
    shapes: dict[str, Shape] = {
        "downsample.bias": (out,),
        "downsample.weight": (out, hidden, merge, merge),
        "merger.down_proj.weight": (out, wide),
        "merger.gate_proj.weight": (wide, out),
        "merger.up_proj.weight": (wide, out),
        "merger.proj.weight": (out, out),
        "merger.post_projection_norm.bias": (out,),
        "merger.post_projection_norm.weight": (out,),
        "patch_embed.proj.bias": (hidden,),
        "patch_embed.proj.weight": (
            hidden, int(config["in_channels"]), int(config["temporal_patch_size"]), patch, patch,
        ),
        "post_layernorm.weight": (hidden,),
    }  # fmt: skip
    for block in range(int(config["depth"])):
        at = f"blocks.{block}."
        shapes |= {at + f"attn.{part}_norm.weight": (head,) for part in "qk"}
        shapes |= {at + f"norm{which}.weight": (hidden,) for which in (1, 2)}
        for part, rows, columns in (
            ("attn.qkv", 3 * hidden, hidden), ("attn.proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):  # fmt: skip
            shapes[at + part + ".weight"], shapes[at + part + ".bias"] = (rows, columns), (rows,)
    return {VISION + name: shape for name, shape in shapes.items()}


def _official(sizes: GlmSizes) -> Named:
    yield EMBEDDING, (sizes.vocab, sizes.hidden)
    for layer in range(sizes.layers + sizes.mtp):
        at, d = LAYER.format(layer), sizes.hidden
        yield at + "input_layernorm.weight", (d,)
        yield at + "post_attention_layernorm.weight", (d,)
        drafting = layer == sizes.layers
        if drafting:
            yield at + "eh_proj.weight", (d, 2 * d)
            for norm in ("enorm", "hnorm", "shared_head.norm"):
                yield at + norm + ".weight", (d,)
        else:
            yield from _sites(sizes, at)
        latent = drafting or sizes.layer_kinds[layer] == DSA
        attention = _latent_attention if latent else _recurrence
        yield from attention(sizes, at + "self_attn.")
        if drafting or sizes.mlp_kinds[layer] == SPARSE:
            yield from _experts(sizes, at + "mlp.")
        else:
            yield from _unit(at + "mlp.", d, sizes.inner)
    yield NORM, (sizes.hidden,)
    yield HEAD, (sizes.vocab, sizes.hidden)


def _sites(sizes: GlmSizes, at: str) -> Named:
    for site in ("hc_attn", "hc_ffn"):
        yield at + site + "_fn", (sizes.site, sizes.hc * sizes.hidden)
        yield at + site + "_base", (sizes.site,)
        yield at + site + "_scale", (3,)


def _recurrence(sizes: GlmSizes, at: str) -> Named:
    d, wide = sizes.hidden, sizes.kda_heads * sizes.kda_dim
    for part in "qkv":
        yield at + f"{part}_proj.weight", (wide, d)
        yield at + f"{part}_conv1d.weight", (wide, 1, sizes.taps)
    for part in "fg":
        yield at + f"{part}_a_proj.weight", (sizes.kda_dim, d)
        yield at + f"{part}_b_proj.weight", (wide, sizes.kda_dim)
    yield at + "b_proj.weight", (sizes.kda_heads, d)
    yield at + "A_log", (sizes.kda_heads,)
    yield at + "dt_bias", (wide,)
    yield at + "o_norm.weight", (sizes.kda_dim,)
    yield at + "o_proj.weight", (d, wide)


def _latent_attention(sizes: GlmSizes, at: str) -> Named:
    d, heads = sizes.hidden, sizes.heads
    yield at + "q_a_proj.weight", (sizes.q_rank, d)
    yield at + "q_a_layernorm.weight", (sizes.q_rank,)
    yield at + "q_b_proj.weight", (heads * sizes.nope, sizes.q_rank)
    yield at + "kv_a_proj_with_mqa.weight", (sizes.latent, d)
    yield at + "kv_a_layernorm.weight", (sizes.latent,)
    yield at + "kv_b_proj.weight", (heads * (sizes.nope + sizes.value_dim), sizes.latent)
    yield at + "o_proj.weight", (d, heads * sizes.value_dim)
    index = at + "indexer."
    yield index + "wq_b.weight", (sizes.index_heads * sizes.index_dim, sizes.q_rank)
    yield index + "wk.weight", (sizes.index_dim, d)
    yield index + "k_norm.weight", (sizes.index_dim,)
    yield index + "k_norm.bias", (sizes.index_dim,)
    yield index + "weights_proj.weight", (sizes.index_heads, d)
    yield index + "index_kpool_compress_gate", (sizes.index_dim, d)
    yield index + "index_kpool_compress_ape", (sizes.kpool, sizes.index_dim)


def _experts(sizes: GlmSizes, at: str) -> Named:
    yield at + "gate.weight", (sizes.experts, sizes.hidden)
    yield at + "gate.e_score_correction_bias", (sizes.experts,)
    yield from _unit(at + "shared_experts.", sizes.hidden, sizes.shared_inner)
    for expert in range(sizes.experts):
        yield from _unit(at + f"experts.{expert}.", sizes.hidden, sizes.expert_inner)


def _unit(at: str, hidden: int, inner: int) -> Named:
    yield at + "gate_proj.weight", (inner, hidden)
    yield at + "up_proj.weight", (inner, hidden)
    yield at + "down_proj.weight", (hidden, inner)


def _read(sizes: GlmSizes) -> Named:
    for name, shape in _official(sizes):
        at = name[: name.rfind("self_attn.") + len("self_attn.")]
        if name.endswith("self_attn.kv_b_proj.weight"):
            yield at + ABSORBED_K, (sizes.heads * sizes.latent, sizes.nope)
            yield at + ABSORBED_V, (sizes.heads * sizes.value_dim, sizes.latent)
        elif name.endswith("self_attn.A_log"):
            yield at + DECAY, shape
        elif name.endswith(("_conv1d.weight", "index_kpool_compress_ape")):
            yield name, (prod(shape),)
        elif not name.endswith("self_attn.kv_a_layernorm.weight"):
            yield name, shape
