# mypy: ignore-errors
# ruff: noqa: T201
# pyright: basic, reportMissingImports=false
"""Trains glm-tales on packed tokens: trunk, draft head and indexers in one recorded step."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import compiled
import net
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

PEAK, WARM, DECAY = 2.5e-3, 0.02, 0.1  # learning rate, its warm-up's share of the time, decay
LOOK = 0.3  # share of the time between measurements on held-out text
DRAFTS, INDEX, BALANCE = (0.3, 0.15), 0.1, 1e-3  # shares of the loss; the experts' balance rate
PLAIN = ("e_score_correction_bias", "A_log", "dt_bias", "_base", "_scale")  # stay float32


def hard(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross entropy of the trunk against the text."""
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def soft(logits: Tensor, goal: Tensor) -> Tensor:
    """Cross entropy of a draft against the trunk's own distribution."""
    return -(goal.detach().softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def losses(model: net.Net, ids: Tensor) -> list[Tensor]:
    """ids [B, T + 2] -> the sum that is trained, then trunk, first and second draft, indexers."""
    t = ids.shape[1] - 2
    h, index = model(ids[:, :t])
    logits = model.logits(h)
    parts = [compiled.fused(hard)(logits, ids[:, 1 : t + 1])]
    for ahead in (1, 2):
        h, add = model.draft(ids[:, ahead : t + ahead], h, ahead == 1)
        parts.append(compiled.fused(soft)(model.logits(h[:, :-ahead]), logits[:, ahead:]))
        index = index + add
    drafts = sum(share * part for share, part in zip(DRAFTS, parts[1:], strict=True))
    return [parts[0] + drafts + INDEX * index, *parts, index]


class Text:
    """Packed documents; every row begins at the begin of one."""

    def __init__(self, path: Path, device: str, longest: int) -> None:
        """longest: the longest row that will be asked for."""
        flat = np.fromfile(path, np.uint16)
        starts = np.concatenate([[0], np.flatnonzero(flat == 0)[:-1] + 1])
        self.starts = starts[starts + longest <= len(flat)]
        self.flat = torch.from_numpy(flat.astype(np.int32)).to(device)
        self.order, self.draw = np.zeros(0, np.int64), np.random.default_rng(1)

    def rows(self, count: int, length: int) -> Tensor:
        if len(self.order) < count:
            self.order = np.concatenate([self.order, self.draw.permutation(self.starts)])
        starts, self.order = self.order[:count], self.order[count:]
        at = torch.from_numpy(starts).to(self.flat.device)[:, None]
        return self.flat[at + torch.arange(length, device=self.flat.device)].long()


class Step:
    """One training step of rows x length tokens, recorded once on a GPU and played again."""

    def __init__(self, model: net.Net, optimizer: Any, rows: int, length: int, pool: Any) -> None:
        self.model, self.optimizer, self.pool = model, optimizer, pool
        device = model.norm.weight.device
        self.ids = torch.zeros(rows, length + 2, dtype=torch.long, device=device)
        self.tokens, self.parts = rows * length, torch.zeros(5, device=device)
        self.graph: Any = None

    def work(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        parts = losses(self.model, self.ids)
        parts[0].backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.parts.copy_(torch.stack([part.detach() for part in parts]))

    def run(self, ids: Tensor) -> None:
        self.ids.copy_(ids)
        if not ids.is_cuda:
            self.work()
            return
        if self.graph is None:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self.work()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph, pool=self.pool):
                self.work()
        self.graph.replay()


def save(model: net.Net, path: Path) -> None:
    """Official names; bfloat16 except what the official repository keeps in float32."""
    tensors = {
        name: value.detach()
        .to("cpu", torch.float32 if name.endswith(PLAIN) else torch.bfloat16)
        .contiguous()
        for name, value in model.official()
    }
    save_file(tensors, path, metadata={"format": "pt"})


@torch.no_grad()
def measure(model: net.Net, text: Text, length: int) -> dict[str, float]:
    """Held-out losses, and how often each draft's best token is the trunk's."""
    totals, hits, rows, rounds = np.zeros(5), np.zeros(3), 8, 8
    model.eval()
    before, compiled.compiling = compiled.compiling, False
    text.order, text.draw = text.order[:0], np.random.default_rng(2)  # the same rows each time
    for _ in range(rounds):
        ids = text.rows(rows, length + 2)
        totals += torch.stack(losses(model, ids)).cpu().numpy() / rounds
        h, _ = model(ids[:, :length])
        best = model.logits(h).argmax(-1)
        hits[0] += (best == ids[:, 1 : length + 1]).float().mean().item() / rounds
        for ahead in (1, 2):
            h, _ = model.draft(ids[:, ahead : length + ahead], h, ahead == 1)
            same = model.logits(h).argmax(-1)[:, :-ahead] == best[:, ahead:]
            hits[ahead] += same.float().mean().item() / rounds
    model.train()
    compiled.compiling = before
    names = ["loss", "trunk", "draft1", "draft2", "index", "right", "agree1", "agree2"]
    return dict(zip(names, [*totals.tolist(), *hits.tolist()], strict=True))


def optimizer_of(model: net.Net, rate: Tensor) -> Any:
    """AdamW over every weight, decay on matrices alone.  rate: filled before each step."""
    wide = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": wide, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
        fused=True,
        capturable=rate.is_cuda,
    )


def train(model: net.Net, asked: argparse.Namespace, device: str) -> dict[str, Any]:
    """Trains for `asked.seconds`; the rate rises, then falls to zero by the clock."""
    rate = torch.tensor(0.0, device=device)
    optimizer = optimizer_of(model, rate)
    longest = 2 * asked.length + 2
    text = Text(asked.data / "train.bin", device, longest)
    held = Text(asked.data / "held.bin", device, longest)
    pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
    short = Step(model, optimizer, asked.rows, asked.length, pool)
    wider = Step(model, optimizer, max(1, asked.rows // 2), 2 * asked.length, pool)
    for step in (short, wider):
        step.run(text.rows(*step.ids.shape))  # compiled and recorded at rate 0, off the clock
    began, count, seen = time.monotonic(), 0, 0
    curve: list[list[float]] = []
    found: list[dict[str, float]] = []
    while (done := (time.monotonic() - began) / asked.seconds) < 1:
        rate.fill_(PEAK * min(1.0, done / WARM) * max(0.0, 1 - done))
        step = wider if done > 1 - asked.long else short
        step.run(text.rows(*step.ids.shape))
        count, seen = count + 1, seen + step.tokens
        if count % 100 == 1:
            curve.append([count, seen, *step.parts.tolist()])
            print(*(f"{value:.4g}" for value in curve[-1]), flush=True)
        if done > len(found) * LOOK:
            found.append({"steps": count, "tokens": seen} | measure(model, held, asked.length))
            save(model, asked.out / "model.safetensors")
    found.append({"steps": count, "tokens": seen} | measure(model, held, asked.length))
    return {"held": found, "train": curve}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="holds train.bin, held.bin: uint16 token ids")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=160)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--long", type=float, default=0.15, help="share at twice the length")
    parser.add_argument("--plain", action="store_true", help="without torch.compile")
    asked = parser.parse_args()
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compiled.compiling = not asked.plain
    if device == "cpu":
        net.half = torch.float32
    model = net.Net(net.config_of(Path(__file__).with_name("config.json"))).to(device)
    for module in model.modules():
        if isinstance(module, net.Moe):
            module.rate = BALANCE
    asked.out.mkdir(parents=True, exist_ok=True)
    curves = train(model, asked, device)
    save(model, asked.out / "model.safetensors")
    (asked.out / "curve.json").write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
