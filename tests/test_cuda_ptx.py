"""The code of CUDA kernels, compiled without a GPU: how it rounds, and what it takes of a chip."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is not installed"
)


@pytest.mark.parametrize("chip", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90"])
def test_every_operation_says_how_it_rounds_and_nothing_spills(chip: str) -> None:
    """A bare mul or add may be fused by the assembler; approx and ftz are other numbers."""
    command = [sys.executable, str(Path(__file__).parent / "cuda_compiled.py"), chip]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    print(*kernels, sep="\n")  # noqa: T201  # shown by pytest -s: registers, stack, bytes spilled
    assert len(kernels) > 20
    assert {name: wrong for name, wrong, *_ in kernels if wrong} == {}
    assert {name: rest for name, _, _, *rest in kernels if any(rest)} == {}
