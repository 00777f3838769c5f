"""The benchmark's replays: a run of several chats again, and one long reply fast-forwarded."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..events.reader import Tape
from .bench_engine import Engine, Prompts, loaded, serve_options, settle, twins
from .bench_figures import Bar, Figure, ratio
from .bench_rounds import Part, Say, measured
from .forward import play_forward, read_streams, room_for
from .machine import Machine, MakeDevices
from .models import devices_for
from .recording import Recording
from .rerun import Played, rerun

LONG_REPLY = 512
CHATS = ((64, 40), (300, 30), (682, 60))  # prompt tokens, reply tokens
LIVE, FORWARD = Bar(1.0), Bar(3.0)  # times faster than it was made

Play = Callable[[Machine, Recording], Played]


class Differed(Exception):
    """A replay was not equal, so its time means nothing."""


def replays(rounds: int, say: Say) -> Part:
    """Runs that were just made, again: how many times faster, loading left out."""
    part = Part("replay")
    made: dict[str, list[float]] = {"chats": [], "reply": []}
    again: dict[str, list[float]] = {"chats": [], "reply": []}
    for at in range(rounds):
        with TemporaryDirectory(prefix="kvtape-bench-") as name:
            folder = Path(name)
            live, whole = _chats(part, folder / "chats.tape")
            made["chats"].append(live)
            again["chats"].append(whole)
            made["reply"].append(measured(part, partial(_live_reply, folder / "reply.tape")))
            again["reply"].append(_forwarded(part, folder / "reply.tape"))
        told = ", ".join(
            f"{kind} made in {made[kind][-1]:.1f} s, again in {again[kind][-1]:.1f} s"
            for kind in made
        )
        say(f"replay {at + 1}/{rounds}: {told}")
    part.figures = [
        Figure("chats, live", tuple(made["chats"]), "s"),
        Figure("chats, full replay", tuple(again["chats"]), "s"),
        ratio("full replay, times live speed", made["chats"], again["chats"], LIVE),
        Figure(f"reply of {LONG_REPLY}, live", tuple(made["reply"]), "s"),
        Figure(f"reply of {LONG_REPLY}, fast-forward", tuple(again["reply"]), "s"),
        ratio("fast-forward, times live speed", made["reply"], again["reply"], FORWARD),
    ]
    return part


def _asked(engine: Engine, prompts: Prompts, chats: tuple[tuple[int, int], ...]) -> float:
    """Seconds of a run's replies."""
    start = time.perf_counter()
    for prompt_tokens, reply_tokens in chats:
        engine.ask(prompts.long(prompt_tokens), reply_tokens)
    return time.perf_counter() - start


def _chats(part: Part, tape: Path) -> tuple[float, float]:
    """Seconds of chats and of their replay, both on one memory: where weights lie must not tell."""
    model = loaded(serve_options())
    engine, prompts = Engine(model.opened, model.devices, tape), Prompts(model)
    settle()
    try:
        live = measured(part, lambda: _asked(engine, prompts, CHATS))
        with Tape.open(tape) as written:
            recording = Recording.on(written)
            devices = twins(model.devices, model.opened.digests)
            with Machine(recording.opened, lambda opened: devices) as machine:
                settle()
                return live, measured(part, lambda: _timed(_whole, machine, recording))
    finally:
        engine.close()


def _live_reply(tape: Path) -> float:
    """Seconds of one long reply, its loading and its seal left out."""
    model = loaded(serve_options())
    engine, prompts = Engine(model.opened, model.devices, tape), Prompts(model)
    settle()
    try:
        return _asked(engine, prompts, ((16, LONG_REPLY),))
    finally:
        engine.close()


def _forwarded(part: Part, path: Path) -> float:
    """Seconds of a fast-forward, devices loaded before; its reading of the tape counts."""
    make: MakeDevices = devices_for(0)("")
    with Tape.open(path) as tape:
        recording = Recording.on(tape)
        opened = recording.opened
        opened = room_for(opened, read_streams(opened, recording.steps(), _every), 0)
        with Machine(opened, make) as machine:
            settle()
            return measured(part, lambda: _timed(_forward, machine, recording))


def _timed(play: Play, machine: Machine, recording: Recording) -> float:
    start = time.perf_counter()
    played = play(machine, recording)
    seconds = time.perf_counter() - start
    if played.comparison.first is not None:
        raise Differed(f"{recording.name}: {played.comparison.first}")
    return seconds


def _whole(machine: Machine, recording: Recording) -> Played:
    return rerun(machine, recording.steps())


def _forward(machine: Machine, recording: Recording) -> Played:
    return play_forward(machine, read_streams(recording.opened, recording.steps(), _every))


def _every(request: object) -> bool:
    return True
