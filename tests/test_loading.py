"""What a log is told of a model that loads: never nothing for long, and not every step of it."""

import logging
from typing import Any

import pytest

from kvtape.replay import loading
from kvtape.replay.opening import RunOptions


def test_a_line_is_said_when_none_was_for_a_while() -> None:
    said, now = list[str](), [100.0]
    line = loading.NowAndThen(said.append, lambda: now[0])
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
    monkeypatch.setattr(loading, "EVERY_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "kvtape.serve"):
        found: object = loading.load_with_progress("some", RunOptions())
    assert found == "loaded"
    assert [one.getMessage() for one in caplog.records] == [
        "kernel 3 of 9: linear", "weights of some: 40 of 100",
    ]  # fmt: skip
