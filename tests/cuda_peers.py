"""Run as a process on a GPU: peers at a GLM's real widths, eight layers of random bfloat16 weights.

torch: the layers of cuda_peer_model.py in a CUDA graph, decode at row 8,191 and a prompt of 2,048
rows. transformers: its own model, eager. Medians by device events, milliseconds a layer; what turns
tokens into rows and rows into logits is told apart.
"""

import gc
import inspect
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from kvtape.core.families.glm_config import glm_sizes

from .cuda_peer_model import PeerModel
from .cuda_peer_parts import Parts

CONFIG = json.loads((Path(__file__).parent / "data" / "glm_real.json").read_text())
SIZES = glm_sizes(CONFIG)
CONTEXT, PROMPT, ROWS = 8192, 2048, (1, 8, 32)
TABLE: list[str] = []
FIGURES: dict[str, float] = {}  # milliseconds a layer


def tell(line: str) -> None:
    """Print a line now, and again at the end."""
    TABLE.append(line)
    print(line, flush=True)  # noqa: T201


def timed(run: Callable[[], Any], turns: int) -> float:
    """The median of milliseconds by device events."""
    took: list[float] = []
    for _ in range(turns):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end))
    return statistics.median(took)


def captured(run: Callable[[], Any]) -> Any:
    """A graph of what `run` puts into the stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def streams(model: PeerModel, rows: int) -> Any:
    """Rows of different tokens as streams [rows, hc, hidden]."""
    ids = torch.randperm(SIZES.vocab, device="cuda")[:rows]
    return model.table[ids].unsqueeze(1).repeat(1, SIZES.hc, 1) * 50


def one(model: PeerModel, rows: int, *, prompt: bool, grouped: bool = True) -> None:
    """Time the layers of one step in a graph, and its logits."""
    model.grouped = grouped
    model.seat(1 if prompt else rows, (PROMPT if prompt else CONTEXT) - 1)
    x = streams(model, rows)
    model.chosen = []
    out = model.run(x, prompt=prompt)
    each = [int(ids.unique().numel()) for ids in model.chosen]
    model.chosen = None
    eager = timed(lambda: model.run(x, prompt=prompt), 3)
    graph = captured(lambda: model.run(x, prompt=prompt))
    took = timed(graph.replay, 5 if prompt else 20)
    head = timed(lambda: model.logits(out[-1:] if prompt else out), 5)
    kind = "prompt" if prompt else "decode"
    how = "" if grouped else ", experts picked out"
    name = f"torch: {kind} {rows} rows" + (" at 0" if prompt else "")
    FIGURES[name] = min(FIGURES.get(name, took), took / SIZES.layers)
    tell(
        f"torch {kind} {rows} rows{how}: {took / SIZES.layers:.3f} ms a layer, eager"
        f" {eager / SIZES.layers:.3f}, logits {head:.3f} ms, experts {sum(each) / len(each):.1f},"
        f" finite {bool(torch.isfinite(out).all())}"
    )


def balance() -> Any:
    """The balancing kernel, once it has given what torch gives."""
    from . import cuda_peer_balance, cuda_peer_parts

    square = torch.randn(64, 4, 4, device="cuda")
    given = (SIZES.hc_eps, SIZES.hc_iters)
    found, want = (f.balanced(square, *given) for f in (cuda_peer_balance, cuda_peer_parts))
    assert torch.allclose(found, want, atol=1e-5)
    return cuda_peer_balance.balanced


def with_torch() -> None:
    """The layers as torch users would write them."""
    torch.set_float32_matmul_precision("high")
    try:
        model = PeerModel(SIZES, 1, 0, Parts(compiled=True, balance=balance()))
        one(model, 1, prompt=False)
    except Exception:
        traceback.print_exc()
        tell("torch.compile or Triton failed: nothing is compiled below")
        model = PeerModel(SIZES, 1, 0, Parts(compiled=False))
        one(model, 1, prompt=False)
    for rows, prompt, grouped in (
        (1, False, False), (8, False, True), (32, False, True), (PROMPT, True, True),
    ):  # fmt: skip
        guarded(partial(one, model, rows, prompt=prompt, grouped=grouped))


def with_transformers() -> None:
    """The library's own model."""
    import transformers  # pyright: ignore[reportMissingImports]

    config = {key: value for key, value in CONFIG.items() if key != "architectures"}
    torch.set_default_dtype(torch.bfloat16)
    start = time.perf_counter()
    with torch.device("cuda"):
        model = transformers.Glm5NextForConditionalGeneration(
            transformers.Glm5NextConfig(**config)
        ).eval()
    torch.cuda.synchronize()
    tell(f"transformers {transformers.__version__}, built in {time.perf_counter() - start:.0f} s")
    layers = SIZES.layers
    with torch.no_grad():
        ids = torch.randint(0, SIZES.vocab, (1, PROMPT), device="cuda")
        prompt = timed(lambda: model(input_ids=ids, logits_to_keep=1, use_cache=False), 3)
        FIGURES[f"transformers: prompt {PROMPT} rows at 0"] = prompt / layers
        tell(f"transformers prompt {PROMPT} rows: {prompt / layers:.2f} ms a layer")
        for rows, context in ((1, 256), (8, 256), (32, 64)):
            guarded(partial(decode, model, rows, context))


def decode(model: Any, rows: int, context: int) -> None:
    """Time steps of one token a stream after a prompt of `context`."""
    ids = torch.randint(0, SIZES.vocab, (rows, context), device="cuda")
    out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    takes = inspect.signature(model.forward).parameters
    cache = getattr(out, "past_key_values", None) or out.cache
    kept = {"past_key_values" if "past_key_values" in takes else "cache": cache}
    step = ids[:, :1]
    model(input_ids=step, use_cache=True, **kept)
    took = timed(lambda: model(input_ids=step, use_cache=True, **kept), 5)
    FIGURES[f"transformers: decode {rows} rows"] = took / SIZES.layers
    tell(f"transformers decode {rows} rows: {took / SIZES.layers:.2f} ms a layer")


def guarded(do: Callable[[], None]) -> None:
    """Go on past what fails."""
    try:
        do()
    except Exception:
        traceback.print_exc()
        tell(f"failed: {traceback.format_exc(limit=1).splitlines()[-1][:200]}")


def copy_rate() -> None:
    """What a copy on the card moves, read and written bytes together."""
    a = torch.randn(1 << 30, device="cuda")
    b = torch.empty_like(a)
    took = timed(lambda: b.copy_(a), 5)
    tell(f"copy: {2 * a.numel() * 4 / took / 1e9:.2f} TB/s")


def main(parts: list[str]) -> int:
    """Print a table; 1 where any of it failed."""
    tell(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for part in (copy_rate, with_torch, with_transformers):
        if part.__name__ in parts or not set(parts) - {"--json"}:
            guarded(part)
        gc.collect()
        torch.cuda.empty_cache()
    print("\n".join(["", "--- peers ---", *TABLE]), flush=True)  # noqa: T201
    if "--json" in parts:
        print(json.dumps(FIGURES), flush=True)  # noqa: T201
    return int(any("failed" in line for line in TABLE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
