"""A rank that is a process of its own, seen from rank 0's: started, given steps, asked, ended."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from ..core.device import HeldRows, Pair, Report, Running
from ..core.link import RankLost
from ..core.state import State
from ..events.facts import RunOpened
from ..events.ids import Rank, StreamId
from .links import Gone, Header, Reply, Step

PROGRAM = "import sys; from kvtape.devices.rank_main import main; main(*map(int, sys.argv[1:]))"
END_SECONDS = 10.0  # that a rank may take to end by itself
Heard = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Open:
    """A run begins: what the follower makes its state from."""

    opened: RunOpened


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to a rank that stands still: a method of its device, without the state."""

    what: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A rank's answer, at its start or to a question."""

    value: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """A rank cannot start; why names what is missing, and what would do."""

    why: str


class RankProcess:
    """A member of rank 0's group and, where memory is looked at, a device.

    A thread listens to the process. What ends it before it was told to end is said to all who wait:
    `gone` is called from that thread, then the leader's inbox hears it.
    """

    def __init__(self, rank: int, order: object, inbox: "SimpleQueue[Reply]", gone: Heard) -> None:
        """order: the first thing that it hears; it must be something that pickle knows."""
        self.rank, self.inbox = Rank(rank), inbox
        self.why = ""
        self.meeting, theirs = socket.socketpair()
        self._connection, control = Pipe()
        life, self._life = os.pipe()
        self._gone, self._answers = gone, SimpleQueue[Told | Refused | Gone]()
        self._sending, self._step, self._closing = Lock(), -1, False
        given = (control.fileno(), life, theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, given)],
            pass_fds=given, stdin=subprocess.DEVNULL, env=_environment(),
            start_new_session=True,  # a signal for rank 0's terminal is rank 0's to handle
        )  # fmt: skip
        for end in (control, theirs):
            end.close()
        os.close(life)
        self._listener = Thread(target=self._listen, name=f"kvtape rank {rank}", daemon=True)
        self._listener.start()
        self._send(order)

    # --- given steps -----------------------------------------------------------------------------

    def open(self, opened: RunOpened) -> None:
        """A run begins."""
        self._send(Open(opened))

    def give(self, step: Step | None) -> None:
        """Send a step; None ends its loop."""
        if step is None:
            self._closing = True
        else:
            self._step = step.header.step
        self._send(step)

    def silent(self) -> bool:
        """Never: what ends it is always said."""
        return False

    # --- asked -----------------------------------------------------------------------------------

    def answer(self, seconds: float) -> Any:
        """What it says next beside headers and reports. Raises RankLost, RankRefused."""
        try:
            said = self._answers.get(timeout=seconds)
        except Empty:
            raise RankLost(f"rank {self.rank} did not answer within {seconds:g} s") from None
        if isinstance(said, Gone):
            self._answers.put(said)
            raise RankLost(said.why)
        if isinstance(said, Refused):
            raise RankRefused(said.why)
        return said.value

    def tell(self, value: object) -> None:
        """Say something that it waits for."""
        self._send(Told(value))

    def probe(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> Pair:
        """As a device has it; the state is its own."""
        pair: Pair = self._ask("probe", stream, part, layer, first, rows)
        return pair

    def read(
        self, state: State, stream: StreamId, part: str, layer: int, position: int
    ) -> dict[int, bytes]:
        """As a device has it; the state is its own."""
        found: dict[int, bytes] = self._ask("read", stream, part, layer, position)
        return found

    def read_rows(
        self, state: State, stream: StreamId, part: str, layer: int, first: int, rows: int
    ) -> dict[int, HeldRows]:
        """As a device has it; the state is its own."""
        found: dict[int, HeldRows] = self._ask("read_rows", stream, part, layer, first, rows)
        return found

    def layers(self, part: str) -> int:
        """How many digest layers a part has."""
        count: int = self._ask("layers", part)
        return count

    def launch(self, state: State, facts: object, *, every_row: bool = False) -> Running:
        """Steps are given, not launched."""
        raise AssertionError(f"rank {self.rank} is a process: it is given its steps")

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._send(Ask(what, arguments))
        return self.answer(END_SECONDS * 6)

    # --- ended -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the process in order; past its time, otherwise."""
        if not self._closing:
            self.give(None)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self.why else END_SECONDS)
        self.end()

    def end(self) -> None:
        """End the process wherever it is: by its life line, then by force."""
        self._closing = True
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join()
        self._connection.close()
        self.meeting.close()

    # --- heard -----------------------------------------------------------------------------------

    def _send(self, said: object) -> None:
        with self._sending, suppress(OSError):  # it is gone: whoever listens says why
            self._connection.send(said)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                said = self._connection.recv()
                if isinstance(said, Header | Report):
                    self.inbox.put(Reply(self.rank, said))
                elif isinstance(said, Gone):
                    self._lose(said.why)
                else:
                    self._answers.put(said)
        if not self._closing:
            self._lose(self._death())

    def _lose(self, why: str) -> None:
        if not self.why:
            self.why = why
            self._gone(why)
            self.inbox.put(Reply(self.rank, Gone(why)))
            self._answers.put(Gone(why))

    def _death(self) -> str:
        """How the process ended that said nothing of it."""
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            how = "it closed its connection"
        else:
            how = signal.strsignal(-code) or f"signal {-code}" if code < 0 else f"exit code {code}"
        when = "as it started" if self._step < 0 else f"in step {self._step}"
        return f"rank {self.rank} died {when}: {how}"


class RankRefused(Exception):
    """A follower refused to start; the message is its own."""


def _environment() -> Mapping[str, str]:
    """This process's, by which another one finds the modules that this one found."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**os.environ, "PYTHONPATH": paths}
