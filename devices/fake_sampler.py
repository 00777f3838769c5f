"""How the fake device's lanes draw, where that is more than the largest logit."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.kernels.fake_memory import DRAWN, TOKEN
from ..core.kernels.sampling import sample_row, sample_scratch
from ..core.state import Stream
from ..events.records import Sampling
from .fake_memory import Batch

Floats = NDArray[np.float32]


def is_greedy(how: Sampling) -> bool:
    """Whether the largest logit is always drawn."""
    return how.model_copy(update={"seed": 0}) == Sampling(
        top_k=how.top_k, top_p_bits=how.top_p_bits
    )


class Sampler:
    """Draws a stream's tokens as its request says, from logits and what stands before them."""

    def __init__(self, stream: Stream, vocab: int) -> None:
        how = stream.request.sampling
        self.stream = stream
        self.greedy = is_greedy(how)
        self._how, self._vocab = how, vocab
        self._temperature, self._top_p = _floats(how.temperature_bits, how.top_p_bits)
        penalties = (how.repetition_bits, how.frequency_bits, how.presence_bits)
        self._penalties = tuple(_floats(*penalties))
        self._bias_ids = np.array([token for token, _ in how.bias], np.int32)
        self._bias = _floats(*(bits for _, bits in how.bias))
        self._scratch = sample_scratch(vocab)

    def draw(self, logits: Floats, drafted: Sequence[int], position: int) -> int:
        """The token after the row at a position; the last of the tokens before it are drafted."""
        tokens = [*self.stream.tokens[: position + 1 - len(drafted)], *drafted]
        prompt = self.stream.prompt_tokens
        counts = np.bincount(tokens, minlength=self._vocab).astype(np.int32)
        replied = np.bincount(tokens[prompt:], minlength=self._vocab).astype(np.int32)
        how = self._how
        return int(
            sample_row(
                logits, self._temperature, how.top_k, self._top_p, self._penalties,
                self._bias_ids, self._bias, counts, replied,
                how.seed, position + 1, self.stream.choice, *self._scratch,
            )
        )  # fmt: skip


def sample_wave(
    samplers: Sequence[Sampler | None], batch: Batch, wave: int, every_row: bool
) -> None:
    """Draw anew the rows of a wave whose lanes do not just take the largest logit."""
    for lane, first, count, window, prompt, at, _, _ in batch.entries.tolist():
        sampler = samplers[lane]
        if sampler is None:
            continue
        for j in range(wave, min(wave + 1, count)) if window else range(0 if wave else count):
            if first + j >= prompt - 1 or every_row:
                drafted = batch.rows[at + 1 : at + j + 1, TOKEN].tolist() if window else []
                token = sampler.draw(batch.logits[at + j], drafted, first + j)
                batch.rows[at + j, DRAWN] = token


def _floats(*bits: int) -> Floats:
    return np.array(bits, np.int64).astype(np.uint32).view(np.float32)
