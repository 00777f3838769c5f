"""What the GLM family asks of a device beside the common calls: streams, states, selection, drafts.

Rows are those of a row set: all rows of the step, the rows that get logits, or one row for each
stream that drafts.  "Own" columns and heads are those of this rank; "gathered" means that every
rank holds all of them afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from .ops import Floats


class Rows(IntEnum):
    """Which rows a call computes."""

    ALL = 0
    SELECTED = 1
    DRAFTED = 2


@dataclass(frozen=True, slots=True)
class Digits:
    """Q16 rows of `width` in a buffer, and where their exponents stand."""

    at: int
    exponents_at: int
    width: int


@dataclass(frozen=True, slots=True)
class HeadNames:
    """The tensors of one KDA layer's gates and recurrence."""

    taps: tuple[str, str, str]
    steps: str
    decay: str
    norm: str


@dataclass(frozen=True, slots=True)
class IndexNames:
    """The constants of one layer's indexer."""

    weight: str
    bias: str
    slots: str


class GlmOps(Protocol):
    """One rank's arithmetic over a ragged batch of rows; weights are called by their file's names.

    cache: which latent rows and pooled keys, the drafter's being the last.
    """

    def embed_streams(self) -> Floats:
        """Embedding rows of the batch's tokens, once for every stream [rows, streams * hidden]."""
        ...

    def site(self, x: Floats, name: str) -> Floats:
        """The mixing weights of one hyper-connection site, by the site's name."""
        ...

    def read(self, x: Floats, site: Floats) -> Floats:
        """One row out of the streams."""
        ...

    def write(self, x: Floats, site: Floats, y: Floats) -> None:
        """Mix the streams and put a row back into them."""
        ...

    def mean(self, x: Floats) -> Floats:
        """The mean of the streams."""
        ...

    def normed(self, x: Floats, weight: str) -> Digits:
        """RMSNorm of each row, times a weight vector, quantised."""
        ...

    def normed_floats(self, x: Floats, weight: str, out: str) -> Floats:
        """RMSNorm of each row, times a weight vector, into a buffer of that name."""
        ...

    def joined(self, first: Floats, second: Floats, norms: tuple[str, str]) -> Digits:
        """Two normed rows side by side, quantised."""
        ...

    def quantised(self, x: Floats) -> Digits:
        """Each row as Q16."""
        ...

    def linear(self, x: Digits, matrices: Sequence[str], out: str) -> Floats:
        """Own columns of several matrices that share their input, side by side; not gathered."""
        ...

    def gathered(self, x: Digits, matrix: str, out: str) -> Floats:
        """W x: own columns are computed, then gathered."""
        ...

    def add_gathered(self, x: Digits, matrix: str, onto: Floats) -> None:
        """onto += W x: own columns are computed, then gathered."""
        ...

    def dense(self, x: Digits, at: str) -> Floats:
        """The gated unit below a name: own inner columns, gathered, then own outputs, gathered."""
        ...

    def experts(self, x: Digits, at: str) -> Floats:
        """The routed experts and the shared one below a name; gathered."""
        ...

    def add(self, onto: Floats, y: Floats) -> None:
        """onto += y."""
        ...

    def convolved(self, qkv: Floats, names: HeadNames, layer: int) -> Floats:
        """The short causal convolution of own q, k and v columns, and its unit."""
        ...

    def recur(
        self, qkv: Floats, steps: Floats, beta: Floats, gate: Floats, names: HeadNames, layer: int
    ) -> Floats:
        """The recurrence of own heads, its norm and its gate; all heads are gathered."""
        ...

    def write_latents(self, x: Floats, cache: int) -> None:
        """Normalise the latent rows and put them into their pages."""
        ...

    def pool_keys(self, key: Floats, gate: Floats, names: IndexNames, cache: int) -> None:
        """Keep the raw keys, and put the key of every pool that is whole now into its page."""
        ...

    def select(self, queries: Floats, weights: Floats, cache: int) -> None:
        """Choose the pools that each row reads, from index queries [rows, heads * dim]."""
        ...

    def attended(self, queries: Floats, at: str, cache: int) -> Floats:
        """Each own query head over the chosen rows, by the absorbed maps below a name; gathered."""
        ...

    def head(self, x: Floats, matrix: str) -> None:
        """The selected rows' logits, gathered; their sums; their samples; what is kept."""
        ...

    def next_embedded(self) -> Floats:
        """The embedding row of the token after each row, zero for position 0."""
        ...

    def draft(self, x: Floats, matrix: str) -> Floats:
        """Draw a draft after each drafting row; the rows of `x` that go on drafting."""
        ...

    def rows(self, rows: Rows) -> None:
        """The calls that follow compute this row set."""
        ...
