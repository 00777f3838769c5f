"""An audit: is a tape whole, does every fact fit the ones before it, do its sums add up."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from ..core.apply import apply
from ..core.book import book_digest
from ..core.check import check
from ..core.digests import ZERO, add_pairs, hex_pair, pair_hex
from ..core.finish import token_sha
from ..core.state import State, Stream, open_state
from ..devices.kernel_cache import keep_book
from ..events import facts as f
from ..events.canon import pack_ids
from ..events.facts import AnyFact, RunOpened
from ..events.ids import StreamId
from ..events.reader import Step
from ..events.verify import Finding, find
from .rerun import Tick, numbered


def audit_file(path: Path) -> list[Finding]:
    """Chain, bytes, columns, content and seal of every run of a tape."""
    return list(find(path))


def audit_run(
    opened: RunOpened, steps: Iterable[Step], tick: Tick = lambda step: None
) -> list[Finding]:
    """Fold every fact of a run and assert what must hold after each; the first break ends it.

    A run without its end is a crash, which is no finding; nor is one that failed.
    """
    return list(_Folding(opened, tick).fold(steps))


class _Folding:
    """The state of the run, and what it promised about sums."""

    def __init__(self, opened: RunOpened, tick: Tick) -> None:
        self._opened = opened
        self._tick = tick
        keep_book()
        self._state = open_state(opened)
        self._book: dict[int, str] = {}  # by step: the book's digest when it was launched
        self._ran: set[StreamId] = set()  # since the last step closed
        self._rows: dict[bytes, str] = {}  # what the rows of some tokens sum to, by those tokens

    def fold(self, steps: Iterable[Step]) -> Iterator[Finding]:
        for step in steps:
            for seq, fact in numbered(step):
                try:
                    yield from self._compute(seq, fact)
                    apply(self._state, fact)
                    if _settled(self._state, fact):
                        check(self._state)
                except (AssertionError, KeyError, IndexError, ValueError) as error:
                    yield _finding("state", seq, fact, f"{type(error).__name__}: {error}")
                    return  # what follows stands on a state that cannot be
                yield from self._promises(seq, fact)
            self._book[step.step] = book_digest(self._state)
            self._tick(step.step)
            if _failed_undecided(step):
                return
        if self._state.closed and self._state.streams:
            open_ones = ", ".join(map(str, self._state.streams))
            yield Finding("state", "the end", f"the run closed over streams {open_ones}")

    def _compute(self, seq: int, fact: AnyFact) -> Iterator[Finding]:
        """Tokens are kept, and sums told, of the streams that a step ran, and of all of them."""
        match fact:
            case f.PromptStepRun():
                self._ran.add(fact.stream)
            case f.RoundRun():
                self._ran.update(self._state.in_lane(lane).stream for lane in fact.lanes)
            case f.RowsKept():
                if not self._ran.issuperset(fact.streams):
                    says = f"keeps tokens of streams {fact.streams}, the step ran {_ids(self._ran)}"
                    yield _finding("state", seq, fact, says)
            case f.StepClosed():
                named = fact.digests.streams
                if named and not self._ran.issubset(named):
                    says = f"has sums of streams {named}, the step ran {_ids(self._ran)}"
                    yield _finding("state", seq, fact, says)
                self._ran.clear()
            case _:
                pass  # nothing is computed

    def _promises(self, seq: int, fact: AnyFact) -> Iterator[Finding]:
        match fact:
            case f.StepClosed():
                yield from self._closed(seq, fact)
            case f.StateResumed():
                stream = self._state.streams[fact.stream]
                yield from self._same_rows(
                    seq, fact, stream, fact.mark, fact.digest.get("rows", "")
                )
                kept = self._state.kept[fact.state]
                for part, value in kept.digest.items() if kept.mark == fact.mark else ():
                    if value and fact.digest.get(part, value) != value:
                        says = f"read back {part} {fact.digest[part]}, kept was {value}"
                        yield _finding("sums", seq, fact, says)
            case f.SnapshotTaken():
                yield from self._taken(seq, fact)
            case f.RequestFinished():
                stream = self._state.streams[fact.stream]
                first = stream.prompt_tokens
                sha = token_sha(stream.tokens[first : first + fact.new_tokens])
                if sha != fact.token_sha:
                    yield _finding("sums", seq, fact, f"the tokens' sha is {sha}")
            case _:
                pass  # nothing else promises a value

    def _closed(self, seq: int, fact: f.StepClosed) -> Iterator[Finding]:
        book = self._book.get(fact.step, "")
        if fact.book and fact.book != book:
            yield _finding("sums", seq, fact, f"the book's digest after step {fact.step} is {book}")
        for part, shares in fact.digests.ranks.items():
            for at, of_ranks in enumerate(shares):
                if any(not share for share in of_ranks):
                    continue
                whole = pair_hex(add_pairs(ZERO, *(hex_pair(share) for share in of_ranks)))
                if whole != fact.digests.parts[part][at]:
                    stream = fact.digests.streams[at]
                    says = f"stream {stream}: the ranks' shares of {part} sum to {whole}"
                    yield _finding("sums", seq, fact, says)
        for stream_id in fact.digests.streams if "rows" in fact.digests.parts else ():
            held = self._state.streams.get(stream_id)
            if held is not None:
                sums = fact.digests.of(stream_id)
                mark = held.rows // self._opened.rules.mark_rows * self._opened.rules.mark_rows
                yield from self._same_rows(seq, fact, held, held.rows, sums["rows"])
                yield from self._same_rows(seq, fact, held, mark, sums.get("marks", ""))

    def _same_rows(
        self, seq: int, fact: AnyFact, stream: Stream, rows: int, value: str
    ) -> Iterator[Finding]:
        """The rows of the same tokens sum to the same, whichever stream computed them and how."""
        if not value or not rows:
            return
        known = self._rows.setdefault(_name(stream.tokens[:rows]), value)
        if known != value:
            says = f"stream {stream.stream}: {rows} rows sum to {value}, of equal tokens {known}"
            yield _finding("sums", seq, fact, says)

    def _taken(self, seq: int, fact: f.SnapshotTaken) -> Iterator[Finding]:
        """A state's sums are those of the stream that left it, when it did."""
        sums = self._state.streams[fact.stream].sums
        for part, value in fact.digest.items():
            theirs = sums.get("marks" if "marks" in sums else part, value)
            if value and theirs != value:
                yield _finding("sums", seq, fact, f"keeps {part} {value}, the stream had {theirs}")


def _failed_undecided(step: Step) -> bool:
    """Whether a run failed so that nothing more was decided: it is closed over its streams."""
    return not step.commands and any(
        isinstance(fact, f.RunClosed) and fact.error for fact in step.facts
    )


def _settled(state: State, fact: AnyFact) -> bool:
    """Whether the facts so far make a whole: some come in pairs, and hold only together."""
    match fact:
        case f.RequestArrived() | f.PagesReturned():
            return False
        case f.StreamBegun():
            return fact.kept_pages == 0
        case _:
            return True


def _name(tokens: list[int]) -> bytes:
    return blake2b(pack_ids(tokens), digest_size=16).digest()


def _ids(streams: set[StreamId]) -> tuple[int, ...]:
    return tuple(sorted(streams))


def _finding(kind: str, seq: int, fact: AnyFact, says: str) -> Finding:
    return Finding(kind, f"event {seq}, {fact.kind}", says)
