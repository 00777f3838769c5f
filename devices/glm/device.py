"""The GLM on one CPU rank: its memory and the threads that run its program, step by step."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.device import Pair, Report
from ...core.families.glm import Glm
from ...core.kernels.glm_interpreter import run_glm
from ...core.kernels.glm_memory import OPS, GlmMemory, GlmParty
from ...core.kernels.places import places_of
from ...core.link import RankLost
from ...core.state import State
from ...events.facts import AnyFact
from ...events.ids import Rank, StreamId
from ..arena import RESERVED_PAGES
from ..batch import Batch
from ..exchange import Exchange
from ..last_step import logits_of
from ..ledger import token_sums
from ..settings import DeviceSettings
from ..team import Team
from .arena import RingSizes
from .copies import KeptCopy, copy_in, copy_out, copy_pages_in, copy_pages_out
from .inspect import GlmInspector
from .ledger import RowSums
from .party import party_of
from .program import GlmProgram
from .rank import GlmRank, GlmRunning, Table
from .step import GlmBatch, empty_tables


class GlmDevice(GlmRank):
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
        super().__init__(rank, settings, family, model_digest)
        self.program, self.memory, self.rings = program, memory, rings
        self.drafts, self.draft_counts = memory.drafts, memory.draft_counts
        self.exchange = exchange
        self._places = places_of(memory)
        first_head, last_head = family.kda_heads(world, int(rank))
        s = family.sizes
        self.inspector = GlmInspector(
            rings, first_head, last_head - first_head, len(family.recurrent), family.caches,
            len(family.sparse), s.kpool, s.taps, memory,
        )  # fmt: skip
        self._parties: list[GlmParty] = [
            party_of(family, settings, int(rank), world, thread, threads, spins, latent_exponent)
            for thread in range(threads)
        ]
        self._team = Team(threads, f"kvtape rank {rank}", self._worker_failed)
        self._compile()
        if settings.poisons:
            reserved = tuple(range(settings.pages, settings.pages + RESERVED_PAGES))
            self.inspector.poison_pages(reserved, settings.poison)

    # --- the protocol ----------------------------------------------------------------------------

    def launch(
        self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False
    ) -> GlmRunning:
        """Begin a step; `state` has the facts applied. every_row: report sums after each row."""
        running = self.begun(state, facts, every_row=every_row)
        if running.batch.rows.rows:
            self._prepare(running.batch)
            self.exchange.begin(self.rank, state.step)
            self._team.wake(lambda thread: self._run(running, thread))
            self._last = running
        return running

    def finish(self, running: GlmRunning) -> Report:
        """Run the caller's share of a launched step, wait for the others, and report."""
        if not running.batch.rows.rows:
            return self.said(running, None, None)
        try:
            self._run(running, 0)
        finally:
            self.exchange.end(self.rank)
        return self.said(running, self.memory.flags, self._sums(running))

    def logits(self, stream: StreamId, position: int) -> NDArray[np.float32] | None:
        """A row of logits [vocab] of the last step, if it computed that one."""
        runs = self._last.batch.rows.runs if self._last is not None else ()
        return logits_of(runs, self.program.logits, self.memory.floats, stream, position)

    def close(self) -> None:
        """Let threads and memory go; the group cannot run another step."""
        self.exchange.close()
        self._team.close()

    # --- kept states -----------------------------------------------------------------------------

    def copied_out(
        self, lane: int, mark: int, sums: dict[str, Pair], pages: Table | None
    ) -> KeptCopy:
        """A copy of the state whose last kept row is the one before `mark`, and of these pages."""
        own = None if pages is None else copy_pages_out(self.memory, self.ledger.pages, pages)
        return copy_out(self.memory, self.rings, lane, mark, self.family.sizes.taps, sums, own)

    def copy_back(self, lane: int, copy: KeptCopy, table: Table) -> None:
        """Put a copied state into a lane, and its pages, if it has them, on those of a table."""
        copy_in(self.memory, self.rings, lane, copy, self.family.sizes.taps)
        if copy.pages is not None:
            copy_pages_in(self.memory, self.ledger.pages, table, copy.pages)

    def let_go(self, copy: KeptCopy) -> None:
        """Its memory goes with it."""

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

    def _sums(self, running: GlmRunning) -> RowSums:
        """The digests of a step's rows."""
        m, rows = self.memory, running.batch.rows
        shares = self.exchange.shared.sums[running.tables.side, :, : len(rows.selected)]
        paged = np.stack([one[: rows.rows] for one in (m.row_sums, m.key_sums, m.draft_sums)])
        return RowSums(
            paged, shares.sum(axis=0, dtype=np.uint64), token_sums(rows.tokens, rows.positions)
        )
