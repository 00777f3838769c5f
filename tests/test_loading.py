"""What a log is told of a model that loads: never nothing for long, and not every step of it."""

import logging
from typing import Any

import pytest

from kvtape.replay import loading, models, progress
from kvtape.replay.opening import RunOptions

from .tape_records import OPENED


def test_a_line_is_said_when_none_was_for_a_while() -> None:
    said, now = list[str](), [100.0]
    line = progress.NowAndThen(said.append, lambda: now[0])
    for second in range(23):
        now[0] = 100.0 + second / 2
        line(f"at {second}")
    assert said == ["at 10", "at 20"]


def test_a_log_hears_of_kernels_and_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(name: str, options: RunOptions, say: Any, count: Any) -> str:
        say("kernel 3 of 9: linear")
        count(40, 100)
        return "loaded"

    monkeypatch.setattr(loading, "load", slow)
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "kvtape.serve"):
        found: object = loading.load_with_progress("some", RunOptions())
    assert found == "loaded"
    assert [one.getMessage() for one in caplog.records] == [
        "kernel 3 of 9: linear", "weights of some: 40 of 100",
    ]  # fmt: skip


def test_long_work_that_nobody_watches_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    with progress.bar("replay", 9, quiet=False) as tick:
        tick(3)
        tick(9)
    with progress.bar("replay", 9, quiet=True) as tick:
        tick(4)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "replay: 3 of 9\nreplay: 9 of 9\n")


def test_a_replay_says_what_it_compiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(models, "use_cache", lambda: None)
    monkeypatch.setattr(models, "warm", lambda folder, show: show("kernel 3 of 9: linear"))
    monkeypatch.setattr(models, "fake_group", lambda opened, world: [])
    fake: Any = OPENED.model_copy(update={"family": "fake", "model": "fake"})
    assert models.devices_for(1)("")(fake) == []
    assert "kernel 3 of 9: linear" in capsys.readouterr().err
