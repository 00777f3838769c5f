"""The command `why-miss`: each request's prompt, what of it was resumed, and why no more."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.lookups import Lookup, said
from ..events.errors import TapeError
from ..events.reader import Tape
from .progress import bar
from .recording import WrongUse, open_whole
from .show import CONSOLE, DIFFERS, EQUAL, counted, fail, say_json
from .why_miss import BrokenRun, lookups_of


@dataclass(frozen=True, slots=True)
class WhyMissOptions:
    """What of a tape is asked. run 0: the last.  tokens: show the ids where prompts part."""

    run: int = 0
    session: str = ""
    request: str = ""
    tokens: bool = False
    as_json: bool = False


def run_why_miss(path: Path, options: WhyMissOptions) -> int:
    """Explain the lookups of a run: 0 nothing was lost, 1 something was, 2 wrong use."""
    as_json = options.as_json
    try:
        with open_whole(path, options.run) as tape:
            lookups = _asked(tape, options)
    except (TapeError, WrongUse, BrokenRun) as error:
        return fail(error, error.exit_code, as_json=as_json)
    if as_json:
        say_json(_json(lookups, tokens=options.tokens))
    else:
        _show(lookups, tokens=options.tokens)
    return DIFFERS if any(one.finding for one in lookups) else EQUAL


def _asked(tape: Tape, options: WhyMissOptions) -> list[Lookup]:
    """The lookups that are asked for. Raises WrongUse where there is none."""
    if options.session and options.request:
        raise WrongUse("--session and --request: one of them")
    if options.tokens and tape.opened.text != "ids":
        raise WrongUse("--tokens: the tape holds no token ids")
    with bar("read", tape.at(tape.last_seq).step, quiet=options.as_json) as tick:
        lookups = lookups_of(tape.opened, tape.steps(), tick)
    found = [
        one
        for one in lookups
        if options.session in ("", one.session) and options.request in ("", one.request)
    ]
    if not found and (options.session or options.request):
        raise WrongUse(f"{tape.path}: no such session or request came into a lane")
    return found


def _show(lookups: Sequence[Lookup], *, tokens: bool) -> None:
    """A line for each request, and how many there are of each kind."""
    for one in lookups:
        near = one.near if tokens else None
        ids = f" (token {near.tokens[0]} there, {near.tokens[1]} here)" if near is not None else ""
        line = (
            f"{one.request}: {counted(one.prompt_tokens, 'token')}, {one.cached_tokens} cached"
            f" of {one.last_mark}: {said(one)}{ids}"
        )
        CONSOLE.print(line, markup=False, soft_wrap=True, style="bold" if one.finding else None)
    kinds = Counter(_word(one) for one in lookups)
    told = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in kinds.items())
    total = counted(len(lookups), "prompt")
    CONSOLE.print(f"{total}{': ' * bool(told)}{told}", markup=False, soft_wrap=True)


def _word(lookup: Lookup) -> str:
    return "resumed at the last mark" if lookup.reason is None else lookup.reason.value


def _json(lookups: Sequence[Lookup], *, tokens: bool) -> dict[str, object]:
    return {
        "verdict": "missed" if any(one.finding for one in lookups) else "hit",
        "prompt_tokens": sum(one.prompt_tokens for one in lookups),
        "cached_tokens": sum(one.cached_tokens for one in lookups),
        "reasons": dict(Counter(one.reason.value for one in lookups if one.reason is not None)),
        "requests": [_one_json(one, tokens=tokens) for one in lookups],
    }


def _one_json(one: Lookup, *, tokens: bool) -> dict[str, object]:
    """A lookup in plain values; its text is never told, two of its token ids if they are asked."""
    near = lost = None
    if one.near is not None:
        near = {
            "differs_at": one.near.differs_at, "mark": one.near.mark, "state": one.near.state,
            "request": one.near.request,
        }  # fmt: skip
        if tokens:
            near["tokens"] = list(one.near.tokens)
    if one.gone is not None:
        lost = {
            "mark": one.lost_mark, "why": one.gone.why, "request": one.gone.request,
            "seq": one.gone.seq,
        }  # fmt: skip
    return {
        "request": one.request, "session": one.session, "stream": one.stream, "seq": one.seq,
        "prompt_tokens": one.prompt_tokens, "cached_tokens": one.cached_tokens,
        "last_mark": one.last_mark, "reason": one.reason.value if one.reason else None,
        "said": said(one), "nearest": near, "lost": lost, "again": one.again,
    }  # fmt: skip
