"""A device without a model: the fake family in pages, lanes and ranks, with an exact oracle."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.device import Ack, Break, HeldRows, Pair, Poisoned, Report, Running
from ..core.digests import SumTable
from ..core.families.family import share
from ..core.kernels.digest import PARTS as KINDS
from ..core.kernels.fake import DRAFT, DRAW, FORWARD, SETTLE, step
from ..core.kernels.fake_memory import (
    DRAWN,
    GIVEN,
    HEADS,
    LAYERS,
    LOGIT,
    MARKS,
    ON_PAGES,
    PARTS,
    RING,
    ROWS,
    TOKEN,
    sum_fixed,
    sum_layer,
    sum_pages,
)
from ..core.state import State, Stream
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import NO_STATE, Lane, Rank, StateId, StreamId
from .fake_copies import KeptCopy, copy_out, copy_pages_in
from .fake_memory import (
    Batch,
    Entry,
    Words,
    batch_of,
    end_of,
    flip,
    positions_of,
    rows_of,
    shape_and_memory,
    words_of,
)
from .fake_sampler import Sampler, sample_wave
from .leaving import seat_then
from .ledger import pair_of
from .meeting import Meeting

IN_MEMORY = ("rows", "keys", "states", "rings", "drafts")
ON_PAGES_PARTS = tuple(PARTS[part] for part in ON_PAGES)
FIXED_PARTS = ("states", "rings")


def fake_group(
    opened: RunOpened,
    world: int,
    limit_seconds: float = 60.0,
    broken: frozenset[str] = frozenset(),
) -> list["FakeDevice"]:
    """One device a rank. broken: rules to leave out, so that tests can show what they are for.

    The drafter is right on a schedule, unless flags["fake_drafter"] is 1 (always) or 2 (never).
    """
    meeting = Meeting(world, limit_seconds)
    return [FakeDevice(opened, world, Rank(rank), meeting, broken) for rank in range(world)]


class Done:
    """A step that ran in its launch."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def report(self) -> Report:
        """What the step did."""
        return self._report


class FakeDevice:
    """One rank of the fake family; launch computes the whole step.

    refuse_resume: answer no to the next resumes.  flag: streams that raise the NaN flag when they
    next compute a row.  Both are for tests.  copies: what is kept beside the pages, by state.
    """

    def __init__(
        self, opened: RunOpened, world: int, rank: Rank, meeting: Meeting, broken: frozenset[str]
    ) -> None:
        self.rank = rank
        self.refuse_resume = False
        self.flag: set[StreamId] = set()
        self._rules, self._world = opened.rules, world
        self._meeting, self._broken = meeting, broken
        self._shape, self._memory = shape_and_memory(opened, share(HEADS, world, rank), broken)
        self._samplers: list[Sampler | None] = [None] * opened.lanes
        self._ends = np.zeros((opened.lanes, opened.rules.vocab), np.uint8)
        self._batch = batch_of(0, 0, opened.rules.vocab)
        self._full = opened.digests == "full"
        self._lanes: dict[StreamId, Lane] = {}
        self._rows = [0] * opened.lanes
        self.copies: dict[StateId, KeptCopy] = {}
        self._resuming: list[f.StreamBegun] = []  # of the step that is being launched
        self._parts = self._rules.parts
        self._columns = np.array([PARTS.index(part) for part in self._parts])
        self._scratch = self._shape.scratch

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """Do what the facts say, then compute their rows as one batch."""
        try:
            return Done(self._launch(state, facts, every_row))
        except BaseException as error:
            self._meeting.stop(f"rank {self.rank} stopped in step {state.step}: {error}")
            raise

    def close(self) -> None:
        """Whoever still waits for this rank hears that it is gone."""
        self._meeting.stop(f"rank {self.rank} closed")

    def layers(self, part: str) -> int:
        """How many digest layers a part has in this rank's memory."""
        if part not in self._parts or (part in self._rules.split and self._shape.heads == 0):
            return 0
        return {"rows": LAYERS, "states": LAYERS, "keys": 1, "rings": 1, "drafts": 1}.get(part, 0)

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """The digest of some rows of one digest layer, summed anew from memory.

        States have one row, 0; rings the last raw rows; a pool's key stands at its last position.
        """
        lane, last = self._lanes[stream], first + rows
        if part == "rings":
            first, last = max(first, self._rows[lane] - RING), min(last, self._rows[lane])
        if part == "states":
            last = min(last, 1)
        self._memory.scratch[:] = 0
        sum_layer(
            self._shape, self._memory.arena, state.tables, lane,
            KINDS[part], layer, first, last, self._scratch,
        )  # fmt: skip
        return pair_of(self._memory.scratch[0])

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head."""
        lane = self._lanes[stream]
        words = words_of(self._shape, self._memory, state.tables, lane, part, layer, position)
        return {head: row.tobytes() for head, row in words.items()}

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at these positions, by head."""
        lane, last = self._lanes[stream], first + rows
        held = positions_of(part, first, last, self._rows[lane])
        return rows_of(self._shape, self._memory, state.tables, lane, part, layer, held)

    # --- facts -----------------------------------------------------------------------------------

    def _launch(self, state: State, facts: Sequence[AnyFact], every_row: bool) -> Report:
        report = Report(self.rank, state.step)
        entries: list[Entry] = []
        streams: list[Stream] = []
        for fact in facts:
            if isinstance(fact, f.RoundRun):
                seated = [state.in_lane(lane) for lane in fact.lanes]
                streams += seated
                self._windows(seated, entries)
            elif isinstance(fact, f.PromptStepRun):
                streams.append(state.streams[fact.stream])
                entries.append(self._prompt_rows(streams[-1], fact, end_of(entries)))
            elif isinstance(fact, f.SnapshotTaken):
                self._kept(state, facts, fact)
            elif (does := _DOES.get(fact.kind)) is not None:
                does(self, state, fact, report)
        for begun in self._resuming:  # after the leases: what is copied in stays
            report.acks.append(self._resume(state, begun, report))
        self._resuming.clear()
        if entries:
            self._step(state, streams, entries, report, every_row)
        return report

    def _windows(self, streams: list[Stream], entries: list[Entry]) -> None:
        """Pending tokens and their drafts: no more than a reply needs and its pages hold."""
        at, drafts, page_rows = end_of(entries), self._rules.drafts, self._rules.page_rows
        for stream in streams:
            lane, request, tokens = stream.lane, stream.request, len(stream.tokens)
            first, prompt = tokens - 1, len(request.prompt)
            assert first == self._rows[lane], f"row {first} is next, {self._rows[lane]} are here"
            wanted = request.max_new + prompt - tokens
            leased = stream.pages * page_rows - first
            count = min(1 + drafts if request.draft else 1, wanted, leased)
            assert count > 0, f"stream {stream.stream} has no row to run at {first}"
            entries.append((lane, first, count, 1, prompt, at, -1, 0))
            at += count

    def _prompt_rows(self, stream: Stream, fact: f.PromptStepRun, at: int) -> Entry:
        lane, last = stream.lane, fact.first + fact.rows
        assert fact.first == self._rows[lane], f"row {fact.first} after {self._rows[lane]}"
        assert last <= stream.pages * self._rules.page_rows, f"row {last} has no page"
        following = stream.tokens[last] if last < len(stream.tokens) else -1
        return lane, fact.first, fact.rows, 0, stream.prompt_tokens, at, following, 0

    def _begun(self, state: State, fact: f.StreamBegun, report: Report) -> None:
        lane, stream, memory = fact.lane, state.streams[fact.stream], self._memory
        self._lanes[fact.stream], self._rows[lane] = lane, 0
        memory.fixed[lane] = memory.sums[lane] = memory.poisoned[lane] = 0
        sampler = Sampler(stream, self._rules.vocab)
        self._samplers[lane] = None if sampler.greedy else sampler
        self._ends[lane] = 0
        if not stream.request.ignore_eos:
            self._ends[
                lane, [token for token in stream.request.eos if token < self._rules.vocab]
            ] = 1
        if self._shape.digests and self._shape.states:
            self._sum_fixed(state, lane, 0, self._shape.sums + 2 * len(PARTS) * lane)
        if fact.state != NO_STATE:
            self._resuming.append(fact)

    def _resume(self, state: State, fact: f.StreamBegun, report: Report) -> Ack:
        """Restore the copy, sum up what is read back, and say where it is not what was kept."""
        lane, held = fact.lane, state.streams[fact.stream].pages
        mark, pages = held * self._rules.page_rows, state.tables[lane, :held]
        memory, copy = self._memory, self.copies.get(fact.state)
        if self.refuse_resume or (copy is None and self._rules.snapshots):
            why = "told_to_refuse" if self.refuse_resume else "no_copy"
            return Ack(fact.stream, fact.state, ok=False, why=why)
        self._rows[lane] = mark
        if copy is not None and "restore" not in self._broken:
            memory.fixed[lane] = copy.fixed
        if copy is not None and copy.paged:
            copy_pages_in(memory, pages, copy)
        if not self._shape.digests:
            return Ack(fact.stream, fact.state, ok=True)
        place, sums = self._shape.sums + 2 * len(PARTS) * lane, memory.sums[lane]
        sum_pages(self._shape, memory.arena, state.tables, lane, 0, mark, place)
        self._sum_fixed(state, lane, mark, place)
        sums[MARKS] = sums[ROWS]
        kept = np.zeros_like(sums) if copy is None else copy.sums.copy()
        kept[list(ON_PAGES)] = memory.page_sums[:, pages].sum(axis=1)
        self._compare(report, fact.stream, IN_MEMORY, kept, sums)
        read = [part for part in self._parts if part not in ("logits", "tokens")]
        digest = {part: pair_of(sums[PARTS.index(part)]) for part in read}
        return Ack(fact.stream, fact.state, ok=True, digest=digest)

    def _refused(self, state: State, fact: f.ResumeRefused, report: Report) -> None:
        self._lanes.pop(fact.stream)

    def _released(self, state: State, fact: f.StreamReleased, report: Report) -> None:
        self._lanes.pop(fact.stream, None)  # who never had a lane is not here

    def _leased(self, state: State, fact: f.PagesLeased, report: Report) -> None:
        memory, pattern = self._memory, self._shape.pattern
        for page in fact.pages:
            memory.page_sums[:, page] = 0
            if pattern:
                memory.rows[:, page] = pattern
                memory.keys[page] = memory.drafts[page] = pattern

    def _kept(self, state: State, facts: Sequence[AnyFact], fact: f.SnapshotTaken) -> None:
        if not self._rules.snapshots:
            return
        (lane, table), count = seat_then(state, facts, fact), fact.mark // self._rules.page_rows
        assert self._rows[lane] == fact.mark, f"a copy at row {self._rows[lane]}, not {fact.mark}"
        own = table[: 0 if fact.shared else count]
        self.copies[fact.state] = copy_out(self._memory, lane, own)

    def _dropped(self, state: State, fact: f.StateDropped, report: Report) -> None:
        self.copies.pop(fact.state, None)

    def _flip(self, state: State, fact: f.FaultInjected, report: Report) -> None:
        if fact.rank != self.rank:
            return
        lane = self._lanes[fact.stream]
        words = words_of(
            self._shape, self._memory, state.tables, lane, fact.part, fact.layer, fact.position
        )
        flip(words[fact.head], fact.column, fact.bit)

    # --- the batch -------------------------------------------------------------------------------

    def _step(
        self,
        state: State,
        streams: list[Stream],
        entries: list[Entry],
        report: Report,
        every_row: bool,
    ) -> None:
        if self._full:
            self._check_live(state, report, on_pages=False)
        batch = self._batch = self._batch.fitting(entries, streams)
        if self._shape.pattern:
            self._memory.saved[:] = self._memory.scratch[:] = self._shape.pattern
        waves = max([entry[2] if entry[3] else 1 for entry in entries])
        greedy = not any([self._samplers[entry[0]] for entry in entries])
        if self._world == 1 and greedy:
            self._run(state, batch, 0, waves, FORWARD | DRAW | DRAFT | SETTLE, every_row)
        else:
            self._by_waves(state, batch, waves, every_row)
        self._tell(streams, batch, report)
        if every_row:
            columns = zip(self._parts, self._columns, strict=True) if self._shape.digests else ()
            report.every_row = batch.each_row([stream.stream for stream in streams], dict(columns))
        if self._full:
            self._check_live(state, report, on_pages=True)

    def _by_waves(self, state: State, batch: Batch, waves: int, every_row: bool) -> None:
        """What heads give is added over ranks; what is drawn, and thereby drafted, is rank 0's."""
        given, drawn = slice(GIVEN, LOGIT), slice(TOKEN, DRAWN + 1)
        for wave in range(waves):
            self._run(state, batch, wave, wave + 1, FORWARD, every_row)
            ranks = self._exchange(state, batch.rows[:, given])
            batch.rows[:, given] = np.sum(ranks, axis=0, dtype=np.uint64)
            self._run(state, batch, wave, wave + 1, DRAW, every_row)
            sample_wave(self._samplers, batch, wave, every_row)
            self._run(state, batch, wave, wave + 1, DRAFT, every_row)
            lead = self._exchange(state, batch.rows[:, drawn])[0]
            if "lead" not in self._broken:
                batch.rows[:, drawn] = lead
        self._run(state, batch, 0, 0, SETTLE, every_row)

    def _exchange(self, state: State, mine: Words) -> Sequence[Words]:
        return self._meeting.exchange(self.rank, state.step, mine.copy())

    def _run(
        self, state: State, batch: Batch, first: int, last: int, stages: int, every_row: bool
    ) -> None:
        step(
            self._shape, self._memory.arena, state.tables, self._ends, batch.entries, batch.rows,
            batch.logits, batch.logit_words, first, last, stages, int(every_row),
        )  # fmt: skip

    def _tell(self, streams: list[Stream], batch: Batch, report: Report) -> None:
        """Tokens, sums, flags and poison of a step."""
        drawn = batch.rows[:, DRAWN].tolist()
        if self._shape.digests:
            words = self._memory.sums[batch.entries[:, :1], self._columns]
            report.sums = SumTable([one.stream for one in streams], self._parts, words)
        entries, drafting = batch.entries.tolist(), self._rules.drafts > 0
        tokens, starts, rows = report.tokens, report.starts, self._rows
        for stream, (lane, first, count, window, _, at, following, kept) in zip(
            streams, entries, strict=True
        ):
            rows[lane] = first + kept
            if drafting and window:
                report.drafts[stream.stream] = (count - 1, kept - 1)
            if window or following < 0:
                report.streams.append(stream.stream)
                tokens += drawn[at if window else at + kept - 1 : at + kept]
                starts.append(len(tokens))
        if self.flag:
            report.flagged += [one.stream for one in streams if one.stream in self.flag]
        if self._shape.pattern and self._memory.poisoned[:, 0].any():
            for stream, (lane, *_) in zip(streams, entries, strict=True):
                found, layer, position = self._memory.poisoned[lane].tolist()
                if found:
                    report.poisoned.append(Poisoned(stream.stream, layer, position))

    # --- checks ----------------------------------------------------------------------------------

    def _sum_fixed(self, state: State, lane: int, rows: int, place: int) -> None:
        sum_fixed(self._shape, self._memory.arena, state.tables, lane, rows, place)

    def _check_live(self, state: State, report: Report, *, on_pages: bool) -> None:
        """Sum the live memory of every stream anew (law I11): fixed parts before, pages after."""
        found = self._memory.scratch
        for stream, lane in self._lanes.items():
            found[:] = 0
            if on_pages:
                sum_pages(
                    self._shape, self._memory.arena, state.tables, lane,
                    0, self._rows[lane], self._scratch,
                )  # fmt: skip
            else:
                self._sum_fixed(state, lane, self._rows[lane], self._scratch)
            parts = ON_PAGES_PARTS if on_pages else FIXED_PARTS
            self._compare(report, stream, parts, self._memory.sums[lane], found)

    def _compare(
        self, report: Report, stream: StreamId, parts: Sequence[str], kept: Words, found: Words
    ) -> None:
        for part in parts:
            at = PARTS.index(part)
            if part in self._parts and not np.array_equal(kept[at], found[at]):
                report.breaks.append(Break(stream, part, pair_of(kept[at]), pair_of(found[at])))


_DOES: dict[str, Callable[[FakeDevice, State, Any, Report], None]] = {
    "stream_begun": FakeDevice._begun,
    "resume_refused": FakeDevice._refused,
    "stream_released": FakeDevice._released,
    "pages_leased": FakeDevice._leased,
    "state_dropped": FakeDevice._dropped,
    "fault_injected": FakeDevice._flip,
}
