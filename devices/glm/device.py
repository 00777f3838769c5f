"""The GLM on one CPU rank: its memory and the threads that run its program, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.device import Ack, Break, HeldRows, Pair, Poisoned, Report
from ...core.digests import ZERO, add_pairs
from ...core.families.glm import Glm
from ...core.kernels.glm_interpreter import run_glm
from ...core.kernels.glm_memory import OPS, GlmMemory, GlmParty, GlmStep
from ...core.kernels.places import places_of
from ...core.kernels.program_memory import Draws
from ...core.link import RankLost
from ...core.state import State
from ...events import facts as f
from ...events.facts import AnyFact
from ...events.ids import NO_STATE, Rank, StateId, StreamId
from ..arena import RESERVED_PAGES
from ..batch import Batch
from ..draws import DrawTables
from ..exchange import Exchange
from ..last_step import logits_of, sum_logits, sum_tokens
from ..leaving import seat_then
from ..ledger import token_sums
from ..settings import DeviceSettings
from ..team import Team
from .arena import RingSizes
from .copies import KeptCopy, copy_in, copy_out, copy_pages_in, copy_pages_out
from .inspect import GlmInspector, Seat
from .ledger import BY_ROW, PAGED, GlmLedger, RowSums
from .party import party_of
from .program import GlmProgram
from .step import CLEAN, GlmBatch, batch_with_drafts, comes_to_an_end, empty_tables, step_tables

FIXED = ("states", "rings")


@dataclass(slots=True)
class GlmRunning:
    """A step under way: the other threads are awake, `report` runs the caller's share."""

    device: "GlmDevice"
    state: State
    batch: GlmBatch
    tables: GlmStep
    draws: Draws
    report_so_far: Report
    every_row: bool

    def report(self) -> Report:
        """Wait for the step and say what it did. Raises RankLost if it was aborted."""
        return self.device.finish(self)


class GlmDevice:
    """One rank of a group; the ranks of a group share a checkpoint and an exchange."""

    def __init__(
        self,
        rank: Rank,
        world: int,
        threads: int,
        spins: int,
        settings: DeviceSettings,
        family: Glm,
        program: GlmProgram,
        memory: GlmMemory,
        rings: RingSizes,
        exchange: Exchange,
        latent_exponent: int,
        model_digest: str,
    ) -> None:
        self.rank, self.settings, self.family = rank, settings, family
        self.program, self.memory, self.rings = program, memory, rings
        self.exchange, self.model_digest = exchange, model_digest
        self._places = places_of(memory)
        self.rules = family.rules()
        pages = settings.pages + RESERVED_PAGES
        self.ledger = GlmLedger(pages, self.rules.page_rows, self.rules.parts)
        first_head, last_head = family.kda_heads(world, int(rank))
        s = family.sizes
        self.inspector = GlmInspector(
            memory, rings, first_head, last_head - first_head, len(family.sparse), s.kpool, s.taps
        )
        self.copies: dict[StateId, KeptCopy] = {}
        self._draws = DrawTables(family.vocab)
        self._parties: list[GlmParty] = [
            party_of(family, settings, int(rank), world, thread, threads, spins, latent_exponent)
            for thread in range(threads)
        ]
        self._launches = 0
        self._last: GlmRunning | None = None
        self._team = Team(threads, f"kvtape rank {rank}", self._worker_failed)
        self._compile()
        if settings.poisons:
            reserved = tuple(range(settings.pages, pages))
            self.inspector.poison_pages(reserved, settings.poison)

    # --- the protocol ----------------------------------------------------------------------------

    def launch(
        self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False
    ) -> GlmRunning:
        """Begin a step; `state` has the facts applied. every_row: report sums after each row."""
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
        m = self.memory
        batch = batch_with_drafts(state, facts, m.drafts, m.draft_counts, every_row=every_row)
        draws = self._draws.of(state.streams, batch.rows)
        self._launches += batch.rows.rows > 0
        spare_page, drafts = self.settings.pages + 1, self.rules.drafts
        tables = step_tables(state, batch, drafts, spare_page, self._launches % 2)
        running = GlmRunning(self, state, batch, tables, draws, report, every_row)
        if batch.rows.rows:
            self._prepare(batch)
            self.exchange.begin(self.rank, state.step)
            self._team.wake(lambda thread: self._run(running, thread))
            self._last = running
        return running

    def finish(self, running: GlmRunning) -> Report:
        """Run the caller's share of a launched step, wait for the others, and report."""
        report = running.report_so_far
        ended: set[StreamId] = set()
        if running.batch.rows.rows:
            try:
                self._run(running, 0)
            finally:
                self.exchange.end(self.rank)
            self._note_flags(running, report)
            if self.settings.keeps_rows:
                self._count(running, report)
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
            found = [(at, self._logits(stream, at)) for at in range(first, first + rows)]
            return add_pairs(*(sum_logits(row, at) for at, row in found if row is not None))
        return self.inspector.sum(self._seat(state, stream), part, first, first + rows, layer)

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head; logits of the last step alone."""
        if part == "tokens":
            return {0: np.int64(state.streams[stream].tokens[position]).tobytes()}
        if part == "logits":
            row = self._logits(stream, position)
            return {} if row is None else {0: row.tobytes()}
        words = self.inspector.words(self._seat(state, stream), part, layer, position)
        return {head: row.tobytes() for head, row in words.items()}

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """The rows of one digest layer that stand at these positions, by head."""
        return self.inspector.rows(self._seat(state, stream), part, layer, first, first + rows)

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        return self.inspector.layers(part)

    def close(self) -> None:
        """Let threads and memory go; the group cannot run another step."""
        self.exchange.close()
        self._team.close()

    # --- facts -----------------------------------------------------------------------------------

    def _do(self, state: State, fact: AnyFact, report: Report) -> None:
        """What one fact means to memory, before the step computes."""
        if isinstance(fact, f.PagesLeased):
            self.ledger.leased(fact.pages)
            if self.settings.poisons:
                self.inspector.poison_pages(fact.pages, self.settings.poison)
        elif isinstance(fact, f.StreamBegun):
            self.memory.draft_counts[fact.lane] = 0
            self.ledger.begin(fact.stream)
        elif isinstance(fact, f.ResumeRefused | f.StreamReleased):
            self.ledger.forget(fact.stream)
        elif isinstance(fact, f.StateDropped):
            self.copies.pop(fact.state, None)
        elif isinstance(fact, f.FaultInjected) and fact.rank == self.rank:
            self.inspector.flip(self._seat(state, fact.stream), fact)

    def _keep(self, state: State, facts: Sequence[AnyFact], fact: f.SnapshotTaken) -> None:
        lane, table = seat_then(state, facts, fact)
        held = self.ledger.streams[fact.stream]
        assert held.rows == fact.mark, f"a copy at row {held.rows}, not {fact.mark}"
        taps, own = self.family.sizes.taps, None
        if not fact.shared:
            pages = table[: fact.mark // self.rules.page_rows]
            own = copy_pages_out(self.memory, self.ledger.pages, pages)
        self.copies[fact.state] = copy_out(
            self.memory, self.rings, int(lane), fact.mark, taps, dict(held.sums), own
        )

    def _resume(self, state: State, fact: f.StreamBegun, report: Report) -> None:
        """Restore the copy, sum what is read back, and say where it is not what was kept."""
        copy = self.copies.get(fact.state)
        table = state.tables[fact.lane, : state.streams[fact.stream].pages]
        rows = len(table) * self.rules.page_rows
        if copy is None or copy.mark != rows:
            report.acks.append(Ack(fact.stream, fact.state, ok=False, why="no_copy"))
            return
        copy_in(self.memory, self.rings, int(fact.lane), copy, self.family.sizes.taps)
        if copy.pages is not None:
            copy_pages_in(self.memory, self.ledger.pages, table, copy.pages)
        digest: dict[str, Pair] = {}
        tokens = state.streams[fact.stream].tokens[:rows]
        if self.settings.keeps_rows:
            seat = Seat(int(fact.lane), table, rows)
            for part in (*PAGED, *FIXED):
                if part not in self.rules.parts:
                    continue
                found = self.inspector.sum(seat, part, 0, rows)
                kept = copy.sums.get(part, ZERO)
                if part in PAGED:
                    kept = self.ledger.of_pages(part, table)
                if found != kept:
                    report.breaks.append(Break(fact.stream, part, kept, found))
                digest[part] = found
        self.ledger.resume(fact.stream, digest, tokens)
        report.acks.append(Ack(fact.stream, fact.state, ok=True, digest=digest))

    # --- the step --------------------------------------------------------------------------------

    def _compile(self) -> None:
        """Run a program without ops, so that no step waits for the compiler."""
        none = np.zeros(0, np.int64)
        batch = GlmBatch(Batch([], none, none, none, none, none), [], [])
        tables = empty_tables(self.settings.lanes)
        places = self._places.copy()
        places[OPS, 1] = 0
        draws = self._draws.of({}, batch.rows)
        run_glm(places, self.exchange.shared, tables, draws, self._parties[0])

    def _prepare(self, batch: GlmBatch) -> None:
        """Zero what a step adds to."""
        m, rows = self.memory, batch.rows.rows
        if rows > self.settings.rows:
            raise ValueError(f"a step of {rows} rows, the device has {self.settings.rows}")
        if self.settings.poisons:
            self.inspector.poison_scratch(self.settings.poison)
        for sums in (m.row_sums, m.key_sums, m.draft_sums):
            sums[:rows] = 0
        m.flags[:rows] = 0
        m.turns[:] = 0
        m.drafting[0] = 0

    def _run(self, running: GlmRunning, thread: int) -> None:
        """One thread's whole step."""
        shared, party = self.exchange.shared, self._parties[thread]
        stopped = run_glm(self._places, shared, running.tables, running.draws, party)
        if stopped >= 0:
            step = running.state.step
            raise RankLost(f"rank {self.rank} stopped in step {step}: {self.exchange.reason}")

    def _worker_failed(self, error: BaseException) -> None:
        self.exchange.abort(f"a thread of rank {self.rank} failed: {error!r}")

    # --- what is said of it ----------------------------------------------------------------------

    def _note_flags(self, running: GlmRunning, report: Report) -> None:
        """Streams with a kept row that was no number, and the first poisoned row of each."""
        flags, tables = self.memory.flags, running.tables
        runs = running.batch.rows.runs
        for run, kept, key in zip(
            runs, tables.kept.tolist(), tables.poisoned.tolist(), strict=True
        ):
            if flags[run.at : run.at + kept].any():
                report.flagged.append(run.stream)
            if key < CLEAN:
                report.poisoned.append(Poisoned(run.stream, key & 0xFFF, key >> 12))

    def _count(self, running: GlmRunning, report: Report) -> None:
        """Add the step's kept rows to the running sums; say them after each row, if asked."""
        m, rows = self.memory, running.batch.rows
        shares = self.exchange.shared.sums[running.tables.side, :, : len(rows.selected)]
        found = RowSums({
            "rows": m.row_sums[: rows.rows],
            "keys": m.key_sums[: rows.rows],
            "drafts": m.draft_sums[: rows.rows],
            "logits": shares.sum(axis=0, dtype=np.uint64),
            "tokens": token_sums(rows.tokens, rows.positions),
        })  # fmt: skip
        if running.every_row:
            report.every_row = self.ledger.every_row(running.batch, found)
        self.ledger.add(running.batch, running.tables.kept, found)

    def _note_tokens(self, running: GlmRunning, report: Report) -> set[StreamId]:
        """The kept tokens of each run that reached the last one known; of every row, if asked.

        The streams that came to where their states are summed: every one of them, if rows were.
        """
        ended: set[StreamId] = set()
        drawn, at = running.draws.tokens, 0
        windows, kept = running.batch.windows, running.tables.kept.tolist()
        for run, window, count in zip(running.batch.rows.runs, windows, kept, strict=True):
            own = drawn[at : at + run.sampled]
            at += run.sampled
            new = [int(token) for token in (own[:count] if window else own[-1:])]
            if run.accepts:
                report.streams.append(run.stream)
                report.tokens.extend(new)
                report.starts.append(len(report.tokens))
            if window:
                report.drafts[run.stream] = (run.rows - 1, count - 1)
            if report.every_row is not None:
                report.every_row.tokens.append(own)
            if running.every_row or comes_to_an_end(running.state, run, window, new):
                ended.add(run.stream)
        return ended

    def _check_fixed(self, state: State, report: Report) -> None:
        """Compare every stream's fixed parts with what they summed to after the step before."""
        for stream, held in self.ledger.streams.items():
            seat = self._seat(state, stream)
            for part in FIXED:
                found = self.inspector.sum(seat, part, 0, max(1, seat.rows))
                if part in held.sums and found != held.of(part):
                    report.breaks.append(Break(stream, part, held.of(part), found))

    def _note_sums(self, running: GlmRunning, report: Report, ended: set[StreamId]) -> None:
        """The sums of the step's streams, of fixed parts where a run `ended`.

        At level full: of all streams and parts, after summing what is on pages anew.
        """
        state, full = running.state, self.settings.digests == "full"
        streams = [run.stream for run in running.batch.rows.runs]
        if full:
            streams = [one for one in state.lanes if one is not None and one in self.ledger.streams]
        sums: dict[StreamId, dict[str, Pair]] = {}
        for stream in streams:
            held, seat = self.ledger.streams[stream], self._seat(state, stream)
            for part in FIXED:
                held.sums.pop(part, None)
                if full or stream in ended:
                    held.sums[part] = self.inspector.sum(seat, part, 0, max(1, seat.rows))
            parts = (*BY_ROW, *held.sums)
            sums[stream] = {part: held.of(part) for part in self.rules.parts if part in parts}
            for part in PAGED if full else ():
                if part in self.rules.parts:
                    found = self.inspector.sum(seat, part, 0, held.rows)
                    if found != held.of(part):
                        report.breaks.append(Break(stream, part, held.of(part), found))
        report.sums = sums

    def _seat(self, state: State, stream: StreamId) -> Seat:
        lane = int(state.streams[stream].lane)
        return Seat(lane, state.tables[lane], self.ledger.streams[stream].rows)

    def _logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        runs = self._last.batch.rows.runs if self._last is not None else ()
        return logits_of(runs, self.program.logits, self.memory.floats, stream, position)
