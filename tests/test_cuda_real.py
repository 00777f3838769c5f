"""A GLM's real sizes on a card: what is planned and seated without one, what is measured on one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvtape.core.families.glm import Glm
from kvtape.devices.cuda.card import cards
from kvtape.replay.opening import Division, RunOptions, run_opened

from . import cuda_window_machine as machine
from .test_cuda_device import on_gpu

CONFIG = json.loads((Path(__file__).parent / "data" / "glm_real.json").read_text())
CONTEXT, LANES, PROMPT_ROWS = 1 << 20, 8, 2048
ONE_WINDOW = CONTEXT // 512 + 1
LEAST = 136 << 30  # bytes of a card that holds the weights, or eight windows
POOL = ONE_WINDOW + LANES - 1  # a window, and a page for each other stream


def test_a_prompt_of_nearly_a_million_rows_is_leased_and_stepped_beside_others() -> None:
    family = Glm(CONFIG)
    options = RunOptions(lanes=LANES, prompt_rows=PROMPT_ROWS, digests="off")
    division = Division(CONTEXT, POOL, "radix", 4, windows=False, plan={})
    opened = run_opened(
        options, family.rules(), division, model="real", model_digest="0" * 32, family="glm",
        device="cuda",
    )  # fmt: skip
    rows, most, last = 0, 0, {"leased": 0, "long": 0, "rows": 0}
    wishes = machine.wishes(family.vocab, LANES - 1, machine.PROMPT, CONTEXT - machine.PROMPT - 8)
    for seen in machine.steps(opened, wishes):
        last = machine.accounted(opened, seen)
        assert seen.tables.tables.shape == (LANES, ONE_WINDOW)
        most = max(most, last["leased"])
        long = [run for run in seen.batch.rows.runs if run.lane == 0]
        rows += sum(run.rows for run in long)
        assert [run.first + run.rows for run in long] == [rows] * len(long)
    assert rows == machine.PROMPT + machine.ROUNDS
    assert last["long"] == -(-rows // 512)
    assert last["long"] < most <= POOL


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("words", [("cuda_real", "own"), ("cuda_window",)], ids=" ".join)
def test_sampled_outputs_at_real_sizes_are_those_of_the_host(words: tuple[str, ...]) -> None:
    if cards()[0].total < LEAST:
        pytest.skip(f"the card has less than {LEAST >> 30} GiB")
    command = [sys.executable, "-m", f"kvtape.tests.{words[0]}", *words[1:]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert said.returncode == 0 and "failed" not in said.stdout, said.stdout + said.stderr
    verdicts = re.findall(r"(?:wrong|equal): (.*)", said.stdout)
    assert len(verdicts) >= 4 and set(verdicts) <= {"none", "True"}, said.stdout
