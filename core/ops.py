"""What a model family may ask of a device: a forward pass is calls on these, never kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Floats:
    """A float32 buffer of the step's rows [rows, width]; `at` is the device's own name for it."""

    at: int
    width: int


@dataclass(frozen=True, slots=True)
class Codes:
    """Q16 rows: int16 [rows, width], one exponent a row; `selected`: the rows that get logits."""

    at: int
    width: int
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Queries:
    """Q16 query heads of this rank, int16 [rows, heads, head_dim] with one exponent a head."""

    heads: int


class Ops(Protocol):
    """One rank's arithmetic over a ragged batch of rows; weights are called by their file's names.

    "Own" columns are those of this rank (the family's cut); "gathered" means that every rank holds
    all columns afterwards. Floats that an op returns stay valid until the same op runs again.
    """

    def embed(self) -> Floats:
        """Embedding rows of the batch's tokens."""
        ...

    def normed(self, x: Floats, weight: str) -> Codes:
        """RMSNorm of each row, times a weight vector, quantised."""
        ...

    def quantised(self, x: Floats) -> Codes:
        """Each row as Q16."""
        ...

    def linear(self, x: Codes, matrices: Sequence[str]) -> Floats:
        """Own columns of several matrices that share their input, side by side; not gathered."""
        ...

    def add_linear(self, x: Codes, matrix: str, onto: Floats) -> None:
        """onto += W x: own columns are computed, then gathered."""
        ...

    def gated(self, x: Codes, gate: str, up: str) -> Floats:
        """silu(G x) * (U x): own columns are computed, then gathered."""
        ...

    def write_rows(self, qkv: Floats, layer: int) -> Queries:
        """Rotate query and key heads by position, quantise all, write the key and value rows."""
        ...

    def attend(self, queries: Queries, layer: int) -> Floats:
        """Each query head over the rows of its stream up to its own; all heads are gathered."""
        ...

    def head(self, x: Floats, norm: str, matrix: str) -> None:
        """The batch's logits: norm and matrix over the rows that are to be sampled, gathered."""
        ...
