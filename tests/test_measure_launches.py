"""bench launches: servers that take turns, their figures side by side, and the receipt."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvtape.__main__ import app
from kvtape.replay import measure_memory
from kvtape.replay.measure_compare import Beside, Sample, figures_beside, replies_beside
from kvtape.replay.measure_launch_options import LaunchOptions
from kvtape.replay.measure_launches import Launch, Launched, titles_of
from kvtape.replay.measure_memory import free_by, free_here, lowest_free
from kvtape.replay.measure_receipt import (
    BadTests,
    Kernels,
    RanTests,
    read_tests,
    receipt,
    without_places,
)
from kvtape.replay.measure_server import filled
from kvtape.tests import plain_server

FLOATS = st.floats(0.01, 1e6)
SAMPLES = st.lists(FLOATS, min_size=1, max_size=8).map(lambda values: Sample(tuple(values)))
SERVER = (sys.executable, plain_server.__file__, "{port}")
FAST = ("--run", "cache --tokens 4 --prompt-tokens 5")


def launches(*arguments: str | Path, server: tuple[str, ...] = SERVER) -> tuple[int, Any]:
    """The exit code and the JSON of a command, tool and servers as processes of their own."""
    asked = ["bench", "launches", *map(str, arguments), "--json", "--", *server]
    done = CliRunner().invoke(app, asked)
    return done.exit_code, json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr


# --- statistics -----------------------------------------------------------------------------------


@given(st.lists(FLOATS, min_size=2, max_size=8))
def test_a_standard_error_is_the_deviation_over_the_root_of_the_count(values: list[float]) -> None:
    sample, count = Sample(tuple(values)), len(values)
    mean = sum(values) / count
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    assert sample.mean == pytest.approx(mean)
    assert sample.error == pytest.approx(deviation / sqrt(count), abs=1e-6 * max(values))


def test_one_launch_has_no_standard_error() -> None:
    lone = Sample((3.0,))
    assert lone.error is None
    assert Beside("x", "s", {"off": lone, "on": Sample((4.5,))}).difference("on") == (50.0, None)


@given(SAMPLES, SAMPLES)
def test_ranges_overlap_where_neither_is_all_below_the_other(left: Sample, right: Sample) -> None:
    apart = max(left.values) < min(right.values) or max(right.values) < min(left.values)
    assert left.overlaps(right) is right.overlaps(left) is not apart


def test_a_difference_is_in_percent_of_the_first_label() -> None:
    beside = Beside("x", "tok/s", {"off": Sample((40.0, 42.0)), "on": Sample((39.0, 41.0))})
    percent, error = beside.difference("on")
    assert percent == pytest.approx(-100 / 41)
    assert error == pytest.approx(100 * sqrt(2) / 41)  # each mean has an error of 1
    assert beside.overlaps("on") and beside.as_json()["against"] == {
        "on": {"percent": percent, "standard_error": error, "ranges_overlap": True}
    }


def told(sha: str, **more: Any) -> dict[str, Any]:
    """One reply of a report."""
    return {
        "name": "first 1", "token_sha": sha, "output_sha256": f"text of {sha}",
        "repeatable": True, "error": "", "cached_tokens": 0, "ttft_s": 1.0,
    } | more  # fmt: skip


def report(*replies: Mapping[str, Any], median: float = 1.0, **more: Any) -> dict[str, Any]:
    """A report of bench cache, as bench launches keeps it."""
    figures = [{"name": "first: first token", "unit": "s", "median": median}]
    return {
        "title": "cache", "faults": [], "figures": figures, "replies": list(replies),
        "server": {"model": "plain", "model_digest": "d" * 32, "compared": "token ids"},
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("second", "unequal", "by"),
    [
        (told("a", cached_tokens=3), (), "token ids"),
        (told("b"), ("cache, first 1",), "token ids"),
        (told("", output_sha256="text of a"), (), "text"),
        (told("", output_sha256="another"), ("cache, first 1",), "text"),
        (told("b", repeatable=False), (), "token ids"),
        (told("b", error="broke off"), (), "token ids"),
        (told("b", name="first 2"), (), "token ids"),
    ],
)
def test_the_same_request_has_one_reply_in_every_launch(
    second: dict[str, Any], unequal: tuple[str, ...], by: str
) -> None:
    found = replies_beside([("off", [report(told("a"))]), ("on", [report(second)])])
    assert (found.unequal, found.by) == (unequal, by)
    compared = second["repeatable"] and not second["error"]
    assert found.total == 1 + compared and found.resumed == bool(second["cached_tokens"])


def test_figures_stand_by_label_in_the_order_of_launches() -> None:
    rows = [("off", 1.0), ("on", 5.0), ("on", 7.0), ("off", 3.0)]
    (figure,) = figures_beside((label, [report(median=value)]) for label, value in rows)
    assert figure.name == "cache, first: first token" and list(figure.by_label) == ["off", "on"]
    assert [sample.values for sample in figure.by_label.values()] == [(1.0, 3.0), (5.0, 7.0)]


def test_a_tool_that_runs_twice_is_named_with_its_options() -> None:
    assert titles_of(["openai", "cache", "cache --streams 3"]) == {
        "openai": "openai", "cache": "cache", "cache --streams 3": "cache --streams 3",
    }  # fmt: skip


# --- memory ---------------------------------------------------------------------------------------


def test_the_lowest_is_kept_by_rank() -> None:
    free = iter([700, 300, 900])
    looked = threading.Event()

    def probe() -> dict[str, int]:
        value = next(free, None)
        if value is None:
            looked.set()
            return {}
        return {"rank 0": value, "rank 1": 5}

    with lowest_free([probe], seconds=0.001) as found:
        assert looked.wait(20)
    assert found == {"rank 0": 300, "rank 1": 5}


def test_even_a_short_body_is_seen() -> None:
    with lowest_free([lambda: {"host": 8}], seconds=60.0) as found:
        pass
    assert found == {"host": 8}


def test_free_memory_is_the_kernels_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:     500 kB\n")
    monkeypatch.setattr(measure_memory, "MEMINFO", meminfo)
    assert free_here() == {"host": 500 * 1024}
    assert free_by("1", f"cat '{meminfo}'")() == {"rank 1": 500 * 1024}
    assert free_by("2", "echo 12345")() == {"rank 2": 12345}
    assert free_by("3", "false")() == {} == free_by("3", "no-such-command-anywhere")()
    meminfo.unlink()
    assert free_here() == {}


# --- the command ----------------------------------------------------------------------------------


def test_launches_take_turns_and_write_a_receipt(tmp_path: Path) -> None:
    paper, tests = tmp_path / "RECEIPT.md", tmp_path / "junit.xml"
    tests.write_text(
        '<testsuites><testsuite tests="12" failures="1" errors="1" skipped="3"/></testsuites>'
    )
    code, found = launches(
        "--order", "off,on,on,off", "--set", "on:KV_TRIAL=1", *FAST, "--receipt", paper, "--tests",
        tests, "--not-run", "GPUs: none here", "--logs", tmp_path / "logs",
    )  # fmt: skip
    assert code == 0, found
    assert [one["label"] for one in found["launches"]] == ["off", "on", "on", "off"]
    assert found["settings"] == {"off": {}, "on": {"KV_TRIAL": "1"}}
    assert found["replies"] == {
        "replies": 20, "resumed": 20, "unequal": [], "compared": "token ids",
    }  # fmt: skip
    figures = {figure["name"]: figure["by_label"] for figure in found["figures"]}
    assert {len(one["values"]) for one in figures["cache, first: first token"].values()} == {2}
    assert set(found["lowest_free_bytes"]) == {"off", "on"}
    assert len(list((tmp_path / "logs").iterdir())) == 4
    said = paper.read_text()
    for title in (
        "Environment", "Exactness", "Decode speed before and after", "Memory", "Tests run",
        "Prompt speed before and after", "Not run, and why", "Checklist",
    ):  # fmt: skip
        assert f"## {title}\n\n- " in said
    for line in (
        "20 replies, 20 resumed: the same in all launches", "7 passed, 2 failed, 3 skipped",
        "GPUs: none here", "decode speed: no run of openai", "on: `KV_TRIAL=1`",
        "launched: off, on, on, off", "cache, first: first token, in s: off ",
    ):  # fmt: skip
        assert line in said
    assert str(tmp_path) not in said and str(Path(plain_server.__file__).parent) not in said


def test_a_setting_that_changes_a_reply_is_found(tmp_path: Path) -> None:
    code, found = launches(
        "--order", "off,on", "--set", "on:PLAIN_SALT=x", "--flags", "off:--cold", "--run",
        "cache --tokens 4 --prompt-tokens 5 --require-cold --repeats 0 --streams 0",
    )  # fmt: skip
    assert code == 1 and not found["qualified"]
    assert found["replies"]["unequal"] == ["cache, first 1"]
    assert found["replies"]["compared"] == "text"  # the salted one sends no ids
    (unmet, differs) = found["faults"]
    assert unmet.startswith("launch 2 (on), cache: --require-cold: the first reply says that 3")
    assert differs == "launches differ: cache, first 1"


def test_a_later_launch_that_fails_leaves_the_others(tmp_path: Path) -> None:
    once = "import os, sys; os.mkdir(sys.argv[1]); os.execv(sys.executable, sys.argv[2:])"
    server = (sys.executable, "-c", once, str(tmp_path / "made"), sys.executable, *SERVER[1:])
    code, found = launches("--order", "a,b", *FAST, server=server)
    assert code == 1 and len(found["launches"][0]["reports"]) == 1
    (fault,) = found["faults"]
    assert fault.startswith("launch 2 (b): the server ended with 1") and "FileExists" in fault
    code, found = launches("--order", "a,b", *FAST, server=server)
    assert code == 2 and "the server ended with 1" in found["why"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--order", "off,,on"), "--order"),
        (("--set", "new:A=1"), "begins with a label of --order: off, on"),
        (("--set", "on:A"), "LABEL:NAME=VALUE"),
        (("--set", "on:1A=2"), "LABEL:NAME=VALUE"),
        (("--flags", "--poison a"), "begins with a label"),
        (("--flags", "on:'"), "No closing quotation"),
        (("--run", "book"), "begins with openai, cache, concurrent"),
        (("--run", "cache --url=http://x"), "--url is set by bench launches"),
        (("--run", "cache", "--run", "cache"), "the same one twice"),
        (("--memory", "one:cat x"), "RANK:COMMAND"),
        (("--tests", "none.xml"), "none.xml"),
        (("--receipt", "no/such/folder/RECEIPT.md"), "RECEIPT.md"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(arguments: tuple[str, ...], why: str) -> None:
    code, found = launches(*arguments, server=("no-such-server", "{port}"))
    assert code == 2 and why in found["why"]


def test_a_command_needs_a_port_to_be_told() -> None:
    code, found = launches(server=("server",))
    assert code == 2 and "{port}" in found["why"]
    assert filled(["a{port}", "{x}", "{label}-{launch}"], {"port": "7", "label": "on"}) == [
        "a7", "{x}", "on-{launch}",
    ]  # fmt: skip


# --- the receipt ----------------------------------------------------------------------------------


def launched(
    *medians: float, unequal: int = 0, resumed: int = 0, overlap: bool = False
) -> Launched:
    """off, on, on, off with these times to the first token."""
    order = ["off", "on", "on", "off"]
    found = Launched(LaunchOptions(["serve"], order, ["cache"], require_overlap=overlap))
    for label, median in zip(("off", "on", "on", "off"), medians, strict=True):
        counts = {"equal": 10 - unequal, "unequal": unequal, "failed": 0}
        replies = [told("a"), told("a", name="again", cached_tokens=resumed)]
        found.launches.append(
            Launch(label, reports=[report(*replies, median=median, alone=counts, serial=counts)])
        )
    return found


def checks(found: Launched, **more: Any) -> dict[str, bool]:
    """The checklist: what is marked, by its first words."""
    asked: dict[str, Any] = {"tests": None, "kernels": None, "not_run": [], **more}
    lines = receipt(found, {}, **asked).checklist
    assert all(line[:4] in ("[x] ", "[ ] ") for line in lines)
    return {" ".join(line[4:].split()[:2]): line.startswith("[x]") for line in lines}


def test_ranges_that_lie_apart_fail_only_where_that_was_asked() -> None:
    apart, near = (2.0, 3.1, 2.9, 2.0), (2.0, 2.1, 1.9, 2.0)
    assert launched(*apart).exit_code == launched(*near, overlap=True).exit_code == 0
    found = launched(*apart, overlap=True)
    assert found.exit_code == 1
    assert found.faults == ["--require-overlap: cache, first: first token: on lies apart"]


def test_only_what_was_measured_and_held_is_marked() -> None:
    good = checks(
        launched(2.0, 2.1, 1.9, 2.0, resumed=3),
        tests=RanTests(5, 0, 1), kernels=Kernels("22 kernels", True),
    )  # fmt: skip
    marked = {
        "Drafted output", "Concurrent equals", "A resumed", "Kernels are", "Tests: 5",
        "Prompt processing", "Which machines",
    }  # fmt: skip
    assert {name for name, holds in good.items() if holds} == marked and len(good) == 12
    bad = checks(
        launched(2.0, 3.1, 2.9, 2.0, unequal=1),
        tests=RanTests(5, 1, 1), kernels=Kernels("22 kernels", False),
    )  # fmt: skip
    assert {name for name, holds in bad.items() if holds} == {"Which machines"}
    assert checks(launched(2.0, 1.1, 0.9, 2.0))["Prompt processing"]


def test_what_was_not_run_is_said() -> None:
    bare = Launched(LaunchOptions(["serve"], ["off"], ["cache"]), [Launch("off")])
    told = receipt(bare, {}, tests=None, kernels=None, not_run=["GPUs"])
    assert told.not_run[0] == "GPUs" and len(told.not_run) == 7
    assert "## Tests run\n\n- nothing\n" in told.markdown()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("serve /srv/models/glm --tp 2", "serve glm --tp 2"),
        ("--trace=/a/b.tape ~/x/y", "--trace=b.tape y"),
        ("tok/s and 1/2, http://127.0.0.1:8080/v1", "tok/s and 1/2, http://127.0.0.1:8080/v1"),
        ("org/model-7b", "org/model-7b"),
    ],
)
def test_folders_stay_at_home(text: str, left: str) -> None:
    assert without_places(text) == left


def test_a_broken_report_of_tests_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text("<testsuite")
    with pytest.raises(BadTests, match="junit"):
        read_tests(file)


@pytest.mark.slow
def test_four_launches_of_a_real_server_give_equal_replies(tmp_path: Path) -> None:
    code, found = launches(
        "--set", "on:TF_KV_POISON=1", "--run", "concurrent --form ids --alone --serial --tokens 24",
        "--run", "cache --require-cold --require-reuse --prompt-tokens 600",
        server=(
            sys.executable, "-m", "kvtape", "serve", "fake-pages", "--tp", "2", "--port", "{port}",
            "--trace", str(tmp_path / "{launch}.tape"),
        ),
    )  # fmt: skip
    assert code == 0, found["faults"]
    for kind, total in (("alone", 40), ("serial", 16)):
        for mode in ("sampled", "greedy"):
            counts = [one["reports"][0][kind]["by_mode"][mode] for one in found["launches"]]
            assert sum(one["equal"] for one in counts) == total
            assert not any(one["unequal"] or one["failed"] for one in counts)
    assert not found["replies"]["unequal"] and found["replies"]["resumed"] > 100


STARTS = """
import sys, time
from pathlib import Path
from kvtape.replay.measure_server import free_port, started

port = free_port()
command = [sys.executable, "-m", "kvtape", "serve", "fake", "--port", str(port)]
with started(command, {}, f"http://127.0.0.1:{port}", Path(sys.argv[1]), 100):
    print(port, flush=True)
    time.sleep(100)
"""


def test_a_launch_told_to_end_leaves_no_server(tmp_path: Path) -> None:
    launch = subprocess.Popen(
        [sys.executable, "-c", STARTS, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    with launch:
        assert launch.stdout is not None
        port = int(launch.stdout.readline())
        socket.create_connection(("127.0.0.1", port)).close()
        launch.send_signal(signal.SIGTERM)
        assert launch.wait(100) == 128 + signal.SIGTERM
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
