"""A device without a model: the fake family in pages, lanes and ranks, with an exact oracle."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.device import Ack, Break, EveryRow, Pair, Poisoned, Report, Running
from ..core.families.fake import HEADS, KINDS, LAYERS, POOL, RING
from ..core.families.family import share
from ..core.kernels import fake as kernels
from ..core.kernels import fake_memory as memory_of
from ..core.state import State, Stream
from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import NO_STATE, Lane, Rank, StateId, StreamId
from .fake_memory import Batches, KeptCopy, seat, shape_and_memory
from .meeting import Meeting

ELEMENT_BITS, WORD_BITS = 16, 64  # a fault names a column of 16-bit elements


def fake_group(
    opened: RunOpened,
    world: int,
    limit_seconds: float = 60.0,
    broken: frozenset[str] = frozenset(),
) -> list["FakeDevice"]:
    """One device a rank. broken: rules to leave out, so that tests can show what they are for.

    The drafter is right on a schedule; flags["fake_drafter"] 1 makes it always right, 2 always wrong.
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
    next compute a row.  Both are for tests.
    """

    def __init__(
        self,
        opened: RunOpened,
        world: int,
        rank: Rank,
        meeting: Meeting,
        broken: frozenset[str],
    ) -> None:
        self.rank = rank
        self.refuse_resume = False
        self.flag: set[StreamId] = set()
        self.heads = share(HEADS, world, rank)
        self._opened, self._rules, self._world = opened, opened.rules, world
        self._meeting, self._broken = meeting, broken
        self._shape, self._memory = shape_and_memory(opened, self.heads, broken)
        self._batches = Batches(self._memory.sums.shape[1])
        self._full = opened.digests == "full"
        self._lanes: dict[StreamId, Lane] = {}
        self._rows = [0] * opened.lanes
        self._copies: dict[StateId, KeptCopy] = {}
        parts = self._rules.parts
        self._parts = parts
        self._columns = np.array([memory_of.PARTS.index(part) for part in parts])

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
        if part not in self._parts:
            return 0
        if part in self._rules.split and self._shape.heads == 0:
            return 0
        return {"rows": LAYERS, "states": LAYERS, "keys": 1, "rings": 1, "drafts": 1}.get(part, 0)

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """The digest of some rows of one digest layer, summed anew from memory.

        States have one row, 0; rings have the last raw rows; the key of a pool has its last position.
        """
        lane, total = self._lanes[stream], np.zeros(2, np.uint64)
        last = first + rows
        if part == "rings":
            first, last = max(first, self._rows[lane] - RING), min(last, self._rows[lane])
        memory_of.sum_layer(
            self._shape,
            self._memory,
            lane,
            state.tables[lane],
            KINDS[part],
            layer,
            first,
            last,
            total,
        )
        return int(total[0]), int(total[1])

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """The bytes of one row of one digest layer, by head."""
        words = self._words(state, self._lanes[stream], part, layer, position)
        return {head: row.tobytes() for head, row in words.items()}

    # --- facts -----------------------------------------------------------------------------------

    def _launch(self, state: State, facts: Sequence[AnyFact], every_row: bool) -> Report:
        report = Report(self.rank, state.step)
        entries: list[tuple[int, ...]] = []
        streams: list[Stream] = []
        for fact in facts:
            if isinstance(fact, f.RoundRun):
                for lane in fact.lanes:
                    streams.append(state.in_lane(lane))
                    entries.append(self._window(streams[-1], entries))
            elif isinstance(fact, f.PromptStepRun):
                streams.append(state.streams[fact.stream])
                entries.append(self._prompt_rows(streams[-1], fact, entries))
            elif (does := _DOES.get(fact.kind)) is not None:
                does(self, state, fact, report)
        if entries:
            self._step(state, streams, entries, report, every_row)
        return report

    def _window(self, stream: Stream, before: list[tuple[int, ...]]) -> tuple[int, ...]:
        """A pending token and its drafts: no more than the reply needs and the pages hold."""
        first, lane = len(stream.tokens) - 1, stream.lane
        assert first == self._rows[lane], f"row {first} is next, {self._rows[lane]} are here"
        count = 1 + (self._rules.drafts if stream.request.draft else 0)
        leased = stream.pages * self._rules.page_rows - first
        count = min(count, stream.request.max_new - stream.new_tokens, leased)
        assert count > 0, f"stream {stream.stream} has no row to run at {first}"
        return lane, first, count, 1, stream.prompt_tokens, _end(before), -1

    def _prompt_rows(
        self, stream: Stream, fact: f.PromptStepRun, before: list[tuple[int, ...]]
    ) -> tuple[int, ...]:
        lane, last = stream.lane, fact.first + fact.rows
        assert fact.first == self._rows[lane], f"row {fact.first} after {self._rows[lane]}"
        following = stream.tokens[last] if last < len(stream.tokens) else -1
        return lane, fact.first, fact.rows, 0, stream.prompt_tokens, _end(before), following

    def _begun(self, state: State, fact: f.StreamBegun, report: Report) -> None:
        lane, stream = fact.lane, state.streams[fact.stream]
        self._lanes[fact.stream], self._rows[lane] = lane, 0
        seat(self._memory, lane, stream, self._rules.vocab)
        if self._shape.digests and self._shape.states:
            memory_of.sum_fixed(self._shape, self._memory, lane, 0, self._memory.sums[lane])
        if fact.state != NO_STATE:
            report.acks.append(self._resume(state, fact, report))

    def _resume(self, state: State, fact: f.StreamBegun, report: Report) -> Ack:
        """Restore the copy, sum up what is read back, and say where it is not what was kept."""
        lane, mark = fact.lane, fact.kept_pages * self._rules.page_rows
        memory, table = self._memory, state.tables[fact.lane]
        copy = self._copies.get(fact.state)
        if self.refuse_resume or (copy is None and self._rules.snapshots):
            why = "told_to_refuse" if self.refuse_resume else "no_copy"
            return Ack(fact.stream, fact.state, ok=False, why=why)
        tokens = state.streams[fact.stream].tokens[:mark]
        memory.counts[0, lane] = np.bincount(tokens, minlength=self._rules.vocab)
        self._rows[lane] = mark
        if copy is not None and "restore" not in self._broken:
            memory.states[lane], memory.rings[lane] = copy.states, copy.rings
        if not self._shape.digests:
            return Ack(fact.stream, fact.state, ok=True)
        sums = memory.sums[lane]
        memory_of.sum_pages(self._shape, memory, table, 0, mark, sums)
        memory_of.sum_fixed(self._shape, memory, lane, mark, sums)
        sums[memory_of.MARKS] = sums[memory_of.ROWS]
        kept = np.zeros_like(sums)
        for at, part in enumerate(memory_of.ON_PAGES):
            kept[part] = memory.page_sums[at, table[: fact.kept_pages]].sum(axis=0)
        if copy is not None:
            kept[memory_of.STATES], kept[memory_of.RINGS] = copy.sums
        resumed = [part for part in self._parts if part not in ("logits", "tokens", "marks")]
        self._compare(report, fact.stream, resumed, kept, sums)
        return Ack(fact.stream, fact.state, ok=True, digest={
            part: _pair(sums[memory_of.PARTS.index(part)])
            for part in self._parts if part not in ("logits", "tokens")
        })  # fmt: skip

    def _refused(self, state: State, fact: f.ResumeRefused, report: Report) -> None:
        self._lanes.pop(fact.stream)

    def _released(self, state: State, fact: f.StreamReleased, report: Report) -> None:
        self._lanes.pop(fact.stream, None)

    def _leased(self, state: State, fact: f.PagesLeased, report: Report) -> None:
        memory = self._memory
        for page in fact.pages:
            memory.page_sums[:, page] = 0
            if self._shape.pattern:
                memory.rows[:, page] = memory.keys[page] = self._shape.pattern
                memory.drafts[page] = self._shape.pattern

    def _kept(self, state: State, fact: f.SnapshotTaken, report: Report) -> None:
        if not self._rules.snapshots:
            return
        lane, memory = self._lanes[fact.stream], self._memory
        assert self._rows[lane] == fact.mark, f"a copy at row {self._rows[lane]}, not {fact.mark}"
        sums = memory.sums[lane, [memory_of.STATES, memory_of.RINGS]]
        self._copies[fact.state] = KeptCopy(
            memory.states[lane].copy(), memory.rings[lane].copy(), sums
        )

    def _dropped(self, state: State, fact: f.StateDropped, report: Report) -> None:
        self._copies.pop(fact.state, None)

    def _flip(self, state: State, fact: f.FaultInjected, report: Report) -> None:
        """Flip a bit; column counts 16-bit elements."""
        if fact.rank != self.rank:
            return
        words = self._words(state, self._lanes[fact.stream], fact.part, fact.layer, fact.position)
        word, element = divmod(fact.column, WORD_BITS // ELEMENT_BITS)
        words[fact.head][word] ^= np.uint64(1 << (element * ELEMENT_BITS + fact.bit))

    def _words(
        self, state: State, lane: int, part: str, layer: int, position: int
    ) -> dict[int, NDArray[np.uint64]]:
        """Views of the words of a row, by head."""
        memory, own = self._memory, range(*self.heads)
        page, at = divmod(position, self._rules.page_rows)
        page = int(state.tables[lane, page])
        if part == "rows":
            heads = own if self._shape.split else range(1)
            return {head: memory.rows[layer, page, at, i] for i, head in enumerate(heads)}
        if part == "keys":
            return {0: memory.keys[page, at // POOL : at // POOL + 1]}
        if part == "drafts":
            return {0: memory.drafts[page, at : at + 1]}
        if part == "states":
            return {head: memory.states[lane, layer, i] for i, head in enumerate(own)}
        assert part == "rings", f"{part} is not in memory"
        slot = position % RING
        return {head: memory.rings[lane, i, slot : slot + 1] for i, head in enumerate(own)}

    # --- the batch -------------------------------------------------------------------------------

    def _step(
        self,
        state: State,
        streams: list[Stream],
        entries: list[tuple[int, ...]],
        report: Report,
        every_row: bool,
    ) -> None:
        if self._full:
            self._check_live(state, report, ("states", "rings"))
        batch = self._batches.fill(entries, streams)
        if self._shape.pattern:
            self._memory.saved_states[:] = self._memory.saved_rings[:] = self._shape.pattern
        waves = max(entry[2] if entry[3] else 1 for entry in entries)
        if self._world == 1:
            kernels.alone(self._shape, self._memory, state.tables, batch, waves, int(every_row))
        else:
            self._together(state, batch, waves, int(every_row))
        self._tell(streams, entries, batch, report, every_row)
        if self._full:
            self._check_live(state, report, ("rows", "keys", "drafts"))

    def _together(self, state: State, batch: Any, waves: int, every_row: int) -> None:
        """Wave by wave: what heads give is added over ranks; what is drawn is rank 0's."""
        shape, memory, tables = self._shape, self._memory, state.tables
        for wave in range(waves):
            kernels.forward(shape, memory, tables, batch, wave, every_row)
            given = self._meeting.exchange(self.rank, state.step, batch.partial.copy())
            batch.partial[:] = np.sum(given, axis=0, dtype=np.uint64)
            kernels.draw(shape, memory, tables, batch, wave, every_row)
            mine = (batch.drawn.copy(), batch.tokens.copy())
            lead = self._meeting.exchange(self.rank, state.step, mine)[0]
            if "lead" not in self._broken:
                batch.drawn[:], batch.tokens[:] = lead
        kernels.settle(shape, memory, tables, batch, every_row)

    def _tell(
        self,
        streams: list[Stream],
        entries: list[tuple[int, ...]],
        batch: Any,
        report: Report,
        every_row: bool,
    ) -> None:
        """Tokens, sums, flags and poison of a step."""
        kept, drawn = batch.kept.tolist(), batch.drawn.tolist()
        for stream, entry, rows in zip(streams, entries, kept, strict=True):
            lane, first, _, window, _, at, following = entry
            self._rows[lane] = first + rows
            if window or following < 0:
                begin = at if window else at + rows - 1
                report.streams.append(stream.stream)
                report.tokens.extend(drawn[begin : at + rows])
                report.starts.append(len(report.tokens))
            if self._shape.pattern and self._memory.poisoned[lane, 0]:
                _, layer, position = self._memory.poisoned[lane].tolist()
                report.poisoned.append(Poisoned(stream.stream, layer, position))
            if stream.stream in self.flag:
                report.flagged.append(stream.stream)
        if self._shape.digests:
            lanes = [entry[0] for entry in entries]
            sums = self._memory.sums[lanes][:, self._columns].tolist()
            for stream, row in zip(streams, sums, strict=True):
                report.sums[stream.stream] = dict(zip(self._parts, map(tuple, row), strict=True))
        if every_row:
            report.every_row = self._each_row(streams, entries, batch, kept)

    def _each_row(
        self, streams: list[Stream], entries: list[tuple[int, ...]], batch: Any, kept: list[int]
    ) -> EveryRow:
        spans = [
            slice(entry[5], entry[5] + rows) for entry, rows in zip(entries, kept, strict=True)
        ]
        return EveryRow(
            streams=[stream.stream for stream in streams],
            firsts=[entry[1] for entry in entries],
            sums={
                part: [batch.every[span, column].copy() for span in spans]
                for part, column in zip(self._parts, self._columns, strict=True)
                if self._shape.digests
            },
            tokens=[batch.drawn[span].copy() for span in spans],
        )

    def _check_live(self, state: State, report: Report, parts: Sequence[str]) -> None:
        """Sum the live memory of every stream anew (law I11)."""
        if not self._shape.digests:
            return
        for stream, lane in self._lanes.items():
            found = np.zeros_like(self._memory.sums[lane])
            rows = self._rows[lane]
            if "rows" in parts:
                memory_of.sum_pages(self._shape, self._memory, state.tables[lane], 0, rows, found)
            else:
                memory_of.sum_fixed(self._shape, self._memory, lane, rows, found)
            here = [part for part in parts if part in self._parts]
            self._compare(report, stream, here, self._memory.sums[lane], found)

    def _compare(
        self,
        report: Report,
        stream: StreamId,
        parts: Sequence[str],
        kept: NDArray[np.uint64],
        found: NDArray[np.uint64],
    ) -> None:
        for part in parts:
            at = memory_of.PARTS.index(part)
            if not np.array_equal(kept[at], found[at]):
                report.breaks.append(Break(stream, part, _pair(kept[at]), _pair(found[at])))


def _end(entries: list[tuple[int, ...]]) -> int:
    """Where the next entry's rows begin in the batch."""
    return entries[-1][5] + entries[-1][2] if entries else 0


def _pair(total: NDArray[np.uint64]) -> Pair:
    return int(total[0]), int(total[1])


_DOES: dict[str, Callable[[FakeDevice, State, Any, Report], None]] = {
    "stream_begun": FakeDevice._begun,
    "resume_refused": FakeDevice._refused,
    "stream_released": FakeDevice._released,
    "pages_leased": FakeDevice._leased,
    "snapshot_taken": FakeDevice._kept,
    "state_dropped": FakeDevice._dropped,
    "fault_injected": FakeDevice._flip,
}
