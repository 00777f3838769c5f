"""Where a GLM's recorded program finds its buffers, digits, weights and constants."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from ...core.families.family import Span
from ...core.families.glm import Glm
from ...core.glm_ops import Digits, Rows
from ...core.ops import Floats
from ..placing import Matrix, Placing

ARGUMENTS = 15  # int64 words of an op: its code, what it takes, whose flags it raises, its row set


class GlmOp(IntEnum):
    """Codes of the program's ops; what each takes, core/kernels/glm_*.py say."""

    EMBED = 1
    NORM = 2
    NORM_FLOATS = 3
    QUANTISE = 4
    QUANTISE_SLOTS = 5
    QUANTISE_HEADS = 6
    LINEAR = 7
    LINEAR_HEADS = 8
    GATED = 9
    GATHER = 10
    ADD = 11
    HC_WEIGHTS = 12
    HC_READ = 13
    HC_WRITE = 14
    HC_MEAN = 15
    CONV = 16
    PREPARE = 17
    RECUR = 18
    HEAD_GATE = 19
    LATENT = 20
    KEY_NORM = 21
    POOL = 22
    SELECT = 23
    ATTEND = 24
    ROUTE = 25
    EXPERT_UP = 26
    EXPERT_DOWN = 27
    COMBINE = 28
    TAKE = 29
    SUM_LOGITS = 30
    SAMPLE = 31
    ACCEPT = 32
    NEXT = 33
    DRAFT = 34
    CHECK = 35
    END = 36


@dataclass(slots=True)
class GlmLayout(Placing[Glm]):
    """The ops so far, and what has been placed in a rank's arenas for them.

    checks: look at latent rows and keys before they are read.
    exponents_of: the pooled keys' static exponent of each cache.
    """

    checks: bool
    exponents_of: Sequence[int]
    ops: list[list[int]] = field(default_factory=list)
    codes: int = 0
    code_rows: int = 0
    turns: int = 0
    set: Rows = Rows.ALL
    spare: bool = False  # the drafter's flags are nobody's
    ones: int = 0
    digits: dict[str, Digits] = field(default_factory=dict)
    drawn: int = 0

    def emit(self, op: GlmOp, *arguments: int) -> None:
        """An op over the present row set."""
        room = ARGUMENTS - 3
        assert len(arguments) <= room, (op, arguments)
        padding = [0] * (room - len(arguments))
        self.ops.append([int(op), *arguments, *padding, int(self.spare), int(self.set)])

    def next_turn(self) -> int:
        """A counter that threads take items from."""
        self.turns += 1
        return self.turns - 1

    def gather(self, x: Floats, own: Span) -> None:
        """All ranks get all columns of a buffer."""
        self.emit(GlmOp.GATHER, x.at, x.width, *own, 1)

    def multiply(self, x: Digits, matrix: Matrix, y: Floats, column: int, *, add: bool) -> None:
        """Own columns of a packed matrix, from a column on."""
        assert x.width == matrix.inputs, (x.width, matrix)
        self.emit(
            GlmOp.LINEAR, x.at, x.exponents_at, x.width, matrix.at, matrix.exponents_at,
            matrix.columns, y.at, y.width, column, int(add),
        )  # fmt: skip

    def digits_at(self, name: str, width: int, each: int = 1) -> Digits:
        """A buffer of digits by name: `width` in all for a row, `each` exponents."""
        key = f"{name} {width} {each}"
        if key not in self.digits:
            self.digits[key] = Digits(self.codes, self.code_rows, width)
            self.codes += self.rows_most * width
            self.code_rows += self.rows_most * each
        return self.digits[key]
