"""Each fault of `mutants.py` is killed by the test named for it, which passes without the fault."""

from collections.abc import Callable
from functools import partial

import pytest

from kvtape.core.link import RankLost
from kvtape.core.plan_pages import share_warning
from kvtape.core.state import FLAT, RADIX

from . import test_on_the_wire as wire
from . import test_resumed_pages as resume
from .mutants import MUTANTS, mutant

# How a test fails: an assert of its own or of the machine's, a rank that ended, no refusal.
FAILS = (AssertionError, RankLost, pytest.fail.Exception)


def test_a_run_warns_below_four_kept_states_a_lane_and_names_the_value() -> None:
    assert "set 16" in share_warning(15, 4) and share_warning(16, 4) == ""


Named = Callable[[], None]
NAMED: dict[str, list[Named]] = {
    "poison over adopted pages on rank 0": [
        partial(wire.test_poison_spares_adopted_pages_on_rank_0, kind) for kind in resume.KINDS
    ],
    "poison over adopted pages on a follower": [
        partial(wire.test_poison_spares_adopted_pages_on_a_follower, kind) for kind in resume.KINDS
    ],
    "more kept pages than the table": [
        wire.test_a_follower_refuses_more_kept_pages_than_its_table_has
    ],
    "pages kept after a refused resume": [
        partial(resume.test_a_refused_resume_gives_the_pages_back_on_every_rank, kind, 1)
        for kind in ("drafted", "paged")
    ],
    "shared ignored in a snapshot": [
        partial(wire.test_a_copy_has_the_shape_that_its_step_says_on_every_rank, store, kind)
        for store in (RADIX, FLAT)
        for kind in ("drafted", "plain", "glm")
    ],
    "one page too many told to the store": [
        partial(wire.test_a_store_is_told_the_pages_below_its_mark_and_no_more, kind)
        for kind in ("paged", "llama")
    ],
    "a lookahead of 0": [
        partial(wire.test_another_token_at_the_mark_is_no_resume_and_the_same_is_one, RADIX, kind)
        for kind in ("drafted", "glm")
    ],
    "a warning below 3 a lane": [
        test_a_run_warns_below_four_kept_states_a_lane_and_names_the_value
    ],
}
NAMED["shared ignored in a follower's snapshot"] = NAMED["shared ignored in a snapshot"]


@pytest.mark.parametrize("name", MUTANTS)
def test_each_fault_is_killed_by_the_test_named_for_it(name: str) -> None:
    for named in NAMED[name]:
        with mutant(name), pytest.raises(FAILS):
            named()
        named()  # with the line back in its place
