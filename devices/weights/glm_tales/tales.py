# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
# ruff: noqa: T201
"""Samples tales for glm-tales to learn: SmolLM2-135M-Instruct, thousands of rows at once."""

import argparse
import json
import lzma
import math
import random
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import asks
import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LAYERS, HEADS, SHARED, DIM, EPS, BASE = 30, 9, 3, 64, 1e-5, 1e5  # of SmolLM2-135M
START, END = 1, 2  # <|im_start|>, <|im_end|>
BUCKET = 64  # positions: attention reads the cache up to the next multiple
HEAT, FLOOR = 0.75, 0.05  # temperature; tokens under FLOOR of the best token's chance are not drawn


class Teller:
    """SmolLM2's weights and one step of a batch of rows, every row at the same position."""

    def __init__(self, path: Path, rows: int, room: int, device: str) -> None:
        """rows: streams at once.  room: positions of each."""
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        reader = GGUFReader(path)
        self.tokenizer = tokenizer_of(reader)
        self.weights = {
            tensor.name: torch.tensor(dequantize(tensor.data, tensor.tensor_type)).to(device, kind)
            for tensor in reader.tensors
        }
        self.rows, self.room, self.device = rows, room, device
        self.cache = torch.zeros(LAYERS, 2, rows, SHARED, room, DIM, device=device, dtype=kind)
        self.said = torch.zeros(rows, room + 1, device=device, dtype=torch.long)
        self.given = torch.zeros(rows, device=device, dtype=torch.long)  # tokens of the prompt
        self.at = torch.zeros(1, device=device, dtype=torch.long)
        turn = BASE ** (-torch.arange(0, DIM, 2, device=device, dtype=torch.float32) / DIM)
        angle = torch.arange(room, device=device)[:, None] * turn
        self.cos, self.sin = angle.cos().to(kind), angle.sin().to(kind)
        self.graphs: dict[int, Any] = {}
        self.pool = torch.cuda.graph_pool_handle() if device == "cuda" else None

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weights[name], EPS)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions; GGUF keeps the two halves of a pair side by side."""
        cos, sin = self.cos[self.at], self.sin[self.at]
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def step(self, seen: int) -> None:
        """Reads position `at` of every row and writes position at + 1.  seen: keys looked at."""
        w, rows = self.weights, self.rows
        x = w["token_embd.weight"][self.said.index_select(1, self.at)[:, 0]]
        hidden = torch.arange(seen, device=self.device) > self.at
        mask = hidden.to(x.dtype) * -1e9
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            y = self.norm(x, p + "attn_norm.weight")
            q = self.turned((y @ w[p + "attn_q.weight"].T).view(rows, HEADS, DIM))
            k = self.turned((y @ w[p + "attn_k.weight"].T).view(rows, SHARED, DIM))
            v = (y @ w[p + "attn_v.weight"].T).view(rows, SHARED, DIM)
            keys, values = self.cache[layer]
            keys.index_copy_(2, self.at, k[:, :, None])
            values.index_copy_(2, self.at, v[:, :, None])
            q = q.view(rows * SHARED, HEADS // SHARED, DIM) * DIM**-0.5
            scores = q @ keys[:, :, :seen].flatten(0, 1).transpose(1, 2) + mask
            o = scores.float().softmax(-1).to(x.dtype) @ values[:, :, :seen].flatten(0, 1)
            x = x + o.reshape(rows, -1) @ w[p + "attn_output.weight"].T
            y = self.norm(x, p + "ffn_norm.weight")
            gate = torch.nn.functional.silu(y @ w[p + "ffn_gate.weight"].T)
            x = x + (gate * (y @ w[p + "ffn_up.weight"].T)) @ w[p + "ffn_down.weight"].T
        logits = (self.norm(x, "output_norm.weight") @ w["token_embd.weight"].T).float() / HEAT
        logits = logits.masked_fill(logits < logits.amax(-1, True) + math.log(FLOOR), -math.inf)
        drawn = (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
        self.at += 1
        asked = self.said.index_select(1, self.at)[:, 0]
        self.said.index_copy_(1, self.at, torch.where(self.at < self.given, asked, drawn)[:, None])

    def run(self, seen: int) -> None:
        """`step`, as a recorded graph where there is a GPU."""
        if self.device != "cuda":
            return self.step(seen)
        if seen not in self.graphs:
            at = self.at.clone()
            self.step(seen)  # warms up; its draws are overwritten
            self.at.copy_(at)
            self.graphs[seen] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[seen], pool=self.pool):
                self.step(seen)
        self.graphs[seen].replay()

    @torch.no_grad()
    def tell(self, kind: tuple[str, ...], length: int, draw: random.Random) -> list[dict[str, Any]]:
        """One batch of answers of at most `length` positions, prompts included."""
        system = asks.TELLER if kind is asks.TALES else asks.TALKER
        requests = [asks.ask(kind, draw) for _ in range(self.rows)]
        prompts = [self.prompt(system, request) for request in requests]
        said = torch.zeros(self.rows, self.room + 1, dtype=torch.long)
        for row, ids in enumerate(prompts):
            said[row, : len(ids)] = torch.tensor(ids)
        self.said.copy_(said)
        self.given.copy_(torch.tensor([len(ids) for ids in prompts]))
        self.at.zero_()
        for at in range(length):
            self.run(min(self.room, (at // BUCKET + 1) * BUCKET))
            if at % BUCKET == BUCKET - 1 and at > 2 * BUCKET:
                over = (torch.arange(self.room + 1, device=self.device) >= self.given[:, None]) & (
                    self.said == END
                )
                if over.any(-1).float().mean() > 0.93:
                    break
        written, tales = int(self.at) + 1, []
        for request, ids, row in zip(requests, prompts, self.said.tolist(), strict=True):
            answer = row[len(ids) : written]
            whole = END in answer
            answer = answer[: answer.index(END)] if whole else answer
            tales.append({"ask": request, "tale": self.tokenizer.decode(answer), "whole": whole})
        return tales

    def prompt(self, system: str, request: str) -> list[int]:
        ids = []
        for role, text in (("system", system), ("user", request)):
            ids += [START, *self.tokenizer.encode(f"{role}\n{text}").ids]
            ids += [END, *self.tokenizer.encode("\n").ids]
        return [*ids, START, *self.tokenizer.encode("assistant\n").ids]


def tokenizer_of(reader: GGUFReader) -> Tokenizer:
    """The byte-level tokenizer that a GGUF file carries."""
    words = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    vocab = {word: at for at, word in enumerate(words)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save(path: Path, tales: list[dict[str, Any]]) -> None:
    """JSON lines, xz."""
    text = "\n".join(json.dumps(tale) for tale in tales)
    path.write_bytes(lzma.compress(text.encode(), preset=6))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="SmolLM2-135M-Instruct, GGUF")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--length", type=int, default=640, help="positions of a tale")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    torch.manual_seed(asked.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began, teller = time.monotonic(), Teller(asked.model, asked.rows, asked.length, device)
    told: list[list[dict[str, Any]]] = []
    slowest = 0.0
    while (left := began + asked.seconds - time.monotonic()) > slowest:
        batch = time.monotonic()
        chats = len(told) % 4 == 3
        kind, length = (asks.CHATS, 256) if chats else (asks.TALES, asked.length)
        told.append(teller.tell(kind, min(length, asked.length), draw))
        slowest = max(slowest, time.monotonic() - batch) if len(told) > 1 else 0.0
        whole = sum(tale["whole"] for tale in told[-1])
        print(
            f"batch {len(told)}: {whole} whole, {time.monotonic() - batch:.1f} s, {left:.0f} left"
        )
    asked.out.mkdir(parents=True, exist_ok=True)
    every = [tale for batch in told for tale in batch]
    parts = 8 if len(every) >= 8 else 1
    with ProcessPoolExecutor() as pool:
        jobs = [
            pool.submit(save, asked.out / f"tales{part}.xz", every[part::parts])
            for part in range(parts)
        ]
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main()
