"""Models as runs need them: what is named is what is used."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvtape.core.families.fake import fake_rules
from kvtape.devices.weights.checkpoint import ModelNotFound
from kvtape.events.reader import Tape
from kvtape.events.tape import TapeWriter
from kvtape.replay.models import devices_for, load
from kvtape.replay.opening import BadOption, RunOptions
from kvtape.replay.recording import Recording
from kvtape.replay.verdict import Refused

from .rig import opened_with

OPENED = opened_with(fake_rules(), model="smollm2", family="llama")


def test_a_model_that_was_named_is_not_replaced_by_the_tapes() -> None:
    with pytest.raises(ModelNotFound, match=r"nope\.gguf"):
        devices_for(1)("nope.gguf")(OPENED)


@pytest.mark.parametrize(
    ("family", "device", "gather", "verify", "why"),
    [
        ("fake", "cuda", "auto", False, "--device cuda: smollm2 has no weights"),
        ("fake", "", "links", False, "--gather links is for --device cuda"),
        ("llama", "cpu", "nccl", False, "--gather nccl is for --device cuda"),
        ("fake", "", "auto", True, "--verify is for --device cuda"),
        ("llama", "cpu", "auto", True, "--verify is for --device cuda"),
    ],
)
def test_a_replay_takes_no_word_about_gpus_that_it_would_not_keep(
    family: str, device: str, gather: str, verify: bool, why: str
) -> None:
    opened = opened_with(fake_rules(), model="smollm2", family=family)
    with pytest.raises(Refused, match=why):
        devices_for(1, device, gather, verify=verify)("smollm2")(opened)


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("fake", {"device": "cuda"}, "--device cuda: fake has no weights"),
        ("fake-pages", {"device": "cuda", "verify": True}, "--device cuda: fake-pages has no"),
        ("fake", {"verify": True, "context": 2**40}, "--verify is for --device cuda"),
        ("fake", {"gather": "links", "context": 2**40}, "--gather links is for --device cuda"),
    ],
)
def test_a_server_says_first_what_no_plan_could_mend(
    model: str, options: dict[str, Any], why: str
) -> None:
    """A machine without a GPU is not told to install what the model could not use."""
    with pytest.raises(BadOption, match=why):
        load(model, RunOptions(**options), lambda line: None, lambda done, total: None)


def test_what_compiles_kernels_for_a_gpu_elsewhere_says_what_it_needs() -> None:
    command = [sys.executable, "-m", "kvtape.devices.cuda"]
    no_chip = subprocess.run(command, capture_output=True, text=True)
    assert (no_chip.returncode, "sm_90 MODEL" in no_chip.stderr) == (2, True)
    if find_spec("numba_cuda"):
        pytest.skip("numba-cuda is here")
    refused = subprocess.run([*command, "sm_90"], capture_output=True, text=True)
    assert refused.returncode == 3
    assert "numba-cuda" in refused.stderr
    assert "pip install 'kvtape[cuda]'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("there", [True, False])
def test_where_the_weights_were_counts_only_while_they_are_there(
    there: bool, tmp_path: Path
) -> None:
    weights, path = tmp_path / "model.gguf", tmp_path / "run.tape"
    if there:
        weights.touch()
    TapeWriter.create(path, OPENED, {"weights": str(weights)}).close()
    with Tape.open(path) as tape:
        assert Recording.on(tape).hint == (str(weights) if there else "")


def test_serving_a_llama_waits_for_no_other_familys_kernels() -> None:
    listed = (
        "import sys, kvtape.replay.serve;"
        "print([name for name in sys.modules if name.startswith('kvtape.devices.glm')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
