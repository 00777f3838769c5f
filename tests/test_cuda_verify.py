"""Wrong products of a GPU are named in the step that made them; right ones change nothing."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.core.families.llama import Llama
from kvtape.core.kernels.cuda.planes import planes_size
from kvtape.core.link import RankLost
from kvtape.devices.cuda.checks import NO_CHECKS, Checks, WrongProduct, checks_of
from kvtape.devices.glm.program import GlmRecorder
from kvtape.devices.program import Recorder
from kvtape.events import facts as f
from kvtape.replay.run_replay import ReplayOptions, run_replay

from . import device_play, glm_play
from .cpu_rig import CpuRig, tiny, tiny_tokens
from .glm_rig import tiny_glm
from .random_llama import SMALLEST
from .test_cuda_device import RECORDED, as_json, on_gpu
from .test_cuda_glm_device import RECORDED as GLM_RECORDED

HERE = Path(__file__).parent
SAID = r"rank 0: its GPU gave a wrong product in step {}: {}; keep the tape, replay it on another"

# --- what is checked, and what is said ------------------------------------------------------------


def test_every_map_of_a_llama_has_a_check_of_its_groups() -> None:
    program = Recorder(Llama(SMALLEST), 1, 0, 4, 1, checks=False).program()
    checks = checks_of(program)
    found = [(one.groups, one.matrix.inputs) for one in checks.by_matrix.values()]
    assert found == [(1, 32), (1, 32), (2, 32), (1, 48), (1, 32)]
    assert checks.bytes == sum(planes_size(16 * groups, inputs) for groups, inputs in found)
    assert checks.names[0] == "model.layers.0.self_attn.q_proj.weight, k_proj.weight, v_proj.weight"
    assert checks.names[2] == "model.layers.0.mlp.gate_proj.weight, up_proj.weight"
    assert checks_of(program, verify=False) is NO_CHECKS


def test_a_rank_without_a_share_of_a_map_has_no_check_of_it() -> None:
    """Where its matrix would begin, the next one does."""
    for rank, first in ((0, "self_attn.q_proj"), (1, "self_attn.o_proj")):
        program = Recorder(Llama(SMALLEST), 2, rank, 4, 1, checks=False).program()
        checks = checks_of(program)
        own = [one for one in program.matrices if one.columns]
        assert [one.matrix for one in checks.by_matrix.values()] == own
        assert checks.names[0].startswith(f"model.layers.0.{first}.weight")
        assert len(checks.names) == len(own)


@pytest.mark.parametrize("world", [1, 3])
def test_every_matrix_of_a_glm_is_checked_and_experts_share_a_word(world: int) -> None:
    family = Glm(tiny_glm().config, Choices(16, 16, 2))
    experts = family.sizes.experts
    for rank in range(world):
        exponents = [0] * family.caches
        program = GlmRecorder(family, world, rank, 4, False, exponents).program()
        checks = checks_of(program)
        own = [one for one in program.matrices if one.columns]
        assert [one.matrix for one in checks.by_matrix.values()] == own
        ends = [one.at + planes_size(16 * one.groups, one.matrix.inputs)
                for one in checks.by_matrix.values()]  # fmt: skip
        assert [one.at for one in checks.by_matrix.values()] == [0, *ends[:-1]]
        assert checks.bytes == ends[-1]
        named: dict[str, list[int]] = {name: [] for name in checks.names}
        for one in checks.by_matrix.values():
            named[checks.names[one.word]].append(one.groups)
        ups = [name for name in named if ".experts.*.gate_proj" in name]
        assert ups and all(named[name] == [2] * experts for name in ups)
        downs = [name for name in named if ".experts.*.down_proj" in name]
        assert len(downs) == len(ups) and all(named[name] == [1] * experts for name in downs)
        first, last = family.heads(world, rank)
        heads = [groups for name, groups in named.items() if "absorbed" in name]
        assert heads and all(groups == [last - first] for groups in heads)


def test_the_first_wrong_matrix_is_named_with_rank_and_step() -> None:
    checks = Checks({}, ("first", "second", "third"), 0)
    checks.look(1, 7, np.zeros(3, np.int64))
    with pytest.raises(WrongProduct, match=r"rank 1: .* in step 7: second and 1 behind it; keep"):
        checks.look(1, 7, np.array([0, -3, 1]))
    with pytest.raises(RankLost, match="third; keep the tape, replay it on another device"):
        checks.look(0, 0, np.array([0, 0, np.iinfo(np.int64).min]))


def test_a_book_alone_has_no_products(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_replay(HERE / "none.tape", ReplayOptions(book=True, verify=True), None) == 2
    assert "--book computes nothing that --verify could look at" in capsys.readouterr().err


# --- on the simulated one ------------------------------------------------------------------------


def simulated(family: str, script: str = "cuda_simulated_verify.py") -> list[Any]:
    """What the CPU said, what the simulated device did, and what that said of turned bits."""
    environment = dict(os.environ, NUMBA_ENABLE_CUDASIM="1")
    command = [sys.executable, str(HERE / script), family]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def named(said: str, name: str) -> bool:
    """Whether that is what a device says of a matrix whose product was wrong."""
    return said.startswith(f"WrongProduct: rank 0: its GPU gave a wrong product in step 0: {name}")


@pytest.mark.parametrize(("family", "maps"), [("llama", 18), ("glm", 92)])
def test_every_launch_that_can_check_itself_does_so_where_that_is_asked(
    family: str, maps: int
) -> None:
    """Over inputs of whole tiles and others; maps: launches, more where a program has more."""
    told = simulated(family, "cuda_simulated_launches.py")
    assert told == [[maps, maps, []], [maps, 0, []]] * 2


def test_a_simulated_llama_finds_each_turned_bit_and_else_changes_nothing() -> None:
    cpu, device, said, brought = simulated("llama")
    assert device == cpu and brought
    names = ("self_attn.q_proj.weight, k", "mlp.gate_proj.weight, up", "mlp.down_proj.weight;")
    assert all(named(one, f"model.layers.0.{name}") for one, name in zip(said, names, strict=True))


@pytest.mark.slow
def test_a_simulated_glm_finds_each_turned_bit_and_else_changes_nothing() -> None:
    cpu, device, said = simulated("glm")
    assert device == cpu
    names = ("self_attn.absorbed_v.weight;", "mlp.experts.*.gate_proj.weight, up_proj.weight;")
    begin = "model.language_model.layers.1."
    assert all(named(one, begin + name) for one, name in zip(said, names, strict=True))


# --- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("scene", device_play.SCENES)
def test_a_gpu_that_verifies_says_what_the_cpu_says(scene: str) -> None:
    from .cuda_rig import CudaRig

    rig = partial(CudaRig, tiny(), verify=True)
    assert as_json(device_play.play(scene, rig)) == RECORDED[scene]


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("scene", glm_play.SCENES)
def test_a_gpus_glm_that_verifies_says_what_the_cpu_says(scene: str) -> None:
    from .cuda_glm_rig import GlmCudaRig

    rig = partial(GlmCudaRig, verify=True)
    assert as_json(glm_play.play(scene, rig)) == GLM_RECORDED[scene]


def one_row(rig: CpuRig) -> None:
    """A prompt of one row."""
    one, seat = rig.begin(tiny_tokens()[:1])
    prompt = f.PromptStepRun(stream=one, first=0, rows=1)
    rig.step(*seat, *rig.lease(one, 1), prompt)


def found_and_mended(rig: Any, tensors: list[tuple[str, str]]) -> None:
    """Each turned bit is found, and nothing is once it is turned back."""
    from .cuda_flipped import flip

    memory = rig.device.memory
    one_row(rig)
    for tensor, name in tensors:
        flip(memory, tensor)
        with pytest.raises(WrongProduct, match=SAID.format(r"\d+", name)):
            one_row(rig)
        flip(memory, tensor)
        one_row(rig)


@on_gpu
@pytest.mark.gpu
def test_a_gpu_finds_each_turned_bit() -> None:
    from .cuda_rig import CudaRig

    at = "model.layers.0."
    with CudaRig(tiny(), verify=True) as rig:
        found_and_mended(rig, [
            (at + "self_attn.o_proj.weight", at + "self_attn.o_proj.weight"),
            (at + "mlp.up_proj.weight", at + "mlp.gate_proj.weight, up_proj.weight"),
            ("lm_head.weight", "lm_head.weight"),
        ])  # fmt: skip


@on_gpu
@pytest.mark.gpu
def test_a_gpus_glm_finds_each_turned_bit() -> None:
    from .cuda_flipped import host
    from .cuda_glm_rig import GlmCudaRig

    at = "model.language_model.layers.5."
    absorbed = at + "self_attn.absorbed_k.weight"
    shared = at + "mlp.shared_experts.down_proj.weight"
    with GlmCudaRig(verify=True) as rig:
        one_row(rig)
        expert = int(host(rig.device.memory, "experts")[0, 0])  # of the last layer
        up = f"mlp.experts.{expert}.up_proj.weight"
        found_and_mended(rig, [
            (absorbed, absorbed),
            (at + up, at + r"mlp.experts.\*.gate_proj.weight, up_proj.weight"),
            (shared, shared),
        ])  # fmt: skip
