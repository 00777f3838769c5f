"""A rank of the GLM: what facts do to its memory, wherever that is, and what it says of a step."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.device import Ack, Break, HeldRows, Pair, Poisoned, Report
from ...core.digests import ZERO, add_pairs
from ...core.families.glm import Glm
from ...core.kernels.glm_memory import GlmStep
from ...core.kernels.program_memory import Draws
from ...core.state import State
from ...events import facts as f
from ...events.facts import AnyFact
from ...events.ids import NO_STATE, Rank, StateId, StreamId
from ...events.records import FamilyRules
from ..arena import RESERVED_PAGES
from ..draws import DrawTables
from ..last_step import sum_logits, sum_tokens
from ..leaving import seat_then
from ..settings import DeviceSettings
from .inspect import FIXED, GlmLooks, Seat
from .ledger import PAGED, GlmLedger, RowSums
from .step import CLEAN, GlmBatch, batch_with_drafts, comes_to_an_end, step_tables

Table = NDArray[np.int32]


@dataclass(slots=True)
class GlmRunning:
    """A step under way. tables: the step's, into which what is kept of each run is written."""

    device: "GlmRank"
    state: State
    batch: GlmBatch
    tables: GlmStep
    draws: Draws
    report_so_far: Report
    every_row: bool

    def report(self) -> Report:
        """Wait for the step and say what it did. Raises RankLost if it was aborted."""
        return self.device.finish(self)


class GlmRank:
    """The part of a GLM's device that does not ask where its memory is.

    drafts [lanes, most], draft_counts [lanes]: what is drafted by lane.  copies: of kept states.
    """

    inspector: Any  # a GlmLooks
    drafts: NDArray[np.int64]
    draft_counts: NDArray[np.int64]

    def __init__(
        self, rank: Rank, settings: DeviceSettings, family: Glm, model_digest: str
    ) -> None:
        self.rank, self.settings, self.family = rank, settings, family
        self.model_digest = model_digest
        self.rules: FamilyRules = family.rules()
        pages = settings.pages + RESERVED_PAGES
        self.ledger = GlmLedger(pages, self.rules.page_rows, self.rules.parts)
        self.copies: dict[StateId, Any] = {}  # each with its mark and its sums
        self._draws = DrawTables(family.vocab)
        self._launches = 0
        self._last: GlmRunning | None = None

    # --- where memory is -------------------------------------------------------------------------

    @abstractmethod
    def finish(self, running: GlmRunning) -> Report:
        """Wait for a launched step, and report."""

    @abstractmethod
    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""

    @abstractmethod
    def copied_out(self, lane: int, mark: int, sums: dict[str, Pair], pages: Table | None) -> Any:
        """A copy of the state whose last kept row is the one before `mark`, and of these pages."""

    @abstractmethod
    def copy_back(self, lane: int, copy: Any, table: Table) -> None:
        """Put a copied state into a lane, and its pages, if it has them, on those of a table."""

    @abstractmethod
    def let_go(self, copy: Any) -> None:
        """A copy is not needed any more."""

    # --- the protocol ----------------------------------------------------------------------------

    def begun(self, state: State, facts: Sequence[AnyFact], *, every_row: bool) -> GlmRunning:
        """What facts do to memory is done; the step that they ask for, its tables made."""
        report = Report(self.rank, state.step)
        for fact in facts:
            if isinstance(fact, f.SnapshotTaken):
                self._keep(state, facts, fact)
            else:
                self._do(state, fact, report)
        for fact in facts:  # after the leases: what is copied in stays
            if isinstance(fact, f.StreamBegun) and fact.state != NO_STATE:
                self._resume(state, fact, report)
        if self.settings.digests == "full":
            self._check_fixed(state, report)
        batch = batch_with_drafts(state, facts, self.drafts, self.draft_counts, every_row=every_row)
        draws = self._draws.of(state.streams, batch.rows)
        rows = batch.rows.rows
        if rows > self.settings.rows:
            raise ValueError(f"a step of {rows} rows, the device has {self.settings.rows}")
        self._launches += rows > 0
        spare_page, drafts = self.settings.pages + 1, self.rules.drafts
        tables = step_tables(state, batch, drafts, spare_page, self._launches % 2)
        return GlmRunning(self, state, batch, tables, draws, report, every_row)

    def said(
        self, running: GlmRunning, flags: NDArray[np.uint8] | None, found: RowSums | None
    ) -> Report:
        """The report of a step, counted. flags [rows], found: of its rows; None of one without."""
        report = running.report_so_far
        ended: set[StreamId] = set()
        if flags is not None:
            self._note_flags(running, flags, report)
            if found is not None and self.settings.keeps_rows:
                if running.every_row:
                    report.every_row = self.ledger.every_row(running.batch, found)
                report.sums = self.ledger.add(running.batch, running.tables.kept, found)
            else:
                self.ledger.pass_over(running.batch, running.tables.kept)
            ended = self._note_tokens(running, report)
        if self.settings.keeps_rows:
            self._note_sums(running, report, ended)
        return report

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """The digest of some rows of one digest layer, summed anew from memory."""
        if part == "tokens":
            return sum_tokens(state, stream, first, rows)
        if part == "logits":
            found = [(at, self.logits(stream, at)) for at in range(first, first + rows)]
            return add_pairs(*(sum_logits(row, at) for at, row in found if row is not None))
        return self._looks.sum(self._seat(state, stream), part, first, first + rows, layer)

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head; logits of the last step alone."""
        if part == "tokens":
            return {0: np.int64(state.streams[stream].tokens[position]).tobytes()}
        if part == "logits":
            row = self.logits(stream, position)
            return {} if row is None else {0: row.tobytes()}
        words = self._looks.words(self._seat(state, stream), part, layer, position)
        return {head: row.tobytes() for head, row in words.items()}

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at these positions, by head."""
        return self._looks.rows(self._seat(state, stream), part, layer, first, first + rows)

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        return self._looks.layers(part)

    # --- facts -----------------------------------------------------------------------------------

    def _do(self, state: State, fact: AnyFact, report: Report) -> None:
        """What one fact means to memory, before the step computes."""
        if isinstance(fact, f.PagesLeased):
            self.ledger.leased(fact.pages)
            if self.settings.poisons:
                self._looks.poison_pages(fact.pages, self.settings.poison)
        elif isinstance(fact, f.StreamBegun):
            self.draft_counts[fact.lane] = 0
            self.ledger.begin(fact.stream)
        elif isinstance(fact, f.ResumeRefused | f.StreamReleased):
            self.ledger.forget(fact.stream)
        elif isinstance(fact, f.StateDropped):
            if fact.state in self.copies:
                self.let_go(self.copies.pop(fact.state))
        elif isinstance(fact, f.FaultInjected) and fact.rank == self.rank:
            self._looks.flip(self._seat(state, fact.stream), fact)

    def _keep(self, state: State, facts: Sequence[AnyFact], fact: f.SnapshotTaken) -> None:
        lane, table = seat_then(state, facts, fact)
        held = self.ledger.streams[fact.stream]
        assert held.rows == fact.mark, f"a copy at row {held.rows}, not {fact.mark}"
        own = None if fact.shared else table[: fact.mark // self.rules.page_rows]
        sums = self.ledger.sums(fact.stream)
        self.copies[fact.state] = self.copied_out(int(lane), fact.mark, sums, own)

    def _resume(self, state: State, fact: f.StreamBegun, report: Report) -> None:
        """Restore the copy, sum what is read back, and say where it is not what was kept."""
        copy = self.copies.get(fact.state)
        table = state.tables[fact.lane, : state.streams[fact.stream].pages]
        rows = len(table) * self.rules.page_rows
        if copy is None or copy.mark != rows:
            report.acks.append(Ack(fact.stream, fact.state, ok=False, why="no_copy"))
            return
        self.copy_back(int(fact.lane), copy, table)
        digest: dict[str, Pair] = {}
        tokens = state.streams[fact.stream].tokens[:rows]
        if self.settings.keeps_rows:
            seat = Seat(int(fact.lane), table, rows)
            for part in (*PAGED, *FIXED):
                if part not in self.rules.parts:
                    continue
                found = self._looks.sum(seat, part, 0, rows)
                kept = copy.sums.get(part, ZERO)
                if part in PAGED:
                    kept = self.ledger.of_pages(part, table)
                if found != kept:
                    report.breaks.append(Break(fact.stream, part, kept, found))
                digest[part] = found
        self.ledger.resume(fact.stream, digest, tokens)
        report.acks.append(Ack(fact.stream, fact.state, ok=True, digest=digest))

    # --- what is said of it ----------------------------------------------------------------------

    def _note_flags(self, running: GlmRunning, flags: NDArray[np.uint8], report: Report) -> None:
        """Streams with a kept row that was no number, and the first poisoned row of each."""
        tables, runs = running.tables, running.batch.rows.runs
        rows = running.batch.rows.rows
        if not (np.count_nonzero(flags[:rows]) or np.count_nonzero(tables.poisoned != CLEAN)):
            return
        for run, kept, key in zip(
            runs, tables.kept.tolist(), tables.poisoned.tolist(), strict=True
        ):
            if flags[run.at : run.at + kept].any():
                report.flagged.append(run.stream)
            if key < CLEAN:
                report.poisoned.append(Poisoned(run.stream, key & 0xFFF, key >> 12))

    def _note_tokens(self, running: GlmRunning, report: Report) -> set[StreamId]:
        """The kept tokens of each run that reached the last one known; of every row, if asked.

        The streams that came to where their states are summed: every one of them, if rows were.
        """
        ended: set[StreamId] = set()
        drawn, at = running.draws.tokens.tolist(), 0
        windows, kept = running.batch.windows, running.tables.kept.tolist()
        for run, window, count in zip(running.batch.rows.runs, windows, kept, strict=True):
            own = drawn[at : at + run.sampled]
            at += run.sampled
            new = own[:count] if window else own[-1:]
            if run.accepts:
                report.streams.append(run.stream)
                report.tokens.extend(new)
                report.starts.append(len(report.tokens))
            if window:
                report.drafts[run.stream] = (run.rows - 1, count - 1)
            if report.every_row is not None:
                report.every_row.tokens.append(np.array(own, np.int64))
            if running.every_row or comes_to_an_end(running.state, run, window, new):
                ended.add(run.stream)
        return ended

    def _check_fixed(self, state: State, report: Report) -> None:
        """Compare every stream's fixed parts with what they summed to after the step before."""
        for stream, held in self.ledger.streams.items():
            seat = self._seat(state, stream)
            for part in FIXED:
                found = self._looks.sum(seat, part, 0, max(1, seat.rows))
                if held.fixed.get(part, found) != found:
                    report.breaks.append(Break(stream, part, held.fixed[part], found))

    def _note_sums(self, running: GlmRunning, report: Report, ended: set[StreamId]) -> None:
        """The sums of the step's streams, of fixed parts where a run `ended`.

        At level full: of all streams and parts, after summing what is on pages anew.
        """
        state, full = running.state, self.settings.digests == "full"
        streams = [run.stream for run in running.batch.rows.runs]
        if not (full or ended):
            return
        if full:
            streams = [one for one in state.lanes if one is not None and one in self.ledger.streams]
        ending = [stream for stream in streams if full or stream in ended]
        found_fixed = self._looks.sum_fixed([self._seat(state, stream) for stream in ending])
        fixed = dict(zip(ending, found_fixed, strict=True))
        sums: dict[StreamId, dict[str, Pair]] = {}
        for stream in streams:
            held = self.ledger.streams[stream]
            held.fixed.clear()
            if stream not in fixed:
                continue
            held.fixed.update(fixed[stream])
            seat, mine = self._seat(state, stream), self.ledger.sums(stream)
            for part in PAGED if full else ():
                if part in self.rules.parts:
                    found = self._looks.sum(seat, part, 0, held.rows)
                    if found != mine[part]:
                        report.breaks.append(Break(stream, part, mine[part], found))
        for stream in streams:
            mine = self.ledger.sums(stream)
            sums[stream] = {part: mine[part] for part in self.rules.parts if part in mine}
        report.sums = sums

    def _seat(self, state: State, stream: StreamId) -> Seat:
        lane = int(state.streams[stream].lane)
        return Seat(lane, state.tables[lane], self.ledger.streams[stream].rows)

    @property
    def _looks(self) -> GlmLooks:
        looks: GlmLooks = self.inspector
        return looks
