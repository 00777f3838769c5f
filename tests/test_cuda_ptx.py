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
    script = str(Path(__file__).parent / "cuda_compiled.py")
    halves = [
        subprocess.Popen(
            [sys.executable, script, chip, str(shard), "2"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for shard in range(2)
    ]  # fmt: skip
    told = [(*half.communicate(timeout=500), half.returncode) for half in halves]
    assert [status for *_, status in told] == [0, 0], told[0][1][-3000:] + told[1][1][-3000:]
    kernels = [json.loads(line) for out, *_ in told for line in out.splitlines()]
    print(*kernels, sep="\n")  # noqa: T201  # shown by pytest -s: registers, stack, bytes spilled
    assert len(kernels) > 20
    assert {name: wrong for name, wrong, *_ in kernels if wrong} == {}
    assert {name: rest for name, _, _, *rest in kernels if any(rest)} == {}
