"""What every rank of a live run was told and then held, turn by turn: the wire as ranks hear it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from kvtape.core.book import book_digest
from kvtape.core.device import Device, Running
from kvtape.core.state import State
from kvtape.events import facts as f
from kvtape.events.facts import AnyFact, RunOpened
from kvtape.events.ids import PageId, RequestId, StreamId
from kvtape.events.reader import Step
from kvtape.replay.machine import MakeDevices

from .replay_bench import Script, arrive, facts_of, fakes, record

Before = Callable[[Any, State, Sequence[AnyFact]], None]


@dataclass(frozen=True, slots=True)
class Heard:
    """One turn of a rank: its facts, and what it held with them applied.

    tables, book: digests.  seats: the pages of each stream's table.  leases: of every page.
    copies: bytes of each kept copy's own rows, by state, after the launch.
    """

    facts: tuple[AnyFact, ...]
    tables: str
    book: str
    seats: dict[StreamId, tuple[PageId, ...]]
    leases: tuple[int, ...]
    copies: dict[int, int]
    tree: bool


@dataclass
class Spy:
    """A rank's device, and who looks over its shoulder; `before` may meddle with its memory."""

    device: Any
    before: Before | None = None
    heard: list[Heard] = field(default_factory=list)

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """As the device does it."""
        if self.before is not None:
            self.before(self.device, state, facts)
        seats = {one.stream: tuple(state.table(one)) for one in state.streams.values() if one.pages}
        leases = tuple(state.book.leases.tolist())
        running: Running = self.device.launch(state, facts, every_row=every_row)
        self.heard.append(
            Heard(
                tuple(facts),
                blake2b(state.tables.tobytes(), digest_size=16).hexdigest(),
                book_digest(state),
                seats,
                leases,
                {kept: own_bytes(copy) for kept, copy in copies_of(self.device).items()},
                state.tree is not None,
            )
        )
        return running

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def copies_of(device: Any) -> dict[int, Any]:
    """What a device keeps beside the pages, by state."""
    found: dict[int, Any] = getattr(device, "copies", {})
    return dict(found)


def own_bytes(copy: Any) -> int:
    """Bytes of rows that a copy owns, of a fake rank or a GLM one."""
    if hasattr(copy, "paged"):
        return sum(words.nbytes for words in copy.paged)
    return 0 if copy.pages is None else copy.pages.latent.nbytes + copy.pages.keys.nbytes


@dataclass(frozen=True, slots=True)
class Wire:
    """A live run, and each rank's turns; rank 0 comes first."""

    opened: RunOpened
    steps: list[Step]
    ranks: list[Spy]

    @property
    def ends(self) -> dict[str, f.RequestFinished]:
        """How each request ended."""
        found = facts_of(self.steps, "request_finished")
        return {fact.request: fact for fact in found if isinstance(fact, f.RequestFinished)}

    @property
    def facts(self) -> Iterator[AnyFact]:
        """Every fact, in order."""
        return (fact for step in self.steps for fact in step.facts)

    def of(self, kind: str) -> list[Any]:
        """Every fact of a kind."""
        return list(facts_of(self.steps, kind))


def listened(
    opened: RunOpened,
    script: Script,
    make: MakeDevices = fakes,
    before: Before | None = None,
    spoil: Callable[[Sequence[Device]], None] = lambda devices: None,
) -> Wire:
    """Run a script live, on ranks that are listened to; spoil may change the devices first."""
    spies: list[Spy] = []

    def made(run: RunOpened) -> Sequence[Device]:
        devices = make(run)
        spoil(devices)
        spies.extend(Spy(device, before) for device in devices)
        listening: list[Any] = [*spies]
        return listening

    return Wire(opened, record(opened, script, make=made), spies)


def one_by_one(wishes: Sequence[tuple[str, Sequence[int]]], max_new: int = 4) -> Script:
    """Chats asked one after another; a chat's history is its prompt but the last two tokens."""
    return {
        100 * at: [arrive(name, name, prompt, max_new, history_tokens=len(prompt) - 2)]
        for at, (name, prompt) in enumerate(wishes)
    }


def replies(wire: Wire) -> dict[RequestId, str]:
    """What each request was answered, by its hash."""
    return {end.request: end.token_sha for end in wire.ends.values()}
