"""The fake families as they are served: their rules, and the memory that they are said to take."""

from collections.abc import Callable

from ..core.families.fake import fake_rules, paged_rules
from ..core.plan_wanted import Sizes
from ..events.records import FamilyRules

FAKES: dict[str, Callable[[], FamilyRules]] = {
    "fake": lambda: fake_rules(page_rows=32, mark_rows=32, drafts=2, vocab=256),
    "fake-pages": lambda: paged_rules(page_rows=32, vocab=256),
}
CONTEXT = 2048  # by default
CONTEXT_MOST = 2**17  # its pages are memory like any other
ROW_BYTES, STATE_BYTES = 128, 512


def fake_sizes(rules: FamilyRules) -> Sizes:
    """What a rank keeps of a fake model."""
    state = STATE_BYTES if rules.snapshots else 0
    return Sizes(rules.page_rows, ROW_BYTES, fixed_bytes=state, snapshot_bytes=state)
