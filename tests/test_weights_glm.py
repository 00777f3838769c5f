"""glm5_next directories: the values that were written, maps made of them, and named refusals."""

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.families.glm_tensors import EMBEDDING, LAYER, SCALES
from kvtape.core.kernels import meaning
from kvtape.devices.text import read_codec
from kvtape.devices.weights.checkpoint import BadModel, ModelError, ModelNotFound, UnsupportedModel
from kvtape.devices.weights.e4m3 import VALUES
from kvtape.devices.weights.find import find_model
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.tests import tiny_glm

UP = LAYER.format(0) + "mlp.up_proj.weight"
EXPERT = LAYER.format(1) + "mlp.experts.2.down_proj.weight"
SPARSE = LAYER.format(1) + "self_attn."
DRAFTER = LAYER.format(4)
CONV = LAYER.format(0) + "self_attn.k_conv1d.weight"


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Float32 values as patterns."""
    return np.ascontiguousarray(values).view(np.uint32)


def opened(folder: Path) -> GlmCheckpoint:
    """The directory, by the way that every command goes."""
    found = find_model(str(folder))
    assert isinstance(found, GlmCheckpoint)
    return found


@functools.cache
def small() -> tiny_glm.Weights:
    """Tensors of the smallest config."""
    return tiny_glm.weights(tiny_glm.config())


def write(
    folder: Path, change: tiny_glm.Weights | None = None, drop: str = "", **other: Any
) -> Path:
    """The smallest model with some tensors or config fields changed."""
    named = small() | (change or {})
    kept = {name: array for name, array in named.items() if not drop or drop not in name}
    return tiny_glm.write(folder, tiny_glm.config(**other), tiny_glm.stored(kept, "F32"))


def assert_holds(found: GlmCheckpoint, means: tiny_glm.Weights) -> None:
    """Every name that is read gives what the published tensors mean, at any cut."""
    s = found.sizes
    for name in found.names():
        at = name[: name.rfind("self_attn.") + len("self_attn.")]
        if name.endswith((".absorbed_k.weight", ".absorbed_v.weight")):
            maps = means[at + "kv_b_proj.weight"].reshape(s.heads, s.nope + s.value_dim, s.latent)
            folded = maps * means[at + "kv_a_layernorm.weight"]
            if name.endswith("_k.weight"):
                want = np.concatenate([head[: s.nope].T for head in folded])
            else:
                want = np.concatenate([head[s.nope :] for head in folded])
        elif name.endswith(".decay"):
            want = meaning.exp(means[at + "A_log"])
        else:
            want = means[name]
        if len(found.shape(name)) == 1:
            assert (bits(found.vector(name)) == bits(want.reshape(-1))).all(), name
            continue
        assert found.shape(name) == want.shape, name
        count = len(want)
        for first, last in ((0, count), (1, min(count, 7)), (count // 3, count - 1), (2, 2)):
            rows = found.rows(name, first, last)
            assert rows.dtype == np.float32 and rows.flags.c_contiguous
            assert (bits(rows) == bits(want[first:last])).all(), (name, first, last)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_every_dtype_in_one_file_or_several(tmp_path: Path, dtype: str, shards: int) -> None:
    of, named = tiny_glm.recorded()
    found = opened(tiny_glm.write(tmp_path, of, tiny_glm.stored(named, dtype), shards))
    assert_holds(found, {name: tiny_glm.kept(v, dtype) for name, v in named.items()})
    assert (found.family, found.sizes.mtp) == ("glm", 1)
    assert found.config["eos_token_ids"] == (1, 2, 3)


@pytest.mark.parametrize("shards", [1, 3])
def test_codes_with_block_scales(tmp_path: Path, shards: int) -> None:
    of, named = tiny_glm.recorded()
    told = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    stored, means = tiny_glm.stored_e4m3(of, named)
    assert any(array.shape == (2, 1) for _, array in stored.values())  # more than one block
    found = opened(tiny_glm.write(tmp_path, of | {"quantization_config": told}, stored, shards))
    assert_holds(found, means)
    assert set(found.names()) == set(opened(tiny_glm.TINY).names())


def test_what_the_codes_mean() -> None:
    assert VALUES[[0, 1, 7, 8, 0x38, 0x39, 0x40, 0x7E]].tolist() == [
        0.0, 2**-9, 7 * 2**-9, 2**-6, 1.0, 1.125, 2.0, 448.0,
    ]  # fmt: skip
    assert (VALUES[128:255] == -VALUES[:127]).all() and np.signbit(VALUES[128])
    assert np.isnan(VALUES[[0x7F, 0xFF]]).all() and np.isfinite(VALUES[:127]).all()
    assert (np.diff(VALUES[:127]) > 0).all()


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_table_is_the_embedding_in_halves(tmp_path: Path, dtype: str, odd: bool) -> None:
    named = tiny_glm.stored(small(), dtype)
    found = opened(tiny_glm.write(tmp_path, tiny_glm.config(), named, odd=odd))
    high, low = found.table()
    want = bits(tiny_glm.kept(small()[EMBEDDING], dtype))
    assert (high == want >> 16).all() and high.dtype == low.dtype == np.uint16
    assert low.shape == ((0, 32) if dtype == "BF16" else want.shape)
    assert (low == (want & 0xFFFF)[: len(low)]).all()
    assert all(h.flags.c_contiguous and h.flags.aligned and h.flags.writeable for h in (high, low))
    in_place = dtype == "BF16" and not odd
    assert (high.base is not None) == in_place  # no copy of its own
    out = np.empty((3, 32), np.float32)
    found.embed(np.array([47, 0, 0]), out)
    assert (bits(out) == want[[47, 0, 0]]).all()


def test_exponents_are_the_least_that_hold_the_bound(tmp_path: Path) -> None:
    norm = SPARSE + "indexer.k_norm."
    wide = {norm + "weight": np.full(16, -3, np.float32), norm + "bias": np.ones(16, np.float32)}
    found = opened(write(tmp_path, wide))
    for bound, exponent in (
        (math.sqrt(16), found.latent_exponent()),
        (math.sqrt(16) * 3 + 1, found.pool_exponent(1)),
    ):
        assert bound * (1 + 2**-18) <= 32639 * 2.0**exponent
        assert bound * (1 + 2**-18) > 32639 * 2.0 ** (exponent - 1)
    # sqrt(512) at the published width: 23,173 of 32,639 units of 2^-10
    assert opened(tiny_glm.TINY).latent_exponent() == -12
    wide[norm + "weight"][0] = 1e30
    with pytest.raises(BadModel, match="no exponent"):
        opened(write(tmp_path, wide)).pool_exponent(1)


def test_other_spellings_of_the_layers_open_alike(tmp_path: Path) -> None:
    sizes = opened(write(tmp_path)).sizes
    for word in ("indexed_attention", "full_attention"):
        types = ["linear_attention", word, "linear_attention", word]
        assert opened(write(tmp_path, layer_types=types)).sizes == sizes


def test_the_vision_tower_and_a_head_that_is_not_asked_for_are_passed_over(tmp_path: Path) -> None:
    tower = {"model.visual.merger.proj.weight": np.ones((3, 3), np.float32)}
    whole = opened(write(tmp_path, tower))
    assert whole.sizes.mtp and not any("visual" in name for name in whole.names())
    unused = opened(write(tmp_path, num_nextn_predict_layers=0))
    assert not unused.sizes.mtp and not any(DRAFTER in name for name in unused.names())
    absent = opened(write(tmp_path, drop=DRAFTER))  # some writers leave the head out
    assert not absent.sizes.mtp and absent.names() == unused.names()
    assert absent.config == whole.config | {"num_nextn_predict_layers": 0}


def test_a_directory_without_a_tokenizer_opens(tmp_path: Path) -> None:
    assert opened(write(tmp_path)).config["eos_token_ids"] == (1, 2)
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        read_codec(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 1]}')
    assert opened(tmp_path).config["eos_token_ids"] == (7, 1, 2)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "drop", "other", "says"),
    [
        ({}, UP, {}, f"missing: {UP}"),
        ({}, "eh_proj", {}, f"missing: {DRAFTER}eh_proj.weight"),
        ({}, "k_conv1d", {}, f"missing: {CONV} and|missing: {CONV},"),
        ({UP[:-7] + ".bias": np.ones(3, np.float32)}, "", {}, "not known: .*up_proj.bias"),
        ({UP + SCALES: np.ones((1, 1), np.float32)}, "", {}, f"not known: {UP}{SCALES}"),
        ({"model.language_model.layers.5.enorm.weight": np.ones(32, np.float32)}, "", {},
         "not known: .*layers.5.enorm"),
        ({UP: np.ones((32, 48), np.float32)}, "", {},
         rf"another shape: {UP} is \[32, 48\], not \[48, 32\]"),
        ({CONV: np.ones((32, 4), np.float32)}, "", {}, r"is \[32, 4\], not \[32, 1, 4\]"),
        ({}, "", {"index_kpool": 8}, r"index_kpool_compress_ape is \[4, 16\], not \[8, 16\]"),
        ({}, "", {"n_routed_experts": 4}, r"missing: .*experts\.3\."),
        ({}, "", {"num_attention_heads": 4, "num_key_value_heads": 4}, "another shape: .*q_b_proj"),
    ],
)  # fmt: skip
def test_files_that_do_not_agree_with_the_config_are_named(
    tmp_path: Path, change: tiny_glm.Weights, drop: str, other: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadModel, match=says):
        opened(write(tmp_path, change, drop, **other))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"index_kpool": 16}, "index_kpool is 16"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2"),
        ({"attention_bias": True}, "attention_bias"),
        ({"eos_token_id": 10**6}, "eos token 1000000"),
    ],
)
def test_what_the_family_does_not_compute_is_refused_with_the_path(
    tmp_path: Path, other: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=f"{tmp_path}: .*{says}"):
        opened(write(tmp_path, **other))


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"quant_method": "awq"}, "quant_method is 'awq'"),
        (
            {"quant_method": "fp8", "weight_block_size": [64, 64]},
            r"weight_block_size is \[64, 64\]",
        ),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2'"),
    ],
)
def test_weights_coded_in_another_way_are_refused(
    tmp_path: Path, told: dict[str, Any], says: str
) -> None:
    named = tiny_glm.stored(small(), "F32")
    tiny_glm.write(tmp_path, tiny_glm.config() | {"quantization_config": told}, named)
    with pytest.raises(UnsupportedModel, match=says):
        opened(tmp_path)


def test_codes_without_their_scales_and_where_none_are_read(tmp_path: Path) -> None:
    of = tiny_glm.config()
    stored, _ = tiny_glm.stored_e4m3(of, small())
    one = stored.pop(EXPERT + SCALES)
    with pytest.raises(BadModel, match=f"missing: {EXPERT}{SCALES}"):
        opened(tiny_glm.write(tmp_path, of, stored))
    bent = stored | {EXPERT + SCALES: ("F32", np.ones((2, 1), np.float32))}
    with pytest.raises(BadModel, match=rf"{SCALES} is \[2, 1\], not \[1, 1\]"):
        opened(tiny_glm.write(tmp_path, of, bent))
    stored[EXPERT + SCALES] = one
    stored[EMBEDDING] = ("F8_E4M3", np.zeros((48, 32), np.uint8))
    stored[EMBEDDING + SCALES] = ("F32", np.ones((1, 1), np.float32))
    with pytest.raises(UnsupportedModel, match=f"{EMBEDDING} is F8_E4M3"):
        opened(tiny_glm.write(tmp_path, of, stored))
    stored[EMBEDDING] = ("I64", np.zeros((48, 32), np.int64))
    with pytest.raises(
        UnsupportedModel, match=f"{EMBEDDING} is I64; read here: F32, F16, BF16, F8"
    ):
        opened(tiny_glm.write(tmp_path, of, stored))


def test_the_family_without_codes_refuses_them(tmp_path: Path) -> None:
    tiny_glm.write(tmp_path, {"model_type": "llama"} | tiny_glm.text_config(head_dim=16), {
        "model.norm.weight": ("F8_E4M3", np.zeros(32, np.uint8)),
    })  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"F8_E4M3; read here: F32, F16, BF16$"):
        find_model(str(tmp_path))


def test_shards_that_are_cut_or_not_there(tmp_path: Path) -> None:
    of, named = tiny_glm.config(), tiny_glm.stored(small(), "BF16")
    tiny_glm.write(tmp_path, of, named, shards=3)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(BadModel, match="model-00002-of-00003"):
        opened(tmp_path)
    shard.unlink()
    with pytest.raises(ModelNotFound, match=r"model-00002-of-00003\.safetensors is not there"):
        opened(tmp_path)
    shard.write_bytes(whole)
    assert opened(tmp_path).names() == opened(write(tmp_path / "one")).names()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    tiny_glm.write_index(
        tmp_path, index | {UP: next(at for at in index.values() if at != index[UP])}
    )
    with pytest.raises(BadModel, match=f"{UP} is in the index and not in the file"):
        opened(tmp_path)
    tiny_glm.write_index(tmp_path, {name: at for name, at in index.items() if name != UP})
    with pytest.raises(BadModel, match=f"missing: {UP}"):
        opened(tmp_path)
    tiny_glm.write_index(tmp_path, index | {"model.more.weight": index[UP]})
    with pytest.raises(BadModel, match=r"model\.more\.weight is in the index"):
        opened(tmp_path)


@pytest.mark.parametrize("text", ['{"model_type": "glm5_next"}', '{"text_config": 3}', "[", "3"])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json|model_type"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("leaf", ["kv_a_layernorm.weight", "indexer.k_norm.bias"])
def test_constants_that_are_no_numbers_are_named(tmp_path: Path, leaf: str, value: float) -> None:
    bad = small()[SPARSE + leaf].copy()
    bad[3] = value
    found = opened(write(tmp_path, {SPARSE + leaf: bad}))
    asked: dict[str, Callable[[], object]] = {
        "kv_a_layernorm.weight": lambda: found.rows(SPARSE + "absorbed_k.weight", 0, 1),
        "indexer.k_norm.bias": lambda: found.pool_exponent(1),
    }
    with pytest.raises(BadModel, match=f"{SPARSE}{leaf} holds what is no number"):
        asked[leaf]()


def test_a_decay_that_overflows_is_named(tmp_path: Path) -> None:
    name = LAYER.format(0) + "self_attn."
    found = opened(write(tmp_path, {name + "A_log": np.array([0, 200], np.float32)}))
    with pytest.raises(BadModel, match=f"{name}decay holds what is no number"):
        found.vector(name + "decay")


def test_a_name_that_is_not_read_is_an_error(tmp_path: Path) -> None:
    found = opened(write(tmp_path))
    with pytest.raises(BadModel, match=r"there is no tensor .*kv_b_proj"):
        found.shape(SPARSE + "kv_b_proj.weight")


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_give_an_error_of_ours(tmp_path: Path, data: st.DataObject) -> None:
    folder = write(tmp_path / "m")
    name = data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    whole = bytearray((folder / name).read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
        (folder / name).write_bytes(whole)
        with pytest.raises(ModelError):
            find_model(str(folder))
        return
    whole[data.draw(st.integers(0, min(len(whole), 9000) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(whole)
    try:
        found = find_model(str(folder))
    except ModelError:
        return
    assert found.rows(UP, 0, 48).shape == (48, 32)
