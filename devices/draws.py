"""How each sampled row of a step draws its token, as arrays that the program reads."""

import numpy as np
from numpy.typing import NDArray

from ..core.kernels.interpreter import Draws
from ..core.state import State, Stream
from ..events.records import Sampling
from .batch import Batch, Run


def _float(pattern: int) -> np.float32:
    return np.array([pattern], np.uint32).view(np.float32)[0]


class DrawTables:
    """Makes the `Draws` of a step; holds the zero counts that rows without penalties point at."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab
        self._no_counts = np.zeros((1, vocab), np.int32)

    def of(self, state: State, batch: Batch) -> Draws:
        """One entry a selected row, in the batch's order; counts [penalised rows + 1, vocab]."""
        rows = len(batch.selected)
        temperatures, top_ps = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        penalties = np.zeros((rows, 3), np.float32)
        top_ks, seeds, choices, count_rows = (np.zeros(rows, np.int64) for _ in range(4))
        bias: list[tuple[int, int]] = []
        bias_starts = np.zeros(rows + 1, np.int64)
        counts, reply_counts = [self._no_counts], [self._no_counts]
        at = 0
        for run in batch.runs:
            stream = state.streams[run.stream]
            sampling = stream.request.sampling
            end = at + run.sampled
            temperatures[at:end] = _float(sampling.temperature_bits)
            top_ps[at:end] = _float(sampling.top_p_bits)
            penalties[at:end] = _penalties(sampling)
            top_ks[at:end] = sampling.top_k
            seeds[at:end] = sampling.seed
            choices[at:end] = stream.choice
            if run.sampled and _penalises(sampling):
                both, reply = self._counts(stream, run)
                count_rows[at:end] = np.arange(run.sampled) + sum(len(one) for one in counts)
                counts.append(both)
                reply_counts.append(reply)
            for row in range(at, end):
                bias.extend(sampling.bias)
                bias_starts[row + 1] = len(bias)
            at = end
        return Draws(
            temperatures, top_ks, top_ps, penalties, bias_starts,
            np.array([token for token, _ in bias], np.int32),
            np.array([bits for _, bits in bias], np.uint32).view(np.float32),
            count_rows, _stacked(counts), _stacked(reply_counts), seeds, choices,
            np.zeros(rows, np.int64),
        )  # fmt: skip

    def _counts(self, stream: Stream, run: Run) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """How often each id stands before each sampled row's draw: in all, and in the reply."""
        end = run.first + run.rows
        first = end - run.sampled
        known, prompt = np.array(stream.tokens[:end], np.int64), stream.prompt_tokens
        both, reply = (np.zeros((run.sampled, self.vocab), np.int32) for _ in range(2))
        for at, position in enumerate(range(first, end)):
            both[at] = np.bincount(known[: position + 1], minlength=self.vocab)
            reply[at] = np.bincount(known[prompt : position + 1], minlength=self.vocab)
        return both, reply


def _penalties(sampling: Sampling) -> tuple[np.float32, np.float32, np.float32]:
    """(repetition, frequency, presence)."""
    return (
        _float(sampling.repetition_bits),
        _float(sampling.frequency_bits),
        _float(sampling.presence_bits),
    )


def _penalises(sampling: Sampling) -> bool:
    return _penalties(sampling) != (1.0, 0.0, 0.0)


def _stacked(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
