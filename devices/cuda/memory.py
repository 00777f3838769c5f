"""What a rank keeps on its GPU: one planned allocation, and every array in it by name."""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ...core.families.llama import Llama
from ...core.kernels.cuda.attend import NEAR
from ...core.kernels.cuda.checked import check_planes
from ...core.kernels.cuda.planes import pack_planes, planes_size
from ...core.kernels.pack import unpack
from ...core.kernels.rope import rope_tables
from ..arena import RESERVED_PAGES
from ..placing import Matrix
from ..program import Op, Program, Recorder
from ..settings import DeviceSettings
from ..weights_load import Weights
from .card import Array, Card, Shape
from .checks import Checks, checks_of
from .tables import Room, StepRoom

PAGES = ("keys", "key_exponents", "values", "value_exponents")
SCRATCH = ("floats", "codes", "code_exponents", "queries", "query_exponents", "scores", "z")
PAGE_IDS = 4096  # pages of all layers that one launch poisons
AHEAD = 8  # matrices that are packed while one is brought over: what memory of the host they take

i8, i16, i32, f32 = np.int8, np.int16, np.int32, np.float32
Planes = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix in the card's form: planes [.] int8 from `at` on, exponents [columns] int8.

    groups: of columns that are summed each by itself.  check: None where products are not looked
    at, else planes of its summed rows, with all others behind them, and its launches' word [1].
    """

    matrix: Matrix
    at: int
    planes: Array
    exponents: Array
    groups: int = 1
    check: tuple[Array, Array] | None = None


@dataclass(slots=True)
class CardMemory:
    """The arrays of one rank; matrices by where the program says that they begin."""

    card: Card
    arrays: dict[str, Array]
    matrices: dict[int, Placed]
    checks: Checks

    def __getattr__(self, name: str) -> Array:
        """An array by its name."""
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(slots=True)
class CudaMemory(CardMemory):
    """A llama's."""

    step: StepRoom

    @property
    def pages(self) -> tuple[Array, Array, Array, Array]:
        """Keys and values and their exponents, as core/kernels/rows.py has them."""
        a = self.arrays
        return a["keys"], a["key_exponents"], a["values"], a["value_exponents"]


def recorded(family: Llama, world: int, rank: int, settings: DeviceSettings) -> Program:
    """The program of a rank on a card."""
    return Recorder(
        family, world, rank, settings.rows, 1, checks=settings.poisons,
        logit_rows=settings.logit_rows,
    ).program()  # fmt: skip


def gathers_of(program: Program, settings: DeviceSettings) -> list[tuple[int, int, int, int]]:
    """Of each gather: rows at most, width, first and last own column."""
    return [
        (settings.logit_rows if words[-1] else settings.rows, words[2], words[3], words[4])
        for words in program.ops.tolist()
        if words[0] == Op.GATHER
    ]


def step_room(family: Llama, settings: DeviceSettings, checks: Checks) -> StepRoom:
    """Where the tables of a step stand."""
    entries = -(-settings.context // family.rules().page_rows) + 1
    return StepRoom(settings.rows, settings.lanes, entries, len(checks.names))


def planned(
    family: Llama, program: Program, settings: DeviceSettings, kv_heads: int, step: StepRoom
) -> dict[str, Shape]:
    """The shapes of all arrays of a rank."""
    a, rows, page_rows = family.attention, settings.rows, family.rules().page_rows
    pages, heads = settings.pages + RESERVED_PAGES, max(kv_heads, 1) * a.group
    own = max(kv_heads, 1)
    data = (a.layers, pages, own, page_rows * a.head_dim)
    exponents = (a.layers, pages, own, page_rows)
    planes = sum(planes_size(one.columns, one.inputs) for one in program.matrices)
    widest = -(-max(one.columns for one in program.matrices) // 16) * 16
    drawn = settings.logit_rows
    biases = drawn * family.vocab  # each id once a row: no step has more
    seen = -(-settings.context // page_rows) * page_rows
    scores = (rows, heads, seen) if settings.context > NEAR else (1, 1, 1)
    return {
        "planes": ((planes,), i8),
        "check_planes": ((max(1, checks_of(program, verify=settings.verify).bytes),), i8),
        "weight_exponents": ((program.exponents,), i8),
        "constants": ((program.constants,), f32),
        "cos": ((settings.context, a.head_dim // 2), f32),
        "sin": ((settings.context, a.head_dim // 2), f32),
        "keys": (data, i16),
        "key_exponents": (exponents, i8),
        "values": (data, i16),
        "value_exponents": (exponents, i8),
        # A linear map writes whole blocks of 16: the last row of the last buffer may be passed.
        "floats": ((program.floats + widest,), f32),
        "codes": ((max(program.codes, 1),), i16),
        "code_exponents": ((rows,), i8),
        "queries": ((rows, heads, a.head_dim), i16),
        "query_exponents": ((rows, heads), i8),
        "scores": (scores, f32),
        "picked": ((rows, family.hidden), f32),
        "z": ((drawn, family.vocab), f32),
        "draw_weights": ((drawn, family.vocab), i32),
        "bias_ids": ((biases,), i32),
        "biases": ((biases,), f32),
        "penalty_counts": ((drawn + 1, family.vocab), i32),
        "reply_counts": ((drawn + 1, family.vocab), i32),
        "asked": ((step.entries,), i32),
        "asked_sums": ((2,), np.uint64),
        "page_ids": ((max(PAGE_IDS, step.entries),), i32),
        "page_order": ((step.entries,), i32),
        "looked_rows": ((step.entries, own * page_rows * a.head_dim), i16),
        "looked_exponents": ((step.entries, own * page_rows), i8),
        "step": ((step.bytes,), np.uint8),
    }


def rank_memory(
    card: Card,
    family: Llama,
    program: Program,
    weights: Weights,
    settings: DeviceSettings,
    kv_heads: int,
) -> CudaMemory:
    """Allocate everything, and bring over what does not change. Raises NoRoom."""
    checks = checks_of(program, verify=settings.verify)
    step = step_room(family, settings, checks)
    arrays = card.arrays(planned(family, program, settings, kv_heads, step))
    a = family.attention
    for name, table in zip(
        ("cos", "sin"), rope_tables(settings.context, a.head_dim, a.theta), strict=True
    ):
        card.upload(np.ascontiguousarray(table), arrays[name])
    card.upload(np.arange(step.entries, dtype=i32), arrays["page_order"])
    card.upload(weights.constants, arrays["constants"])
    card.upload(weights.exponents, arrays["weight_exponents"])
    matrices = placed(program.matrices, arrays, step, checks)
    bring_weights(card, matrices, weights)
    card.wait()
    return CudaMemory(card, arrays, matrices, checks, step)


def placed(
    matrices: Sequence[Matrix], arrays: Mapping[str, Array], step: Room, checks: Checks
) -> dict[int, Placed]:
    """Where each matrix stands among `planes` and `weight_exponents`, one behind another."""
    found, at = dict[int, Placed](), 0
    words = step.views(arrays["step"]).get("checks")
    for one in matrices:
        size = planes_size(one.columns, one.inputs)
        planes = arrays["planes"][at : at + size]
        exponents = arrays["weight_exponents"][one.exponents_at : one.exponents_at + one.columns]
        found[one.at] = Placed(one, at, planes, exponents)
        check = checks.by_matrix.get(one.at)
        if check is not None and words is not None:
            given = arrays["check_planes"][check.at :], words[check.word : check.word + 1]
            found[one.at] = replace(found[one.at], groups=check.groups, check=given)
        at += size
    return found


def bring_weights(card: Card, matrices: Mapping[int, Placed], weights: Weights) -> None:
    """Every matrix in the card's form, some ahead of the one that is on its way.

    What is checked against is made of the weights themselves: a wrong copy shows as wrong products.
    """
    made: deque[tuple[Placed, Future[Planes]]] = deque()
    with ThreadPoolExecutor(AHEAD) as pool:
        for one in matrices.values():
            made.append((one, pool.submit(_planes_of, one, weights)))
            if len(made) > AHEAD:
                _bring(card, *made.popleft())
        for one, planes in made:
            _bring(card, one, planes)


def _planes_of(one: Placed, weights: Weights) -> Planes:
    """A matrix and what it is checked by, if it is."""
    matrix = one.matrix
    packed = weights.packed[matrix.at : matrix.at + matrix.columns * matrix.inputs]
    planes = np.zeros(planes_size(matrix.columns, matrix.inputs), np.int8)
    rows = unpack(packed, matrix.columns, matrix.inputs)
    pack_planes(rows, planes)
    return planes, None if one.check is None else check_planes(rows, one.groups)


def _bring(card: Card, one: Placed, made: Future[Planes]) -> None:
    planes, summed = made.result()
    card.upload(planes, one.planes)
    if one.check is not None and summed is not None:
        card.upload(summed, one.check[0][: len(summed)])
    card.wait()
