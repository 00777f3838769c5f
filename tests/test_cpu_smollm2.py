"""SmolLM2 on the CPU device: every logit of a page of text, against two independent forwards."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvtape.devices.weights.checkpoint import Checkpoint
from kvtape.devices.weights.find import find_model
from kvtape.events import facts as f

from .cpu_rig import CpuRig

DATA = Path(__file__).with_name("data")
SHA = "f779b05f2cc029b4ce004b9e898fb243394dcd9f0e673c8f66dff1426ec4e076"  # of the definition's bits
ROOM: dict[str, Any] = {"lanes": 1, "context": 1024, "pages": 32, "prompt_rows": 64}

pytestmark = pytest.mark.smollm2


def text_ids() -> list[int]:
    """The 869 ids of data/text.txt."""
    ids: list[int] = json.loads((DATA / "text_ids.json").read_text())
    return ids


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return find_model("smollm2")


def rows_of_logits(rig: CpuRig, ids: list[int], chunk: int) -> Iterator[NDArray[np.float32]]:
    """Logits [rows, vocab] of each chunk."""
    stream, facts = rig.begin(ids)
    for first in range(0, len(ids), chunk):
        rows = min(chunk, len(ids) - first)
        facts += rig.lease(stream, first + rows)
        rig.step(*facts, f.PromptStepRun(stream=stream, first=first, rows=rows), every_row=True)
        facts = []
        found = [rig.logits(stream, row) for row in range(first, first + rows)]
        yield np.stack(found).view(np.float32)


def sha_of(checkpoint: Checkpoint, world: int, threads: int, chunk: int) -> str:
    digest = hashlib.sha256()
    with CpuRig(checkpoint, world=world, threads=threads, **ROOM) as rig:
        for logits in rows_of_logits(rig, text_ids(), chunk):
            digest.update(logits.tobytes())
    return digest.hexdigest()


def test_every_logit_is_that_of_the_definition(checkpoint: Checkpoint) -> None:
    assert sha_of(checkpoint, 1, 2, 64) == SHA


@pytest.mark.slow
@pytest.mark.parametrize(("world", "threads", "chunk"), [(2, 1, 61), (3, 1, 64), (4, 1, 33)])
def test_every_logit_is_that_of_the_definition_at_any_rank_count(
    checkpoint: Checkpoint, world: int, threads: int, chunk: int
) -> None:
    assert sha_of(checkpoint, world, threads, chunk) == SHA


@pytest.mark.slow
def test_logits_are_near_a_float64_forward(checkpoint: Checkpoint) -> None:
    """Mean divergence from plain float64 arithmetic, and how often the likeliest token agrees."""
    exact = float64_logits(checkpoint, text_ids())
    with CpuRig(checkpoint, threads=2, **ROOM) as rig:
        ours = np.concatenate(list(rows_of_logits(rig, text_ids(), 64)))
    p, q = log_softmax(exact), log_softmax(ours.astype(np.float64))
    assert (np.exp(p) * (p - q)).sum(-1).mean() <= 5e-6
    assert (ours.argmax(-1) == exact.argmax(-1)).sum() >= 865


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log probabilities [rows, vocab]."""
    shifted: NDArray[np.float64] = logits - logits.max(-1, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted - total


def float64_logits(checkpoint: Checkpoint, ids: list[int]) -> NDArray[np.float64]:
    """A llama's forward as its paper writes it, in float64, with none of the code under test."""
    c, rows = checkpoint.config, len(ids)
    heads, kv, width = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def weight(name: str) -> NDArray[np.float64]:
        if len(checkpoint.shape(name)) == 1:
            return checkpoint.vector(name).astype(np.float64)
        return checkpoint.rows(name, 0, checkpoint.shape(name)[0]).astype(np.float64)

    def norm(x: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        mean = (x * x).mean(-1, keepdims=True)
        scaled: NDArray[np.float64] = x / np.sqrt(mean + c["rms_norm_eps"]) * weight(name)
        return scaled

    angle = np.arange(rows)[:, None] * c["rope_theta"] ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turn(x: NDArray[np.float64]) -> NDArray[np.float64]:
        a, b = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    later = np.triu(np.full((rows, rows), -np.inf), 1)
    x = weight("model.embed_tokens.weight")[ids]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        h = norm(x, at + "input_layernorm.weight")
        q, k, v = (h @ weight(f"{at}self_attn.{m}_proj.weight").T for m in "qkv")
        q, k = turn(q.reshape(rows, heads, width)), turn(k.reshape(rows, kv, width))
        v, o = v.reshape(rows, kv, width), np.empty((rows, heads, width))
        for head in range(heads):
            mine = head * kv // heads
            o[:, head] = (
                np.exp(log_softmax(q[:, head] @ k[:, mine].T / width**0.5 + later)) @ v[:, mine]
            )
        x = x + o.reshape(rows, -1) @ weight(at + "self_attn.o_proj.weight").T
        h = norm(x, at + "post_attention_layernorm.weight")
        gate, up = (h @ weight(f"{at}mlp.{m}_proj.weight").T for m in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(at + "mlp.down_proj.weight").T
    tied = c["tie_word_embeddings"]
    last = weight("model.embed_tokens.weight" if tied else "lm_head.weight")
    logits: NDArray[np.float64] = norm(x, "model.norm.weight") @ last.T
    return logits
