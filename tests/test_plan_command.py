"""`kvtape plan`: what it prints, what it refuses, and the switches it shares with a start."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvtape.__main__ import app
from kvtape.core.plan_pages import KvPages, SwitchRefused, on_pages, refuse_share, share_warning
from kvtape.core.plan_room import reserve_bytes
from kvtape.core.plan_wanted import Order
from kvtape.replay.opening import MalformedOption
from kvtape.replay.plan_options import (
    bytes_asked,
    bytes_of,
    gib_asked,
    gib_of,
    kv_pages_of,
    kv_share_of,
)

GIB, MIB = 1 << 30, 1 << 20
FLASH = ("plan", "glm-5.3-flash", "--fixed", "180MiB", "--tp", "2")


def run(*arguments: str | Path, **variables: str) -> Result:
    """A command in this process, with this environment."""
    given = {"TF_KV_PAGES": "", "TF_GLM_KV_SHARE": "", "COLUMNS": "120", "NO_COLOR": "1"}
    named = list(map(str, arguments))
    return CliRunner().invoke(app, named, env=given | variables, catch_exceptions=False)


def told(
    *arguments: str, code: int = 0, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    result = run(*arguments, "--json", **(variables or {}))
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(result: Result, code: int, *words: str) -> None:
    """One line of errors, with these words in it."""
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("kvtape: "), lines
    for word in words:
        assert word in lines[0], lines[0]


# --- pages or windows -----------------------------------------------------------------------------


def test_auto_is_pages_from_two_ranks_where_today_it_is_from_three() -> None:
    of: dict[Order, tuple[bool, ...]] = {
        "today": (False, False, True, True),
        "proposed": (False, True, True, True),
    }
    for order, pages in of.items():
        for world, paged in enumerate(pages, start=1):
            assert on_pages("auto", world, fp8=False, order=order) == paged
            assert not on_pages("auto", world, fp8=True, order=order)


def test_on_and_off_are_obeyed_and_fp8_rows_stay_in_windows() -> None:
    for world in (1, 2, 8):
        assert on_pages("on", world, fp8=False) and not on_pages("off", world, fp8=False)
        assert not on_pages("off", world, fp8=True)
        with pytest.raises(SwitchRefused, match=r"--kv-pages on \(TF_KV_PAGES\) with --kv-cache"):
            on_pages("on", world, fp8=True)


def test_blank_sizes_are_unset_as_serve_has_them() -> None:
    for blank in ("", "  "):
        assert bytes_asked("--room", blank) is None is gib_asked("--prompt-cache-gib", blank)
    assert bytes_asked("--room", " 1GiB ") == 2**30 == gib_asked("--prompt-cache-gib", "1")
    with pytest.raises(MalformedOption, match="--room 'lots'"):
        bytes_asked("--room", "lots")


def test_a_blank_switch_is_unset_and_another_word_is_refused_by_name() -> None:
    for blank in ({}, {"TF_KV_PAGES": ""}, {"TF_KV_PAGES": "  "}):
        assert kv_pages_of("", blank) == "auto"
    assert kv_pages_of("", {"TF_KV_PAGES": "on"}) == "on"
    assert kv_pages_of("off", {"TF_KV_PAGES": "on"}) == "off", "a flag comes first"
    for word in ("ON", "1", "yes", "auto,on"):
        with pytest.raises(MalformedOption, match=r"TF_KV_PAGES '.*': auto, on, off"):
            kv_pages_of("", {"TF_KV_PAGES": word})
        with pytest.raises(MalformedOption, match=r"--kv-pages '.*': auto, on, off"):
            kv_pages_of(word, {})
    assert kv_share_of("", {}) == kv_share_of("", {"TF_GLM_KV_SHARE": " "}) == 0
    assert kv_share_of("", {"TF_GLM_KV_SHARE": "16"}) == 16
    assert kv_share_of("4", {"TF_GLM_KV_SHARE": "16"}) == 4
    assert kv_share_of("0", {"TF_GLM_KV_SHARE": "16"}) == 0
    for word in ("0", "-1", "4.5", "many", "016", "9" * 5000):
        with pytest.raises(MalformedOption, match="TF_GLM_KV_SHARE '"):
            kv_share_of("", {"TF_GLM_KV_SHARE": word})
    with pytest.raises(MalformedOption, match="--share '-1'"):
        kv_share_of("-1", {})


def test_kept_states_by_reference_need_pages_to_be_on_in_so_many_words() -> None:
    refuse_share(0, "auto")
    refuse_share(4, "on")
    asked: tuple[KvPages, ...] = ("auto", "off")
    for pages in asked:
        with pytest.raises(SwitchRefused, match=r"--share 4 \(TF_GLM_KV_SHARE\) .*TF_KV_PAGES=on"):
            refuse_share(4, pages)


def test_fewer_than_four_kept_states_a_lane_are_warned_of_and_the_number_is_named() -> None:
    assert "set 16" in share_warning(15, 4) and "15" in share_warning(15, 4)
    assert share_warning(16, 4) == share_warning(0, 4) == ""
    assert "set 32" in share_warning(31, 8) and share_warning(32, 8) == ""


def test_bytes_are_exact_and_what_is_no_number_of_bytes_is_refused() -> None:
    for text, count in (
        ("180MiB", 180 * MIB),
        ("15.256GiB", 15_256 * GIB // 1000),
        ("141GB", 141 * 10**9),
        ("40960", 40_960),
        ("7 kib", 7 * 1024),
        ("0.1TiB", 2**40 // 10),
        ("3b", 3),
        (" 1gb ", 10**9),
    ):
        assert bytes_of("--room", text) == count
    for text in ("", "x", "15.256", "-1GiB", "1e9", "1.GiB", "1PiB", "GiB", "1 2MiB", "9" * 5000):
        with pytest.raises(MalformedOption, match="--room"):
            bytes_of("--room", text)
    assert gib_of("--prompt-cache-gib", "11.374") == 11_374 * GIB // 1000
    for text in ("", "16GiB", "-1", "inf", "1e3"):
        with pytest.raises(MalformedOption, match="--prompt-cache-gib"):
            gib_of("--prompt-cache-gib", text)


# --- the command ----------------------------------------------------------------------------------


def test_a_plan_is_a_table_whose_rows_name_pages_cache_fixed_and_what_is_left() -> None:
    result = run(*FLASH, "--room", "15.256GiB")
    assert result.exit_code == 0
    words = " ".join(result.stdout.replace("│", " ").split())
    for line in (
        "glm-5.3-flash on 2 ranks: 8 streams at once, windows of 1,048,576, 2,056 pages ="
        " 1,052,672 tokens that all streams share",
        "room after weights and reserve 15.26 GiB",
        "pages 2,056 of 512 rows, 6.38 MiB each, 1 x 2,049 of them before the cache 12.80 GiB",
        "fixed parts 7 beside the engine's own stream, 180.00 MiB each, this engine's own 142",
        "prompt cache of 16.00 GiB wanted 1.23 GiB",
        "left 0",
        "note: the prompt cache gets 1.23 GiB of 16.00 GiB",
    ):
        assert line in words, f"{line!r} is not in {words}"


def test_a_plan_is_json_with_every_number() -> None:
    said = told(*FLASH, "--room", "9.5GiB", "--context", "131072", "--parallel", "4")
    assert said["verdict"] == "fits" and said["model"] == "glm-5.3-flash" and said["world"] == 2
    found, room = said["plan"], 9_728 * MIB
    assert (found["pages"], found["rows"], found["windows_first"]) == (1_028, 526_336, 4)
    assert found["cache_bytes"] == room - 1_028 * 6_684_672 - 3 * 180 * MIB
    assert said["sizes"]["page_bytes"] == 6_684_672 and said["wanted"]["room_bytes"] == room
    today = told(
        *FLASH, "--room", "9.5GiB", "--context", "131072", "--parallel", "4",
        "--order", "today", "--kv-pages", "on",
    )  # fmt: skip
    assert (today["plan"]["pages"], today["plan"]["proposed"]) == (260, 0)
    assert "windows would hold 524288 rows" in today["notes"][0]


def test_windows_that_do_not_fit_are_refused_and_what_would_fit_is_told() -> None:
    asked = (*FLASH, "--room", "15.256GiB", "--kv-pages", "off")
    words = (
        "--parallel 8 needs 90.48 GiB for its streams at a 1048576-token window",
        "leaves 2.33 GiB: serve --parallel 1, or lower --context to 142336",
        "--kv-pages on",
    )
    refused(run(*asked), 3, *words)
    told_fits = run(*asked, "--what-fits")
    refused(told_fits, 3, *words)
    assert "--kv-pages on would do: 1,052,672 tokens that all streams share" in told_fits.stdout
    said = told(*asked, "--what-fits", code=3)
    assert said["verdict"] == "refused" and words[0] in said["why"]
    fits = said["fits"]
    assert (fits["lanes"], fits["context"], fits["share"]) == (1, 142_336, None)
    assert fits["flags"]["--kv-pages on"]["pages"] == 2_056
    assert told(*FLASH, "--room", "15.256GiB", "--kv-pages", "off", "--parallel", "1")["plan"]
    assert "fits" not in told(*asked, code=3)


def test_what_would_not_help_is_not_told() -> None:
    off = (*FLASH, "--kv-pages", "off", "--what-fits")
    fits = told(*off, "--room", "2GiB", code=3)["fits"]
    assert fits["flags"] == {} and not fits["pages"] and fits["lanes"] == 0 < fits["context"]
    together = "no one flag alone would do: lower --parallel and --context together"
    assert together not in run(*off, "--room", "2GiB").stdout
    assert together in run(*off, "--room", "300MiB").stdout


def test_what_fits_of_a_plan_that_fits_says_how_far_it_could_go() -> None:
    asked = (*FLASH, "--room", "9.5GiB", "--context", "131072", "--parallel", "4", "--what-fits")
    fits = told(*asked)["fits"]
    assert fits["flags"] == {} and fits["lanes"] > 4 and fits["context"] > 131_072
    said = run(*asked).stdout
    assert str(fits["lanes"]) in said and str(fits["context"]) in said


def test_fp8_rows_are_windows_and_the_way_to_pages_is_told() -> None:
    said = told(*FLASH, "--room", "15GiB", "--kv-cache", "fp8", "--parallel", "2")
    assert said["plan"]["paged"] == 0 and said["sizes"]["row_bytes"] == 7_104
    refused(run(*FLASH, "--room", "15GiB", "--kv-cache", "fp8", "--kv-pages", "on"), 3, "fp8")
    asked = (*FLASH, "--room", "15.256GiB", "--kv-cache", "fp8")
    fits = told(*asked, "--what-fits", code=3)["fits"]
    assert list(fits["flags"]) == ["--kv-cache 16 --kv-pages on"] and not fits["pages"]
    assert "--kv-pages" not in told(*asked, code=3)["why"]


def test_auto_and_the_environment_choose_pages() -> None:
    room = ("--room", "40GiB", "--parallel", "2", "--fixed", "180MiB")
    for tp, variables, paged in (
        ("1", {}, 0),
        ("2", {}, 1),
        ("1", {"TF_KV_PAGES": "on"}, 1),
        ("3", {"TF_KV_PAGES": "off"}, 0),
        ("2", {"TF_KV_PAGES": " "}, 1),
    ):
        said = told("plan", "glm-5.3-flash", *room, "--tp", tp, variables=variables)
        assert said["plan"]["paged"] == paged
    assert (
        told(*FLASH, "--room", "40GiB", "--parallel", "2", "--order", "today")["plan"]["paged"] == 0
    )
    refused(run(*FLASH, "--room", "4GiB", TF_KV_PAGES="maybe"), 2, "TF_KV_PAGES 'maybe'")


def test_kept_states_by_reference_through_flag_and_environment() -> None:
    room = ("--room", "11.7GiB", "--context", "524288", "--parallel", "4", "--kv-pages", "on")
    for given in (("--share", "15"), ()):
        variables = {} if given else {"TF_GLM_KV_SHARE": "15"}
        said = told(*FLASH, *room, *given, variables=variables)
        assert said["plan"]["snapshots_bytes"] == 15 * 180 * MIB
        assert (said["plan"]["pages"], said["plan"]["cache_bytes"]) == (1_028, 0)
        assert any("set 16" in line for line in said["notes"])
    assert "kept states" in run(*FLASH, *room, "--share", "16").stdout
    assert told(*FLASH, *room, "--share", "16", "--spare-to", "pages")["plan"]["pages"] > 1_028
    too_many = run(*FLASH, *room, "--share", "64", "--what-fits")
    refused(too_many, 3, "--share 64 needs 11.25 GiB", "--share 27 fits")
    assert "--share 0 would do" in too_many.stdout
    refused(run(*FLASH, *room[:-1], "auto", "--share", "16"), 3, "--share 16", "TF_KV_PAGES=on")
    refused(run(*FLASH, *room, TF_GLM_KV_SHARE="some"), 2, "TF_GLM_KV_SHARE 'some'")


def test_kept_states_without_pages_are_refused_before_any_file_is_opened(tmp_path: Path) -> None:
    result = run("plan", tmp_path / "nothing", "--room", "4GiB", TF_GLM_KV_SHARE="4")
    refused(result, 3, "TF_KV_PAGES=on")


def test_memory_is_divided_into_weights_reserve_and_room() -> None:
    said = told("plan", "glm-5.3-flash", "--memory", "141GB", "--tp", "8", "--parallel", "4")
    memory, plan, sizes = said["memory"], said["plan"], said["sizes"]
    assert memory["total"] == 141 * 10**9 and memory["reserve"] == reserve_bytes(
        141 * 10**9, unified=False
    )
    parts = ("pages_bytes", "cache_bytes", "fixed_bytes", "left_bytes")
    held = sum(plan[part] for part in parts) + memory["weights"] + memory["reserve"]
    assert held == memory["total"]
    assert plan["fixed_bytes"] == 4 * sizes["fixed_bytes"], "the engine's own stream is one of them"
    assert sizes["fixed_bytes"] == said["own_fixed_part_bytes"]
    shown = run("plan", "glm-5.3-flash", "--memory", "141GB", "--tp", "8").stdout
    for word in ("weights", "reserve", "8 streams, 35.69 MiB each, this engine's own"):
        assert word in shown
    own = told("plan", "glm-5.3-flash", "--memory", "141GB", "--tp", "8", "--reserve", "10GiB")
    assert own["memory"]["reserve"] == 10 * GIB


def test_memory_without_room_for_the_weights_names_the_ranks_that_would_do() -> None:
    result = run("plan", "glm-5.3-flash", "--memory", "141GB", "--tp", "2")
    refused(result, 3, "--memory holds 131.32 GiB", "--tp 5 would do")
    told("plan", "glm-5.3-flash", "--memory", "141GB", "--tp", "5", "--parallel", "1",
         "--context", "4096")  # fmt: skip
    refused(run("plan", "glm-5.3-flash", "--memory", "2GiB"), 3, "no --tp up to 64 would do")


def test_a_llama_is_planned_on_pages_without_a_cache_of_its_own() -> None:
    model = Path(__file__).parent / "data" / "llama_tiny"
    said = told("plan", str(model), "--room", "64MiB")
    assert said["plan"]["paged"] == 1 and said["plan"]["cache_bytes"] == 0 and not said["notes"]
    assert said["plan"]["pages"] == 8 * said["plan"]["window_pages"]
    shown = run("plan", model, "--room", "64MiB").stdout
    assert "prompt cache" not in shown and "fixed parts" not in shown and "MiB" in shown
    for off in (run("plan", model, "--room", "1GiB", "--kv-pages", "off"),
                run("plan", model, "--room", "1GiB", TF_KV_PAGES="off")):  # fmt: skip
        refused(off, 3, "--kv-pages off (TF_KV_PAGES): llama_tiny is served on pages alone")
    none = told("plan", str(model), "--room", "64MiB", "--prompt-cache-gib", "0")
    assert none["plan"] == said["plan"]
    refused(run("plan", model, "--room", "1GiB", "--kv-cache", "fp8"), 3, "--kv-cache fp8")
    refused(run("plan", model, "--room", "1GiB", "--prompt-cache-gib", "1"), 3, "as pages")
    refused(run("plan", model, "--room", "1GiB", "--context", "5000"), 3, "trained to 4096 rows")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--room", "1GiB", "--memory", "1GiB"), "--room and --memory: one of them"),
        (("--room", "lots"), "--room 'lots'"),
        (("--room", "1GiB", "--reserve", "1GiB"), "--reserve"),
        (("--room", "1GiB", "--fixed", "some"), "--fixed 'some'"),
        (("--room", "1GiB", "--order", "best"), "--order 'best': proposed, today"),
        (("--room", "1GiB", "--spare-to", "me"), "--spare-to 'me'"),
        (("--room", "1GiB", "--kv-cache", "fp4"), "--kv-cache 'fp4': 16, fp8"),
        (("--room", "1GiB", "--prompt-cache-gib", "all"), "--prompt-cache-gib 'all'"),
    ],
)
def test_what_is_no_option_is_refused_by_name(arguments: tuple[str, ...], words: str) -> None:
    refused(run("plan", "glm-5.3-flash", *arguments), 2, words)
    assert told("plan", "glm-5.3-flash", *arguments, code=2)["verdict"] == "error"
