"""A rank of a live run that dies or hangs: the run ends and names it, nobody waits for ever."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtape.core.apply import apply
from kvtape.core.device import Device, Report, Running
from kvtape.core.link import RankLost
from kvtape.core.state import State
from kvtape.devices import following
from kvtape.devices.fake import fake_group
from kvtape.devices.http.door import DoorSettings
from kvtape.devices.http.serve import bind
from kvtape.events.errors import TapeError
from kvtape.events.facts import AnyFact
from kvtape.events.reader import Tape
from kvtape.events.seal import Seal
from kvtape.events.tape import TapeWriter
from kvtape.events.verify import verify
from kvtape.replay import ranks
from kvtape.replay.ending import words_of
from kvtape.replay.models import Loaded, devices_for, load
from kvtape.replay.opening import RunOptions
from kvtape.replay.run_diff import run_audit
from kvtape.replay.run_replay import ReplayOptions, run_replay
from kvtape.replay.serve import info_of
from kvtape.replay.serving import LiveRun, TapeOptions, serve_until_told
from kvtape.tests.server import wish
from kvtape.tests.test_serve_bad_input import tiny_folder

DIES_AT = 6  # a step with rows


class Broken:
    """A device that fails in one step: before its launch, or in its report."""

    def __init__(self, device: Device, where: str) -> None:
        self._device = device
        self._where = where
        self._steps = 0
        self.go_on = threading.Event()  # for one that hangs

    def launch(self, state: State, facts: Sequence[AnyFact], *, every_row: bool = False) -> Running:
        """As the device does it, but for one step."""
        self._steps += 1
        if self._steps == DIES_AT and self._where == "launch":
            raise ValueError("a bit fell out")
        if self._steps == DIES_AT and self._where == "hang":
            self.go_on.wait(60)
        running = self._device.launch(state, facts, every_row=every_row)
        return Unreported() if self._steps == DIES_AT and self._where == "report" else running

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class Unreported:
    """A step that cannot be reported."""

    def report(self) -> Report:
        """It fails."""
        raise ValueError("a bit fell out")


def said_nothing(*_: object) -> None:
    """Loading shows nothing."""


def loaded(model: str, world: int, limit_seconds: float = 600.0) -> Loaded:
    """A run that can open; its ranks wait so long for each other, by default longer than a test."""
    one = load(model, RunOptions(world=world, context=256), said_nothing, said_nothing)
    if one.opened.family != "fake":
        return one
    return Loaded(one.opened, fake_group(one.opened, world, limit_seconds), None, (), "")


class Ending:
    """A live run behind a door, in threads of this process. code: as the command would end."""

    def __init__(self, one: Loaded, devices: Sequence[Device], tape: TapeOptions) -> None:
        self.code = -1
        self.told = threading.Event()
        listening = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.live = LiveRun(one.opened, devices, info_of(one.opened, one.ends), tape)

        def until_told() -> None:
            with listening:
                self.code = serve_until_told(
                    self.live, None, DoorSettings(), listening, "ready", self.told
                )

        self._thread = threading.Thread(target=until_told)
        self._thread.start()

    def ask(self, prompt: Sequence[int] = (1, 2, 3)) -> httpx.Response:
        """Ask for a long reply."""
        body = wish(self.live.door.info.model, prompt, 200)
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)

    def join(self) -> int:
        """Wait for its end."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "it hangs"
        return self.code


Start = Callable[[Loaded, Sequence[Device], TapeOptions], Ending]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a run; one that goes on against all expectation is ended."""
    runs: list[Ending] = []

    def started(one: Loaded, devices: Sequence[Device], tape: TapeOptions) -> Ending:
        runs.append(Ending(one, devices, tape))
        return runs[-1]

    yield started
    for run in runs:
        run.told.set()
        run.join()


@contextmanager
def no_thread_stays() -> Iterator[None]:
    """Every thread that is started within is gone at the end."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith(("asyncio", "AnyIO")):
            thread.join(30)
            assert not thread.is_alive(), f"{thread.name} stays"


def assert_told(reply: httpx.Response) -> None:
    """The client has an error in OpenAI's shape."""
    assert reply.status_code == 500, reply.text
    assert reply.json()["error"]["code"] == "engine_failed"


def assert_let_go(path: Path) -> None:
    """The tape is one file, without an end, and all that it holds is sound."""
    assert not path.with_name(path.name + "-wal").exists(), "the writer still holds it"
    with Tape.open(path) as tape:
        assert tape.closed is None
    assert verify(path) == []
    assert run_audit(path) == 0


def assert_says(path: Path, error: BaseException, model: str = "") -> None:
    """The tape is closed and sealed, says what ended its run, and is equal up to there."""
    with Tape.open(path) as tape:
        assert tape.closed is not None and tape.closed.reason == "failed"
        assert tape.closed.error == words_of(error)
        ended = [fact for _, fact in tape.facts() if fact.kind == "request_finished"]
        assert [fact.reason for fact in ended][-1] == "fault"
        assert tape.seal is Seal.WHOLE
    assert verify(path) == []
    assert run_audit(path) == 0
    assert run_replay(path, ReplayOptions(book=True), None) == 0
    assert run_replay(path, ReplayOptions(model=model), devices_for(1)) == 0


@pytest.mark.parametrize("where", ["launch", "report", "apply"])
@pytest.mark.parametrize(("model", "world", "rank"), [("fake", 2, 1), ("fake-pages", 3, 2)])
def test_a_follower_that_dies_ends_the_run_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start,
    model: str, world: int, rank: int, where: str,
) -> None:  # fmt: skip
    with no_thread_stays():
        one = loaded(model, world)
        devices: list[Any] = list(one.devices)
        devices[rank] = Broken(devices[rank], where)
        if where == "apply":
            break_apply(monkeypatch, f"rank {rank}")
        run = start(one, devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
    assert isinstance(run.live.error, RankLost)
    assert str(run.live.error).startswith(f"rank {rank} failed in step ")
    assert "a bit fell out" in str(run.live.error)
    assert f"the run stopped: RankLost: rank {rank} failed in step" in caplog.text
    assert_says(tmp_path / "run.tape", run.live.error)


def break_apply(monkeypatch: pytest.MonkeyPatch, thread: str) -> None:
    """A rank whose state cannot take a fact: it fails before its device hears of the step."""
    rounds = [0]

    def broken(state: State, fact: AnyFact) -> None:
        if threading.current_thread().name == thread and fact.kind == "round_run":
            rounds[0] += 1
            if rounds[0] == 3:
                raise ValueError("a bit fell out")
        apply(state, fact)

    monkeypatch.setattr(following, "apply", broken)


@pytest.mark.parametrize("where", ["launch", "report"])
def test_a_leader_that_dies_ends_the_run(tmp_path: Path, start: Start, where: str) -> None:
    with no_thread_stays():
        one = loaded("fake", 2)
        devices: list[Any] = [Broken(one.devices[0], where), one.devices[1]]
        run = start(one, devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
    assert isinstance(run.live.error, ValueError)
    assert_says(tmp_path / "run.tape", run.live.error)


@pytest.mark.parametrize("where", ["launch", "apply"])
def test_a_cpu_rank_that_dies_sends_the_others_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, where: str
) -> None:
    with no_thread_stays():
        one = loaded(str(tiny_folder(tmp_path / "tiny")), 2)
        devices: list[Any] = [one.devices[0], Broken(one.devices[1], where)]
        if where == "apply":
            break_apply(monkeypatch, "rank 1")
        run = start(one, devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
    assert run.live.error is not None
    assert str(run.live.error).startswith("rank 1 failed in step ")
    assert_says(tmp_path / "run.tape", run.live.error, str(tmp_path / "tiny"))


def test_a_rank_that_hangs_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setattr(ranks, "HANG_SECONDS", 1.0)
    with no_thread_stays():
        one = loaded("fake", 2, 2.0)
        hangs = Broken(one.devices[1], "hang")
        devices: list[Any] = [one.devices[0], hangs]
        run = start(one, devices, TapeOptions(path=tmp_path / "run.tape"))
        assert_told(run.ask())
        assert run.join() == 1
        hangs.go_on.set()
    assert isinstance(run.live.error, RankLost)
    assert "rank 1 did not come in step" in str(run.live.error)
    assert_says(tmp_path / "run.tape", run.live.error)


def fail_appends(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """A tape that cannot grow any more after so many appends."""
    append, count = TapeWriter.append, [0]

    def full(self: TapeWriter, *given: Any) -> range:
        count[0] += 1
        if count[0] > after:
            self.abandon()
            raise TapeError(f"{self.path} cannot grow: database or disk is full")
        return append(self, *given)

    monkeypatch.setattr(TapeWriter, "append", full)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stop", [True, False])
def test_a_tape_that_cannot_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, start: Start,
    world: int, stop: bool,
) -> None:  # fmt: skip
    fail_appends(monkeypatch, after=DIES_AT)
    with no_thread_stays():
        one = loaded("fake", world)
        tape = TapeOptions(path=tmp_path / "run.tape", stop_on_error=stop)
        run = start(one, one.devices, tape)
        reply = run.ask()
        if stop:
            assert_told(reply)
        else:
            assert len(reply.json()["choices"][0]["token_ids"]) == 200
            assert run.ask().status_code == 200
            run.told.set()
        assert run.join() == int(stop)
    assert "cannot grow: database or disk is full" in caplog.text
    assert_let_go(tmp_path / "run.tape")


def test_whoever_asks_as_the_run_ends_is_told(tmp_path: Path, start: Start) -> None:
    with no_thread_stays():
        one = loaded("fake", 2)
        devices: list[Any] = [one.devices[0], Broken(one.devices[1], "launch")]
        run = start(one, devices, TapeOptions(path=tmp_path / "run.tape"))
        replies: list[httpx.Response] = []

        def ask_on(number: int) -> None:
            try:
                while True:
                    replies.append(run.ask([number]))
            except httpx.TransportError:
                return  # the door is shut

        clients = [threading.Thread(target=ask_on, args=(number,)) for number in range(6)]
        for client in clients:
            client.start()
        assert run.join() == 1
        for client in clients:
            client.join(60)
            assert not client.is_alive(), "a client waits for a run that is over"
    assert replies and all(reply.status_code in (500, 503) for reply in replies)
