"""A GLM rank's memory: pages, rings, states, buffers and sums, planned once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.families.glm import Glm
from ...core.kernels.glm_layers import ROWS_AT_ONCE
from ...core.kernels.glm_memory import GlmMemory
from ...core.kernels.latent_tile import latent_scratch
from ...core.kernels.pack import aligned
from ...core.kernels.sampling import sample_scratch
from ..arena import RESERVED_PAGES
from ..settings import DeviceSettings
from ..weights.glm_dir import GlmCheckpoint
from ..weights_load import Weights
from .program import GlmProgram

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Rows that each ring holds, by position: rows that a window's refusal needs again stay.

    states: one for each row that a window may keep.  conv: the taps before a window and the window.
    index: the unfinished pool and the window, in whole pools.
    """

    states: int
    conv: int
    index: int


def ring_sizes(family: Glm) -> RingSizes:
    """The rings that a family's drafts need."""
    s, drafts = family.sizes, family.choices.drafts
    pools = -(-(s.kpool + drafts) // s.kpool)
    return RingSizes(
        states=1 + drafts,
        conv=max(1, s.taps - 1 + drafts),
        index=s.kpool * (1 << (pools - 1).bit_length()),
    )


def glm_memory(
    family: Glm,
    checkpoint: GlmCheckpoint,
    program: GlmProgram,
    weights: Weights,
    settings: DeviceSettings,
    rings: RingSizes,
    kda_heads: int,
    threads: int,
    team: Array,
) -> GlmMemory:
    """All arrays that the program of one rank speaks of. kda_heads: its own."""
    s = family.sizes
    high, low = checkpoint.table()
    constants = weights.constants
    constants[program.ones : program.ones + s.hc * s.hidden] = 1
    return GlmMemory(
        ops=program.ops,
        weights=weights.packed,
        weight_exponents=weights.exponents,
        constants=constants,
        table_high=high,
        table_low=low,
        team=team,
        **_kept(family, settings, rings, kda_heads),
        **_scratch(family, program, settings, threads),
        **_told(program, settings.rows),
        **_drafted(family, settings.rows, settings.lanes),
    )


def _kept(
    family: Glm, settings: DeviceSettings, rings: RingSizes, kda_heads: int
) -> dict[str, Array]:
    """What outlives a step: pages, rings and states."""
    s, lanes = family.sizes, settings.lanes
    pages, page_rows = settings.pages + RESERVED_PAGES, family.choices.page_rows
    caches, layers = family.caches, len(family.recurrent)
    wide, dim = kda_heads * s.kda_dim, s.kda_dim
    return {
        "latent": np.zeros((caches, pages, page_rows, s.latent), np.int16),
        "keys": np.zeros((caches, pages, page_rows // s.kpool, s.index_dim), np.int16),
        "index_ring": np.zeros((caches, lanes, rings.index, 2, s.index_dim), np.float32),
        "conv_ring": np.zeros((layers, lanes, rings.conv, 3 * wide), np.float32),
        "states": np.zeros((layers, lanes, rings.states, kda_heads, dim, dim), np.float32),
    }


def _scratch(
    family: Glm, program: GlmProgram, settings: DeviceSettings, threads: int
) -> dict[str, Array]:
    """What no step may read before it wrote it."""
    s, rows, dim = family.sizes, settings.rows, family.sizes.kda_dim
    context_pools = (settings.context + family.choices.page_rows) // s.kpool + 1
    most = s.index_topk // s.kpool
    inner = max(s.inner, s.expert_inner, s.shared_inner, s.hidden)
    samples = [sample_scratch(family.vocab) for _ in range(threads)]
    return {
        "floats": aligned(program.floats, np.float32),
        "codes": aligned(program.codes, np.int16),
        "code_exponents": np.zeros(program.code_rows, np.int8),
        "experts": np.zeros((rows, s.experts_per_token), np.int64),
        "order": np.zeros(rows * s.experts_per_token, np.int64),
        "starts": np.zeros(s.experts + 1, np.int64),
        "shares": np.zeros((rows, s.experts_per_token), np.float32),
        "picked": np.zeros((rows, most), np.int32),
        "counts": np.zeros(rows, np.int64),
        "scores": np.zeros((threads, ROWS_AT_ONCE * context_pools), np.float32),
        "attending": np.zeros((threads, latent_scratch(most, s.kpool, s.latent)), np.int64),
        "work": np.zeros((threads, dim, dim), np.float32),
        "expert_codes": np.zeros((threads, rows * s.hidden), np.int16),
        "expert_exponents": np.zeros((threads, rows), np.int8),
        "expert_floats": np.zeros((threads, rows * 2 * inner), np.float32),
        "sample_floats": np.stack([one[0] for one in samples]),
        "sample_weights": np.stack([one[1] for one in samples]),
        "sample_ids": np.stack([one[2] for one in samples]),
        "sample_bins": np.stack([one[3] for one in samples]),
    }


def _told(program: GlmProgram, rows: int) -> dict[str, Array]:
    """What a step says of its rows, and the counters that threads take items from."""
    return {
        "row_sums": np.zeros((rows, 2), np.uint64),
        "key_sums": np.zeros((rows, 2), np.uint64),
        "draft_sums": np.zeros((rows, 2), np.uint64),
        "spare_sums": np.zeros((rows, 2), np.uint64),
        "flags": np.zeros(rows, np.uint8),
        "spare_flags": np.zeros(rows, np.uint8),
        "turns": np.zeros(max(1, program.turns), np.int64),
    }


def _drafted(family: Glm, rows: int, lanes: int) -> dict[str, Array]:
    """Drafts by lane, and the rows that draft."""
    return {
        "drafts": np.zeros((lanes, max(1, family.choices.drafts)), np.int64),
        "draft_counts": np.zeros(lanes, np.int64),
        "drafting": np.zeros(1, np.int64),
        "draft_from": np.zeros(rows, np.int64),
        "draft_runs": np.zeros((rows, 4), np.int64),
        "draft_tokens": np.zeros(rows, np.int64),
        "draft_positions": np.zeros(rows, np.int64),
        "draft_lanes": np.zeros(rows, np.int64),
        "draft_limits": np.zeros(rows, np.int64),
        "draft_wants": np.zeros(rows, np.int64),
    }
