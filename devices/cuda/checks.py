"""Exact checksums of a rank's linear maps: whose products are looked at, and what a wrong one says.

The exact products of a row and a matrix sum to the product of the row and the matrix's summed rows,
modulo 2^64. A launch that is checked adds what lies between the two to a word on the GPU: it stays
0 while every product is right. There is a word a matrix, and one for all routed experts of a layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.cuda.planes import INPUTS, OUTPUTS, planes_size
from ...core.link import RankLost
from ..glm.layout import GlmOp
from ..glm.program import GlmProgram
from ..placing import Matrix
from ..program import Op, Program

FIRST_EXPERT, EXPERTS = ".experts.0.", ".experts.*."


class WrongProduct(RankLost):
    """A GPU multiplied wrongly; the message names rank, step and matrix, and what to do."""


@dataclass(frozen=True, slots=True)
class Check:
    """A matrix's summed rows: planes from `at` on, of so many groups of columns each by itself.

    word: the number of the word that its launches add to.
    """

    matrix: Matrix
    groups: int
    at: int
    word: int


@dataclass(frozen=True, slots=True)
class Checks:
    """What is checked, by where a matrix begins; names: of each word; bytes: of all planes."""

    by_matrix: dict[int, Check]
    names: tuple[str, ...]
    bytes: int

    def look(self, rank: int, step: int, words: NDArray[np.int64]) -> None:
        """Raise WrongProduct if a step left any word [names] other than it was: 0."""
        wrong = np.flatnonzero(words)
        if not len(wrong):
            return
        more = f" and {len(wrong) - 1} behind it" if len(wrong) > 1 else ""
        raise WrongProduct(
            f"rank {rank}: its GPU gave a wrong product in step {step}: {self.names[wrong[0]]}"
            f"{more}; keep the tape, replay it on another device, and take this GPU out of service"
        )


NO_CHECKS = Checks({}, (), 0)


def checks_of(program: Program, *, verify: bool = True) -> Checks:
    """The checks of a rank's program; none where nothing is to be verified."""
    if not verify:
        return NO_CHECKS
    maps = _of_glm(program) if isinstance(program, GlmProgram) else _of_llama(program)
    named = dict(maps)
    found, names, at, groups = dict[int, Check](), list[str](), 0, 0
    for one in program.matrices:
        if not one.columns:  # of a rank that has no share: the next one begins there
            continue
        if one.at in named:  # otherwise it is the next expert of the map before it
            groups = named[one.at]
            names.append(_named(one))
        found[one.at] = Check(one, groups, at, len(names) - 1)
        at += planes_size(OUTPUTS * groups, one.inputs)
    return Checks(found, tuple(names), at)


def _named(matrix: Matrix) -> str:
    """Its tensors, what the first one's name begins with said once; all routed experts as one."""
    first, *others = (tensor.replace(FIRST_EXPERT, EXPERTS) for tensor, _ in matrix.tensors)
    within = first[: first[: first.rfind(".weight")].rfind(".") + 1]
    return ", ".join([first, *(one.removeprefix(within) for one in others)])


def _unit_groups(inputs: int) -> int:
    """Gates and their ups by themselves, where one launch makes the unit of both."""
    return 1 if inputs % INPUTS else 2


def _of_llama(program: Program) -> Iterator[tuple[int, int]]:
    """Where each map's matrix begins, and its groups of columns."""
    for code, width, weight, _, columns, *_ in program.ops.tolist():
        if columns and code == Op.LINEAR:
            yield weight, 1
        elif columns and code == Op.GATED:
            yield weight, _unit_groups(width)


def _of_glm(program: GlmProgram) -> Iterator[tuple[int, int]]:
    """The same; of routed experts where the first one's begins."""
    for code, _, _, width, weight, heads_at, columns, *_ in program.ops.tolist():
        if code == GlmOp.LINEAR_HEADS:  # its heads stand in front of the weight
            yield heads_at, weight
        elif not columns:
            continue
        elif code in (GlmOp.LINEAR, GlmOp.EXPERT_DOWN):
            yield weight, 1
        elif code == GlmOp.EXPERT_UP:
            yield weight, 2
        elif code == GlmOp.GATED:
            yield weight, _unit_groups(width)
