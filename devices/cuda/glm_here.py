"""What the lowering of a GLM's op reads: a row set's tables, and where buffers stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.glm_ops import Rows
from ...core.kernels.glm_memory import GlmParty
from .card import Array
from .gathering import Gather
from .glm_memory import GlmCudaMemory

BLOCK = 16  # output columns of a packed block
Words = Sequence[int]  # an op's arguments


@dataclass(frozen=True, slots=True)
class Here:
    """A row set of a bucket of `rows` rows.

    flags: of the set's rows, or nobody's.  party: the model's sizes and constants.  samples: tokens
    are drawn on this rank.  verify: maps look at their products.
    """

    memory: GlmCudaMemory
    party: GlmParty
    gather: Gather
    samples: bool
    set: Rows
    rows: int
    flags: Array
    verify: bool = False

    @property
    def stream(self) -> Any:
        """The card's."""
        return self.memory.card.stream

    @property
    def runs(self) -> Array:
        """Runs that the set's rows can be of, [n, 4]; no more than there are rows."""
        name = "draft_runs" if self.set is Rows.DRAFTED else "runs"
        return self.memory.tables[name][: min(self.rows, self.memory.step.lanes)]

    @property
    def positions(self) -> Array:
        """Of each row."""
        return self.memory.tables["draft_positions" if self.set is Rows.DRAFTED else "positions"]

    @property
    def lanes(self) -> Array:
        """Of each row."""
        return self.memory.tables["draft_lanes" if self.set is Rows.DRAFTED else "lanes"]

    def sums(self, name: str, cache: int) -> Array:
        """Where digests of a cache's rows are added: drafting rows' are nobody's."""
        if self.set is Rows.DRAFTED:
            return self.memory.arrays["spare_sums"]
        drafter = cache >= self.party.trunk_caches
        return self.memory.tables["draft_sums" if drafter else name]

    def floats(self, at: int, width: int, each: int = 1) -> Array:
        """A buffer [rows * each, width]."""
        count = self.rows * each
        return self.memory.arrays["floats"][at : at + count * width].reshape(count, width)

    def codes(self, at: int, exponents_at: int, width: int, each: int = 1) -> tuple[Array, Array]:
        """Digits [rows * each, width] and their exponents."""
        count, arrays = self.rows * each, self.memory.arrays
        codes = arrays["codes"][at : at + count * width].reshape(count, width)
        return codes, arrays["code_exponents"][exponents_at : exponents_at + count]

    def pairs(self, at: int, exponents_at: int, width: int, each: int = 1) -> tuple[Array, Array]:
        """The same digits as int32 pairs, flat, and their exponents."""
        count, arrays = self.rows * each, self.memory.arrays
        pairs = arrays["codes"][at : at + count * width].view(np.int32)
        return pairs, arrays["code_exponents"][exponents_at : exponents_at + count]

    def constants(self, at: int, *axes: int) -> Array:
        """A constant."""
        flat = self.memory.arrays["constants"][at : at + int(np.prod(axes))]
        return flat if len(axes) == 1 else flat.reshape(*axes)

    def check(self, weight: int) -> tuple[Array, Array] | None:
        """What the map whose weights begin there is checked by."""
        return self.memory.matrices[weight].check if self.verify else None

    def after(self, at: int) -> Array:
        """The float buffers from an element on: what maps write into with a stride."""
        return self.memory.arrays["floats"][at:]
