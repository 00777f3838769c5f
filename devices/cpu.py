"""The CPU device: one rank's memory and the threads that run its program, step by step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.device import Ack, Break, Report
from ..core.families.llama import Llama
from ..core.kernels.attend import cut_tiles, tile_rows
from ..core.kernels.counting import CLEAN
from ..core.kernels.interpreter import begin_program, run_program
from ..core.kernels.program_memory import Party, RankMemory, StepTables
from ..core.kernels.step_words import STEP_WORDS
from ..core.kernels.team import new_team, wake_up
from ..core.link import RankLost
from ..core.state import State
from ..events.facts import AnyFact
from ..events.ids import Rank, StreamId
from .arena import RESERVED_PAGES
from .batch import Batch, batch_of
from .draws import DrawTables
from .exchange import Exchange
from .inspect import Inspector
from .last_step import logits_of
from .ledger import Ledger, Left, Sums
from .paged import PagedRank, PagedRunning
from .program import Program
from .settings import DeviceSettings
from .tally import note_all_sums, note_flags, note_tokens
from .team import Team
from .weights.checkpoint import Checkpoint

CpuRunning = PagedRunning[StepTables]


class CpuDevice(PagedRank):
    """One rank of a group; the ranks of a group share a checkpoint and an exchange."""

    def __init__(
        self,
        rank: Rank,
        world: int,
        threads: int,
        spins: int,
        settings: DeviceSettings,
        checkpoint: Checkpoint,
        family: Llama,
        program: Program,
        memory: RankMemory,
        exchange: Exchange,
        model_digest: str,
    ) -> None:
        self.rank, self.world, self.threads = rank, world, threads
        self.settings, self.checkpoint, self.family = settings, checkpoint, family
        self.program, self.memory, self.exchange = program, memory, exchange
        self.model_digest = model_digest
        self.rules = family.rules()
        first_head, _ = family.heads(world, rank)
        self.ledger = Ledger(settings.pages + RESERVED_PAGES, self.rules.page_rows, settings.lanes)
        self.inspector = Inspector(memory, first_head, self.rules.page_rows)
        self._draws = DrawTables(family.vocab)
        self._parties = [self._party(thread, spins, first_head) for thread in range(threads)]
        self._tiles = np.zeros((settings.rows, 2), np.int64)
        self._launches = 0
        self._last: CpuRunning | None = None
        self._words = np.zeros(STEP_WORDS, np.int64)
        self._seen = [0] * threads  # the last step of each worker
        new_team(memory.team, threads - 1)
        if settings.poisons:
            reserved = tuple(range(settings.pages, settings.pages + RESERVED_PAGES))
            self.inspector.poison_pages(reserved, settings.poison)
        self._compile(settings.lanes)
        self._team = Team(threads, f"kvtape rank {rank}", self._worker_failed)

    # --- the protocol ----------------------------------------------------------------------------

    def launch(
        self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False
    ) -> CpuRunning:
        """Begin a step; `state` has the facts applied. every_row: report sums after each row."""
        acks: list[Ack] = []
        breaks: list[Break] = []
        for fact in facts:
            self.do(state, fact, acks, breaks)
        batch = batch_of(state, facts, every_row=every_row)
        draws = self._draws.of(state.streams, batch)
        tables = self._tables(state.tables, batch)
        running = CpuRunning(self.finish, state, batch, tables, draws, acks, breaks, every_row)
        if batch.rows:
            self._prepare(batch)
            self.exchange.begin(self.rank, state.step)
            self._last = running  # which keeps the arrays that the words speak of
            if begin_program(self.memory, self._words, running.tables, draws):
                self._team.wake(self._share)
        return running

    def finish(self, running: CpuRunning) -> Report:
        """Run the caller's share of a launched step, wait for the others, and report."""
        state, batch = running.state, running.batch
        report = Report(self.rank, state.step, acks=running.acks, breaks=running.breaks)
        if batch.rows:
            try:
                self._run(running)
            finally:
                self.exchange.end(self.rank)
            self._count(running, report)
            note_tokens(batch, running.draws, report)
        if self.settings.digests == "full":
            note_all_sums(state, self.ledger, self.inspector, report)
        return report

    def close(self) -> None:
        """Let threads and memory go; the group cannot run another step."""
        self.exchange.close()
        self._team.close()

    # --- the step --------------------------------------------------------------------------------

    def _compile(self, lanes: int) -> None:
        """Run a program without ops, so that no step waits for the compiler."""
        none = np.zeros(0, np.int64)
        batch = Batch([], none, none, none, none, none)
        memory = self.memory._replace(ops=self.memory.ops[:0], team=self.memory.team.copy())
        tables = self._tables(np.zeros((lanes, 1), np.int32), batch)
        draws, shared = self._draws.of({}, batch), self.exchange.shared
        self.ledger.add(batch, self._left(tables), keeps=self.settings.keeps_rows)
        wake_up(memory.team)
        begin_program(memory, self._words, tables, draws)
        run_program(memory, shared, self._words, self._parties[0], 0)

    def _party(self, thread: int, spins: int, first_head: int) -> Party:
        a = self.family.attention
        return Party(
            rank=int(self.rank),
            world=self.world,
            thread=thread,
            threads=self.threads,
            spins=spins,
            first_head=first_head,
            eps=np.float32(self.family.eps),
            scale=np.float32(1) / np.sqrt(np.float32(a.head_dim)),
            digests=self.settings.keeps_rows,
        )

    def _tables(self, pages: NDArray[np.int32], batch: Batch) -> StepTables:
        """The step's tables; page tables are copied, the state may go on while the step runs."""
        most = tile_rows(self.family.attention.group)
        tiles = cut_tiles(batch.positions, batch.lanes, 0, batch.rows, most, self._tiles)
        self._launches += batch.rows > 0
        return StepTables(
            positions=batch.positions,
            lanes=batch.lanes,
            selected=batch.selected,
            tables=pages.copy(),
            tiles=self._tiles[:tiles],
            runs=batch.table(),
            poisoned=np.full(len(batch.runs), CLEAN, np.int64),
            side=self._launches % 2,
        )

    def _prepare(self, batch: Batch) -> None:
        """Zero what a step adds to, and put the embedding rows in their place."""
        m = self.memory
        if batch.rows > self.settings.rows:
            raise ValueError(f"a step of {batch.rows} rows, the device has {self.settings.rows}")
        if self.settings.poisons:
            self.inspector.poison_scratch(self.settings.poison)
        m.row_sums[: batch.rows] = 0
        m.flags[: batch.rows] = 0
        m.turns[:] = 0
        x = self.program.x
        rows = m.floats[x.at : x.at + batch.rows * x.width].reshape(batch.rows, x.width)
        self.checkpoint.embed(batch.tokens, rows)

    def _run(self, running: CpuRunning) -> None:
        """The caller's share of a step, and the wait for the others."""
        shared, party = self.exchange.shared, self._parties[0]
        _, stopped = run_program(self.memory, shared, self._words, party, 0)
        if stopped >= 0:
            step = running.state.step
            raise RankLost(f"rank {self.rank} stopped in step {step}: {self.exchange.reason}")

    def _share(self, thread: int) -> None:
        """A worker's share of all steps that it has not seen, until it is to sleep."""
        shared, party = self.exchange.shared, self._parties[thread]
        wake_up(self.memory.team)
        self._seen[thread], stopped = run_program(
            self.memory, shared, self._words, party, self._seen[thread]
        )
        if stopped >= 0:
            raise RankLost(f"rank {self.rank} stopped: {self.exchange.reason}")

    def _worker_failed(self, error: BaseException) -> None:
        self.exchange.abort(f"a thread of rank {self.rank} failed: {error!r}")

    def _count(self, running: CpuRunning, report: Report) -> None:
        """Look at the step's rows, add them to the running sums, and say both, as it was asked."""
        batch, tables, keeps = running.batch, running.tables, self.settings.keeps_rows
        shares = self.exchange.shared.sums
        if running.every_row and keeps:
            logits: Sums = shares[tables.side, :, : len(batch.selected)].sum(0, np.uint64)
            report.every_row = self.ledger.every_row(
                batch, self.memory.row_sums[: batch.rows], logits
            )
        sound, sums = self.ledger.add(batch, self._left(tables), keeps=keeps)
        if not sound:
            note_flags(batch, self.memory.flags, tables.poisoned, report)
        if keeps:
            report.sums = sums

    def _left(self, tables: StepTables) -> Left:
        m = self.memory
        return Left(
            tables.runs, tables.tables, m.flags, tables.poisoned, m.row_sums,
            self.exchange.shared.sums, tables.side,
        )  # fmt: skip

    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        runs = self._last.batch.runs if self._last is not None else ()
        return logits_of(runs, self.program.logits, self.memory.floats, stream, position)
