"""The process of a follower: its device is made as ordered, then it follows until told to end."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread
from time import sleep
from typing import Any, Protocol

from ..core.device import Device, Report
from ..core.families.family import UnsupportedShape
from ..core.link import RankLost
from ..core.state import State, open_state
from ..events.ids import Rank
from .following import follow
from .kernel_cache import keep_book
from .links import CheckingFollower, Gone, Header, Step
from .rank_process import Ask, Open, Refused, Told
from .weights.checkpoint import ModelError

GRACE_SECONDS = 5.0  # from the end of rank 0 to that of a follower that cannot end in order


class Line:
    """This process's ends of what rank 0 opened: control, the meeting, and the life line."""

    def __init__(self, control: int, life: int, meeting: int) -> None:
        """Numbers of open files."""
        self.control = Connection(control)
        self.meeting = socket.socket(fileno=meeting)
        self.cut: Callable[[str], None] = lambda why: None  # set by whoever has waits to end
        Thread(target=self._live, args=(life,), name="kvtape life", daemon=True).start()

    def say(self, value: object) -> None:
        """Tell rank 0 something of the start."""
        self.control.send(Told(value))

    def heard(self) -> Any:
        """What rank 0 tells at the start. Raises RankLost."""
        try:
            return self.control.recv().value
        except (EOFError, AttributeError):
            raise RankLost("rank 0 ended while its group started") from None

    def _live(self, life: int) -> None:
        """Nothing is ever written: the line's end is rank 0's."""
        os.read(life, 1)
        self.cut("rank 0 is gone")
        sleep(GRACE_SECONDS)
        os._exit(1)


class Order(Protocol):
    """What rank 0 tells a follower to be."""

    rank: int

    def make(self, line: Line) -> Device:
        """The rank's device, ready for a run's first step."""
        ...


class ProcessFollower(CheckingFollower):
    """A follower's end of the control channel in its own process."""

    def __init__(self, rank: Rank, control: Connection, device: Device) -> None:
        super().__init__(rank)
        self._control, self._device = control, device
        self._state: State | None = None

    def opened(self) -> State | None:
        """The state of the run that begins, None if there will be none."""
        said = self._hear()
        if not isinstance(said, Open):
            return None
        keep_book()
        self._state = open_state(said.opened, leader=False)
        return self._state

    def fail(self, error: BaseException) -> None:
        """Rank 0 has been told already, by name."""

    def _next(self) -> Step | None:
        said = self._hear()
        assert said is None or isinstance(said, Step), said
        return said

    def _say(self, said: Header | Report) -> None:
        self._control.send(said)

    def _hear(self) -> Open | Step | None:
        """What comes next, questions answered. Raises RankLost."""
        while True:
            try:
                said: Open | Step | Ask | None = self._control.recv()
            except (EOFError, OSError):
                raise RankLost(f"rank 0 died; rank {self.rank} waited for it") from None
            if not isinstance(said, Ask):
                return said
            method = getattr(self._device, said.what)
            state = () if said.what == "layers" else (self._state,)
            self._control.send(Told(method(*state, *said.arguments)))


def main(control: int, life: int, meeting: int) -> None:
    """Live as a follower; the arguments are numbers of files that rank 0 left open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Line(control, life, meeting)
    order: Order = line.control.recv()
    device = _made(order, line)
    if device is None:
        sys.exit(1)
    failed: list[RankLost] = []

    def fail(error: RankLost) -> None:
        failed.append(error)
        line.control.send(Gone(str(error)))

    follower = ProcessFollower(Rank(order.rank), line.control, device)
    state = follower.opened()
    if state is not None:
        follow(follower, device, state, fail)
    device.close()
    sys.exit(1 if failed else 0)


def _made(order: Order, line: Line) -> Device | None:
    """The device, or None where rank 0 was told why there is none."""
    try:
        device = order.make(line)
        line.say("ready")
    except (UnsupportedShape, ModelError, MemoryError) as error:
        line.control.send(Refused(f"rank {order.rank}: {error}"))
    except (EOFError, OSError):
        pass  # rank 0 is gone
    except Exception as error:
        why = f"rank {order.rank} failed as it started: {type(error).__name__}: {error}"
        line.control.send(Gone(why))
    else:
        return device
    return None
