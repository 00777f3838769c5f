"""A weight's bit turns over in a run: where products are looked at, the run ends at that step."""

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay.run_diff import run_audit
from kvtape.tests.server import Seen, Server, command, serving, stream, tool, wish

from . import tiny_llama
from .cpu_rig import TINY
from .test_cuda_device import on_gpu

TENSOR = "model.layers.0.self_attn.o_proj.weight"  # in which cuda_flipped.py turns the bit
SMALLEST = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64,
}  # fmt: skip
SMALL = ("--context", "64", "--parallel", "2", "--pages", "8", "--prompt-rows", "4")


@dataclass(frozen=True, slots=True)
class Scene:
    """Two streams of a model, and the step before which a bit turns over."""

    model: Path
    prompt: list[int]
    tokens: int
    step: int
    flags: tuple[str, ...] = ()


def on_card() -> Scene:
    """For a GPU."""
    return Scene(TINY, list(range(40, 52)), 60, 9)


def simulated(folder: Path) -> Scene:
    """For the simulator, whose threads take their time."""
    named = tiny_llama.weights(tiny_llama.config(**SMALLEST), 0)
    tiny_llama.write_folder(folder, named, dtype="F32", shards=1, **SMALLEST)
    return Scene(folder, [3, 4, 5], 6, 3, SMALL)


def run(
    scene: Scene, at: Path, patch: pytest.MonkeyPatch, *flags: str
) -> tuple[Server, list[Seen]]:
    """Serve both streams to their ends, and the server to its own: what it left, what was seen."""

    def turning(*arguments: Any) -> list[str]:
        line = command(*arguments)
        name = line.index("kvtape")
        return [*line[:name], "kvtape.tests.cuda_flipped", str(scene.step), *line[name + 1 :]]

    at.mkdir(exist_ok=True)
    seen = [Seen(), Seen()]
    with patch.context() as patched:
        patched.setattr("kvtape.tests.server.command", turning)
        with serving(
            at, "--device", "cuda", *scene.flags, *flags, model=str(scene.model)
        ) as server:
            server.model = scene.model.name
            clients = []
            for i, one in enumerate(seen):
                body = wish(server.model, [*scene.prompt, i], scene.tokens, stream=True)
                given = (server, body, one, f"s{i}")
                clients.append(threading.Thread(target=stream, args=given))
            for client in clients:
                client.start()
            for client in clients:
                client.join(200)
            assert (server.wait() if flags else server.stop()) == int(bool(flags))
    return server, seen


def ends_where_it_turns(scene: Scene, at: Path, patch: pytest.MonkeyPatch) -> Server:
    """Nothing that came of the wrong product was told; what stands on the tape is right."""
    server, seen = run(scene, at, patch, "--verify")
    said = server.said()
    assert "linear maps checked, by checksums of" in said
    assert re.search(rf"its GPU gave a wrong product in step \d+: {re.escape(TENSOR)}; keep", said)
    for one in seen:
        assert one.error is not None and not one.whole, one
        assert one.error["code"] == "engine_failed"
    with Tape.open(server.tape) as tape:
        assert tape.closed is not None and tape.closed.reason == "failed"
        assert "gave a wrong product in step" in tape.closed.error
    sound(server)
    return server


def goes_on(scene: Scene, at: Path, patch: pytest.MonkeyPatch) -> Server:
    """Where nobody looks, the replies come to their ends."""
    server, seen = run(scene, at, patch)
    assert all(one.whole and one.error is None for one in seen)
    sound(server)
    return server


def sound(server: Server) -> None:
    """The tape is whole, and keeps every law."""
    assert verify(server.tape) == []
    assert run_audit(server.tape) == 0


def replayed(server: Server, *flags: str) -> int:
    """The verdict of a replay."""
    return tool("replay", server.tape, *flags).returncode


@pytest.mark.slow
def test_on_a_simulated_gpu_a_turned_bit_ends_the_run_or_is_found_by_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = simulated(tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setenv("NUMBA_ENABLE_CUDASIM", "1")
        ended = ends_where_it_turns(scene, tmp_path / "verified", monkeypatch)
        went_on = goes_on(scene, tmp_path / "blind", monkeypatch)
    assert (replayed(ended, "--device", "cpu"), replayed(went_on, "--device", "cpu")) == (0, 1)
    assert replayed(ended, "--device", "cpu", "--verify") == 3


@on_gpu
@pytest.mark.gpu
def test_on_a_gpu_a_turned_bit_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ends_where_it_turns(on_card(), tmp_path, monkeypatch)
    assert replayed(server, "--device", "cuda", "--verify") == 0


@on_gpu
@pytest.mark.gpu
def test_on_a_gpu_where_nobody_looks_a_replay_finds_the_turned_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = goes_on(on_card(), tmp_path, monkeypatch)
    assert replayed(server, "--device", "cuda") == 1
