"""The CUDA device: one rank's memory on a GPU, whose steps are two graphs and three copies.

The host writes a step's tables and its embedding rows, and reads back tokens, flags and digests;
between them are the graph of all layers and that of the rows that get logits.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.device import Ack, Break, Report
from ...core.families.llama import Llama
from ...core.kernels.cuda.attend import NEAR
from ...core.state import State
from ...events.facts import AnyFact
from ...events.ids import Rank, StreamId
from ..arena import RESERVED_PAGES
from ..batch import Batch, batch_of
from ..draws import DrawTables
from ..last_step import row_of
from ..ledger import Ledger, Left
from ..paged import PagedRank, PagedRunning, leases_together
from ..program import Program
from ..settings import DeviceSettings
from ..step_header import header_of
from ..tally import note_all_sums, note_flags, note_tokens
from ..weights.checkpoint import Checkpoint
from .ahead import compile_ahead
from .gathering import Gather, alone
from .graph import Graphs
from .inspect import CudaInspector
from .lower import Lowering
from .memory import CudaMemory
from .on_card import OnCard
from .tables import Heard, StepTables
from .touched import soil_of_llama

CudaRunning = PagedRunning[NDArray[np.int32]]


class CudaDevice(OnCard, PagedRank):
    """One rank of a group, on a card of its own."""

    def __init__(
        self,
        rank: Rank,
        world: int,
        settings: DeviceSettings,
        checkpoint: Checkpoint,
        family: Llama,
        program: Program,
        memory: CudaMemory,
        model_digest: str,
        *,
        gather: Gather = alone,
        captures: bool = True,
    ) -> None:
        """captures: steps are graphs; otherwise each kernel is launched by itself."""
        OnCard.__init__(self, rank, world, memory, gather)
        self.settings, self.checkpoint, self.family = settings, checkpoint, family
        self.program = program
        self.model_digest = model_digest
        self.rules = family.rules()
        first, last = family.heads(world, rank)
        self.ledger = Ledger(settings.pages + RESERVED_PAGES, self.rules.page_rows, settings.lanes)
        self.inspector = CudaInspector(memory, first, last - first, self.rules.page_rows)
        lowering = Lowering(
            program, family, memory, first, last - first, int(rank) == 0, settings.keeps_rows,
            gather, settings.verify,
        )  # fmt: skip
        made = partial(Graphs, self.card, rows=settings.rows, captures=captures)
        self.near, self.head = made(lowering.near), made(lowering.head, rows=settings.logit_rows)
        self.far = made(lowering.far) if settings.context > NEAR else self.near
        self._graphs = [self.near, self.far, self.head]
        self._soil = soil_of_llama(memory, program, settings)
        self._draws = DrawTables(family.vocab)
        self._tables = StepTables(memory.step, self.card.staged(memory.step.bytes), settings.pages)
        rows = self.card.staged(settings.rows * family.hidden * 4).view(np.float32)
        self._rows: NDArray[np.float32] = rows.reshape(settings.rows, family.hidden)
        # Cutting an array of the card takes longer than copying it.
        floats, at, width = memory.floats, program.x.at, program.x.width
        self._x = {n: floats[at : at + n * width] for n in self.near.buckets}
        self._told = memory.arrays["step"][memory.step.told_at :]
        self._last: CudaRunning | None = None
        if settings.poisons:
            reserved = tuple(range(settings.pages, settings.pages + RESERVED_PAGES))
            self.inspector.poison_pages(reserved, settings.poison)

    def warm(self) -> None:
        """Compile, load and capture every bucket, so that no stream waits for it.

        The steps are of rows that nobody asked for.
        """
        self.card.use()
        every = list({id(one): one for one in (self.near, self.far, self.head)}.values())
        compile_ahead(every)
        if self._soil is not None:
            self._soil.warm()
        none = np.zeros(0, np.int64)
        batch = Batch([], none, none, none, none, none)
        draws = self._draws.of({}, batch)
        tables = np.full((self.settings.lanes, 1), self.settings.pages, np.int32)
        for graphs in every:
            for rows in graphs.buckets:
                self._tables.write(batch, draws, tables, self.settings.rows, self.settings.rows)
                self.card.upload(self._tables.block, self.memory.arrays["step"])
                graphs.run(rows)
                self.card.wait()
        heard = self._tables.heard()
        left = self._left(tables, heard, heard.flags, 0)
        self.ledger.add(batch, left, keeps=self.settings.keeps_rows)

    # --- the protocol ----------------------------------------------------------------------------

    def launch(
        self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False
    ) -> CudaRunning:
        """Put a step into the stream; `state` has the facts applied."""
        acks: list[Ack] = []
        breaks: list[Break] = []
        self.card.use()
        for fact in leases_together(facts):
            self.guarded(state.step, partial(self.do, state, fact, acks, breaks))
        batch = batch_of(state, facts, every_row=every_row)
        draws = self._draws.of(state.streams, batch)
        running = CudaRunning(
            self.finish, state, batch, state.tables.copy(), draws, acks, breaks, every_row
        )
        if batch.rows:
            self._last = running
            if self.world > 1:
                self.gather.begin(state.step, header_of(state.step, facts, batch))
            self.guarded(state.step, lambda: self._enqueue(running))
        return running

    def finish(self, running: CudaRunning) -> Report:
        """Wait for a launched step, count what came back, and report."""
        state, batch = running.state, running.batch
        report = Report(self.rank, state.step, acks=running.acks, breaks=running.breaks)
        self.card.use()
        if batch.rows:
            self.guarded(state.step, partial(self.wait, state.step))
            if self.settings.verify:
                self.look_at_products(state.step, self._tables.at["checks"])
            heard = self._tables.heard()
            running.draws.tokens[:] = heard.tokens[: len(batch.selected)]
            self._count(running, heard, report)
            note_tokens(batch, running.draws, report)
        if self.settings.digests == "full":
            note_all_sums(state, self.ledger, self.inspector, report)
        return report

    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        runs = self._last.batch.runs if self._last is not None else ()
        return self.row_of_logits(self.program.logits, row_of(runs, stream, position))

    # --- the step --------------------------------------------------------------------------------

    def _enqueue(self, running: CudaRunning) -> None:
        batch, card, arrays = running.batch, self.card, self.memory.arrays
        sampled = len(batch.selected)
        if batch.rows > self.settings.rows:
            raise ValueError(f"a step of {batch.rows} rows, the device has {self.settings.rows}")
        self.refuse_logits(sampled)
        trunk = self.near if int(batch.positions.max()) < NEAR else self.far
        bucket, picked = trunk.bucket(batch.rows), self.head.bucket(sampled)
        self.soil(bucket, picked)
        self._tables.write(batch, running.draws, running.tables, bucket, picked)
        card.upload(self._tables.block, arrays["step"])
        self.bring_penalties(running.draws)
        self.checkpoint.embed(batch.tokens, self._rows[: batch.rows])
        self._rows[batch.rows : bucket] = 0
        card.upload(self._rows[:bucket].reshape(-1), self._x[bucket])
        trunk.run(batch.rows)
        self.head.run(sampled)
        card.download(self._told, self._tables.told)
        self.gather.end()

    def _count(self, running: CudaRunning, heard: Heard, report: Report) -> None:
        """Look at the step's rows, add them to the running sums, and say both, as it was asked."""
        batch, keeps = running.batch, self.settings.keeps_rows
        sampled = len(batch.selected)
        flags: NDArray[Any] = heard.flags[: batch.rows]
        if np.count_nonzero(heard.picked_flags[:sampled]):
            flags[batch.selected] |= heard.picked_flags[:sampled]
        if running.every_row and keeps:
            report.every_row = self.ledger.every_row(
                batch, heard.row_sums[: batch.rows], heard.logit_sums[:sampled]
            )
        left = self._left(running.tables, heard, flags, len(batch.runs))
        sound, sums = self.ledger.add(batch, left, keeps=keeps)
        if not sound:
            note_flags(batch, flags, left.poisoned, report)
        if keeps:
            report.sums = sums

    def _left(
        self, tables: NDArray[np.int32], heard: Heard, flags: NDArray[np.uint8], runs: int
    ) -> Left:
        """What came back of so many runs, as the ledger counts it."""
        table, shares = self._tables.at["runs"][:runs], heard.logit_sums[None, None]
        return Left(table, tables, flags, heard.poisoned[:runs], heard.row_sums, shares, 0)
