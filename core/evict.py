"""Which kept prefix goes first, as a run's flag says."""

from ..events.facts import RunOpened
from .paging import layout

SEEDS, LRU, ODDS = layout.SEEDS, layout.LRU, layout.ODDS_POLICY  # flag `evict` of a run
POLICIES = {"seeds": SEEDS, "lru": LRU, "odds": ODDS}


def policy_of(opened: RunOpened) -> int:
    """The order of a run."""
    policy = opened.flags.get("evict", SEEDS)
    assert policy in POLICIES.values(), f"evict {policy} is no order of {POLICIES}"
    return policy
