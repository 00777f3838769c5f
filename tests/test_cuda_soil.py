"""Scratch of a GPU is poison, all of it, whenever a step begins: whatever steps came before it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "cuda_simulated_soil.py"


def test_all_is_poison_whatever_the_step_before_touched() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found, last, graphs = json.loads(done.stdout)
    assert len(found) == 7 and not any(found), "by step"
    assert last == ["floats", "z", "flags"], "a step that nothing follows leaves what it wrote"
    assert graphs == 4, "a fill is captured once for each size of the steps before"
