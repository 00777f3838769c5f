"""What a rank on a GPU does whatever its family is: steps guarded, waited for, looked back at."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.kernels.program_memory import Draws
from ...core.link import RankLost
from ...core.ops import Floats
from ...events.ids import Rank
from .card import Launch
from .filling import Soil
from .gathering import Gather
from .graph import Graphs
from .memory import CardMemory


class OnCard:
    """One rank of a group, on a card of its own."""

    rank: Rank

    def __init__(self, rank: Rank, world: int, memory: CardMemory, gather: Gather) -> None:
        self.rank, self.world = rank, world
        self.memory: Any = memory  # of the family's kind
        self.card, self.gather = memory.card, gather
        self._graphs: list[Graphs] = []
        self._soil: Soil | None = None

    def close(self) -> None:
        """Let graphs and memory go, and leave the other ranks."""
        for graphs in self._graphs:
            graphs.close()
        if self._soil is not None:
            self._soil.close()
        self.gather.close()
        self.card.close()

    def guarded(self, step: int, do: Launch) -> None:
        """Whatever a card's driver raises ends the rank: its memory is no longer to be trusted."""
        try:
            do()
        except (ValueError, AssertionError, RankLost):  # of a fact, a table, another rank
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise RankLost(f"rank {self.rank} failed on its GPU in step {step}: {why}") from error

    def soil(self, rows: int, sampled: int, drafting: int = 0) -> None:
        """Where there is poison, all scratch is, ahead of a step over buckets of so many rows."""
        if self._soil is not None:
            self._soil.lay((rows, sampled, drafting))

    def wait(self, step: int) -> None:
        """Wait for a step; what another rank did is told before what the card made of it."""
        try:
            self.card.wait()
        finally:
            self.gather.check(step)

    def look_at_products(self, step: int, words: NDArray[np.int64]) -> None:
        """Raise RankLost where a step's product was wrong, by the words that came back."""
        self.memory.checks.look(int(self.rank), step, words)

    def refuse_logits(self, rows: int) -> None:
        """Raise ValueError where more rows are to get logits than there is room for."""
        most = self.memory.z.shape[0]
        if rows > most:
            raise ValueError(f"a step of {rows} rows with logits, the device has {most}")

    def bring_penalties(self, draws: Draws) -> None:
        """Biases and counts, where rows have some; the first counts are zeros for all others."""
        m, biased, counted = self.memory, len(draws.bias_ids), len(draws.counts)
        if biased:
            self.card.upload(draws.bias_ids, m.bias_ids[:biased])
            self.card.upload(draws.biases, m.biases[:biased])
        if counted > 1:
            self.card.upload(draws.counts, m.penalty_counts[:counted])
            self.card.upload(draws.reply_counts, m.reply_counts[:counted])

    def row_of_logits(self, logits: Floats, at: int | None) -> NDArray[np.float32] | None:
        """Row `at` of the last step's logits [vocab], on the host; None of none."""
        if at is None:
            return None
        row = np.empty(logits.width, np.float32)
        start = logits.at + at * logits.width
        self.card.use()
        self.card.download(self.memory.floats[start : start + logits.width], row)
        self.card.wait()
        return row
