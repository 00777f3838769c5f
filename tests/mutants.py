"""Faults that were made once, each as a switch that only tests can turn: one line taken out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kvtape.core import apply as applying
from kvtape.core import keep, plan_pages
from kvtape.core import state as states
from kvtape.core.device import Running
from kvtape.core.families.glm import Glm
from kvtape.core.state import RADIX, Phase, State, Stream
from kvtape.core.store_radix import RadixStore
from kvtape.core.tree import PromptTree
from kvtape.devices import fake, paged
from kvtape.devices.fake_memory import PATTERNS
from kvtape.devices.glm import device as glm
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact
from kvtape.events.ids import PageId

Patch = pytest.MonkeyPatch
Where = Callable[[int], bool]  # of ranks


@contextmanager
def mutant(name: str) -> Iterator[None]:
    """One of them, for as long as this lasts."""
    with Patch.context() as patch:
        MUTANTS[name](patch)
        yield


def lead(rank: int) -> bool:
    """Rank 0 alone."""
    return rank == 0


def followers(rank: int) -> bool:
    """Every rank but 0."""
    return rank > 0


def poisons_adopted(where: Where) -> Callable[[Patch], None]:
    """A lease poisons its own pages, and those that its stream adopted."""

    def on(patch: Patch) -> None:
        patch.setattr(glm.GlmDevice, "_do", too_much(glm.GlmDevice._do))
        patch.setattr(paged.PagedRank, "do", too_much(paged.PagedRank.do))
        leased = fake._DOES["pages_leased"]
        patch.setitem(fake._DOES, "pages_leased", fake_too_much(leased))

    def adopted(state: State, fact: f.PagesLeased) -> tuple[PageId, ...]:
        stream = state.streams[fact.stream]
        return tuple(state.table(stream)[: stream.kept_pages])

    def too_much(real: Any) -> Any:
        def do(device: Any, state: State, fact: AnyFact, *rest: Any) -> None:
            real(device, state, fact, *rest)
            mine = device.settings.poisons and where(int(device.rank))
            if mine and isinstance(fact, f.PagesLeased):
                device.inspector.poison_pages(adopted(state, fact), device.settings.poison)

        return do

    def fake_too_much(real: Any) -> Any:
        def do(device: Any, state: State, fact: f.PagesLeased, report: Any) -> None:
            real(device, state, fact, report)
            if state.opened.poison in PATTERNS and where(int(device.rank)):
                memory, pages = device._memory, list(adopted(state, fact))
                pattern = PATTERNS[state.opened.poison]
                memory.rows[:, pages] = memory.keys[pages] = memory.drafts[pages] = pattern

        return do

    return on


def any_count_of_kept_pages(patch: Patch) -> None:
    """A begin is taken whatever its table holds."""
    patch.setattr(applying, "_fits_its_table", lambda state, fact: None)


def keeps_pages_of_a_refused_resume(patch: Patch) -> None:
    """The stream lets go of its table, and the book does not."""
    real = applying._APPLY["pages_returned"]

    def returned(state: State, fact: f.PagesReturned) -> None:
        resuming = state.streams[fact.stream].phase is Phase.RESUMING
        real(state, fact)
        if resuming:
            state.book.adopt(fact.pages)

    patch.setitem(applying._APPLY, "pages_returned", returned)


def ignores_shared(where: Where) -> Callable[[Patch], None]:
    """A snapshot has the other shape than its step says."""

    def on(patch: Patch) -> None:
        for kind in (glm.GlmDevice, fake.FakeDevice):
            patch.setattr(kind, "launch", told_other_shape(kind.launch))

    def told_other_shape(real: Any) -> Any:
        def launch(device: Any, state: State, facts: Sequence[AnyFact], **more: Any) -> Running:
            mine = [other_shape(fact) if where(int(device.rank)) else fact for fact in facts]
            running: Running = real(device, state, mine, **more)
            return running

        return launch

    def other_shape(fact: AnyFact) -> AnyFact:
        if isinstance(fact, f.SnapshotTaken):
            return fact.model_copy(update={"shared": not fact.shared})
        return fact

    return on


class OnePageTooMany(RadixStore):
    """Tells of the page after the mark, too, where the stream has one."""

    def keep(self, state: State, stream: Stream, mark: int) -> Iterator[AnyFact]:
        """As the store does it, and a page more."""
        for fact in super().keep(state, stream, mark):
            if isinstance(fact, f.SnapshotTaken):
                pages = tuple(state.table(stream)[: len(fact.pages) + 1])
                fact = fact.model_copy(update={"pages": pages})
            yield fact


def tells_one_page_too_many(patch: Patch) -> None:
    """The radix store is that of the class above."""
    patch.setitem(keep._STORES, RADIX, OnePageTooMany())


def looks_no_token_ahead(patch: Patch) -> None:
    """Pages are equal if their own tokens are, in the tree and in a GLM's rules."""

    def blind(page_rows: int, lookahead: int, *rest: Any, **more: Any) -> PromptTree:
        return PromptTree(page_rows, 0, *rest, **more)

    patch.setattr(states, "PromptTree", blind)
    real = Glm.rules
    patch.setattr(Glm, "rules", lambda family: real(family).model_copy(update={"lookahead": 0}))


def warns_below_three_a_lane(patch: Patch) -> None:
    """Three kept states a lane are said to be enough."""
    patch.setattr(plan_pages, "SHARE_FACTOR", 3)


MUTANTS: dict[str, Callable[[Patch], None]] = {
    "poison over adopted pages on rank 0": poisons_adopted(lead),
    "poison over adopted pages on a follower": poisons_adopted(followers),
    "more kept pages than the table": any_count_of_kept_pages,
    "pages kept after a refused resume": keeps_pages_of_a_refused_resume,
    "shared ignored in a snapshot": ignores_shared(lambda rank: True),
    "shared ignored in a follower's snapshot": ignores_shared(followers),
    "one page too many told to the store": tells_one_page_too_many,
    "a lookahead of 0": looks_no_token_ahead,
    "a warning below 3 a lane": warns_below_three_a_lane,
}
