"""Ranks on GPUs: processes whose bits are the CPU's, and whose ends are named."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvtape.devices.cuda.card import CardInfo, NoCard
from kvtape.devices.cuda.ways import way_of
from kvtape.devices.step_header import header_of
from kvtape.events import facts as f
from kvtape.replay.opening import RunOptions

from .cpu_rig import CpuRig, tiny
from .test_cuda_device import has_gpu

HERE = Path(__file__).parent


def cards_here() -> int:
    """How many GPUs this machine has."""
    if not has_gpu():
        return 0
    from kvtape.devices.cuda.card import open_card

    return open_card(0).count()


def lines_of(script: str, *arguments: str, simulated: bool = True) -> list[Any]:
    """What a script prints."""
    environment = dict(os.environ, PYTHONWARNINGS="ignore")
    if simulated:
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


# --- on the simulated GPU ------------------------------------------------------------------------


def test_uneven_columns_come_to_all_with_every_bit_both_ways() -> None:
    *cases, columns = lines_of("cuda_simulated_gathers.py")
    assert columns[2] == "of 32 columns, nobody owns those past 48"
    told = {(way, str(shape)): wrong for way, shape, wrong in cases}
    for way in ("links", "nccl"):
        wrong = told.pop((way, "headers"))
        assert wrong == "rank 2 was about to run another step than rank 0's 1"
    assert len(told) == 16
    assert set(told.values()) == {""}


def test_a_follower_killed_in_a_reply_ends_the_run_by_name() -> None:
    ((why, code, sound, told, seconds),) = lines_of("cuda_simulated_ranks.py", "killed")
    assert why.startswith("rank 1 died in step ") and why.endswith(": Killed")
    assert (code, sound, told) == (1, True, 1)
    assert seconds < 60


def test_a_follower_that_was_given_another_step_takes_no_part_unheard() -> None:
    ((why, code, changed),) = lines_of("cuda_simulated_ranks.py", "misled")
    assert "rank 1 was about to run another step than rank 0's" in why
    assert code == 1
    assert len(changed) == 1


def test_a_followers_wrong_product_ends_the_run_by_rank_and_matrix() -> None:
    ((why, code, sound),) = lines_of("cuda_simulated_ranks.py", "flipped")
    said = "rank 1: its GPU gave a wrong product in step"
    assert f"{said} 3: model.layers.0.self_attn.o_proj.weight; keep the tape" in why
    assert (code, sound) == (1, True)


@pytest.mark.slow
def test_simulated_ranks_record_and_replay_what_the_cpu_does() -> None:
    lines = lines_of("cuda_simulated_ranks.py", "equal", "2", "3")
    sides = [(made, again) for made, again, _, _ in lines]
    assert sides == [
        *((["cpu", 1], ["cuda", world]) for world in (2, 3)),
        *((["cuda", 2], ["cpu", world]) for world in (1, 2, 3)),
    ]
    for _, _, verdict, compared in lines:
        assert verdict == "equal"
        assert min(compared[part] for part in ("logits", "rows", "tokens", "book")) >= 4


# --- on GPUs -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(cards_here() < 1, reason="no CUDA device here")
@pytest.mark.parametrize("part", ["nccl_alone", "links", "killed_links"])
def test_one_gpu_does_for_ranks_that_share_it(part: str) -> None:
    assert_sound(part)


@pytest.mark.gpu
@pytest.mark.skipif(cards_here() < 2, reason="two CUDA devices are needed: NCCL takes one a rank")
@pytest.mark.parametrize("part", ["nccl", "killed_nccl", "hung_nccl"])
def test_ranks_with_a_gpu_each_gather_in_their_graphs(part: str) -> None:
    assert_sound(part)


def assert_sound(part: str) -> None:
    """A part of the script says that all of it was as it should be."""
    told = lines_of("cuda_ranks.py", part, simulated=False)
    assert told and all(line[1] for line in told), told


# --- anywhere ------------------------------------------------------------------------------------


class Cards:
    """A machine with so many GPUs."""

    def __init__(self, count: int) -> None:
        self._count = count

    def count(self) -> int:
        return self._count

    def info(self) -> CardInfo:
        return CardInfo("a card", 8 << 30, 6 << 30, "CUDA 13.0")


def test_ranks_that_share_a_gpu_go_by_links_and_nccl_says_what_it_lacks() -> None:
    one: Any = Cards(1)
    assert way_of("auto", 2, one) == "links"
    assert way_of("links", 1, one) == "links"
    with pytest.raises(NoCard, match="2 ranks need a GPU each, there are 1; links would do"):
        way_of("nccl", 2, one)


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy, and so NCCL, may be here")
def test_without_nccl_ranks_go_by_links() -> None:
    many: Any = Cards(4)
    assert way_of("auto", 4, many) == "links"
    with pytest.raises(NoCard, match="CuPy finds no NCCL"):
        way_of("nccl", 4, many)


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtape.devices.cuda import card
    from kvtape.replay.plan_made import here_of

    for count, world, share in ((1, 1, 1), (1, 3, 3), (2, 3, 2), (4, 3, 1)):
        monkeypatch.setattr(card, "open_card", lambda index, count=count: Cards(count))
        here = here_of(RunOptions(device="cuda", world=world))
        assert (here.total, here.free) == ((8 << 30) // share, (6 << 30) // share)
        assert not here.shared


def test_a_header_is_of_the_step_and_of_everything_that_it_computes() -> None:
    """Other rows, tokens, pages or samples: another header; the same again: the same."""
    from kvtape.devices.batch import batch_of

    with CpuRig(tiny()) as rig:
        stream, facts = rig.begin([5, 6, 7])
        facts += [*rig.lease(stream, 3), f.PromptStepRun(stream=stream, first=0, rows=3)]
        rig.step(*facts)
        batch = batch_of(rig.state, facts, every_row=False)
        seen = {header_of(4, facts, batch), header_of(5, facts, batch)}
        seen.add(header_of(4, facts[:-1], batch))
        seen.add(header_of(4, facts, batch_of(rig.state, facts, every_row=True)))
        for table in (batch.tokens, batch.positions, batch.lanes, batch.pages):
            table[1] += 1
            seen.add(header_of(4, facts, batch))
            table[1] -= 1
        assert len(seen) == 8
        assert header_of(4, facts, batch) in seen
        assert all(0 <= header < 1 << 63 for header in seen)
