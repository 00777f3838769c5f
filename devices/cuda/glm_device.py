"""The GLM on a GPU: one rank whose steps are graphs of its program's segments, and two copies.

The host writes a step's tables and reads back tokens, what was kept, drafts, flags and digests:
what is kept of what was drafted, and what is drafted next, the card says by itself.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair, Report
from ...core.families.glm import Glm
from ...core.glm_ops import Rows
from ...core.state import State
from ...events.facts import AnyFact
from ...events.ids import Rank, StreamId
from ..arena import RESERVED_PAGES
from ..batch import Batch
from ..glm.arena import RingSizes
from ..glm.ledger import RowSums
from ..glm.party import party_of
from ..glm.program import GlmProgram
from ..glm.rank import GlmRank, GlmRunning, Table
from ..glm.step import empty_tables
from ..last_step import row_of
from ..ledger import token_sums
from ..settings import DeviceSettings
from ..step_header import header_of
from .ahead import compile_ahead
from .gathering import Gather, alone
from .glm_copies import CardCopies, KeptOnCard
from .glm_inspect import GlmCudaInspector
from .glm_lower import GlmLowering
from .glm_memory import GlmCudaMemory
from .glm_tables import GlmTables
from .graph import Graphs
from .on_card import OnCard
from .touched import soil_of_glm


class GlmCudaDevice(OnCard, GlmRank):
    """One rank of a group, on a card of its own."""

    def __init__(
        self,
        rank: Rank,
        world: int,
        settings: DeviceSettings,
        family: Glm,
        program: GlmProgram,
        memory: GlmCudaMemory,
        rings: RingSizes,
        latent_exponent: int,
        model_digest: str,
        *,
        gather: Gather = alone,
        captures: bool = True,
    ) -> None:
        """captures: steps are graphs; otherwise each kernel is launched by itself."""
        OnCard.__init__(self, rank, world, memory, gather)
        GlmRank.__init__(self, rank, settings, family, model_digest)
        self.program, self.rings = program, rings
        room = memory.step
        self.drafts = np.zeros((settings.lanes, max(1, room.drafts)), np.int64)
        self.draft_counts = np.zeros(settings.lanes, np.int64)
        first, last = family.kda_heads(world, int(rank))
        s = family.sizes
        self.inspector = GlmCudaInspector(
            rings, first, last - first, len(family.recurrent), family.caches, len(family.sparse),
            s.kpool, s.taps, memory,
        )  # fmt: skip
        self._kept = CardCopies(memory, rings, len(family.recurrent), s.taps)
        party = party_of(family, settings, int(rank), world, 0, 1, 0, latent_exponent)
        lowering = GlmLowering(program, memory, party, int(rank) == 0, gather, settings.verify)
        rows_of = {
            Rows.ALL: settings.rows, Rows.SELECTED: settings.logit_rows,
            Rows.DRAFTED: settings.lanes,
        }  # fmt: skip
        self._sets: list[Rows] = []
        for segment in lowering.segments():
            most = rows_of[segment.set]
            lower = partial(lowering.launches, segment)
            self._graphs.append(Graphs(self.card, lower, rows=most, captures=captures))
            self._sets.append(segment.set)
        self._soil = soil_of_glm(memory, program, settings)
        self._tables = GlmTables(room, self.card.staged(room.bytes), settings.pages)
        self._told = memory.arrays["step"][room.told_at :]
        if settings.poisons:
            reserved = tuple(range(settings.pages, settings.pages + RESERVED_PAGES))
            self.inspector.poison_pages(reserved, settings.poison)

    def warm(self) -> None:
        """Compile, load and capture every bucket, so that no stream waits for it.

        The steps are of rows that nobody asked for.
        """
        self.card.use()
        compile_ahead(self._graphs)
        if self._soil is not None:
            self._soil.warm()
        none = np.zeros(0, np.int64)
        draws = self._draws.of({}, Batch([], none, none, none, none, none))
        step, rows = empty_tables(self.settings.lanes), self.settings.rows
        for graphs in self._graphs:
            for bucket in graphs.buckets:
                self._tables.write(step, draws, rows, rows)
                self.card.upload(self._tables.block, self.memory.arrays["step"])
                graphs.run(bucket)
                self.card.wait()

    # --- the protocol ----------------------------------------------------------------------------

    def launch(
        self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False
    ) -> GlmRunning:
        """Put a step into the stream; `state` has the facts applied."""
        self.card.use()
        begun: list[GlmRunning] = []
        self.guarded(
            state.step, lambda: begun.append(self.begun(state, facts, every_row=every_row))
        )
        (running,) = begun
        batch = running.batch.rows
        if batch.rows:
            self._last = running
            if self.world > 1:
                self.gather.begin(state.step, header_of(state.step, facts, batch))
            self.guarded(state.step, partial(self._enqueue, running))
            self.ledger.settle()  # while the card computes
        return running

    def finish(self, running: GlmRunning) -> Report:
        """Wait for a launched step, count what came back, and report."""
        state, batch, step = running.state, running.batch.rows, running.tables
        self.card.use()
        if not batch.rows:
            return self.said(running, None, None)
        tokens = token_sums(batch.tokens, batch.positions) if self.settings.keeps_rows else None
        self.guarded(state.step, partial(self.wait, state.step))
        if self.settings.verify:
            self.look_at_products(state.step, self._tables.at["checks"])
        heard = self._tables.heard(step)
        running.draws.tokens[:] = heard.drawn
        step.poisoned[:] = heard.poisoned
        if self.rules.drafts:
            step.kept[:] = heard.kept
            lanes = step.runs[:, 0]
            self.drafts[lanes], self.draft_counts[lanes] = heard.drafts, heard.draft_counts
        found = None if tokens is None else RowSums(heard.paged, heard.logit_sums, tokens)
        return self.said(running, heard.flags, found)

    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        runs = self._last.batch.rows.runs if self._last is not None else ()
        return self.row_of_logits(self.program.logits, row_of(runs, stream, position))

    # --- kept states -----------------------------------------------------------------------------

    def copied_out(
        self, lane: int, mark: int, sums: dict[str, Pair], pages: Table | None
    ) -> KeptOnCard:
        """A copy of the state whose last kept row is the one before `mark`, and of these pages."""
        own = None if pages is None else self._kept.pages_out(self.ledger.pages, pages)
        place, held = self._kept.out(lane, mark)
        return KeptOnCard(mark, place, held, sums, own)

    def copy_back(self, lane: int, copy: KeptOnCard, table: Table) -> None:
        """Put a copied state into a lane, and its pages, if it has them, on those of a table."""
        self._kept.back(lane, copy)
        if copy.pages is not None:
            self._kept.pages_back(self.ledger.pages, table, copy.pages)

    def let_go(self, copy: KeptOnCard) -> None:
        """A copy is not needed any more."""
        self._kept.let_go(copy)

    # --- the step --------------------------------------------------------------------------------

    def _enqueue(self, running: GlmRunning) -> None:
        batch, card = running.batch.rows, self.card
        rows, sampled = batch.rows, len(batch.selected)
        self.refuse_logits(sampled)
        trunk, head = self._graphs[:2]
        filled = trunk.bucket(rows), head.bucket(sampled)
        drafting = self._tables.write(running.tables, running.draws, *filled)
        last = self._graphs[-1] if self._sets[-1] is Rows.DRAFTED else None
        self.soil(*filled, last.bucket(drafting) if last is not None else 0)
        card.upload(self._tables.block, self.memory.arrays["step"])
        self.bring_penalties(running.draws)
        counts = {Rows.ALL: rows, Rows.SELECTED: sampled, Rows.DRAFTED: drafting}
        for of, graphs in zip(self._sets, self._graphs, strict=True):
            graphs.run(counts[of])
        card.download(self._told, self._tables.told)
        self.gather.end()
