"""What a GLM's rank keeps on its GPU: one planned allocation, and every array in it by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core.families.glm import Glm
from ...core.glm_ops import Rows
from ...core.kernels.cuda.latent_split import fits, scratch_shapes
from ...core.kernels.cuda.planes import planes_size
from ..arena import RESERVED_PAGES
from ..glm.arena import RingSizes
from ..glm.layout import GlmOp
from ..glm.program import GlmProgram, GlmRecorder
from ..settings import DeviceSettings
from ..weights.glm_dir import GlmCheckpoint
from ..weights_load import Weights
from .card import Array, Card, Shape
from .checks import Checks, checks_of
from .glm_tables import GlmRoom
from .memory import CardMemory, bring_weights, placed

BAND = 64  # rows whose pools are scored together, or whose attention is: what scratch has room for
LOOKED = 64  # pages of a cache that are brought to the host together
SCRATCH = (
    "floats", "codes", "code_exponents", "pool_scores", "both", "attend_scores", "attend_tops",
    "attend_sums", "attend_weights", "z",
)  # fmt: skip
i8, i16, i32, i64, f32 = np.int8, np.int16, np.int32, np.int64, np.float32
u8, u16, u64 = np.uint8, np.uint16, np.uint64

Shapes = dict[str, Shape]


@dataclass(slots=True)
class GlmCudaMemory(CardMemory):
    """step: where a step's tables stand; tables: they, on the card."""

    step: GlmRoom
    tables: dict[str, Array] = field(init=False)

    def __post_init__(self) -> None:
        self.tables = self.step.views(self.arrays["step"])


def recorded(
    family: Glm, world: int, rank: int, settings: DeviceSettings, exponents: Sequence[int]
) -> GlmProgram:
    """The program of a rank on a card; exponents: of each cache's pooled keys."""
    return GlmRecorder(
        family, world, rank, settings.rows, settings.poisons, exponents,
        logit_rows=settings.logit_rows,
    ).program()  # fmt: skip


def heads_of(family: Glm, world: int, rank: int) -> tuple[int, int]:
    """A rank's own heads, of attention and of the recurrence."""
    spans = family.heads(world, rank), family.kda_heads(world, rank)
    own, own_kda = (last - first for first, last in spans)
    return own, own_kda


def gathers_of(program: GlmProgram, settings: DeviceSettings) -> list[tuple[int, int, int, int]]:
    """Of each gather: rows at most, width, first and last own column."""
    few, every = settings.logit_rows, settings.rows
    return [
        ((every if words[-1] == Rows.ALL else few) * words[5], *words[2:5])
        for words in program.ops.tolist()
        if words[0] == GlmOp.GATHER
    ]


def room_of(family: Glm, settings: DeviceSettings, checks: Checks) -> GlmRoom:
    """Where the tables of a step stand."""
    entries = -(-settings.context // family.choices.page_rows) + 1
    drafts, words = family.choices.drafts, len(checks.names)
    return GlmRoom(settings.rows, settings.lanes, entries, drafts, words)


def planned(
    family: Glm,
    program: GlmProgram,
    settings: DeviceSettings,
    rings: RingSizes,
    heads: tuple[int, int],
    *,
    wide_table: bool,
) -> Shapes:
    """The shapes of all arrays of a rank.

    heads: its own, of attention and of the recurrence.  wide_table: embedding rows of 32 bits.
    """
    checks = checks_of(program, verify=settings.verify)
    step = room_of(family, settings, checks)
    return {
        **_weights(family, program, checks, wide_table=wide_table),
        **_kept(family, settings, rings, heads[1]),
        **_scratch(family, program, settings, heads[0]),
        **_drawn(family, settings.logit_rows),
        **_looked(family, settings, heads[1], step.entries),
        "step": ((step.bytes,), u8),
    }


def allocated(
    card: Card, program: GlmProgram, shapes: Mapping[str, Shape], step: GlmRoom, checks: Checks
) -> GlmCudaMemory:
    """All arrays, empty but for the vector of ones. Raises NoRoom."""
    arrays = card.arrays(shapes)
    count = program.x.width
    card.upload(np.ones(count, f32), arrays["constants"][program.ones : program.ones + count])
    card.upload(np.arange(LOOKED, dtype=i32), arrays["looked_order"])
    card.wait()
    matrices = placed(program.matrices, arrays, step, checks)
    return GlmCudaMemory(card, arrays, matrices, checks, step)


def bring(
    memory: GlmCudaMemory, checkpoint: GlmCheckpoint, program: GlmProgram, weights: Weights
) -> None:
    """Bring over what does not change: weights, constants, the embedding table."""
    card, arrays = memory.card, memory.arrays
    high, low = checkpoint.table()
    card.upload(np.ascontiguousarray(high), arrays["table_high"])
    if len(low):
        card.upload(np.ascontiguousarray(low), arrays["table_low"])
    constants = weights.constants
    constants[program.ones : program.ones + program.x.width] = 1
    card.upload(constants, arrays["constants"])
    card.upload(weights.exponents, arrays["weight_exponents"])
    card.wait()
    bring_weights(card, memory.matrices, weights)


def _weights(family: Glm, program: GlmProgram, checks: Checks, *, wide_table: bool) -> Shapes:
    planes = sum(planes_size(one.columns, one.inputs) for one in program.matrices)
    return {
        "planes": ((planes,), i8),
        "check_planes": ((max(1, checks.bytes),), i8),
        "weight_exponents": ((program.exponents,), i8),
        "constants": ((program.constants,), f32),
        "table_high": ((family.vocab, family.hidden), u16),
        "table_low": ((family.vocab if wide_table else 1, family.hidden), u16),
    }


def _kept(family: Glm, settings: DeviceSettings, rings: RingSizes, kda_heads: int) -> Shapes:
    """What outlives a step: pages, rings and states, and copies of states, one for passing."""
    s, lanes, states = family.sizes, settings.lanes, settings.states + 1
    pages, page_rows = settings.pages + RESERVED_PAGES, family.choices.page_rows
    caches, layers = max(1, family.caches), max(1, len(family.recurrent))
    wide, dim = kda_heads * s.kda_dim, s.kda_dim
    return {
        "latent": ((caches, pages, page_rows, s.latent), i16),
        "keys": ((caches, pages, page_rows // s.kpool, s.index_dim), i16),
        "index_ring": ((caches, lanes, rings.index, 2, s.index_dim), f32),
        "conv_ring": ((layers, lanes, rings.conv, 3 * wide), f32),
        "states": ((layers, lanes, rings.states, kda_heads, dim, dim), f32),
        "kept_states": ((states, layers, kda_heads * dim * dim), f32),
        "kept_raw": ((states, layers, s.taps - 1, 3 * wide), f32),
    }


def _scratch(family: Glm, program: GlmProgram, settings: DeviceSettings, heads: int) -> Shapes:
    """What no step may read before it wrote it."""
    s, rows, band = family.sizes, settings.rows, min(settings.rows, BAND)
    widest = -(-program.widest // 16) * 16
    most, slots = s.index_topk // s.kpool, rows * s.experts_per_token
    pools = (settings.context + family.choices.page_rows) // s.kpool + 1
    inner = max(s.inner, s.expert_inner, s.shared_inner)
    seen = (most + 1) * s.kpool
    split = scratch_shapes(band if fits(s.latent) else 1, heads, s.latent, seen)
    return {
        # A linear map writes whole blocks of 16: the last row of the last buffer may be passed.
        "floats": ((program.floats + widest,), f32),
        "codes": ((program.codes,), i16),
        "code_exponents": ((program.code_rows,), i8),
        "both": ((rows * 2 * inner,), f32),
        "experts": ((rows, s.experts_per_token), i64),
        "order": ((slots,), i64),
        "starts": ((s.experts + 1,), i64),
        "busy": ((min(s.experts, slots),), i64),
        "shares": ((rows, s.experts_per_token), f32),
        "picked": ((rows, most), i32),
        "counts": ((rows,), i64),
        "pool_scores": ((band, pools), i32),
        "attend_scores": (split[0], i32),
        "attend_tops": (split[1], i32),
        "attend_sums": (split[2], i64),
        "attend_weights": (split[3], i64),
        "spare_sums": ((rows, 2), u64),
        "spare_flags": ((rows,), u8),
    }


def _drawn(family: Glm, rows: int) -> Shapes:
    """What drawing tokens needs; each id may be biased once a row."""
    return {
        "z": ((rows, family.vocab), f32),
        "draw_weights": ((rows, family.vocab), i32),
        "bias_ids": ((rows * family.vocab,), i32),
        "biases": ((rows * family.vocab,), f32),
        "penalty_counts": ((rows + 1, family.vocab), i32),
        "reply_counts": ((rows + 1, family.vocab), i32),
    }


def _looked(family: Glm, settings: DeviceSettings, kda_heads: int, entries: int) -> Shapes:
    """What looking into memory and copying states need."""
    s, page_rows = family.sizes, family.choices.page_rows
    ids = max(LOOKED, len(family.recurrent) * s.taps, 1)
    return {
        "asked": ((entries,), i32),
        "asked_sums": ((2,), u64),
        "asked_fixed": ((2 * settings.lanes, 2), u64),
        "looked_ids": ((ids,), i32),
        "looked_to": ((ids,), i32),
        "looked_order": ((LOOKED,), i32),
        "looked_latent": ((LOOKED, page_rows * s.latent), i16),
        "looked_keys": ((LOOKED, page_rows // s.kpool * s.index_dim), i16),
    }
