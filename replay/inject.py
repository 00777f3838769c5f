"""Faults on purpose: one bit of one rank's memory, named by coordinates or picked at random."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom

from ..core.device import Device, HeldRows
from ..core.families.caches import cache_names, digest_layer
from ..core.state import Phase, State, Stream
from ..events.commands import Inject
from ..events.facts import RunOpened
from ..events.ids import Rank
from .syndrome import rows_in_reach

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
NOT_IN_MEMORY = ("marks", "logits", "tokens")  # parts that are sums of other parts, or pass by
ELEMENT_BITS = 16
EXPONENT_BITS = 8
WORD_ELEMENTS = 4  # of a word
WITH_EXPONENTS = ("llama",)  # an exponent is read as a word of its own behind a row's codes
BESIDE_PAGES = ("states", "rings")  # their rows are those of the last step, wherever it came to

Pick = Callable[[int], int]
LOG = logging.getLogger("kvtape.inject")


class BadFault(Exception):
    """A fault that cannot be read or placed; the message says which field and what would do."""


@dataclass(frozen=True, slots=True)
class Fault:
    """flip:rank=1,step=N,session=S,part=rows,layer=L,cache=k,position=P,head=H,column=C,bit=B."""

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
            if fields[name] != ANY and not fields[name].isdecimal():
                raise BadFault(f"--inject {name}={fields[name]!r}: a whole number or *")
        return Fault(fields)

    def check(self, opened: RunOpened, devices: Sequence[Device]) -> None:
        """Refuse a fault that no stream of this run can come to have. Raises BadFault."""
        part = self.fields["part"]
        parts = [name for name in opened.rules.parts if name not in NOT_IN_MEMORY]
        if part not in parts:
            raise BadFault(f"--inject part={part}: this model has {', '.join(parts)}")
        caches = cache_names(opened.family, part)
        if self.fields["cache"] not in (ANY, *caches):
            raise BadFault(f"--inject cache={self.fields['cache']}: expected {' or '.join(caches)}")
        layers = max(device.layers(part) for device in devices) // len(caches)
        for name, below in (
            ("rank", opened.world), ("layer", layers), ("position", opened.context),
            ("bit", ELEMENT_BITS),
        ):  # fmt: skip
            self.number(name, below, lambda count: 0)

    def number(self, name: str, below: int, pick: Pick) -> int:
        """A field's number, picked where any will do. Raises BadFault where it is too large."""
        value = self.fields[name]
        chosen = pick(below) if value == ANY else int(value)
        if not 0 <= chosen < below:
            raise BadFault(f"--inject {name}={chosen}: there are {below} here")
        return chosen


class Injector:
    """Waits until the fault's step and session are there, then asks for it once."""

    def __init__(self, fault: Fault, devices: Sequence[Device], pick: Pick | None = None) -> None:
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
        try:
            return self._command(state, stream)
        except BadFault as error:  # only a stream's rows show how many heads and columns they have
            LOG.error("no fault was injected: %s", error)
            return None

    def _stream(self, state: State) -> Stream | None:
        session = self._fault.fields["session"]
        least = self._fault.fields["position"]
        rows = 1 if least == ANY else int(least) + 1
        window = 1 + state.opened.rules.drafts
        for stream in state.streams.values():
            named = session in (ANY, stream.request.session)
            stays = stream.new_tokens + window < stream.request.max_new
            if named and stays and stream.phase is Phase.DECODING and stream.rows >= rows:
                return stream
        return None

    def _number(self, name: str, below: int) -> int:
        return self._fault.number(name, below, self._pick)

    def _command(self, state: State, stream: Stream) -> Inject:
        fields, family = self._fault.fields, state.opened.family
        part = fields["part"]
        rank = self._rank(part)
        caches = cache_names(family, part)
        layer = self._number("layer", self._devices[rank].layers(part) // len(caches))
        cache = fields["cache"] if fields["cache"] != ANY else caches[self._pick(len(caches))]
        rows = self._rows(state, stream, rank, digest_layer(family, part, layer, cache))
        head = self._head(sorted(rows))
        position = self._position(rows[head])
        elements = rows[head].words.shape[1] * WORD_ELEMENTS
        exponent = elements - WORD_ELEMENTS if family in WITH_EXPONENTS else elements
        column = self._number("column", min(elements, exponent + 1))
        return Inject(
            rank=Rank(rank),
            stream=stream.stream,
            part=part,
            layer=layer,
            cache=cache,
            position=position,
            head=head,
            column=column,
            bit=self._number("bit", ELEMENT_BITS if column < exponent else EXPONENT_BITS),
            when=fields["when"],
        )

    def _rows(self, state: State, stream: Stream, rank: int, layer: int) -> dict[int, HeldRows]:
        """The rows that a rank holds of one digest layer, at the fault's position if it has one."""
        part, named = self._fault.fields["part"], self._fault.fields["position"]
        last = rows_in_reach(state, stream.stream) if part in BESIDE_PAGES else stream.rows
        first, count = (0, last) if named == ANY else (int(named), 1)
        rows = self._devices[rank].read_rows(state, stream.stream, part, layer, first, count)
        if not rows and named != ANY:
            raise BadFault(f"--inject position={named}: rank {rank} has no row of {part} there")
        return rows

    def _position(self, rows: HeldRows) -> int:
        return int(rows.positions[self._pick(len(rows.positions))])

    def _rank(self, part: str) -> int:
        holders = [rank for rank, device in enumerate(self._devices) if device.layers(part)]
        value = self._fault.fields["rank"]
        rank = holders[self._pick(len(holders))] if value == ANY else int(value)
        if rank not in holders:
            raise BadFault(f"--inject rank={rank}: {part} is held by ranks {holders}")
        return rank

    def _head(self, heads: list[int]) -> int:
        value = self._fault.fields["head"]
        if not heads:
            raise BadFault("--inject rank: this rank holds no heads")
        head = heads[self._pick(len(heads))] if value == ANY else int(value)
        if head not in heads:
            raise BadFault(f"--inject head={head}: this rank holds heads {heads}")
        return head
