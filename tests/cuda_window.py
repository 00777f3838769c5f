"""Run as a process on a GPU: windows of 1,048,576 rows for eight streams that share one pool.

The model has the real number of layers and caches and the real heads, so a row of all caches has
13,056 bytes; hidden width, feed-forwards, experts and vocabulary are small, so that pages have the
card. Plan and allocation are put side by side; random rows are written by a kernel; a machine
leases and steps a prompt of 1,039,996 rows, whose last step runs on the card; selection and
attention of sampled rows are compared with their meaning.
"""

import json
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.core.kernels.glm_memory import GlmStep
from kvtape.core.kernels.program_memory import Draws
from kvtape.core.plan import Plan, kept_states
from kvtape.core.plan_wanted import GIB
from kvtape.devices.cuda.card import Shape, bytes_of, open_card, size_of
from kvtape.devices.cuda.graph import all_of
from kvtape.devices.draws import DrawTables
from kvtape.devices.kernel_cache import use_cache
from kvtape.devices.settings import DeviceSettings
from kvtape.replay.opening import Division, RunOptions, run_opened
from kvtape.replay.plan_start import Asked, Start, ask

from . import cuda_window_machine as machine
from .cuda_real import (
    CONFIG,
    TABLE,
    Clock,
    compiled,
    guarded,
    measured_rates,
    parts,
    show,
    sound,
    tell,
)
from .cuda_real import step_of as step_at
from .cuda_real_rig import RealRig
from .cuda_window_checks import attended, selected

LANES, CONTEXT, PROMPT_ROWS, DRAFTS = 8, 1 << 20, 2048, 1
LAYERS = 45
SMALL: dict[str, Any] = {
    "hidden_size": 256, "vocab_size": 4096, "intermediate_size": 256, "moe_intermediate_size": 64,
    "n_routed_experts": 16, "q_lora_rank": 256, "eos_token_id": [1], "pad_token_id": 0,
}  # fmt: skip
ROW_BYTES = 13056  # of all caches


def config() -> dict[str, Any]:
    """The real layers, heads and caches over few weights."""
    found: dict[str, Any] = json.loads(json.dumps(CONFIG))
    four = ["linear_attention"] * 3 + ["deepseek_sparse_attention"]
    found["text_config"] |= SMALL | {
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 1,
        "layer_types": [four[layer % 4] for layer in range(LAYERS)],
        "indexer_types": ["full"] * LAYERS,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * (LAYERS - 3),
    }
    return found


def asked_of(free: int) -> Asked:
    """What `kvtape plan` is asked for a card with so many bytes free."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config()))
        return ask(
            Start(
                folder, lanes=LANES, context=CONTEXT, drafts=DRAFTS, kv_pages="on", memory=free
            )
        )  # fmt: skip


def settings_of(asked: Asked, plan: Plan) -> DeviceSettings:
    """A device of that plan."""
    return DeviceSettings(
        lanes=LANES, context=CONTEXT, pages=plan.pool_pages, prompt_rows=PROMPT_ROWS,
        drafts=DRAFTS, states=kept_states(asked.wanted, plan),
    )  # fmt: skip


def compare(asked: Asked, plan: Plan, shapes: dict[str, Shape]) -> None:
    """Bytes of the plan beside those of the allocation."""

    def of(*names: str) -> int:
        return sum(bytes_of(shapes[name]) for name in names)

    weights = of("planes", "weight_exponents", "constants", "table_high", "table_low")
    pages, fixed = of("latent", "keys"), of("states", "conv_ring", "index_ring")
    kept = of("kept_states", "kept_raw")
    every = size_of(shapes)
    planned = {"weights": asked.memory.weights, "pages": plan.pages_bytes}
    planned |= {"fixed parts": plan.fixed_bytes, "kept prompts": plan.cache_bytes}
    tell(f"plan: {plan.pool_pages} pages, {plan.rows} rows, windows {plan.windows_held}")
    for (name, meant), made in zip(planned.items(), (weights, pages, fixed, kept), strict=True):
        tell(f"  {name:14s} {meant / GIB:8.3f} GiB planned, {made / GIB:8.3f} allocated")
    rest = every - weights - pages - fixed - kept
    tell(
        f"  buffers {rest / GIB:.3f} GiB beside a reserve of {asked.memory.reserve / GIB:.3f},"
        f" left by the plan {plan.left_bytes / GIB:.3f}; all {every / GIB:.3f}"
    )


def opened_of(family: Glm, settings: DeviceSettings) -> Any:
    """A run of these settings, as a machine has it."""
    options = RunOptions(lanes=LANES, prompt_rows=PROMPT_ROWS, digests="off", drafts=DRAFTS)
    division = Division(CONTEXT, settings.pages, "radix", 4, windows=False, plan={})
    return run_opened(
        options, family.rules(), division, model="window", model_digest="0" * 32, family="glm",
        device="cuda",
    )  # fmt: skip


def last_step(settings: DeviceSettings) -> tuple[GlmStep, Draws, str]:
    """The machine's last whole step of the long prompt; every step is accounted for."""
    use_cache()
    family = Glm(config(), Choices(drafts=DRAFTS))
    opened, start, count = opened_of(family, settings), time.perf_counter(), 0
    found, told, draws = list[tuple[GlmStep, Draws]](), dict[str, int](), DrawTables(1)
    wishes = machine.wishes(family.vocab, LANES - 1, machine.PROMPT, CONTEXT - machine.PROMPT - 8)
    for seen in machine.steps(opened, wishes):
        numbers = machine.accounted(opened, seen)
        count += 1
        if int(seen.tables.runs[0, 3]) == PROMPT_ROWS and numbers["rows"]:
            found = [(seen.tables, draws.of(seen.state.streams, seen.batch.rows))]
        if not machine.long_stream_has_tokens(seen.state):
            told = numbers
    assert told["rows"] >= machine.PROMPT - PROMPT_ROWS, told
    line = (
        f"machine: {machine.PROMPT} rows in {count} steps, {told['long']} pages leased to them,"
        f" {told['leased']} in all; {time.perf_counter() - start:.1f} s"
    )
    return (*found[0], line)


def window() -> None:
    """Everything, on one card."""
    card = open_card(0)
    info = card.info()
    tell(f"{info.name}, {info.free / GIB:.2f} of {info.total / GIB:.2f} GiB free")
    family = Glm(config(), Choices(drafts=DRAFTS))
    asked = asked_of(info.free)
    plan = asked.plan()
    settings = settings_of(asked, plan)
    assert asked.wanted.sizes.row_bytes == ROW_BYTES
    with ProcessPoolExecutor(1, get_context("spawn")) as beside:
        stepped = beside.submit(last_step, settings)
        rates = measured_rates()
        before = card.info().free
        rig = RealRig(card, family, settings)
        compare(asked, plan, rig.shapes)
        tell(
            f"card: {before / GIB:.3f} GiB free before, {card.info().free / GIB:.3f} after;"
            f" planned arrays {size_of(rig.shapes) / GIB:.3f}"
        )
        clock = Clock(card)
        tell(f"{guarded(compiled, rig, (LANES, PROMPT_ROWS))} kernels made ready")
        guarded(decode_step, rig, clock, rates)
        guarded(prompt_step, rig, clock, rates, stepped)
    card.close()


def prompt_step(
    rig: RealRig,
    clock: Clock,
    rates: tuple[float, float],
    stepped: Future[tuple[GlmStep, Draws, str]],
) -> None:
    """The machine's last step of the long prompt, run on the card."""
    step, draws, line = stepped.result(timeout=60)
    tell(line)
    rig.tables.write(step, draws, PROMPT_ROWS, max(1, len(step.selected)))
    card, last, rows = rig.card, int(step.positions.max()), len(step.positions)
    card.upload(rig.tables.block, rig.memory.arrays["step"])
    card.wait()
    tell(f"step on the card: {rows} rows of {len(step.runs)} runs, up to row {last}")
    run_and_check(rig, clock, rates, PROMPT_ROWS, rows, last - rows + 1)


def decode_step(rig: RealRig, clock: Clock, rates: tuple[float, float]) -> None:
    """A row for each of eight streams at the end of their windows, pages in random order."""
    at = CONTEXT - 2
    rig.seat([(lane, at, 1) for lane in range(LANES)], spread=True)
    run_and_check(rig, clock, rates, LANES, LANES, at)


def run_and_check(
    rig: RealRig, clock: Clock, rates: tuple[float, float], bucket: int, rows: int, at: int
) -> None:
    """Time a step, tell its largest kinds of launch, check sampled rows of the last cache."""
    ops = rig.of_layers(bucket)
    launches = [*rig.embedding(bucket), *(one for op in ops for one in op)]
    all_of(launches)()
    flags = int(rig.host(rig.memory.tables["flags"][:rows]).sum())
    whole = clock.graph(launches, 3)
    name = f"{rows} rows at {at}"
    tell(f"{name}: {whole / 1e3:.2f} ms for {LAYERS} layers; flags {flags}")
    step = step_at(rig, bucket, at, prompt=bucket == PROMPT_ROWS)
    show(name, parts(clock, ops, step, rates), whole)
    for check in (selected, attended):
        tell(f"{name}: {check.__name__}, sampled rows equal: {guarded(check, rig, bucket, rows)}")


def main() -> int:
    """Print everything that was measured, a table last; 1 where anything is wrong."""
    guarded(window)
    print("\n".join(["", "--- windows ---", *TABLE]), flush=True)  # noqa: T201
    return int(not sound())


if __name__ == "__main__":
    sys.exit(main())
