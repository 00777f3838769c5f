"""`serve` and its stores: which switches it takes, what it refuses before a weight is read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.core.families.family import Choices
from kvtape.core.families.glm import Glm
from kvtape.core.plan_sizes import glm_rank
from kvtape.core.plan_wanted import STATES
from kvtape.core.state import FLAT, RADIX, store_flag
from kvtape.core.store_flat import state_bytes
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.events.reader import Tape
from kvtape.replay import models
from kvtape.replay.models import Loaded, load
from kvtape.replay.opening import BadOption, RunOptions
from kvtape.replay.store_options import Keeping, KeepingAsked, keeping_of

from .glm_rig import TINY as TINY_GLM
from .glm_rig import glm_device, glm_opened
from .rig import Rig, arrive
from .server import serving

TINY_LLAMA = str(Path(__file__).with_name("data") / "llama_tiny")
GIB = 2**30
ON = {"TF_KV_PAGES": "on"}
WAIT = "TENSORFOLD_PREFIX_WAIT_MS"


def loaded(name: str, **options: Any) -> Loaded:
    """A run that could open."""
    return load(name, RunOptions(**options), lambda line: None, lambda done, total: None)


def no_weights(*arguments: object, **named: object) -> None:
    raise AssertionError("weights are being read")


# --- the switches ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "environment", "keeps"),
    [
        (KeepingAsked(), {}, Keeping()),
        (KeepingAsked(), {"TF_GLM_KV_SHARE": "  ", "TF_KV_PAGES": " "}, Keeping()),
        (
            KeepingAsked("radix"),
            ON | {"TF_GLM_KV_SHARE": "12"},
            Keeping("radix", 12, kv_pages="on"),
        ),
        (KeepingAsked("", "7"), ON | {"TF_GLM_KV_SHARE": "12"}, Keeping("", 7, kv_pages="on")),
        (KeepingAsked("", "0"), {"TF_GLM_KV_SHARE": "12"}, Keeping()),
        (KeepingAsked("flat"), {}, Keeping("flat")),
        (KeepingAsked("flat", "", "0.5"), {}, Keeping("flat", 0, GIB // 2)),
        (KeepingAsked("flat", "", "0"), {}, Keeping("flat", 0, 0)),
        (KeepingAsked("", "", "2"), {}, Keeping("", 0, 2 * GIB)),
        (
            KeepingAsked("flat", "0", "2"),
            ON | {"TF_GLM_KV_SHARE": "12"},
            Keeping("flat", 0, 2 * GIB, "on"),
        ),
        (KeepingAsked(kv_pages="off"), ON, Keeping(kv_pages="off")),
        (
            KeepingAsked(room="1.5GiB"),
            {"TF_KV_PAGES": "off"},
            Keeping("", 0, None, "off", 3 * GIB // 2),
        ),
        (KeepingAsked(plan_order="today"), {}, Keeping(plan_order="today")),
        (KeepingAsked(prefix_wait="off"), {WAIT: "60000"}, Keeping(prefix_wait=False)),
        (KeepingAsked(prefix_wait="on"), {WAIT: "0"}, Keeping()),
        (KeepingAsked(), {WAIT: "0"}, Keeping(prefix_wait=False)),
        (KeepingAsked(), {WAIT: "000"}, Keeping(prefix_wait=False)),
        (KeepingAsked(), {WAIT: "60000"}, Keeping()),
        (KeepingAsked(evict="lru", spill_gib="0"), {}, Keeping(evict="lru")),
        (KeepingAsked(), {WAIT: "  "}, Keeping()),
    ],
)
def test_a_switch_is_taken_from_flag_or_environment_and_blank_is_unset(
    asked: KeepingAsked, environment: Mapping[str, str], keeps: Keeping
) -> None:
    assert keeping_of(asked, environment) == keeps


@pytest.mark.parametrize(
    ("flags", "variables", "code", "words"),
    [
        ((), {"TF_GLM_KV_SHARE": "many"}, 2, ("TF_GLM_KV_SHARE 'many'", "whole number")),
        ((), ON | {"TF_GLM_KV_SHARE": "-1"}, 2, ("TF_GLM_KV_SHARE '-1'",)),
        (("--share", "1.5"), ON, 2, ("--share '1.5'",)),
        ((), {"TF_KV_PAGES": "ON"}, 2, ("TF_KV_PAGES 'ON'", "auto, on, off")),
        ((), {"TF_GLM_KV_SHARE": "8"}, 3, ("TF_GLM_KV_SHARE", "TF_KV_PAGES=on", "auto")),
        ((), {"TF_GLM_KV_SHARE": "8", "TF_KV_PAGES": "off"}, 3, ("TF_KV_PAGES=on", "off")),
        (("--store", "flat"), ON | {"TF_GLM_KV_SHARE": "8"}, 3, ("--store radix", "--share 0")),
        (("--store", "heap"), {}, 2, ("--store 'heap'", "radix, flat")),
        (("--store", "flat", "--prompt-cache-gib", "16GB"), {}, 2, ("--prompt-cache-gib '16GB'",)),
        (("--prompt-cache-gib", "all"), {}, 2, ("--prompt-cache-gib 'all'",)),
        (("--kv-pages", "maybe"), {}, 2, ("--kv-pages 'maybe'", "auto, on, off")),
        (("--kv-pages", "off", "--share", "8"), ON, 3, ("--share 8", "TF_KV_PAGES=on", "off")),
        (("--kv-cache", "fp8"), {}, 3, ("--kv-cache fp8", "16 bits", "kvtape plan")),
        (("--kv-cache", "fp4"), {}, 2, ("--kv-cache 'fp4'", "16, fp8")),
        (("--room", "lots"), {}, 2, ("--room 'lots'",)),
        (("--prefix-wait", "yes"), {}, 2, ("--prefix-wait 'yes'", "on, off")),
        ((), {WAIT: "60s"}, 2, (f"{WAIT} '60s'", "whole number")),
        ((), {WAIT: "-1"}, 2, (f"{WAIT} '-1'",)),
        (("--evict", "returns"), {}, 2, ("--evict 'returns'", "seeds, lru, odds")),
        (("--spill-gib", "much"), {}, 2, ("--spill-gib 'much'",)),
        (("--spill-gib", "8"), {}, 3, ("--spill-gib 8", "not written to disk")),
        (
            ("--spill-gib", "8", "--kv-pages", "on"),
            {"TF_GLM_KV_SHARE": "16"},
            3,
            ("--spill-gib 8", "TF_GLM_KV_SHARE", "--share 0"),
        ),
        (("--plan-order", "best"), {}, 2, ("--plan-order 'best'", "proposed, today")),
    ],
)
def test_what_does_not_go_together_is_refused_by_name_before_a_weight_is_read(
    flags: tuple[str, ...],
    variables: Mapping[str, str],
    code: int,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvtape.replay.serve.load_with_progress", no_weights)
    given = {"TF_KV_PAGES": "", "TF_GLM_KV_SHARE": "", "TF_KV_POISON": "", "NO_COLOR": "1"}
    named = ["serve", "smollm2", "--port", "0", *flags]
    result = CliRunner().invoke(app, named, env=given | dict(variables), catch_exceptions=False)
    assert result.exit_code == code, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("kvtape: ")
    for word in words:
        assert word in line, line


def test_a_pool_larger_than_memory_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("Unable to allocate 3.64 TiB")

    monkeypatch.setattr("kvtape.replay.serve.load_with_progress", no_memory)
    named = ["serve", "fake-pages", "--port", "0", "--pages", str(2**31 - 1)]
    result = CliRunner().invoke(app, named, env={"NO_COLOR": "1"}, catch_exceptions=False)
    assert result.exit_code == 3
    assert "3.64 TiB: fewer --pages" in result.stderr
    named[-1] = str(2**31)
    assert CliRunner().invoke(app, named, env={"NO_COLOR": "1"}).exit_code == 2


@pytest.mark.parametrize("name", ["fake-pages", TINY_LLAMA])
def test_copies_of_states_that_are_pages_alone_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_model", no_weights)
    with pytest.raises(BadOption, match=r"pages alone.*--store radix would do"):
        loaded(name, store="flat")


# --- what is recorded -----------------------------------------------------------------------------


def test_a_run_records_its_store_and_what_bounds_it() -> None:
    unset = loaded("fake").opened
    few = loaded("fake", share=5, kv_pages="on").opened
    assert store_flag(unset) == store_flag(few) == RADIX == 0, "as tapes from before stores mean it"
    assert (unset.states, few.states) == (STATES, 5)
    flat = loaded("fake", store="flat", cache_bytes=3 * GIB).opened
    assert store_flag(flat) == FLAT
    assert flat.plan["cache_bytes"] == 3 * GIB
    assert state_bytes(flat, 64) == 64 * flat.plan["row_bytes"] + flat.plan["snapshot_bytes"]


def test_a_run_records_how_it_keeps_prompts_and_whether_they_wait() -> None:
    for waits in (True, False):
        flags = loaded("fake", prefix_wait=waits).opened.flags
        assert flags["prefix_wait"] == waits
        assert (flags["marks"], flags["keep_resuming"], flags["keep_at_end"]) == (1, 1, 1)


@pytest.mark.parametrize(("evict", "flag"), [("seeds", 0), ("lru", 1), ("odds", 3)])
def test_a_run_records_who_goes_first(evict: str, flag: int) -> None:
    assert loaded("fake", evict=evict).opened.flags["evict"] == flag
    assert loaded("fake").opened.flags["evict"] == 3


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_bytes_of_a_copy_are_those_that_the_device_holds(drafts: int) -> None:
    """Rows and keys of its pages, states and raw rows: to the byte, without the digests."""
    family = Glm(GlmCheckpoint(TINY_GLM).config, Choices(16, 16, drafts))
    sizes = glm_rank(family.sizes, 1, drafts)
    plan = {"row_bytes": sizes.row_bytes, "snapshot_bytes": sizes.snapshot_bytes}
    opened = glm_opened(drafts, flags={"store": FLAT}, plan=plan | {"cache_bytes": GIB})
    rig = Rig(opened, glm_device)
    try:
        rig.step(arrive("one", range(40), 2, history_tokens=40))
        rig.settle()
        (copy,) = rig.device.copies.values()
    finally:
        rig.device.close()
    held = (copy.states, copy.raw, copy.pages.latent, copy.pages.keys)
    assert copy.mark == 32
    assert sum(array.nbytes for array in held) == state_bytes(opened, 32)


def test_a_server_warns_of_few_states_and_names_the_value(tmp_path: Path) -> None:
    variables = ON | {"TF_GLM_KV_SHARE": "7"}
    with serving(tmp_path, "--parallel", "2", **variables) as server:
        assert server.stop() == 0
    told = server.log.read_text()
    assert "is below 4 x --parallel 2" in told and "set 8" in told
    assert "at most 7 prompts kept" in told
    with Tape.open(server.tape) as tape:
        assert tape.opened.states == 7


def test_a_server_with_copies_says_so_and_finds_none_for_a_prompt_of_ids(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "flat", "--prompt-cache-gib", "0.25") as server:
        first, second = (server.ask(list(range(100)), 4) for _ in range(2))
        assert first == second
        assert server.metrics()["kvtape_kept_states"] == 0
        assert server.stop() == 0
    assert "prompts kept as copies, in 256.00 MiB" in server.log.read_text()
    with Tape.open(server.tape) as tape:
        assert tape.opened.plan["cache_bytes"] == GIB // 4
        assert store_flag(tape.opened) == FLAT
