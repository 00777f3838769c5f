"""The benchmark's speed of the GLM that comes along: beside transformers, drafted, and resumed."""

from dataclasses import replace
from functools import partial

from ..devices.weights.find import find_path
from .bench_engine import Engine, serve_options, served
from .bench_figures import Bar, Figure, ratio
from .bench_rounds import Part, Say, Task, interleaved, measured
from .bench_speed import PeerMissing, PeerProcess, peer_python
from .opening import RunOptions

MODEL, PEER = "glm-tales", "transformers-glm"
PROMPT_TOKENS, REPLY_TOKENS = 512, 128
RESENT_TOKENS = 32_768
TIMES_PEER, TIMES_COLD = Bar(5.0), Bar(20.0)


def _options(drafts: int, context: int = 0) -> RunOptions:
    """The default serve of the model, with so many drafts."""
    return replace(serve_options(), drafts=drafts, context=context)


def glm(rounds: int, python: str, say: Say) -> Part:
    """Decode with and without drafts and a prompt, beside transformers on the same files."""
    part = Part("glm")
    with (
        served(_options(1), MODEL) as (drafting, prompts),
        served(_options(0), MODEL) as (plain, _),
    ):
        tasks: dict[str, Task] = {
            "decode, drafted": lambda: drafting.ask(prompts.short(), REPLY_TOKENS).decode_rate,
            "decode, plain": lambda: plain.ask(prompts.short(), REPLY_TOKENS).decode_rate,
            "prompt": lambda: drafting.ask(prompts.long(PROMPT_TOKENS), 1).prompt_rate,
        }
        try:
            peer = PeerProcess(PEER, peer_python(python), find_path(MODEL))
        except PeerMissing as missing:
            part.notes.append(str(missing))
            _figures(part, interleaved(part, tasks, rounds, say))
            return part
        part.notes.append(f"{PEER}: {peer.version}")
        try:
            decode = partial(peer.rate, "decode", prompts.short(), REPLY_TOKENS)
            tasks["decode, transformers"] = decode
            tasks["prompt, transformers"] = partial(
                peer.rate, "prompt", prompts.long(PROMPT_TOKENS)
            )
            decode()  # the first one is slower: memory is touched, threads begin
            _figures(part, interleaved(part, tasks, rounds, say))
        finally:
            peer.close()
    return part


def _figures(part: Part, values: dict[str, tuple[float, ...]]) -> None:
    part.figures += [Figure(name, found, "tok/s") for name, found in values.items()]
    drafted, plain = values["decode, drafted"], values["decode, plain"]
    part.figures.append(ratio("drafted to plain", drafted, plain))
    if "decode, transformers" in values:
        decode, prompt = values["decode, transformers"], values["prompt, transformers"]
        part.figures += [
            ratio("decode, drafted, to transformers", drafted, decode, TIMES_PEER),
            ratio("decode, plain, to transformers", plain, decode, TIMES_PEER),
            ratio("prompt, to transformers", values["prompt"], prompt, TIMES_PEER),
        ]


def _first_token(engine: Engine, ids: list[int]) -> float:
    """Seconds to it."""
    return engine.ask(ids, 1).first


def resend(rounds: int, say: Say) -> Part:
    """The first token of a long prompt that is sent twice: cold, then from its last mark."""
    part = Part("resend")
    cold, warm = [], []
    options = replace(_options(1, RESENT_TOKENS + 512), kv_pages="on")  # in windows ids keep none
    with served(options, MODEL) as (engine, prompts):
        for _ in range(rounds):
            sent = partial(_first_token, engine, prompts.longer(RESENT_TOKENS))
            cold.append(measured(part, sent))
            warm.append(measured(part, sent))
            say(f"resend: {cold[-1]:.2f} s cold, {warm[-1]:.3f} s resent")
    part.figures = [
        Figure(f"first token of {RESENT_TOKENS}, cold", tuple(cold), "s"),
        Figure(f"first token of {RESENT_TOKENS}, resent", tuple(warm), "s"),
        ratio("cold to resent", cold, warm, TIMES_COLD),
    ]
    return part
