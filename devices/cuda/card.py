"""One GPU as the device sees it: an allocation, copies in stream order, captured graphs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.families.family import UnsupportedShape

Array = Any  # of the card: what kernels take, and what slices, reshapes and views as NumPy's do
Shape = tuple[tuple[int, ...], type[np.generic]]  # of an array: its axes and its elements
Launch = Callable[[], None]

LINE = 256  # bytes to which arrays are aligned
RESERVE = 1 << 29  # bytes that stay free: the driver's, the kernels', a library's work space
GIB = 1 << 30
TO_CARD, TO_HOST = 1, 2  # kinds of copies
NEEDED = {"numba-cuda": "numba_cuda", "cupy": "cupy"}  # what comes with the extra, its modules


class NoCard(UnsupportedShape):
    """There is no GPU to run on, or not what is needed to run on it; the message names it."""

    exit_code = 3


class NoRoom(UnsupportedShape):
    """A GPU has less memory than was planned; the message has both, and what would fit."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class CardInfo:
    """What a card is: its name, its memory in bytes, how much of it is free, who drives it."""

    name: str
    total: int
    free: int
    driver: str


class Card(Protocol):
    """What the device asks of a GPU. Everything happens in the order of its one stream."""

    stream: Any

    def count(self) -> int:
        """How many there are of its kind."""
        ...

    def use(self) -> None:
        """Make this the card of the calling thread."""
        ...

    def info(self) -> CardInfo:
        """What it is, and what is free on it now."""
        ...

    def arrays(self, shapes: Mapping[str, Shape]) -> dict[str, Array]:
        """Arrays of zeros, all in one allocation. Raises NoRoom."""
        ...

    def staged(self, bytes_: int) -> NDArray[np.uint8]:
        """Bytes on the host that copies may read and write while the host goes on."""
        ...

    def upload(self, host: NDArray[Any], to: Array) -> None:
        """Copy onto the card; host memory that is staged must stay as it is until it is done."""
        ...

    def download(self, of: Array, to: NDArray[Any]) -> None:
        """Copy off the card; done when `wait` returns."""
        ...

    def captured(self, launches: Launch) -> Launch:
        """Capture what `launches` does as a graph; whoever calls the result launches it."""
        ...

    def wait(self) -> None:
        """Wait for everything so far. Raises whatever went wrong on the card."""
        ...

    def close(self) -> None:
        """Let the memory go."""
        ...


def size_of(shapes: Mapping[str, Shape]) -> int:
    """Bytes of an allocation that holds all these arrays."""
    return sum(_padded(shape) for shape in shapes.values())


def bytes_of(shape: Shape) -> int:
    """Bytes of an array."""
    axes, kind = shape
    return int(np.prod(axes, dtype=np.int64)) * np.dtype(kind).itemsize


def _padded(shape: Shape) -> int:
    return -(-bytes_of(shape) // LINE) * LINE


def check_room(shapes: Mapping[str, Shape], info: CardInfo) -> int:
    """Bytes of the allocation. Raises NoRoom where the card has less, its reserve left alone."""
    need, room = size_of(shapes), info.free - RESERVE
    if need > room:
        largest = sorted(shapes, key=lambda name: -bytes_of(shapes[name]))[:3]
        parts = ", ".join(f"{name} {bytes_of(shapes[name]) / GIB:.2f}" for name in largest)
        raise NoRoom(
            f"{info.name}: {need / GIB:.2f} GiB are needed ({parts}), {max(room, 0) / GIB:.2f} of"
            f" {info.total / GIB:.2f} GiB are free beside a reserve of {RESERVE / GIB:.2f};"
            " fewer --pages, or a lower --parallel, --context or --prompt-rows, need less"
        )
    return need


def open_card(index: int) -> Card:
    """The GPU of that number, or the simulated one. Raises NoCard."""
    try:
        from ...core.kernels.cuda.target import SIMULATED, recording

        if recording():
            from .recording import RecordingCard

            return RecordingCard()
        if SIMULATED:
            from .simulated import SimulatedCard

            return SimulatedCard()
        from .gpu import Gpu
    except ImportError as error:
        raise NoCard(f"--device cuda: {lacking(error)}") from error
    return Gpu.open(index)


def lacking(error: ImportError) -> str:
    """What is not installed, and what would install it; what went wrong where all is."""
    names = [name for name, module in NEEDED.items() if find_spec(module) is None]
    why = f"{' and '.join(names)} not installed" if names else str(error).split(" (")[0]
    return f"numba-cuda and cupy are needed ({why}): pip install 'kvtape[cuda]'"


def cards() -> list[CardInfo]:
    """Every GPU of this machine. Raises NoCard where there is none that can be used."""
    first = open_card(0)
    return [first.info(), *(open_card(index).info() for index in range(1, first.count()))]
