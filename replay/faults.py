"""Which faults are caught while serving, and which only by a replay or a reader of tapes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FaultKind:
    """live: what a running server does about it, "" when nothing there sees it.

    later: how a tape of that run shows it.
    """

    fault: str
    live: str
    later: str


FAULTS = (
    FaultKind(
        "ranks hold different values of a replicated part (book, tokens, logits)",
        "the step's digests differ: the run stops, naming step, stream, part, layer and row",
        "replay; diff of TAPE#0 and TAPE#1",
    ),
    FaultKind(
        "a bit of a kept row flips in a rank's memory",
        "--digests full: the next step's sums break; rows: when the state is resumed",
        "diff finds the bit from two sums alone, without a second copy",
    ),
    FaultKind(
        "a rank's linear map is wrong: a bit of a weight, a broken unit of a GPU",
        "--verify, on a GPU: the step's checksums, before any of its tokens is told",
        "replay on another device: the first row whose sums differ from the tape's",
    ),
    FaultKind(
        "a rank computes a split part wrongly (its heads' rows)",
        "",
        "replay at any number of ranks: the sums over ranks differ from the tape's",
    ),
    FaultKind(
        "a row of logits is wrong on every rank alike (a weight, a kernel, a build)",
        "",
        "replay on another machine or another build",
    ),
    FaultKind(
        "memory is read that nobody wrote",
        "with TF_KV_POISON=1: the read is named by stream, layer and position",
        "replay --poison a and --poison b: the bits must be the tape's",
    ),
    FaultKind(
        "a value that is no number, or beyond the contract's range",
        "its request ends with the reason fault; no other request is touched",
        "the step's flags in replay",
    ),
    FaultKind(
        "a decision that its commands do not explain",
        "",
        "replay --book: the first fact that differs, with both sides",
    ),
    FaultKind(
        "a page leased twice, leaked, or shared before it is whole",
        "",
        "audit: the book's laws after every event",
    ),
    FaultKind(
        "a rank dies, hangs past the limit or refuses a step",
        "the group stops with the rank and the step; nothing waits for ever",
        "the tape ends at the last whole step",
    ),
    FaultKind(
        "a tape is edited, cut short or of another format",
        "",
        "audit: chain, content rows and the seal; refused when opened",
    ),
    FaultKind(
        "a tape is replayed with other weights",
        "",
        "refused before the first step: the model digests differ",
    ),
)
