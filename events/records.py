"""What commands and facts are made of: frozen models of integers, strings and tuples."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from .ids import StreamId, Token

# A sum is two 64-bit lanes as 32 lowercase hex digits; the empty string means "not kept".
Sum = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]

INT64_MAX = 2**63 - 1


class Record(BaseModel):
    """Frozen, closed, and written in the order its fields are declared."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="hex", val_json_bytes="hex"
    )


Kind = TypeVar("Kind", bound=Record)


def known(kind: type[Kind], /, **fields: Any) -> Kind:
    """A record whose values are right already, so that nothing is checked: all fields, in order.

    For what every step makes of values that were checked, or computed; the writer of bytes refuses
    values of other types, and a test makes each kind both ways.
    """
    record = kind.__new__(kind)
    _put(record, "__dict__", fields)
    _put(record, "__pydantic_fields_set__", set(fields))
    _put(record, "__pydantic_extra__", None)
    _put(record, "__pydantic_private__", None)
    return record


_put = object.__setattr__  # past the frozen model's own


class Large:
    """Marks a field of token ids that the tape keeps once, as a content-addressed row."""


Ids = Annotated[tuple[Token, ...], Large()]

# A count that older tapes lack: zero is left out of the bytes, and what is not there is zero.
Later = Annotated[int, Field(exclude_if=lambda count: count == 0)]
# The same of a text: the empty one.
LaterText = Annotated[str, Field(exclude_if=lambda text: not text)]


class Sampling(Record):
    """How the next token is drawn: floats as float32 bit patterns, the seed as a signed int64."""

    temperature_bits: int = 0
    top_k: int = 0
    top_p_bits: int = 0x3F800000
    repetition_bits: int = 0x3F800000
    presence_bits: int = 0
    frequency_bits: int = 0
    seed: int = Field(default=0, ge=-(2**63), le=INT64_MAX)
    bias: tuple[tuple[int, int], ...] = ()


class FamilyRules(Record):
    """What the machine must know of a model family; it never asks the family itself.

    page_rows: rows a page.  mark_rows: marks stand at multiples of this.  lookahead: tokens past a
    mark that a state depends on.  drafts: most drafted tokens a round.  snapshots: a state is more
    than its pages, so it resumes at its own mark only.  finish_marks: a finished stream leaves a
    state.  parts: kinds of memory with a digest.  split: those that add over ranks, the others are
    replicated.
    """

    page_rows: int
    mark_rows: int
    lookahead: int
    drafts: int
    snapshots: bool
    finish_marks: bool
    min_prompt: int
    min_gap: int
    vocab: int
    parts: tuple[str, ...]
    split: tuple[str, ...]


class Digests(Record):
    """Cumulative sums over kept rows after a step: `parts[p][i]` belongs to `streams[i]`.

    ranks: for parts that are split over more than one rank, each rank's share: `ranks[p][i][rank]`.
    """

    streams: tuple[StreamId, ...] = ()
    parts: Mapping[str, tuple[Sum, ...]] = {}
    ranks: dict[str, tuple[tuple[Sum, ...], ...]] = {}

    def of(self, stream: StreamId) -> dict[str, str]:
        """The sums of one stream by part."""
        at = self.streams.index(stream)
        return {part: sums[at] for part, sums in self.parts.items()}
