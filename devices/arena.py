"""A rank's memory: pages, buffers, tables and sums, planned once; untouched pages cost nothing."""

import numpy as np
from numpy.typing import NDArray

from ..core.families.llama import Llama
from ..core.kernels.attend import attend_scratch
from ..core.kernels.pack import aligned
from ..core.kernels.program_memory import RankMemory
from ..core.kernels.rope import rope_tables
from ..core.kernels.sampling import sample_scratch
from ..core.kernels.turns import LINE
from .program import Program
from .settings import DeviceSettings
from .weights_load import Weights

RESERVED_PAGES = 2  # past the pool: one for padded reads, one for padded writes


def rank_memory(
    family: Llama,
    program: Program,
    weights: Weights,
    settings: DeviceSettings,
    kv_heads: int,
    threads: int,
    team: NDArray[np.int64],
) -> RankMemory:
    """All arrays that the program of one rank speaks of, in the interpreter's own order."""
    a, rows = family.attention, settings.rows
    page_rows = family.rules().page_rows
    pages = settings.pages + RESERVED_PAGES
    cos, sin = rope_tables(settings.context, a.head_dim, a.theta)
    data = (a.layers, pages, kv_heads, page_rows * a.head_dim)
    exponents = (a.layers, pages, kv_heads, page_rows)
    scratch = attend_scratch(settings.context, page_rows, a.group, a.head_dim)
    samples = [sample_scratch(family.vocab) for _ in range(threads)]
    return RankMemory(
        ops=program.ops,
        weights=weights.packed,
        weight_exponents=weights.exponents,
        constants=weights.constants,
        cos=cos,
        sin=sin,
        keys=np.zeros(data, np.int16),
        key_exponents=np.zeros(exponents, np.int8),
        values=np.zeros(data, np.int16),
        value_exponents=np.zeros(exponents, np.int8),
        floats=aligned(program.floats, np.float32),
        codes=aligned(program.codes, np.int16),
        code_exponents=np.zeros(program.code_rows, np.int8),
        queries=np.zeros((rows, kv_heads * a.group, a.head_dim), np.int16),
        query_exponents=np.zeros((rows, kv_heads * a.group), np.int8),
        scratch=np.zeros((threads, scratch), np.int64),
        sample_floats=np.stack([one[0] for one in samples]),
        sample_weights=np.stack([one[1] for one in samples]),
        sample_ids=np.stack([one[2] for one in samples]),
        sample_bins=np.stack([one[3] for one in samples]),
        row_sums=np.zeros((rows, 2), np.uint64),
        flags=np.zeros(rows, np.uint8),
        turns=aligned(len(program.ops) * LINE, np.int64),
        team=team,
    )
