"""The sizes of a glm5_next model, from config.json; what is not computed is refused by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .family import BLOCK, UnsupportedShape

PAGE_ROWS = 512
KDA, DSA = "kda", "dsa"  # recurrent layers, layers of selected latent rows
DENSE, SPARSE = "dense", "sparse"  # one feed-forward, or experts
LAYER_TYPES = {
    "linear_attention": KDA,
    "deepseek_sparse_attention": DSA,  # as published
    "indexed_attention": DSA,  # as transformers writes it
    "full_attention": DSA,
}
MOST_COUNT, MOST_EXPERTS, MOST_TAPS, MOST_STREAMS = 2**31, 2**12, 64, 16
MOST_LAYERS, MOST_HEADS = 2**12 - 2, 2**12  # layers and heads are places of a digest

# What must stand in the config where it stands at all: any other value asks for another forward.
FIXED: dict[str, tuple[Any, ...]] = {
    "qk_rope_head_dim": (0,),
    "mla_use_nope": (True,),
    "n_group": (1,),
    "topk_group": (1,),
    "attention_bias": (False,),
    "hidden_act": ("silu",),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True,),
    "moe_router_dtype": ("float32",),
    "index_kpool_compress": (True,),
    "index_kpool_always_select_tail": (True,),
    "mhc": (True,),
    "tie_word_embeddings": (False,),
}


@dataclass(frozen=True, slots=True)
class GlmSizes:
    """All that the forward pass must know; behind each field its name in config.json.

    A float is a float32 value. Layers are numbered as in the checkpoint: the drafting head is
    layer `layers`.
    """

    hidden: int  # hidden_size
    vocab: int  # vocab_size
    context: int  # max_position_embeddings
    layers: int  # num_hidden_layers
    layer_kinds: tuple[str, ...]  # layer_types, as KDA or DSA
    mlp_kinds: tuple[str, ...]  # mlp_layer_types, else first_k_dense_replace, as DENSE or SPARSE
    inner: int  # intermediate_size
    expert_inner: int  # moe_intermediate_size
    experts: int  # n_routed_experts
    experts_per_token: int  # num_experts_per_tok
    shared_experts: int  # n_shared_experts: one feed-forward of so many times expert_inner
    routed_scale: float  # routed_scaling_factor
    limit: float  # swiglu_limit
    heads: int  # num_attention_heads
    q_rank: int  # q_lora_rank
    latent: int  # kv_lora_rank
    nope: int  # qk_nope_head_dim
    value_dim: int  # v_head_dim
    index_heads: int  # index_n_heads
    index_dim: int  # index_head_dim
    index_topk: int  # index_topk: tokens that a query reads beside its tail
    kpool: int  # index_kpool: tokens of a pool
    kda_heads: int  # linear_attn_config.num_heads
    kda_dim: int  # linear_attn_config.head_dim, of keys and values alike
    taps: int  # linear_attn_config.short_conv_kernel_size
    bound: float  # linear_attn_config.gate_lower_bound
    hc: int  # hc_mult: residual streams
    hc_eps: float  # hc_eps
    hc_iters: int  # hc_sinkhorn_iters
    eps: float  # rms_norm_eps
    mtp: int  # num_nextn_predict_layers: 1 where the drafting head is there, else 0
    ends: tuple[int, ...]  # eos_token_ids, else eos_token_id

    @property
    def dsa_layers(self) -> tuple[int, ...]:
        """Layers with latent rows in the order of their caches, the drafting head's last."""
        trunk = [i for i, kind in enumerate(self.layer_kinds) if kind == DSA]
        return (*trunk, *range(self.layers, self.layers + self.mtp))

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Layers with a recurrent state, in order."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == KDA)

    @property
    def shared_inner(self) -> int:
        """Inner columns of the shared expert."""
        return self.shared_experts * self.expert_inner

    @property
    def site(self) -> int:
        """Weights of a hyper-connection site: reads, writes, and the mix of every two streams."""
        return self.hc * (self.hc + 2)

    @property
    def pools(self) -> int:
        """Most pools that a query reads."""
        return self.index_topk // self.kpool


def glm_sizes(config: Mapping[str, Any]) -> GlmSizes:
    """From config.json, or its text_config alone. Raises UnsupportedShape."""
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise UnsupportedShape("text_config is no object")
    for told in (config, text):
        _refuse_other_values(told)
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        raise UnsupportedShape("linear_attn_config is missing: recurrent layers need their sizes")
    layers = _count(text, "num_hidden_layers", MOST_LAYERS)
    sizes = GlmSizes(
        hidden=_count(text, "hidden_size"),
        vocab=_count(text, "vocab_size"),
        context=_count(text, "max_position_embeddings"),
        layers=layers,
        layer_kinds=_layer_kinds(text, layers),
        mlp_kinds=_mlp_kinds(text, layers),
        inner=_count(text, "intermediate_size"),
        expert_inner=_count(text, "moe_intermediate_size"),
        experts=_count(text, "n_routed_experts", MOST_EXPERTS),
        experts_per_token=_count(text, "num_experts_per_tok"),
        shared_experts=_count(text, "n_shared_experts"),
        routed_scale=_number(text, "routed_scaling_factor"),
        limit=_number(text, "swiglu_limit"),
        heads=_count(text, "num_attention_heads", MOST_HEADS),
        q_rank=_count(text, "q_lora_rank"),
        latent=_count(text, "kv_lora_rank"),
        nope=_count(text, "qk_nope_head_dim"),
        value_dim=_count(text, "v_head_dim"),
        index_heads=_count(text, "index_n_heads", MOST_HEADS),
        index_dim=_count(text, "index_head_dim"),
        index_topk=_count(text, "index_topk"),
        kpool=_count(text, "index_kpool"),
        kda_heads=_count(linear, "num_heads", MOST_HEADS),
        kda_dim=_count(linear, "head_dim"),
        taps=_count(linear, "short_conv_kernel_size", MOST_TAPS),
        bound=_bound(linear),
        hc=_count(text, "hc_mult", MOST_STREAMS),
        hc_eps=_number(text, "hc_eps"),
        hc_iters=_count(text, "hc_sinkhorn_iters"),
        eps=_number(text, "rms_norm_eps"),
        mtp=_drafting_heads(text),
        ends=_ends(config, text),
    )
    _refuse_what_cannot_be_cut(sizes)
    _refuse_what_does_not_agree(sizes, text)
    return sizes


def _refuse_other_values(told: Mapping[str, Any]) -> None:
    for key, known in FIXED.items():
        value = told.get(key, known[0])
        if value not in known or isinstance(value, bool) != isinstance(known[0], bool):
            raise UnsupportedShape(f"{key} is {value!r}; computed here: {known[0]!r}")


def _refuse_what_cannot_be_cut(sizes: GlmSizes) -> None:
    """Columns go to ranks in blocks; rows of codes are whole digest words and vectors."""
    blocks = {
        "hidden_size": sizes.hidden,
        "vocab_size": sizes.vocab,
        "intermediate_size": sizes.inner,
        "moe_intermediate_size": sizes.expert_inner,
        "kv_lora_rank": sizes.latent,
        "index_head_dim": sizes.index_dim,
        "linear_attn_config.head_dim": sizes.kda_dim,
    }
    halves = {
        "q_lora_rank": sizes.q_rank,
        "qk_nope_head_dim": sizes.nope,
        "v_head_dim": sizes.value_dim,
    }
    for named, unit in ((blocks, BLOCK), (halves, BLOCK // 2)):
        for key, size in named.items():
            if size % unit:
                raise UnsupportedShape(f"{key} is {size}, it must be a multiple of {unit}")


def _refuse_what_does_not_agree(sizes: GlmSizes, text: Mapping[str, Any]) -> None:
    for key, whole in (("a page's rows", PAGE_ROWS), ("index_topk", sizes.index_topk)):
        if whole % sizes.kpool:
            raise UnsupportedShape(
                f"index_kpool is {sizes.kpool}: it does not divide {key}, {whole}"
            )
    shared = text.get("num_key_value_heads", sizes.heads)
    if shared != sizes.heads:
        raise UnsupportedShape(f"num_key_value_heads is {shared!r}, heads are {sizes.heads}")
    if sizes.experts_per_token > sizes.experts:
        raise UnsupportedShape(
            f"num_experts_per_tok is {sizes.experts_per_token}, of {sizes.experts} experts"
        )
    for kind in (KDA, DSA):
        if kind not in sizes.layer_kinds:
            names = [name for name, means in LAYER_TYPES.items() if means == kind]
            raise UnsupportedShape(f"layer_types has no {' or '.join(names)}")
    for token in sizes.ends:
        if token >= sizes.vocab:
            raise UnsupportedShape(f"eos token {token} is outside the vocabulary of {sizes.vocab}")


def _layer_kinds(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    types = _each_layer(text, "layer_types", layers)
    others = [name for name in types if name not in LAYER_TYPES]
    if others:
        raise UnsupportedShape(f"layer_types has {others[0]!r}; known: {', '.join(LAYER_TYPES)}")
    indexers = _each_layer(text, "indexer_types", layers) if text.get("indexer_types") else []
    other = next((name for name in indexers if name != "full"), None)
    if other is not None:
        raise UnsupportedShape(f"indexer_types has {other!r}; computed here: 'full'")
    return tuple(LAYER_TYPES[name] for name in types)


def _mlp_kinds(text: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    if text.get("mlp_layer_types") is None and text.get("first_k_dense_replace") is not None:
        dense = min(layers, _count(text, "first_k_dense_replace", least=0))
        return (DENSE,) * dense + (SPARSE,) * (layers - dense)
    types = _each_layer(text, "mlp_layer_types", layers)
    other = next((name for name in types if name not in (DENSE, SPARSE)), None)
    if other is not None:
        raise UnsupportedShape(f"mlp_layer_types has {other!r}; known: {DENSE}, {SPARSE}")
    return tuple(types)


def _each_layer(text: Mapping[str, Any], key: str, layers: int) -> list[str]:
    """A list with a word for each layer; one for the drafting head may follow."""
    found = text.get(key)
    if not isinstance(found, list | tuple) or not all(isinstance(word, str) for word in found):
        raise UnsupportedShape(f"{key} is no list of words")
    if len(found) not in (layers, layers + 1):
        raise UnsupportedShape(f"{key} has {len(found)} entries for {layers} layers")
    return list(found[:layers])


def _drafting_heads(text: Mapping[str, Any]) -> int:
    if text.get("num_nextn_predict_layers") is None:
        return 0
    return _count(text, "num_nextn_predict_layers", most=1, least=0)


def _bound(linear: Mapping[str, Any]) -> float:
    if linear.get("gate_lower_bound") is None:
        raise UnsupportedShape("gate_lower_bound is null: decay by softplus is not computed here")
    bound = _number(linear, "gate_lower_bound", signed=True)
    if bound >= 0:
        raise UnsupportedShape(f"gate_lower_bound is {bound}, states would grow; it must be < 0")
    return bound


def _ends(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a reply; several, one or none."""
    told: Any = None
    for where in (config, text):
        for key in ("eos_token_ids", "eos_token_id"):
            told = where.get(key) if told is None else told
    ends = list(told) if isinstance(told, list | tuple) else [] if told is None else [told]
    for token in ends:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise UnsupportedShape(f"eos_token_id {token!r} is not a token id")
    return tuple(dict.fromkeys(ends))


def _count(told: Mapping[str, Any], key: str, most: int = MOST_COUNT, least: int = 1) -> int:
    value = told.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UnsupportedShape(f"{key} is {value!r}; computed here: {least} to {most}")
    return value


def _number(told: Mapping[str, Any], key: str, *, signed: bool = False) -> float:
    """A number of the config as a float32 value, positive unless `signed`."""
    value = told.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedShape(f"{key} is {value!r}, not a number")
    with np.errstate(over="ignore"):
        single = float(np.float32(value)) if abs(value) < 2**100 else math.inf
    if not math.isfinite(single) or not (signed or single > 0):
        raise UnsupportedShape(f"{key} is {value!r}, out of range")
    return single
