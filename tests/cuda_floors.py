"""What a launch must do at least: bytes that it moves, 8-bit operations of tensor cores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtape.devices.cuda.card import Launch

Launched = Any  # a partial: its function, and its arguments behind the stream
PRODUCTS = 4  # 8-bit products of a 16-bit one


@dataclass(frozen=True, slots=True)
class Step:
    """What floors depend on beside a launch's arguments.

    rows, runs: of the step; busy: experts that have slots; slots: of all; pools, seen: what each
    row scores and attends, on average; latents: rows of latents that the step reads, each once.
    """

    rows: int
    runs: int
    busy: float
    slots: int
    pools: float
    seen: float
    latents: float


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes and 8-bit operations."""

    bytes: float
    operations: float = 0.0

    def floor(self, rate: float, speed: float) -> float:
        """Microseconds at so many bytes, and operations, a microsecond."""
        return max(self.bytes / rate, self.operations / speed)


def name_of(launch: Launch) -> str:
    """What a launch does, with the sizes of a map."""
    one: Launched = launch
    name: str = one.func.__name__
    a = one.args[1:]
    if name == "linear":
        return f"{name} {16 * (a[7] - a[6])} x {2 * a[4]}"
    if name == "gated":
        return f"{name} 2 x {16 * a[6]} x {2 * a[4]}"
    if name == "linear_heads":
        return f"{name} {a[6]} x {a[7]} x {2 * a[4]}"
    return name


def work_of(launch: Launch, step: Step) -> Work:
    """What a launch must do."""
    one: Launched = launch
    a, rule = one.args[1:], RULES.get(one.func.__name__)
    return rule(a, step) if rule is not None else Work(rows_bytes(a, step.rows))


def rows_bytes(arguments: tuple[Any, ...], rows: int) -> int:
    """Bytes of the two-axed arrays that have something for each row."""
    return sum(
        a.nbytes
        for a in arguments
        if hasattr(a, "nbytes") and a.ndim == 2 and a.shape[0] and a.shape[0] % rows == 0
    )


def _linear(a: tuple[Any, ...], step: Step) -> Work:
    pairs, outputs = a[4], 16 * (a[7] - a[6])
    return _map(step.rows, outputs, 2 * pairs, 1 + bool(a[11]))


def _map(rows: float, outputs: int, inputs: int, writes: int = 1) -> Work:
    moved = outputs * inputs * 2 + rows * (inputs * 2 + writes * outputs * 4)
    return Work(moved, PRODUCTS * 2 * rows * outputs * inputs)


def _heads(a: tuple[Any, ...], step: Step) -> Work:
    pairs, heads, columns = a[4], a[6], a[7]
    one = _map(step.rows, columns, 2 * pairs)
    return Work(heads * one.bytes, heads * one.operations)


def _gated(a: tuple[Any, ...], step: Step) -> Work:
    inputs, outputs = 2 * a[4], 32 * a[6]
    moved = outputs * inputs * 2 + step.rows * (inputs * 2 + outputs * 2)
    return Work(moved, PRODUCTS * 2 * step.rows * outputs * inputs)


def _up(a: tuple[Any, ...], step: Step) -> Work:
    inputs, outputs = 2 * a[4], 32 * a[9]
    moved = step.busy * outputs * inputs * 2 + step.rows * inputs * 2 + step.slots * outputs * 2
    return Work(moved, PRODUCTS * 2 * step.slots * outputs * inputs)


def _down(a: tuple[Any, ...], step: Step) -> Work:
    inputs, outputs = 2 * a[4], 16 * a[8]
    moved = step.busy * outputs * inputs * 2 + step.slots * (inputs * 2 + outputs * 4)
    return Work(moved, PRODUCTS * 2 * step.slots * outputs * inputs)


def _recurrence(a: tuple[Any, ...], step: Step) -> Work:
    """States there and back, q, k, a, v and o; four operations of 32 bits a key and value."""
    states, wide = a[5], a[0].shape[1]
    heads, width = states.shape[2], states.shape[3]
    return Work(2 * step.runs * heads * width * width * 4 + 5 * step.rows * wide * 4)


def _conv(a: tuple[Any, ...], step: Step) -> Work:
    wide, taps = a[2].shape
    return Work(2 * step.rows * wide * 4 + wide * taps * 4 + 2 * step.runs * wide * taps * 4)


def _select(a: tuple[Any, ...], step: Step) -> Work:
    first, last = a[-2:]
    heads, width = a[1].shape[1], a[5].shape[2]
    scored = step.pools if step.pools > a[12] else 0.0
    rows = last - first
    return Work(rows * scored * width * 2, PRODUCTS * 2 * rows * scored * heads * width)


def _attend(a: tuple[Any, ...], step: Step) -> Work:
    """Scores take four 8-bit products, weights of three bytes six."""
    first, last = a[-2:]
    share, heads, width = (last - first) / step.rows, a[1].shape[1], a[5].shape[2]
    moved = share * (step.latents * width * 2 + step.rows * heads * width * 6)
    products = (PRODUCTS + 6) * 2 * (last - first) * step.seen * heads * width
    return Work(moved, products)


def _streams(a: tuple[Any, ...], step: Step) -> Work:
    """Streams are read and written."""
    return Work(rows_bytes(a, step.rows) + a[0].nbytes)


RULES: dict[str, Callable[[tuple[Any, ...], Step], Work]] = {
    "linear": _linear,
    "linear_heads": _heads,
    "gated": _gated,
    "expert_up": _up,
    "expert_down": _down,
    "kda_rows": _recurrence,
    "conv_rows": _conv,
    "select_rows": _select,
    "attend_split": _attend,
    "hc_write": _streams,
    "mix_streams": _streams,
}
