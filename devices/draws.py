"""How each sampled row of a step draws its token, as arrays that the program reads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.kernels.program_memory import Draws
from ..core.state import Stream
from ..events.facts import RequestArrived
from ..events.ids import StreamId
from ..events.records import Sampling
from .batch import Batch, Run

Counts = NDArray[np.int32]

NO_PENALTIES = (0x3F800000, 0, 0)  # repetition 1, frequency and presence 0, as patterns


class DrawTables:
    """Makes the `Draws` of a step; holds the zero counts that rows without penalties point at."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self._no_counts = np.zeros((1, vocab), np.int32)
        self._same: Draws | None = None
        self._asked: list[tuple[int, int, int]] = []
        self._requests: list[RequestArrived] = []  # held, so that no other has their ids

    def of(self, streams: Mapping[StreamId, Stream], batch: Batch) -> Draws:
        """One column a selected row, in the batch's order; counts [penalised rows + 1, vocab].

        Round after round of the same streams without penalties reads the same tables.
        """
        drawing = [(streams[run.stream], run.sampled) for run in batch.runs if run.sampled]
        asked = [(id(one.request), one.choice, rows) for one, rows in drawing]
        if self._same is not None and asked == self._asked:
            return self._same._replace(tokens=np.zeros(self._same.whole.shape[1], np.int64))
        made = self._made(streams, batch)
        self._asked, self._requests = asked, [one.request for one, _ in drawing]
        self._same = made if len(made.counts) == 1 else None
        return made

    def _made(self, streams: Mapping[StreamId, Stream], batch: Batch) -> Draws:
        floats: list[tuple[int, ...]] = []
        whole: list[tuple[int, ...]] = []
        bias: list[tuple[int, int]] = []
        bias_starts = [0]
        counts = [self._no_counts]
        replies = [self._no_counts]
        counted = 1
        for run in batch.runs:
            rows = run.sampled
            if not rows:
                continue
            stream = streams[run.stream]
            sampling = stream.request.sampling
            patterns = _patterns(sampling)
            floats += [patterns] * rows
            drawn = (sampling.top_k, sampling.seed, stream.choice)
            if patterns[2:] == NO_PENALTIES:
                whole += [(*drawn, 0)] * rows
            else:
                both, reply = self._counts(stream, run)
                counts.append(both)
                replies.append(reply)
                whole += [(*drawn, counted + row) for row in range(rows)]
                counted += rows
            for _ in range(rows):
                bias += sampling.bias
                bias_starts.append(len(bias))
        return Draws(
            _columns(floats, 5, np.uint32).view(np.float32),
            _columns(whole, 4, np.int64),
            np.array(bias_starts, np.int64),
            np.array([token for token, _ in bias], np.int32),
            np.array([pattern for _, pattern in bias], np.uint32).view(np.float32),
            _stacked(counts),
            _stacked(replies),
            np.zeros(len(whole), np.int64),
        )

    def _counts(self, stream: Stream, run: Run) -> tuple[Counts, Counts]:
        """How often each id stands before each sampled row's draw: in all, and in the reply."""
        end = run.first + run.rows
        first = end - run.sampled
        known, prompt = np.array(stream.tokens[:end], np.int64), stream.prompt_tokens
        both, reply = (np.zeros((run.sampled, self.vocab), np.int32) for _ in range(2))
        for at, position in enumerate(range(first, end)):
            both[at] = np.bincount(known[: position + 1], minlength=self.vocab)
            reply[at] = np.bincount(known[prompt : position + 1], minlength=self.vocab)
        return both, reply


def _patterns(sampling: Sampling) -> tuple[int, ...]:
    """Temperature, top-p, repetition, frequency, presence, as patterns."""
    return (
        sampling.temperature_bits, sampling.top_p_bits,
        sampling.repetition_bits, sampling.frequency_bits, sampling.presence_bits,
    )  # fmt: skip


def _columns(rows: list[tuple[int, ...]], width: int, kind: type[np.generic]) -> NDArray[Any]:
    """[width, rows], in one piece."""
    return np.ascontiguousarray(np.array(rows, kind).reshape(-1, width).T)


def _stacked(parts: list[Counts]) -> Counts:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
