"""Requests of every kind on a GLM, served while all that their streams hold is looked at."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvtape.events.commands import AnyCommand, Arrive
from kvtape.events.facts import RunOpened
from kvtape.events.records import Sampling

from .glm_memory import Drafter, Held, Playing, differing, held
from .glm_rig import glm_device, glm_opened, glm_tokens
from .rig import Rig, arrive

TOKENS = glm_tokens()
VOCAB = 512
Make = Callable[[RunOpened], Any]
Seen = dict[tuple[str, int], Held]  # by request and kept rows


def bits(value: float) -> int:
    """A float32's pattern."""
    return int(np.float32(value).view(np.uint32))


HOT = Sampling(temperature_bits=bits(1.0), top_k=40, seed=5)
WARM = Sampling(temperature_bits=bits(0.8), top_p_bits=bits(0.9), seed=-7, bias=((9, bits(2.0)),))
HEAVY = Sampling(temperature_bits=bits(1.0), repetition_bits=bits(1.3), seed=2)
RARE = Sampling(presence_bits=bits(1.5), frequency_bits=bits(0.5))


def some(seed: int, rows: int) -> list[int]:
    """Random ids that end no reply."""
    found: list[int] = np.random.default_rng(seed).integers(6, VOCAB, rows).tolist()
    return found


def wishes(draft: bool = True) -> list[Arrive]:
    """Requests of every kind, over page edges at 16, 32, 48, 64; `d` never wants drafts."""
    return [
        arrive("a", TOKENS[:61], 20, draft=draft),
        arrive("b", TOKENS[:33], 25, draft=draft, sampling=HOT),
        arrive("c", some(3, 50), 18, draft=draft),
        arrive("d", some(4, 17), 23, draft=False),
        arrive("e", some(5, 1), 30, draft=draft, sampling=WARM),
        arrive("f", some(6, 14), 7, draft=draft, sampling=HEAVY),
        arrive("g", some(7, 30), 9, draft=draft, sampling=RARE),
        arrive("h", some(8, 29), 1, draft=draft),
    ]


class Watched(Rig):
    """A rig that looks after every step at what each seated stream holds."""

    def __init__(self, opened: RunOpened, make: Make) -> None:
        super().__init__(opened, make=make)
        self.seen: Seen = {}
        self.sums: dict[str, dict[str, str]] = {}
        self.windows = 0

    def step(self, *wishes: AnyCommand) -> tuple[Any, ...]:
        """A turn; kept are the memory and the sums behind each request's kept rows."""
        facts = super().step(*wishes)
        for stream in self.state.streams.values():
            totals = self.device.ledger.streams.get(stream.stream)
            if totals and totals.rows >= stream.prompt_tokens:
                known = stream.request.request, totals.rows
                self.seen[known] = held(self.device, self.state, stream.stream)
        for fact in facts:
            if fact.kind == "step_closed":
                for at, stream_id in enumerate(fact.digests.streams):
                    request = self._requests[stream_id]
                    self.sums[request] = {p: v[at] for p, v in fact.digests.parts.items()}
            self.windows += len(fact.lanes) if fact.kind == "round_run" else 0
        return facts


def serve(asked: list[Arrive], drafts: int, make: Make = glm_device, **opened: Any) -> Watched:
    """Two requests, then the others while these are being answered, to the end."""
    rig = Watched(glm_opened(drafts, lanes=8, pages=60, prompt_rows=40, **opened), make)
    rig.step(*asked[:2])
    rig.step()
    rig.step(*asked[2:])
    rig.settle()
    rig.device.close()
    return rig


def with_drafter(drafter: Drafter) -> Make:
    """A device whose drafts this says."""
    return lambda opened: Playing(glm_device(opened), drafter)


_KNOWN: dict[str, Watched] = {}


def undrafted() -> Watched:
    """The same requests without a draft, on a device that has a drafter."""
    if "one" not in _KNOWN:
        _KNOWN["one"] = serve(wishes(draft=False), 4)
    return _KNOWN["one"]


def replies() -> Mapping[str, list[int]]:
    """What undrafted requests are answered, by request."""
    return {str(request): reply for request, reply in undrafted().replies.items()}


def faults(rig: Watched, want: Watched) -> set[str]:
    """The parts of memory that are not, at some kept row, what the other run held there."""
    shared = rig.seen.keys() & want.seen.keys()
    return {part for known in shared for part in differing(rig.seen[known], want.seen[known])}


def assert_same(rig: Watched, want: Watched) -> None:
    """Replies, sums and memory after each round."""
    assert rig.replies == want.replies
    assert {r: end.reason for r, end in rig.finished.items()} == {
        r: end.reason for r, end in want.finished.items()
    }
    assert rig.sums == want.sums
    assert rig.seen.keys() <= want.seen.keys()
    assert faults(rig, want) == set()


def wrong(stream: Any) -> list[int]:
    """Drafts that are never right: no reply here holds id 5, and `assert_same` would see it."""
    del stream
    return [5, 5, 5, 5]
