"""Fast-forward: a stream's prompt and reply computed as one long prompt, at prefill speed.

Sums are cumulative over kept rows and depend on tokens alone, so they must be the tape's at every
position, however the rows were cut into steps when they were recorded.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..core.apply import apply
from ..core.device import EveryRow
from ..core.digests import pair_hex
from ..core.outcome import commands_of
from ..core.state import State, Stream, open_state
from ..core.steps import lease
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact, RequestArrived, RunOpened
from ..events.ids import NO_STATE, Lane, Rank, StreamId, Token
from ..events.reader import Step
from ..events.records import Sampling
from .difference import Comparison, Difference, shares_of
from .machine import Machine, Turn
from .opening import EVERY_ROW
from .rerun import Played, Tick, numbered

Picks = Callable[[RequestArrived], bool]


@dataclass(slots=True)
class Told:
    """A stream as the tape tells it: its tokens, its rows, its sums by kept position."""

    request: RequestArrived
    stream: StreamId
    choice: int
    tokens: list[int]
    rows: int = 0
    sums: dict[int, tuple[Difference, dict[str, str]]] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)


def read_streams(
    opened: RunOpened, steps: Iterable[Step], picks: Picks, rank: int = -1
) -> list[Told]:
    """Every picked stream that has rows, in the order they were queued; rank: its shares alone."""
    state = open_state(opened, leader=False)
    told: dict[StreamId, Told] = {}
    for step in steps:
        for seq, fact in numbered(step):
            apply(state, fact)
            for stream in list(state.streams.values()) if _moves(fact) else ():
                if picks(stream.request):
                    _follow(told, stream)
            if isinstance(fact, f.StepClosed):
                _note(told, state, seq, fact, rank)
    return [one for one in told.values() if one.rows > 0]


def _moves(fact: AnyFact) -> bool:
    return isinstance(fact, f.StreamQueued | f.RowsKept | f.PromptStepRun)


def _follow(told: dict[StreamId, Told], stream: Stream) -> None:
    one = told.setdefault(
        stream.stream, Told(stream.request, stream.stream, stream.choice, stream.tokens)
    )
    one.rows = stream.rows


def _note(
    told: dict[StreamId, Told], state: State, seq: int, closed: f.StepClosed, rank: int
) -> None:
    for stream in closed.digests.streams:
        held = state.streams.get(stream)
        if held is not None and stream in told and held.rows > 0:
            session = held.request.session
            at = Difference(closed.step, seq, "", stream, position=held.rows, session=session)
            sums = closed.digests.of(stream)
            if rank >= 0 and closed.digests.ranks:
                sums |= shares_of(closed.digests, stream)[rank]
            told[stream].sums[held.rows] = (at, sums)


def room_for(opened: RunOpened, streams: Iterable[Told], rows_a_step: int) -> RunOpened:
    """One lane, pages for the longest stream, steps of so many rows; else any may have logits."""
    longest = max((len(one.tokens) for one in streams), default=1)
    return opened.model_copy(
        update={
            "lanes": 1,
            "pages": -(-(longest + 1 + opened.rules.drafts) // opened.rules.page_rows),
            "prompt_rows": rows_a_step or opened.prompt_rows,
            "states": 0,
            "flags": opened.flags | {EVERY_ROW: int(not rows_a_step)},
        }
    )


def play_forward(
    machine: Machine,
    streams: list[Told],
    tick: Tick = lambda step: None,
    *,
    coarse: bool = False,
) -> Played:
    """Run the streams one after another until they end or a value differs from the tape's.

    coarse: prompts in the largest steps, compared only where such a step ends; replies are compared
    at every kept position either way.
    """
    played = Played(0, 0, Comparison())
    machine.play(_turns(machine, streams, played, tick, coarse))
    return played


def _turns(
    machine: Machine, streams: list[Told], played: Played, tick: Tick, coarse: bool
) -> Iterator[Turn]:
    step = 0
    for number, told in enumerate(streams):
        stream = StreamId(number)
        facts: list[AnyFact] = list(_begin(machine.opened, stream, told))
        for first, rows, every in chunks(told, machine.opened.prompt_rows, coarse=coarse):
            facts.append(f.PromptStepRun(stream=stream, first=first, rows=rows))
            yield Turn.of(step, facts, _leased, every_row=every)
            facts, step = [], step + 1
            _compare(machine, told, first + rows, played)
            tick(step)
            if played.comparison.first is not None:
                return
        played.steps += 1
        played.tokens += len(told.tokens) - told.prompt_tokens
        yield Turn(step, lambda state, stream=stream: _end(state, stream))  # type: ignore[misc]


def chunks(told: Told, most: int, *, coarse: bool) -> Iterator[tuple[int, int, bool]]:
    """(first, rows, every row): the prompt but its last row, then from the row that first draws."""
    draws = min(told.prompt_tokens - 1, told.rows)
    named = [] if coarse else [position for position in told.sums if position < draws]
    ends = [*sorted(named), draws, told.rows]
    first = 0
    for last in ends:
        for at in range(first, last, most):
            yield at, min(most, last - at), first >= draws
        first = max(first, last)


def _begin(opened: RunOpened, stream: StreamId, told: Told) -> Iterator[AnyFact]:
    """The stream's tokens that have rows, as a prompt; the last token is a draw."""
    known = max(told.rows, told.prompt_tokens)
    tokens = tuple(Token(token) for token in told.tokens[:known])
    yield told.request.model_copy(update={"prompt": tokens, "max_new": 1})
    yield f.StreamQueued(stream=stream, request=told.request.request, choice=told.choice)
    pages = -(-(len(tokens) + 1 + opened.rules.drafts) // opened.rules.page_rows)
    yield f.StreamBegun(
        stream=stream, lane=Lane(0), kept_pages=0, promise_pages=pages, marks=(), owner=Rank(0),
        state=NO_STATE,
    )  # fmt: skip


def _leased(state: State, facts: Iterable[AnyFact]) -> Iterator[AnyFact]:
    for fact in facts:
        if isinstance(fact, f.PromptStepRun):
            yield from lease(state, state.streams[fact.stream], fact.first + fact.rows)
        yield fact


def _end(state: State, stream_id: StreamId) -> Iterator[AnyFact]:
    stream = state.streams[stream_id]
    yield f.RequestFinished(
        stream=stream_id, request=stream.request.request, reason="length",
        prompt_tokens=stream.prompt_tokens, cached_tokens=0, new_tokens=0, token_sha="",
    )  # fmt: skip
    yield f.PagesReturned(stream=stream_id, pages=tuple(state.table(stream)))
    yield f.StreamReleased(stream=stream_id, lane=stream.lane)


# --- comparing ------------------------------------------------------------------------------------


def _compare(machine: Machine, told: Told, position: int, played: Played) -> None:
    """Sums after each row where the tape names that position, and all parts where a step ends."""
    reports, into = machine.reports, played.comparison
    rules = machine.opened.rules
    lead = reports[0].every_row
    if lead is not None and lead.streams:
        every = [report.every_row for report in reports if report.every_row is not None]
        for row in range(len(lead.tokens[0])):
            _compare_row(told, rules.split, every, row, into)
    done = commands_of(rules, reports, reports[0].book)[0]
    assert isinstance(done, c.DeviceDone)
    if position in told.sums and done.digests.streams:
        at, sums = told.sums[position]
        seen = set(lead.sums) if lead is not None and lead.streams else set()
        rest = {part: value for part, value in sums.items() if part not in seen}
        into.see_sums(at, rest, done.digests.of(done.digests.streams[0]))


def _compare_row(
    told: Told, split: tuple[str, ...], every: list[EveryRow], row: int, into: Comparison
) -> None:
    position = every[0].firsts[0] + row + 1  # rows kept once this one is
    if position in told.sums:
        at, sums = told.sums[position]
        ours = {
            part: _total(part in split, part, every, row) for part in every[0].sums if part in sums
        }
        into.see_sums(at, {part: sums[part] for part in ours}, ours)
    drawn = int(every[0].tokens[0][row])
    if position < len(told.tokens) and draws_alike(told.request.sampling):
        at = Difference(
            -1, -1, "tokens", told.stream, position=position, session=told.request.session,
            left=str(told.tokens[position]), right=str(drawn),
        )  # fmt: skip
        into.see(at)


def _total(split: bool, part: str, every: list[EveryRow], row: int) -> str:
    shares = [one.sums[part][0][row] for one in every] if split else [every[0].sums[part][0][row]]
    lanes = [sum(int(share[lane]) for share in shares) % 2**64 for lane in (0, 1)]
    return pair_hex((lanes[0], lanes[1]))


def draws_alike(sampling: Sampling) -> bool:
    """Whether a draw does not ask which tokens are prompt and which reply."""
    one, zero = 0x3F800000, 0
    return sampling.repetition_bits == one and (
        sampling.presence_bits == sampling.frequency_bits == zero
    )
