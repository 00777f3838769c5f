"""What tests of the measuring tools share: their JSON, a scripted door, a plain server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.events.commands import Arrive
from kvtape.tests.door_engine import Script, ScriptedEngine, opened
from kvtape.tests.plain_server import Plain

IDS = ("--form", "ids")


def tool(*arguments: object) -> tuple[int, dict[str, Any]]:
    """A tool's exit code and its JSON."""
    done = CliRunner().invoke(app, ["bench", *map(str, arguments), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.exit_code == 2 or told["qualified"] == (done.exit_code == 0)
    return done.exit_code, told


def drawn(arrive: Arrive) -> Iterator[tuple[int, ...]]:
    """Letters that depend on the seed where the reply is sampled, one a round."""
    start = arrive.sampling.seed if arrive.sampling.temperature_bits else 0
    return ((ord("a") + (start + at) % 26,) for at in range(arrive.max_new))


@contextmanager
def door(script: Script = drawn) -> Iterator[tuple[str, ScriptedEngine]]:
    with opened() as (serving, engine):
        engine.script = script
        yield serving.url, engine


@contextmanager
def plain() -> Iterator[Plain]:
    with Plain() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(20)
