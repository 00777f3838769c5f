"""Hugging Face directories: the tensors that were written, or an error that names what is wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtape.devices.weights.checkpoint import BadModel, ModelError, ModelNotFound, UnsupportedModel
from kvtape.devices.weights.find import find_model
from kvtape.tests import tiny_llama

TABLE = "model.embed_tokens.weight"
UP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"


def kept(dtype: str, array: Any) -> Any:
    """What a dtype keeps of float32 values."""
    if dtype == "BF16":
        return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return array.astype(np.float16).astype(np.float32) if dtype == "F16" else array


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path: Path, dtype: str, shards: int, tied: bool) -> None:
    of = tiny_llama.config(tie_word_embeddings=tied)
    named = tiny_llama.weights(of)
    tiny_llama.write_folder(tmp_path, named, dtype=dtype, shards=shards, tie_word_embeddings=tied)
    checkpoint = find_model(str(tmp_path))
    assert (checkpoint.family, set(checkpoint.names())) == ("llama", set(named))
    for name, array in named.items():
        assert checkpoint.shape(name) == array.shape
        if array.ndim == 1:
            np.testing.assert_array_equal(checkpoint.vector(name), kept(dtype, array))
            continue
        for first, last in ((0, len(array)), (3, 3), (5, 17)):
            rows = checkpoint.rows(name, first, last)
            assert rows.dtype == np.float32
            assert rows.flags.c_contiguous
            np.testing.assert_array_equal(rows, kept(dtype, array)[first:last])
    ids = np.array([0, 9, 9, of["vocab_size"] - 1], np.int64)
    out = np.full((4, of["hidden_size"]), np.nan, np.float32)
    checkpoint.embed(ids, out)
    np.testing.assert_array_equal(out, kept(dtype, named[TABLE])[ids])


def test_a_file_that_the_library_wrote(tmp_path: Path) -> None:
    of = tiny_llama.config()
    named = tiny_llama.weights(of)
    tiny_llama.write_folder(tmp_path, named, dtype="F32", shards=1)
    safetensors.numpy.save_file(dict(named), tmp_path / "model.safetensors")
    checkpoint = find_model(str(tmp_path))
    np.testing.assert_array_equal(checkpoint.rows(UP, 0, 96), named[UP])


def test_a_gguf_file_and_a_folder_of_one_model_agree(tmp_path: Path) -> None:
    of = tiny_llama.config()
    named = tiny_llama.weights(of)
    tiny_llama.write_folder(tmp_path / "folder", named, dtype="F32", shards=1)
    tiny_llama.write_gguf(tmp_path / "m.gguf", named, {}, of)
    left, right = find_model(str(tmp_path / "folder")), find_model(str(tmp_path / "m.gguf"))
    assert left.config == right.config
    assert left.names() == right.names()
    for name in (TABLE, UP, "model.layers.1.self_attn.k_proj.weight"):
        count = left.shape(name)[0]
        np.testing.assert_array_equal(left.rows(name, 0, count), right.rows(name, 0, count))


def write(folder: Path, *, drop: str = "", extra: str = "", bent: str = "", **other: Any) -> None:
    """A folder with something wrong."""
    named = tiny_llama.weights(tiny_llama.config())
    named.pop(drop, None)
    if extra:
        named[extra] = np.zeros(3, np.float32)
    if bent:
        named[bent] = np.ascontiguousarray(named[bent].T)
    tiny_llama.write_folder(folder, named, dtype="F32", shards=1, **other)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"drop": UP}, f"missing: {UP}"),
        ({"extra": "model.layers.0.self_attn.q_proj.bias"}, "not known: .*q_proj.bias"),
        ({"bent": UP}, rf"another shape: {UP} is \[64, 96\], not \[96, 64\]"),
        ({"num_hidden_layers": 3}, r"missing: model\.layers\.2\..* and 3 more"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers is 1073741824"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_key_value_heads": 3}, "4 attention heads do not share 3"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"eos_token_id": 10**6}, "eos token 1000000"),
        ({"eos_token_id": ["x"]}, "eos_token_id 'x'"),
        ({"hidden_size": None}, "no hidden_size"),
    ],
)
def test_what_does_not_agree_is_named(tmp_path: Path, wrong: dict[str, Any], says: str) -> None:
    write(tmp_path, **wrong)
    with pytest.raises(BadModel, match=says):
        find_model(str(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_what_a_forward_here_would_get_wrong_is_refused_by_name(
    tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    write(tmp_path, **wrong)
    with pytest.raises(UnsupportedModel, match=says):
        find_model(str(tmp_path))


def test_rope_theta_is_read_from_either_place(tmp_path: Path) -> None:
    write(tmp_path, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert find_model(str(tmp_path)).config["rope_theta"] == 500000.0


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert find_model(str(tmp_path)).config["eos_token_ids"] == (1, 2)


def test_a_tied_head_written_twice_is_not_an_extra_tensor(tmp_path: Path) -> None:
    named = tiny_llama.weights(tiny_llama.config())
    named["lm_head.weight"] = named[TABLE]
    tiny_llama.write_folder(tmp_path, named, dtype="F32", shards=1)
    assert "lm_head.weight" not in find_model(str(tmp_path)).names()


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        find_model(str(tmp_path))
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        find_model(str(tmp_path))
    index = {"weight_map": {NORM: "../outside.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadModel, match="outside"):
        find_model(str(tmp_path))
    index = {"weight_map": {NORM: "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"gone\.safetensors"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("shard", ["a" * 5000, "a\0b"])
def test_a_shard_of_a_name_that_no_file_can_have(tmp_path: Path, shard: str) -> None:
    named = tiny_llama.weights(tiny_llama.config())
    tiny_llama.write_folder(tmp_path, named, dtype="BF16", shards=2)
    index = {"weight_map": {NORM: shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"File name too long|is not there"):
        find_model(str(tmp_path))


def test_a_model_of_a_name_that_no_file_can_have() -> None:
    with pytest.raises(ModelNotFound, match="File name too long"):
        find_model("a" * 5000)


def test_a_shard_without_the_indexed_tensor_is_named(tmp_path: Path) -> None:
    named = tiny_llama.weights(tiny_llama.config())
    tiny_llama.write_folder(tmp_path, named, dtype="BF16", shards=2)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    other = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    (index["weight_map"][NORM],) = other - {index["weight_map"][NORM]}
    path.write_text(json.dumps(index))
    with pytest.raises(BadModel, match=f"{NORM} is in the index"):
        find_model(str(tmp_path))


def test_a_dtype_that_is_not_read_is_named(tmp_path: Path) -> None:
    named = {NORM: np.zeros(64, np.int64)}
    write(tmp_path)
    safetensors.numpy.save_file(named, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"{NORM} is I64"):
        find_model(str(tmp_path))


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_files_give_an_error_of_ours(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "m"
    write(folder)
    name = data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    whole = bytearray((folder / name).read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
        (folder / name).write_bytes(whole)
        with pytest.raises(ModelError):
            find_model(str(folder))
        return
    whole[data.draw(st.integers(0, min(len(whole), 2500) - 1))] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(whole)
    try:
        checkpoint = find_model(str(folder))
    except ModelError:
        return
    assert checkpoint.rows(UP, 0, 96).shape == (96, 64)
