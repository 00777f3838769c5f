"""The verdict of a replay: equal, or whose fault it is that it is not."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .alone import Alone
from .difference import Difference
from .rerun import Played


class Refused(Exception):
    """A replay that cannot be asked for here; the message says why and what would do."""

    exit_code = 3


class Verdict(StrEnum):
    """What a replay says of its tape."""

    EQUAL = "equal"
    MODEL = "model"  # the model, the prompt or the build is another
    PLACEMENT = "placement"  # a state, a page or a rank was wrong, and is so again
    UNREPEATABLE = "unrepeatable"  # hardware, or a race: what was recorded does not come again
    APART = "apart"  # two sides that have not the same sessions, or nothing to compare
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the values behind it and one sentence that says how it was reached."""

    verdict: Verdict
    why: str
    played: Played
    first: Difference | None = None


def judge_run(play: Callable[[], Played]) -> Judgement:
    """A whole run, or a fast-forward: played once, and once more if it differs."""
    played = play()
    first = played.comparison.first
    if first is None:
        return Judgement(Verdict.EQUAL, "every value is the tape's", played)
    again = play().comparison.first
    if again != first:
        return Judgement(
            Verdict.UNREPEATABLE, f"a second replay finds other values than the first {_at(first)}",
            played, first,
        )  # fmt: skip
    return _repeated(played, first)


def judge_session(play_alone: Callable[[], Alone], play_run: Callable[[], Played]) -> Judgement:
    """A session alone; where that is not the tape, alone again, then the whole run."""
    alone = play_alone()
    first = alone.comparison.first
    if first is None:
        wrong = alone.inherited.first
        if wrong is None:
            return Judgement(Verdict.EQUAL, "alone, the session is what the tape says", alone)
        why = f"alone equals the tape, but it took over a wrong state {_at(wrong)}"
        return Judgement(Verdict.PLACEMENT, why, alone, wrong)
    if play_alone().comparison.first != first:
        return Judgement(
            Verdict.UNREPEATABLE, f"two replays alone differ from each other {_at(first)}",
            alone, first,
        )  # fmt: skip
    whole = play_run().comparison
    if whole.first is None:
        why = "the whole run repeats what the tape says, the session alone does not"
        return Judgement(Verdict.PLACEMENT, why, alone, alone.inherited.first or first)
    return _repeated(alone, first)


def _repeated(played: Played, first: Difference) -> Judgement:
    """A replay that differs from the tape in the same way twice."""
    if first.part == "book":
        why = f"the same facts make another state {_at(first)}"
        return Judgement(Verdict.PLACEMENT, why, played, first)
    if played.comparison.at_once:
        why = "it differs from the first value on: another model, prompt or build"
        return Judgement(Verdict.MODEL, why, played, first)
    why = f"replays agree with each other, not with what was recorded {_at(first)}"
    return Judgement(Verdict.UNREPEATABLE, why, played, first)


def _at(first: Difference) -> str:
    where = f"at event {first.seq}, part {first.part}"
    return where if first.stream < 0 else f"{where}, stream {first.stream}"
