"""What a rank keeps of a model, from its config alone, beside the numbers that are told of it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from kvtape.core.families.family import UnsupportedShape, share
from kvtape.core.families.glm import Glm
from kvtape.core.families.glm_config import glm_sizes
from kvtape.core.families.glm_tensors import official_tensors
from kvtape.core.plan_sizes import glm_rank, glm_snapshot_bytes, weights_bytes
from kvtape.core.plan_wanted import GIB
from kvtape.devices.glm.arena import ring_sizes
from kvtape.devices.weights.checkpoint import ModelNotFound, UnsupportedModel
from kvtape.replay.opening import BadOption
from kvtape.replay.plan_shapes import GLM_FLASH, read_shape

MIB = 1 << 20
FLASH = glm_sizes(GLM_FLASH)
DATA = Path(__file__).parent / "data"


def test_the_named_shape_has_the_published_rows() -> None:
    sizes = glm_rank(FLASH, 2, 1)
    assert (sizes.row_bytes, sizes.page_rows, sizes.page_bytes) == (13_056, 512, 6_684_672)
    caches = len(FLASH.dsa_layers)
    assert (caches, len(FLASH.kda_layers)) == (12, 34)
    keys = caches * FLASH.index_dim * 2 // FLASH.kpool
    latent = caches * FLASH.latent * 2
    assert (latent, keys) == (12_288, 768)
    split = [keys + latent // world for world in (2, 3, 4)]
    assert split == [6_912, 4_864, 3_840] and round(13_056 / split[0], 2) == 1.89
    assert FLASH.heads // 2 * FLASH.latent * 2 == 32 * 1024, "queries of a row at two ranks"
    assert 1_048_576 * 13_056 + 180 * MIB == 13_878_951_936  # 12.93 GiB a window
    assert glm_rank(FLASH, 2, 0).row_bytes == 11 * (1_024 + 64), "undrafted, one cache less"


def test_the_named_shape_has_the_published_parameters() -> None:
    vision = 563_627_008
    found = sum(math.prod(shape) for shape in official_tensors(FLASH).values())
    assert found + vision == 321_323_031_390


def test_fp8_rows_stand_in_windows_alone() -> None:
    sizes = glm_rank(FLASH, 2, 1, fp8=True)
    assert sizes.row_bytes == 12 * 528 + 768 and not sizes.pageable
    unsplit, split = 12 * 528 + 768, 6 * 528 + 768
    assert round(unsplit / split, 3) == 1.805
    assert (4_157_440 % 512, 2_316_288 % 512) == (0, 0)
    assert round(4_157_440 / 2_316_288, 3) == 1.795


@pytest.mark.parametrize(("world", "state"), [(2, 68.0), (3, 46.75), (4, 34.0)])
def test_the_fixed_part_is_states_and_rings_of_the_rank_with_most_heads(
    world: int, state: float
) -> None:
    first, last = share(64, world, 0)
    conv = 34 * 3 * (last - first) * 128 * 4  # a row of q, k and v over all recurrent layers
    assert glm_snapshot_bytes(FLASH, world) == int(state * MIB) + 3 * conv
    for drafts, index_rows in ((0, 4), (1, 8), (4, 8)):
        fixed = (1 + drafts) * int(state * MIB) + (3 + drafts) * conv
        fixed += (12 if drafts else 11) * index_rows * 2 * 128 * 4
        assert glm_rank(FLASH, world, drafts).fixed_bytes == fixed


@pytest.mark.parametrize("drafts", [0, 1, 2, 3, 4])
def test_the_fixed_part_is_what_a_lane_of_the_device_holds(drafts: int) -> None:
    family = Glm(dict(GLM_FLASH))
    family.choices = replace(family.choices, drafts=drafts)
    rings, s = ring_sizes(family), family.sizes
    first, last = family.kda_heads(3, 0)
    wide = (last - first) * s.kda_dim
    floats = family.caches * rings.index * 2 * s.index_dim
    floats += len(family.recurrent) * wide * (rings.conv * 3 + rings.states * s.kda_dim)
    sizes = glm_rank(FLASH, 3, drafts)
    assert sizes.fixed_bytes == 4 * floats
    digests = family.page_bytes(3, 0) - sizes.page_bytes
    assert digests in (32, 48), "a page's digests are not its rows"


@pytest.mark.parametrize(
    ("rows", "fixed", "kept"),
    [(63_488, 131.5, 922.0), (126_976, 131.5, 1_712.5), (65_536, 106.0, 922.0)],
)
def test_a_kept_state_is_its_rows_and_the_fixed_part(rows: int, fixed: float, kept: float) -> None:
    assert rows * 13_056 + int(fixed * MIB) == int(kept * MIB)


def test_weights_are_cut_over_ranks_and_all_there() -> None:
    family = Glm(dict(GLM_FLASH))
    alone, two, eight = (weights_bytes(family.tensors(), family.columns, w) for w in (1, 2, 8))
    held = sum(math.prod(shape) for shape in family.tensors().values() if len(shape) == 2)
    assert 2 * held < alone < 2.01 * held, "two bytes a weight, and little beside"
    assert alone / 2 < two < alone * 0.51 and alone / 8 < eight < alone * 0.14
    assert 590 * GIB < alone < 600 * GIB


def test_a_rank_holds_its_columns_in_whole_blocks_constants_and_the_whole_embedding() -> None:
    tensors = {"embed_tokens.weight": (32, 8), "a.weight": (40, 6), "norm.weight": (8,)}
    held = weights_bytes(tensors, lambda name, world, rank: (0, 40 // world), 2)
    assert held == 32 * (2 * 8 + 1) + 32 * (2 * 6 + 1) + 8 * 4, "20 columns are two blocks of 16"


def test_a_directory_is_read_for_its_config_alone(tmp_path: Path) -> None:
    config = json.loads((DATA / "glm_tiny" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = read_shape(str(tmp_path), 2, None)
    assert (shape.family, shape.name, shape.context) == ("glm", tmp_path.name, 4_096)
    text = config["text_config"]
    caches = text["layer_types"].count("indexed_attention") + 1
    row = caches * (text["kv_lora_rank"] * 2 + text["index_head_dim"] * 2 // text["index_kpool"])
    assert shape.sizes.row_bytes == row
    text["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(config))
    undrafted = read_shape(str(tmp_path), 2, None)
    assert undrafted.sizes.row_bytes == row * (caches - 1) // caches
    with pytest.raises(BadOption, match=r"--mtp-drafts 2: .* no drafting head"):
        read_shape(str(tmp_path), 2, 2)


def test_a_llama_is_pages_alone(tmp_path: Path) -> None:
    config = (DATA / "llama_tiny" / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    told = json.loads(config)
    shape = read_shape(str(tmp_path), 1, None)
    width = told["hidden_size"] // told["num_attention_heads"]
    row = told["num_hidden_layers"] * told["num_key_value_heads"] * 2 * (2 * width + 1)
    assert (shape.sizes.row_bytes, shape.sizes.page_rows) == (row, 32)
    assert shape.sizes.fixed_bytes == 0 and not shape.keeps and shape.fp8 is None
    with pytest.raises(BadOption, match="--mtp-drafts 1"):
        read_shape(str(tmp_path), 1, 1)


def test_what_no_plan_can_be_made_of_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"nowhere: .* or a shape: glm-5\.3-flash"):
        read_shape("nowhere", 1, None)
    with pytest.raises(BadOption, match=r"--tp 65: glm-5\.3-flash has 64 heads to share, --tp 64"):
        read_shape("glm-5.3-flash", 65, None)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UnsupportedModel, match="model_type 'gpt2'"):
        read_shape(str(tmp_path), 1, None)
    (tmp_path / "config.json").write_text('{"model_type": "glm5_next"}')
    with pytest.raises(UnsupportedShape, match="linear_attn_config is missing"):
        read_shape(str(tmp_path), 1, None)
