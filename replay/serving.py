"""kvtape serve: a run fed by the door, from its first fact to its seal."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from ..core.decide import decide
from ..core.device import Device
from ..core.state import open_state
from ..devices.http.door import Door, DoorSettings
from ..devices.http.engine import Info, TextSide
from ..devices.http.serve import serve
from ..events.commands import Close
from ..events.errors import TapeExists
from ..events.facts import RunOpened
from ..events.tape import TapeWriter
from .door import LiveDoor
from .ending import close_failed
from .inject import Fault, Injector
from .live import LiveSource
from .loop import Run, run
from .opening import MalformedOption
from .ranks import Ranks
from .recorder import NoTape, TapeRecorder

LOG = logging.getLogger("kvtape.serve")
DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class TapeOptions:
    """Where a run is kept; path None keeps nothing."""

    path: Path | None = None
    weights: str = ""
    stop_on_error: bool = True
    append: bool = False
    synchronous: str = "NORMAL"


def tape_of(trace: str | None, *, append: bool) -> Path | None:
    """Where --trace keeps a run; None: nowhere. Raises MalformedOption."""
    if trace is None and append:
        raise MalformedOption("--append adds a run to a tape: name it with --trace")
    if trace is not None and not trace.strip():
        raise MalformedOption("--trace is blank: name a tape, or leave it out and keep nothing")
    return None if trace is None else Path(trace)


class LiveRun:
    """A run on a thread of its own. It ends by `stop`, or by itself when its ranks part."""

    def __init__(
        self,
        opened: RunOpened,
        devices: Sequence[Device],
        info: Info,
        tape: TapeOptions,
        fault: Fault | None = None,
    ) -> None:
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.reason = ""
        if fault is not None:
            fault.check(opened, devices)
        state = open_state(opened)
        self._recorder: NoTape | TapeRecorder = NoTape()
        if tape.path is not None:
            writer = _writer(tape.path, opened, tape)
            self._recorder = TapeRecorder(writer, stop_on_error=tape.stop_on_error)
        self._ranks = Ranks(opened, devices)
        injector = Injector(fault, devices) if fault is not None else None
        self._source = LiveSource(state, self._ranks, injector, self._recorder.keep)
        self.door = LiveDoor(info, state, self._source)
        self.run = Run(
            state,
            self.door.watch(decide, lambda: self._recorder.next_seq),
            self._source,
            self._ranks,
            devices[0],
            self._recorder,
            self.door,
            step=1,
        )
        self._thread = threading.Thread(target=self._loop, name="kvtape-loop")
        self._thread.start()

    def stop(self, reason: str = "closed") -> None:
        """Close the run in order: streams are cancelled, the tape is sealed."""
        self._source.wish(Close(reason=reason))
        self._thread.join()

    def _loop(self) -> None:
        try:
            run(self.run)
            self.reason = self.door.health().status
            self._recorder.close(self.reason)
        except BaseException as error:  # told to whoever waits for the run's end
            self.error = self._ranks.why(error)
            self.door.end(f"{type(error).__name__}: the run stopped")
            close_failed(self.run, self._recorder, self.error)
        finally:
            self._ranks.close(self.reason or "stopped")
            self.ended.set()


def _writer(path: Path, opened: RunOpened, tape: TapeOptions) -> TapeWriter:
    try:
        return TapeWriter.create(
            path, opened, {"weights": tape.weights}, append=tape.append,
            synchronous=tape.synchronous,
        )  # fmt: skip
    except TapeExists as error:
        raise TapeExists(f"{error}, or add a run to it with --append") from None


def serve_until_told(
    live: LiveRun,
    text: TextSide | None,
    settings: DoorSettings,
    listening: socket,
    ready: str,
    told: threading.Event,
) -> int:
    """Serve until told or the run's own end; 0 if it ended in order, 1 if it was stopped."""
    try:
        serving = serve(Door(live.door, text, settings), listening)
        LOG.info("%s at %s", ready, serving.url)
        while not told.is_set() and not live.ended.wait(0.05):
            pass
        serving.stop(DRAIN_SECONDS if not live.ended.is_set() else 1.0)
    finally:
        if not live.ended.is_set():
            live.stop()
    return verdict(live)


def verdict(live: LiveRun) -> int:
    """The exit code of a run that has ended, and a line about it where it did not end in order."""
    if live.error is not None:
        LOG.error("the run stopped: %s: %s", type(live.error).__name__, live.error)
        return 1
    if live.reason != "closed":
        LOG.error("the run stopped itself: %s; kvtape diff TAPE says where", live.reason)
        return 1
    return 0
