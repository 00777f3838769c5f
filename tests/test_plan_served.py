"""`serve` plans as `kvtape plan` does, records what it planned, and refuses before weights."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvtape.__main__ import app
from kvtape.core.plan_pages import in_windows
from kvtape.core.plan_wanted import GIB, STATES
from kvtape.core.state import FLAT, RADIX, store_flag
from kvtape.events.canon import encode
from kvtape.replay import models
from kvtape.replay.models import load
from kvtape.replay.opening import BadOption, RunOptions
from kvtape.replay.plan_made import command_of, planned
from kvtape.replay.plan_shapes import GLM_FLASH, read_shape
from kvtape.replay.plan_start import Start, ask
from kvtape.replay.start_line import start_line

DATA = Path(__file__).parent / "data"
GLM, LLAMA = str(DATA / "glm_tiny"), str(DATA / "llama_tiny")
MIB = 1 << 20
CLEAN = {"TF_KV_PAGES": "", "TF_GLM_KV_SHARE": "", "TF_KV_POISON": "", "COLUMNS": "150",
         "TENSORFOLD_PREFIX_WAIT_MS": "", "NO_COLOR": "1"}  # fmt: skip


def run(*arguments: str | Path, **variables: str) -> Result:
    """A command in this process, with this environment."""
    named = list(map(str, arguments))
    return CliRunner().invoke(app, named, env=CLEAN | variables, catch_exceptions=False)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks without memory or weights; nothing is compiled."""
    one = SimpleNamespace(model_digest="0" * 32)
    monkeypatch.setattr(models, "MAKERS", {"cpu": lambda *rest, world, **more: [one] * world})
    monkeypatch.setattr(models, "warm", lambda *rest: None)


def loaded(name: str, **options: Any) -> models.Loaded:
    return load(name, RunOptions(**options), lambda line: None, lambda done, total: None)


def asked_of_serve(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, **variables: str
) -> RunOptions:
    """What serve asks a run to be, from its command line."""
    found: list[RunOptions] = []

    def take(name: str, options: RunOptions) -> None:
        found.append(options)
        raise BadOption("enough")

    monkeypatch.setattr("kvtape.replay.serve.load_with_progress", take)
    assert run("serve", *arguments, "--port", "0", **variables).exit_code == 3
    return found[0]


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A large model's directory that has its config and no weights at all."""
    folder = tmp_path_factory.mktemp("flash")
    (folder / "config.json").write_text(json.dumps(GLM_FLASH))
    return str(folder)


# --- one plan -------------------------------------------------------------------------------------

SETS = [
    ("fake", ()),
    ("fake", ("--kv-pages", "off", "--parallel", "3")),
    ("fake", ("--context", "500", "--room", "300000", "--kv-pages", "on", "--share", "9")),
    ("fake-pages", ("--parallel", "2", "--tp", "3")),
    ("smollm2", ()),
    ("smollm2", ("--tp", "2", "--context", "2048", "--room", "200MiB")),
    (LLAMA, ("--parallel", "40")),
    ("glm-tales", ()),
    ("glm-tales", ("--tp", "2", "--mtp-drafts", "2")),
    ("glm-tales", ("--kv-pages", "on", "--mtp-drafts", "0")),
    (GLM, ("--context", "2048", "--parallel", "4", "--room", "9MiB", "--tp", "2")),
    (GLM, ("--context", "2048", "--parallel", "4", "--room", "9MiB", "--tp", "3",
           "--plan-order", "today")),
    (GLM, ("--tp", "2", "--plan-order", "today")),
    (GLM, ("--tp", "2", "--kv-pages", "on", "--share", "16")),
    (GLM, ("--tp", "2", "--store", "flat", "--prompt-cache-gib", "0.01")),
    (GLM, ("--kv-pages", "off", "--tp", "4", "--room", "1GiB")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "flags"), SETS)
def test_the_command_tells_what_a_start_records(
    model: str, flags: Sequence[str], monkeypatch: pytest.MonkeyPatch, no_weights: None
) -> None:
    """The same flags, the same numbers; only what concerns no memory is not told."""
    result = run("plan", model, *flags, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    opened = load(
        model, asked_of_serve(monkeypatch, model, *flags), lambda line: None, lambda one, all: None
    ).opened
    assert told["plan"] == {name: opened.plan[name] for name in told["plan"]}
    assert (told["pool_pages"], told["states"]) == (opened.pages, opened.states)
    assert store_flag(opened) == {"radix": RADIX, "flat": FLAT}[told["store"]]
    assert in_windows(opened) == (not told["plan"]["paged"])
    wanted, sizes = told["wanted"], told["sizes"]
    assert (wanted["context"], wanted["lanes"]) == (opened.context, opened.lanes)
    recorded = {"row_bytes": sizes["row_bytes"], "snapshot_bytes": sizes["snapshot_bytes"],
                "stream_bytes": sizes["fixed_bytes"], "room_bytes": wanted["room_bytes"],
                "share": wanted["share"]}  # fmt: skip
    assert recorded == {name: opened.plan[name] for name in recorded}
    assert sizes["page_rows"] == opened.rules.page_rows
    assert told["own_fixed_part_bytes"] == opened.plan["stream_bytes"], "this engine's real one"


@pytest.mark.parametrize(
    ("tp", "variables", "windows"),
    [
        (1, {}, True),
        (2, {}, False),
        (3, {}, False),
        (1, {"TF_KV_PAGES": "on"}, False),
        (2, {"TF_KV_PAGES": "off"}, True),
        (1, {"TF_KV_PAGES": " "}, True),
    ],
)
def test_a_glm_is_in_windows_at_one_rank_and_on_pages_from_two(
    tp: int, variables: dict[str, str], windows: bool, monkeypatch: pytest.MonkeyPatch,
    no_weights: None,
) -> None:  # fmt: skip
    flags = ("--tp", str(tp), "--context", "1024")
    options = asked_of_serve(monkeypatch, GLM, *flags, **variables)
    assert options.kv_pages == (variables.get("TF_KV_PAGES", "").strip() or "auto")
    opened = loaded(GLM, world=tp, context=1024, kv_pages=options.kv_pages).opened
    assert in_windows(opened) == windows
    assert store_flag(opened) == (FLAT if windows else RADIX)
    assert opened.plan["paged"] == (not windows)
    if windows:
        assert opened.pages == opened.lanes * opened.plan["window_pages"] == 8 * 3


def test_a_share_that_is_unset_changes_no_byte_of_what_is_recorded(
    monkeypatch: pytest.MonkeyPatch, no_weights: None
) -> None:
    """Unset, blank, and taken back by its flag: the same first fact; set: that many states."""
    facts = []
    for flags, share in (((), ""), ((), "  "), (("--share", "0"), ""), (("--share", "0"), "7")):
        named = (GLM, "--tp", "2", "--kv-pages", "on", *flags)
        options = asked_of_serve(monkeypatch, *named, TF_GLM_KV_SHARE=share)
        opened = load(GLM, options, lambda line: None, lambda done, total: None).opened
        facts.append(encode(opened))
        assert opened.plan["snapshots_bytes"] == 0 and opened.states == STATES
    assert len(set(facts)) == 1
    few = loaded(GLM, world=2, kv_pages="on", share=7).opened
    assert few.states == 7 and few.plan["share"] == 7


def test_kept_states_by_reference_take_no_cache_and_make_no_flat_store(no_weights: None) -> None:
    opened = loaded(GLM, world=2, kv_pages="on", share=16).opened
    plan = opened.plan
    assert store_flag(opened) == RADIX and plan["cache_bytes"] == 0
    assert plan["snapshots_bytes"] == 16 * plan["snapshot_bytes"] > 0
    line = start_line(opened)
    assert "at most 16 prompts kept on those pages" in line and "kept states" in line
    assert "prompt cache" not in line and "copies" not in line


def test_a_pool_that_is_given_takes_whatever_room_it_needs(no_weights: None) -> None:
    opened = loaded(LLAMA, pages=20).opened
    assert opened.pages == 20 and opened.plan["room_bytes"] == opened.plan["pages_bytes"]
    window = loaded(GLM, context=1024).opened.plan["window_pages"]
    few = loaded(GLM, context=1024, pages=2 * window + 1).opened
    assert (few.pages, few.plan["windows_first"], few.plan["rows"]) == (2 * window, 2, 2048)
    with pytest.raises(BadOption, match=r"--pages 2 holds no window: .*--pages 3 would do"):
        loaded(GLM, context=1024, pages=2)
    most = rf"8 streams use {8 * window} at most; --pages {8 * window} would do"
    with pytest.raises(BadOption, match=most):
        loaded(GLM, context=1024, pages=8 * window + 1)
    assert loaded(GLM, context=1024, pages=8 * window).opened.pages == 8 * window
    with pytest.raises(BadOption, match="--room and --pages: one of them"):
        loaded(GLM, context=1024, pages=20, room=GIB)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (
            ("--tp", "2", "--room", "15.256GiB", "--context", "1048576", "--kv-pages", "off"),
            3,
            ("--parallel 8 needs 90.22 GiB for its streams at a 1048576-token window",
             "leaves 2.37 GiB: serve --parallel 1, or lower --context to", "--kv-pages on",
             "--what-fits"),
        ),
        (
            ("--tp", "2", "--room", "5GiB", "--context", "524288"),
            3,
            ("--context 524288 needs 6.38 GiB for one stream alone", "leaves 5.00 GiB",
             "lower --context to", "--what-fits"),
        ),
        (
            ("--tp", "2", "--room", "7.1GiB", "--context", "524288"),
            3,
            ("--parallel 8 needs", "leaves 7.10 GiB: serve --parallel 5", "--what-fits"),
        ),
        (
            ("--tp", "2", "--room", "11.7GiB", "--context", "524288", "--parallel", "4",
             "--kv-pages", "on", "--share", "999"),
            3,
            ("--share 999 needs", "fits", "--what-fits"),
        ),
        (("--store", "radix"), 3, ("--store radix", "auto at --tp 1", "--kv-pages on")),
        (("--store", "radix", "--kv-pages", "off", "--tp", "2"), 3, ("--store radix", "off at")),
        (("--tp", "65",), 2, ()),
        (("--tp", "64", "--context", "2000000"), 3, ("--context 2000000", "trained to 1048576")),
        (("--room", "1GiB", "--pages", "5"), 2, ("--room and --pages",)),
        (("--mtp-drafts", "3"), 3, ("weights of",)),
    ],
)  # fmt: skip
def test_a_start_that_does_not_fit_is_refused_with_numbers_and_flags_before_any_weight(
    flags: tuple[str, ...], code: int, words: tuple[str, ...], flash: str
) -> None:
    """The directory has no weights, and nobody misses them."""
    result = run("serve", flash, "--port", "0", *flags)
    assert result.exit_code == code, result.output
    line = result.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(
    "flags",
    [
        ("--tp", "2", "--room", "15.256GiB", "--kv-pages", "off", "--context", "1048576"),
        ("--tp", "3", "--room", "5GiB", "--context", "524288", "--plan-order", "today"),
        ("--tp", "2", "--room", "6GiB", "--context", "524288", "--parallel", "9", "--mtp-drafts",
         "0", "--store", "flat", "--prompt-cache-gib", "0.5"),
        ("--tp", "2", "--room", "9GiB", "--context", "8192", "--kv-pages", "on", "--share", "999"),
    ],
)  # fmt: skip
def test_the_command_that_a_refusal_names_tells_what_would_fit(
    flags: tuple[str, ...], flash: str
) -> None:
    """It is the same plan, refused in the same words."""
    said = run("serve", flash, "--port", "0", *flags).stderr.strip().splitlines()[-1]
    why, _, named = said.removesuffix(")").partition(" (more: kvtape ")
    told = run(*named.split())
    assert told.exit_code == 3 and told.stderr.strip() == why
    assert "largest that fits, all else as asked" in told.stdout


@pytest.mark.parametrize("model", [LLAMA, "smollm2", "fake-pages"])
@pytest.mark.parametrize("given", ["flag", "variable"])
def test_families_that_are_pages_alone_refuse_windows_with_the_reason(
    model: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*rest: object, **more: object) -> None:
        raise AssertionError("weights are being read")

    for name in ("find_model", "fake_group", "warm"):
        monkeypatch.setattr(models, name, fail)
    flags = ("--kv-pages", "off") if given == "flag" else ()
    variables = {"TF_KV_PAGES": "off"} if given == "variable" else {}
    result = run("serve", model, "--port", "0", *flags, **variables)
    assert result.exit_code == 3, result.output
    assert "--kv-pages off (TF_KV_PAGES)" in result.stderr
    assert f"{Path(model).name} is served on pages alone" in result.stderr


@pytest.mark.parametrize(
    ("flags", "variables", "code", "words"),
    [
        ((), {"TF_KV_PAGES": "yes"}, 2, "TF_KV_PAGES 'yes': auto, on, off"),
        (("--kv-pages", "1"), {}, 2, "--kv-pages '1': auto, on, off"),
        (("--kv-cache", "fp8"), {}, 3, "--kv-cache fp8"),
        ((), {"TF_GLM_KV_SHARE": "4"}, 3, "needs TF_KV_PAGES=on (--kv-pages on), which is auto"),
        ((), {"TF_GLM_KV_SHARE": "4", "TF_KV_PAGES": "off"}, 3, "which is off"),
    ],
)
def test_switches_are_refused_by_name_though_there_is_no_such_model(
    flags: tuple[str, ...], variables: dict[str, str], code: int, words: str, tmp_path: Path
) -> None:
    """No file is opened, since there is none."""
    result = run("serve", tmp_path / "nothing", "--port", "0", *flags, **variables)
    assert result.exit_code == code and words in result.stderr, result.output


# --- what is said ---------------------------------------------------------------------------------


def test_a_start_says_pages_tokens_windows_cache_fixed_part_and_what_is_left(
    no_weights: None,
) -> None:
    opened = loaded(GLM, world=2, context=1024, lanes=4, room=64 * MIB).opened
    plan = opened.plan
    line = start_line(opened)
    for words in (
        "glm_tiny on 2 ranks: 4 streams at once, windows of 1024, 12 pages = 6144 tokens that all"
        " streams share, 4 windows of them planned first; of 64.00 MiB a rank: pages ",
        "a stream), prompt cache ",
        "left ",
        f"at most {opened.states} prompts kept on those pages",
    ):
        assert words in line, line
    assert plan["windows_first"] == 4 and plan["room_bytes"] == 64 * MIB
    windows = start_line(loaded(GLM, context=1024, lanes=4).opened)
    assert "4 windows = 4096 tokens, each stream its own; of 16." in windows
    assert "prompts kept as copies, in 16.00 GiB" in windows
    llama = start_line(loaded(LLAMA).opened)
    assert "tokens that all streams share; of " in llama and "fixed" not in llama


def test_checksums_are_planned_beside_the_weights_and_said(flash: str) -> None:
    """A start that looks at its products has that much less room, and its line says so."""
    for model in (GLM, LLAMA, flash):
        shape = read_shape(model, 2, None)
        plain = ask(Start(model, world=2, memory=900 * GIB))
        checked = ask(Start(model, world=2, memory=900 * GIB, verify=True))
        assert checked.checks == shape.checks(2) > 0 == plain.checks
        assert checked.memory.weights - plain.memory.weights == checked.checks
        assert plain.wanted.room_bytes - checked.wanted.room_bytes == checked.checks
    assert 0.005 < checked.checks / checked.memory.weights < 0.02
    told = Start(model, verify=True)
    assert command_of(told) == f"kvtape plan {model} --verify --what-fits"


def test_a_start_that_checks_products_says_so(no_weights: None) -> None:
    plain = loaded(LLAMA).opened
    assert "check" not in start_line(plain) and "check_bytes" not in plain.plan
    plan = {**plain.plan, "check_bytes": 3 << 20}
    line = start_line(plain.model_copy(update={"plan": plan}))
    assert line.endswith("; linear maps checked, by checksums of 3.00 MiB a rank")


def test_a_promise_that_does_not_hold_is_said_at_start(flash: str) -> None:
    """Fewer rows than windows would hold: which, for whom, and what mends it."""
    options = RunOptions(world=2, context=262_144, room=10 * GIB)
    made = planned(flash, options)
    assert made.plan.short_rows > 0
    short, cache = made.notes
    assert short.startswith("windows would hold 786432 rows in this room, for 3 of 8 streams")
    assert "the fixed parts of all 8 streams come first; with --parallel" in short
    assert "of 16.00 GiB: room for no kept states beside their pages" in cache
    sound = planned(flash, RunOptions(world=2, context=131_072, room=40 * GIB))
    assert sound.notes == ()
