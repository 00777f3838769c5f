"""States and rings on a GPU: summed together they are what each sums to, and what the CPU says."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "cuda_simulated_fixed.py"


def test_sums_that_are_waited_for_once_are_those_of_each_stream() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=200
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(together) for together, _, _ in told] == [2, 1, 0]
    for together, alone, cpu in told:
        assert together == alone == cpu
    (first, second), *_ = told[0]
    assert first["states"] != second["states"] and first["rings"] != second["rings"]
