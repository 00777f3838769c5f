"""What a device is made for: how many lanes and pages, how long, how closely it watches itself."""

from dataclasses import dataclass

LEVELS = ("off", "book", "rows", "full")
POISONS = ("off", "a", "b")


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The settings of a run that a device must know, named as in RunOpened.

    context: most rows of a stream.  pages: of the pool, the reserved ones not counted.  digests:
    how much is summed.  poison: the pattern or "off".  limit_s: a step may take so long.
    drafts: most drafted tokens a round.  states: kept at most, beside their pages.  verify: the
    products of every linear map are looked at in every step, which GPUs alone can do.
    every_row: any row of a step may be asked for its logits; a server asks for those that it draws.
    """

    lanes: int
    context: int
    pages: int
    prompt_rows: int
    digests: str = "rows"
    poison: str = "off"
    limit_s: float = 300.0
    drafts: int = 0
    states: int = 8
    verify: bool = False
    every_row: bool = True

    def __post_init__(self) -> None:
        assert self.digests in LEVELS, f"digests {self.digests!r} is none of {LEVELS}"
        assert self.poison in POISONS, f"poison {self.poison!r} is none of {POISONS}"

    @property
    def rows(self) -> int:
        """Most rows of a step: the prompts' budget and a window a lane."""
        return self.prompt_rows + self.lanes * (1 + self.drafts)

    @property
    def logit_rows(self) -> int:
        """Most rows of a step that get logits: all, or a window a lane; of a prompt it is one."""
        return self.rows if self.every_row else self.lanes * (1 + self.drafts)

    @property
    def poisons(self) -> bool:
        """Whether pages and scratch are filled before use, and looked at before they are read."""
        return self.poison != "off"

    @property
    def keeps_rows(self) -> bool:
        """Whether rows, logits and tokens are summed."""
        return self.digests in ("rows", "full")
