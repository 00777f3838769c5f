"""Scratch of a GPU is poison whenever a step begins; pages are looked at once in it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def said(script: str, *arguments: str) -> list[Any]:
    """The lines of a script on the simulator."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_all_is_poison_whatever_the_step_before_touched() -> None:
    ((found, last, graphs),) = said("cuda_simulated_soil.py")
    assert len(found) == 7 and not any(found), "by step"
    assert last == ["floats", "z", "flags"], "a step that nothing follows leaves what it wrote"
    assert graphs == 4, "a fill is captured once for each size of the steps before"


def test_a_llamas_pages_are_looked_at_once_a_step_for_all_layers() -> None:
    """By bucket, of three layers."""
    assert said("cuda_simulated_launches.py", "poison") == [[[0, 3]], [[0, 3]]]
