"""The GLM family's sizes and names: the published inventory to the byte, and every refusal."""

import hashlib
from math import prod
from typing import Any

import pytest

from kvtape.core.families.family import UnsupportedShape
from kvtape.core.families.glm_config import DSA, KDA, LAYER_TYPES, GlmSizes, glm_sizes
from kvtape.core.families.glm_tensors import (
    PREFIX,
    SCALES,
    Shape,
    official_tensors,
    published_e4m3,
    read_tensors,
    scale_shape,
    vision_tensors,
)
from kvtape.tests import tiny_glm

# The config of GLM-5.3-Flash, as far as it sizes anything.
PUBLISHED: dict[str, Any] = {
    "model_type": "glm5_next",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 4096,
        "vocab_size": 154880,
        "max_position_embeddings": 1048576,
        "num_hidden_layers": 45,
        "num_nextn_predict_layers": 1,
        "layer_types": [
            "deepseek_sparse_attention" if layer % 4 == 3 else "linear_attention"
            for layer in range(45)
        ],
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42,
        "first_k_dense_replace": 3,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "moe_router_dtype": "float32",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "mla_use_nope": True,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_kpool": 4,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
        "indexer_types": ["full"] * 45,
        "index_share_for_mtp_iteration": True,
        "linear_attn_config": {
            "num_heads": 64,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
        },
        "mhc": True,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": [154820, 154827, 154829],
    },
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "num_heads": 16,
        "intermediate_size": 4096,
        "out_hidden_size": 4096,
        "projection_intermediate_size": 10240,
        "in_channels": 3,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
    },
}
NAMES = 76_108
NAMES_SHA = "7baf28d0d672c695e66ac4c68f3a8bcf054e52b2f364a566e6f30fcfaa4cef2d"
PARAMETERS, BYTES = 321_323_031_390, 328_326_771_576
IN_FLOAT32 = ("A_log", "dt_bias", "e_score_correction_bias", "_base", "_scale")


def inventory() -> tuple[GlmSizes, dict[str, Shape]]:
    """Every tensor of the published e4m3 checkpoint."""
    sizes = glm_sizes(PUBLISHED)
    found = dict(official_tensors(sizes)) | dict(vision_tensors(PUBLISHED["vision_config"]))
    coded = {n: s for n, s in official_tensors(sizes).items() if published_e4m3(sizes, n)}
    return sizes, found | {name + SCALES: scale_shape(shape) for name, shape in coded.items()}


def test_the_published_inventory_to_the_name_and_the_byte() -> None:
    sizes, found = inventory()
    assert len(found) == NAMES
    assert hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest() == NAMES_SHA
    assert sum(prod(s) for n, s in found.items() if not n.endswith(SCALES)) == PARAMETERS
    total = 0
    for name, shape in found.items():
        float32 = name.endswith((SCALES, *IN_FLOAT32)) and "visual" not in name
        total += prod(shape) * (1 if published_e4m3(sizes, name) else 4 if float32 else 2)
    assert total == BYTES


def test_the_sizes_of_the_published_config() -> None:
    sizes = glm_sizes(PUBLISHED)
    assert sizes.dsa_layers == (*range(3, 45, 4), 45) and len(sizes.kda_layers) == 34
    assert (sizes.hidden, sizes.latent, sizes.nope, sizes.heads) == (4096, 512, 256, 64)
    assert (sizes.kda_heads, sizes.kda_dim, sizes.taps, sizes.bound) == (64, 128, 4, -5.0)
    assert (sizes.pools, sizes.site, sizes.shared_inner, sizes.mtp) == (512, 24, 2048, 1)
    assert sizes.ends == (154820, 154827, 154829)


def test_the_recorded_checkpoint_has_exactly_these_tensors() -> None:
    of, named = tiny_glm.recorded()
    assert {n: a.shape for n, a in named.items()} == dict(official_tensors(glm_sizes(of)))


def test_what_is_read_is_what_is_stored_but_for_the_folded_maps() -> None:
    sizes, found = glm_sizes(PUBLISHED), dict(official_tensors(glm_sizes(PUBLISHED)))
    read = dict(read_tensors(sizes))
    for layer in sizes.dsa_layers:
        at = f"{PREFIX}layers.{layer}.self_attn."
        assert found.pop(at + "kv_b_proj.weight") == (64 * 512, 512)
        assert found.pop(at + "kv_a_layernorm.weight") == (512,)
        assert read.pop(at + "absorbed_k.weight") == (64 * 512, 256)
        assert read.pop(at + "absorbed_v.weight") == (64 * 256, 512)
    for layer in sizes.kda_layers:
        at = f"{PREFIX}layers.{layer}.self_attn."
        assert found.pop(at + "A_log") == read.pop(at + "decay") == (64,)
    assert {name: prod(shape) for name, shape in read.items()} == {
        name: prod(shape) for name, shape in found.items()
    }
    flat = {name for name, shape in read.items() if shape != found[name]}
    assert {name.rsplit(".", 2)[-1 if "ape" in name else -2] for name in flat} == {
        "q_conv1d", "k_conv1d", "v_conv1d", "index_kpool_compress_ape",
    }  # fmt: skip


def test_without_a_drafting_head_its_layer_is_not_asked_for() -> None:
    sizes = glm_sizes(tiny_glm.config(num_nextn_predict_layers=0))
    assert sizes == glm_sizes(tiny_glm.config(num_nextn_predict_layers=None))
    assert sizes.mtp == 0 and sizes.dsa_layers == (1, 3)
    assert not any(".layers.4." in name for name in official_tensors(sizes))


@pytest.mark.parametrize("word", [w for w, kind in LAYER_TYPES.items() if kind == DSA])
def test_every_spelling_of_a_layers_kind_means_the_same(word: str) -> None:
    types = ["linear_attention", word, "linear_attention", word]
    sizes = glm_sizes(tiny_glm.config(layer_types=types))
    assert sizes == glm_sizes(tiny_glm.config())
    assert sizes.layer_kinds == (KDA, DSA, KDA, DSA)


def test_text_config_alone_dense_layers_by_count_and_words_for_the_head_too() -> None:
    sizes = glm_sizes(tiny_glm.config(mlp_layer_types=["dense"] + ["sparse"] * 3))
    counted = {"mlp_layer_types": None, "first_k_dense_replace": 1}
    assert glm_sizes(tiny_glm.text_config(**counted)) == sizes
    types = [*tiny_glm.text_config()["layer_types"], "deepseek_sparse_attention"]
    assert glm_sizes(tiny_glm.config(**counted, layer_types=types)) == sizes
    assert glm_sizes(tiny_glm.config(**counted, indexer_types=["full"] * 4)) == sizes


def test_end_tokens_are_several_one_or_none_and_the_list_of_all_counts_first() -> None:
    assert glm_sizes(tiny_glm.config(eos_token_id=3)).ends == (3,)
    assert glm_sizes(tiny_glm.config(eos_token_id=None)).ends == ()
    assert glm_sizes(tiny_glm.config(eos_token_id=[3, 1, 3], eos_token_ids=(5, 4))).ends == (5, 4)


def test_floats_are_float32_values() -> None:
    sizes = glm_sizes(tiny_glm.config())
    assert (sizes.eps, sizes.hc_eps) == (9.999999747378752e-06, 9.999999974752427e-07)


LINEAR = tiny_glm.text_config()["linear_attn_config"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim is 64; computed here: 0"),
        ({"mla_use_nope": False}, "mla_use_nope is False"),
        ({"n_group": 8}, "n_group is 8"),
        ({"topk_group": 4}, "topk_group is 4"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"moe_router_dtype": "bfloat16"}, "moe_router_dtype is 'bfloat16'"),
        ({"index_kpool_compress": False}, "index_kpool_compress is False"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail is False"),
        ({"mhc": False}, "mhc is False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"index_kpool": 3}, "index_kpool is 3: it does not divide a page's rows, 512"),
        ({"index_kpool": 16}, "index_kpool is 16: it does not divide index_topk, 8"),
        ({"index_kpool": None}, "index_kpool is None"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2; computed here: 0 to 1"),
        ({"linear_attn_config": None}, "linear_attn_config is missing"),
        ({"linear_attn_config": LINEAR | {"gate_lower_bound": None}}, "gate_lower_bound is null"),
        ({"linear_attn_config": LINEAR | {"gate_lower_bound": 1.0}}, "gate_lower_bound is 1.0"),
        ({"linear_attn_config": LINEAR | {"head_dim": 24}}, "head_dim is 24, it must be a mul"),
        ({"layer_types": ["mamba"] * 4}, "layer_types has 'mamba'"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has no deepseek_sparse_att"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types has no linear_attention"),
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries for 4 layers"),
        ({"layer_types": None}, "layer_types is no list of words"),
        ({"mlp_layer_types": ["wide"] * 4}, "mlp_layer_types has 'wide'"),
        ({"indexer_types": ["full", "shared", "full", "full"]}, "indexer_types has 'shared'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1, heads are 3"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9, of 3 experts"),
        ({"hidden_size": 40}, "hidden_size is 40, it must be a multiple of 16"),
        ({"qk_nope_head_dim": 4}, "qk_nope_head_dim is 4, it must be a multiple of 8"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"n_routed_experts": 2**30}, "n_routed_experts is 1073741824"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0, out of range"),
        ({"hc_eps": 1e60}, "hc_eps is 1e\\+60, out of range"),
        ({"swiglu_limit": None}, "swiglu_limit is None, not a number"),
        ({"eos_token_id": [48]}, "eos token 48 is outside the vocabulary of 48"),
        ({"eos_token_id": ["x"]}, "eos_token_id 'x'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedShape, match=says):
        glm_sizes(tiny_glm.config(**wrong))


def test_the_outer_config_counts_too() -> None:
    with pytest.raises(UnsupportedShape, match="tie_word_embeddings is True"):
        glm_sizes(tiny_glm.config() | {"tie_word_embeddings": True})
    with pytest.raises(UnsupportedShape, match="text_config is no object"):
        glm_sizes({"text_config": [1]})
