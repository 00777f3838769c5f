"""Pages or windows, kept states by reference: what the switches ask for, and what they need."""

from typing import Literal

from ..events.facts import RunOpened
from .plan_wanted import Order

KvPages = Literal["auto", "on", "off"]
SHARE_FACTOR = 4  # kept states a lane, below which conversations push each other out


class SwitchRefused(Exception):
    """Switches that do not go together; the message names them and what would do."""

    exit_code = 3


def on_pages(asked: KvPages, world: int, *, fp8: bool, order: Order = "proposed") -> bool:
    """Whether streams stand on pages. Raises SwitchRefused.

    auto: pages from two ranks, in today's order from three; windows where rows are fp8.
    """
    if asked == "auto":
        return world >= (2 if order == "proposed" else 3) and not fp8
    if asked == "on" and fp8:
        raise SwitchRefused(
            "--kv-pages on (TF_KV_PAGES) with --kv-cache fp8: fp8 rows stand in windows;"
            " leave one of them away"
        )
    return asked == "on"


def in_windows(opened: RunOpened) -> bool:
    """Whether each stream of a run has a whole window of its own; before the flag, none had."""
    return bool(opened.flags.get("windows", 0))


def refuse_share(share: int, asked: KvPages) -> None:
    """Refuse kept states by reference where pages are not asked for. Raises SwitchRefused."""
    if share and asked != "on":
        raise SwitchRefused(
            f"--share {share} (TF_GLM_KV_SHARE) keeps prompts as pages and needs TF_KV_PAGES=on"
            f" (--kv-pages on), which is {asked}"
        )


def share_warning(share: int, lanes: int) -> str:
    """A line where kept states are too few for the lanes, naming the value to set; else ""."""
    enough = SHARE_FACTOR * lanes
    if not share or share >= enough:
        return ""
    return (
        f"--share {share} (TF_GLM_KV_SHARE) is below {SHARE_FACTOR} x --parallel {lanes}:"
        f" conversations would push each other's kept prompts out; set {enough}"
    )
