"""Where a stream sat when a state of it was kept: by the end of that step it may be gone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.state import State
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import Lane


def seat_then(
    state: State, facts: Sequence[AnyFact], kept: f.SnapshotTaken
) -> tuple[Lane, NDArray[np.int32]]:
    """The lane and the page ids of a step's stream whose state is kept; `state` is the step's end.

    What left in the same step said so by facts, which tell both.
    """
    stream = state.streams.get(kept.stream)
    if stream is not None:
        return stream.lane, state.tables[stream.lane, : stream.pages]
    after = [fact for fact in facts if getattr(fact, "stream", None) == kept.stream]
    returned = next(fact for fact in after if isinstance(fact, f.PagesReturned))
    released = next(fact for fact in after if isinstance(fact, f.StreamReleased))
    return released.lane, np.asarray(returned.pages, np.int32)
