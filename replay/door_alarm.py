"""An alarm for a prompt store that never hits although the same prompts come again."""

from collections import Counter

from ..core.lookups import Lookup

REPEATS = 3  # in a row, without a hit in between
EVERY_SECONDS = 3600.0


class StoreAlarm:
    """Looks at what each prompt found; a cold workload is no alarm, repeats without a hit are."""

    def __init__(self) -> None:
        self._missed: Counter[str] = Counter()
        self._told_at: float | None = None

    def see(self, lookup: Lookup, now: float) -> str:
        """What to warn of, "" mostly. now: monotonic seconds."""
        if lookup.cached_tokens:
            self._missed.clear()
        elif lookup.again and lookup.reason is not None:
            self._missed[lookup.reason] += 1
        quiet = self._told_at is not None and now - self._told_at < EVERY_SECONDS
        if self._missed.total() < REPEATS or quiet:
            return ""
        self._told_at = now
        why = ", ".join(f"{reason} {count}" for reason, count in sorted(self._missed.items()))
        return (
            f"the prompt store does not serve: {self._missed.total()} prompts in a row came again,"
            f" and none resumed a kept state ({why})"
        )
