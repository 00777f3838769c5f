"""A follower's loop: fold what rank 0 decided, run it, report; whatever ends the rank is told."""

from collections.abc import Callable

from ..core.apply import apply
from ..core.book import book_digest
from ..core.decide import expects_report
from ..core.device import Device
from ..core.link import Follower, RankLost
from ..core.state import State


def follow(
    follower: Follower, device: Device, state: State, failed: Callable[[RankLost], None]
) -> None:
    """Go on until the run is over. failed: hears what ended this rank before rank 0 does."""
    step = 0
    try:
        while (given := follower.receive()) is not None:
            step, facts = given
            for fact in facts:
                apply(state, fact)
            running = device.launch(state, facts, every_row=follower.every_row)
            if expects_report(facts):
                book = book_digest(state)
                report = running.report()
                report.step, report.book = step, book
                follower.report(report)
    except BaseException as error:  # the leader must hear of anything that ends a rank
        said = f"{type(error).__name__}: {error}"
        failed(RankLost(f"rank {follower.rank} failed in step {step}: {said}"))
        follower.fail(error)
        device.close()  # whoever waits for this rank in a step goes home
