"""From a client's request to the Arrive command: ids, bit patterns and limits, nothing else."""

import struct
from collections.abc import Callable, Sequence
from typing import cast

from ...events.commands import Arrive
from ...events.ids import RequestId, SessionId, Token
from ...events.records import Sampling
from .asks import Ask
from .engine import Info, Rendered
from .errors import bad, too_long

GREEDY_BELOW = 1e-5  # 1/T of smaller ones would overflow float32
TOP_P_LEAST = 2.0**-24  # the sampler's resolution


def bits(value: float) -> int:
    """The float32 bit pattern; minus zero is zero."""
    return int(struct.unpack("<I", struct.pack("<f", value + 0.0))[0])


def sampling(ask: Ask, vocab: int, draw_seed: Callable[[], int]) -> Sampling:
    """How the reply's tokens are drawn; a seed is drawn only where chance has a say."""
    temperature = 1.0 if ask.temperature is None else ask.temperature
    if temperature < GREEDY_BELOW:
        temperature = 0.0
    seed = ask.seed
    if seed is None:
        seed = draw_seed() if temperature else 0
    return Sampling(
        temperature_bits=bits(temperature),
        top_k=max(ask.top_k or 0, 0),
        top_p_bits=bits(max(ask.top_p or 1.0, TOP_P_LEAST)),
        repetition_bits=bits(1.0 if ask.repetition_penalty is None else ask.repetition_penalty),
        presence_bits=bits(ask.presence_penalty or 0.0),
        frequency_bits=bits(ask.frequency_penalty or 0.0),
        seed=seed,
        bias=_bias(ask, vocab),
    )


def _bias(ask: Ask, vocab: int) -> tuple[tuple[int, int], ...]:
    """Biased ids ascending, with the bit patterns of their biases."""
    pairs = sorted((int(token), value) for token, value in (ask.logit_bias or {}).items())
    if pairs and pairs[-1][0] >= vocab:
        raise bad(f"logit_bias: token id {pairs[-1][0]} is not below {vocab}", "logit_bias")
    return tuple((token, bits(value)) for token, value in pairs if bits(value))


def check_prompt(ids: Sequence[int], vocab: int, param: str) -> None:
    """Refuse an empty prompt and ids that the model does not have."""
    if not ids:
        raise bad("the prompt is empty", param, "empty_prompt")
    for wrong in (min(ids), max(ids)):
        if not 0 <= wrong < vocab:
            raise bad(f"token id {wrong} is not in 0 to {vocab - 1}", param, "invalid_token_id")


def reply_limit(asked: int | None, default: int, prompt: int, context: int, param: str) -> int:
    """The most reply tokens; all in tokens. A limit nobody asked for bends to the context."""
    need = prompt + (asked or 1)
    if need > context:
        raise too_long(need, context, param)
    return asked or min(default, context - prompt)


def arrive(
    ask: Ask,
    info: Info,
    *,
    request: RequestId,
    session: SessionId,
    prompt: Rendered,
    max_new: int,
    drawn: Sampling,
) -> Arrive:
    """The command that puts this request to the run."""
    return Arrive(
        request=request,
        session=session,
        prompt=cast(tuple[Token, ...], tuple(prompt.ids)),
        history_tokens=prompt.history,
        max_new=max_new,
        sampling=drawn,
        stop=ask.stops,
        eos=info.eos,
        ignore_eos=bool(ask.ignore_eos),
        draft=ask.draft is not False,
        salt=ask.cache_salt or "",
        system_tokens=prompt.system,
        rewind_tokens=prompt.rewind,
    )
