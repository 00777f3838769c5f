"""Faults on purpose: one bit of one rank's memory, named by its coordinates or picked at random."""

from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom

from ..core.device import Device
from ..core.state import Phase, State, Stream
from ..events.commands import Inject
from ..events.ids import Rank

FIELDS = (
    "rank",
    "step",
    "session",
    "part",
    "layer",
    "cache",
    "position",
    "head",
    "column",
    "bit",
    "when",
)
ANY = "*"


class BadFault(Exception):
    """A fault that cannot be read or placed; the message says which field and what would do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """flip:rank=1,step=N,session=S,part=rows,layer=L,cache=k,position=P,head=H,column=C,bit=B,when=rest"""

    fields: dict[str, str]

    @staticmethod
    def parse(text: str) -> "Fault":
        """Read a fault; fields left out are picked at random, as `*` is."""
        kind, _, rest = text.partition(":")
        if kind != "flip":
            raise BadFault(f"--inject {text!r}: the only fault is flip, as in flip:rank=1,step=9")
        fields = dict.fromkeys(FIELDS, ANY) | {"part": "rows", "when": "rest"}
        for item in filter(None, rest.split(",")):
            name, equals, value = item.partition("=")
            if name not in FIELDS or not equals or not value:
                raise BadFault(f"--inject {item!r}: expected one of {', '.join(FIELDS)} = value")
            fields[name] = value
        if fields["when"] != "rest":
            raise BadFault(f"--inject when={fields['when']}: the only moment is rest")
        for name in ("rank", "step", "layer", "position", "head", "column", "bit"):
            if fields[name] != ANY and not fields[name].isdigit():
                raise BadFault(f"--inject {name}={fields[name]!r}: a whole number or *")
        return Fault(fields)


class Injector:
    """Waits until the fault's step and session are there, then asks for it once."""

    def __init__(
        self, fault: Fault, devices: list[Device], pick: Callable[[int], int] | None = None
    ) -> None:
        self._fault = fault
        self._devices = devices
        self._pick = pick or SystemRandom().randrange
        self._done = False

    def __call__(self, state: State) -> Inject | None:
        """The command, when its moment has come."""
        step = self._fault.fields["step"]
        if self._done or (step != ANY and state.step < int(step)):
            return None
        stream = self._stream(state)
        if stream is None:
            return None
        self._done = True
        return self._command(state, stream)

    def _stream(self, state: State) -> Stream | None:
        session = self._fault.fields["session"]
        least = self._fault.fields["position"]
        rows = 1 if least == ANY else int(least) + 1
        for stream in state.streams.values():
            named = session in (ANY, stream.request.session)
            if named and stream.phase is Phase.DECODING and stream.rows >= rows:
                return stream
        return None

    def _number(self, name: str, below: int) -> int:
        value = self._fault.fields[name]
        chosen = self._pick(below) if value == ANY else int(value)
        if not 0 <= chosen < below:
            raise BadFault(f"--inject {name}={chosen}: there are {below} here")
        return chosen

    def _command(self, state: State, stream: Stream) -> Inject:
        fields = self._fault.fields
        part = fields["part"]
        rank = self._rank(part)
        device = self._devices[rank]
        caches = 2 if part == "rows" and state.opened.family == "llama" else 1
        layer = self._number("layer", device.layers(part) // caches)
        cache = fields["cache"] if fields["cache"] != ANY else "kv"[self._pick(caches)]
        if cache not in "kv"[:caches]:
            raise BadFault(f"--inject cache={cache}: expected {' or '.join('kv'[:caches])}")
        position = self._number("position", stream.rows)
        digest_layer = caches * layer + "kv".index(cache)
        rows = device.read(state, stream.stream, part, digest_layer, position)
        head = self._head(sorted(rows))
        column = self._number("column", len(rows[head]) // 2)
        return Inject(
            rank=Rank(rank),
            stream=stream.stream,
            part=part,
            layer=layer,
            cache=cache,
            position=position,
            head=head,
            column=column,
            bit=self._number("bit", 16),
            when=fields["when"],
        )

    def _rank(self, part: str) -> int:
        holders = [rank for rank, device in enumerate(self._devices) if device.layers(part)]
        value = self._fault.fields["rank"]
        rank = holders[self._pick(len(holders))] if value == ANY else int(value)
        if rank not in holders:
            raise BadFault(f"--inject rank={rank}: {part} is held by ranks {holders}")
        return rank

    def _head(self, heads: list[int]) -> int:
        value = self._fault.fields["head"]
        head = heads[self._pick(len(heads))] if value == ANY else int(value)
        if head not in heads:
            raise BadFault(f"--inject head={head}: this rank holds heads {heads}")
        return head
