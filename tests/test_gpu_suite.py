"""`make gpu`: every part runs whatever became of the others, and the report tells of all."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvtape.devices.cuda.card import CardInfo, NoCard
from kvtape.tests import gpu_suite
from kvtape.tests.gpu_suite import PARTS, Part


def test_parts_outlive_each_other_and_one_failure_fails_the_whole(tmp_path: Path) -> None:
    fine = Part("Fine", ("-c", "print('\\n'.join(map(str, range(9))))"), lines=3)
    fails = Part("Fails", ("-c", "import sys; print('about to'); sys.exit(7)"))
    goes_on = Part("Goes on", ("-c", f"print({gpu_suite.TRACEBACK!r}); print('and on')"))
    dies = Part("Dies", ("-c", "import os; os.abort()"))
    hangs = Part("Hangs", ("-c", "import time; print('here', flush=True); time.sleep(99)"), 2)
    lacks = Part("Lacks", ("-c", "raise SystemExit(1)"), needs="no-such-program")
    last = Part("Last", ("-c", "print('the end')"))
    path = tmp_path / "report.md"
    assert gpu_suite.main(path, [], (fine, fails, goes_on, dies, hangs, lacks, last)) == 1
    text = path.read_text()
    for row in (
        "| Fine | ok |", "| Fails | failed (7) |", "| Dies | failed (-6) |",
        "| Hangs | not done after 2 s |", "| Lacks | left out |", "| Last | ok |",
        "| Goes on | failed in part |",
    ):  # fmt: skip
        assert row in text
    for said in ("6\n7\n8\n```", "about to", "here", "no-such-program is not", "the end"):
        assert said in text
    assert "\n5\n" not in text


MEETS = """
import sys, time, pathlib
path, name, other = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with path.open("a") as log:
    print("+" + name, file=log, flush=True)
    until = time.monotonic() + 60
    while "+" + other not in path.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    print("-" + name, file=log, flush=True)
"""


def test_what_is_timed_runs_after_all_others_and_alone(tmp_path: Path) -> None:
    log, order = tmp_path / "log", {"T": "T", "a": "b", "U": "U", "b": "a"}
    parts = tuple(
        Part(name, ("-c", MEETS, str(log), name, other), timed=name == other)
        for name, other in order.items()
    )
    assert gpu_suite.main(tmp_path / "report.md", [], parts) == 0
    seen = log.read_text().split()
    assert {*seen[:2]} == {"+a", "+b"}, "what is not timed runs side by side"
    assert seen[4:] == ["+T", "-T", "+U", "-U"]
    text = (tmp_path / "report.md").read_text()
    places = [text.index(f"| {name} | ok") for name in order]
    assert places == sorted(places)


def test_what_is_left_out_fails_nothing_and_names_choose(tmp_path: Path) -> None:
    lacks = Part("Lacks", ("-c", ""), needs="no-such-program")
    fails = Part("Fails", ("-c", "raise SystemExit(1)"))
    assert gpu_suite.main(tmp_path / "report.md", ["Lacks"], (lacks, fails)) == 0
    text = (tmp_path / "report.md").read_text()
    assert "commit" in text and "- gpu: " in text and "Fails" not in text


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_names_a_script_that_is_there(part: Part) -> None:
    assert part.command[0] == "-m"
    assert find_spec(part.command[1]) is not None
    assert all(Path(one).exists() for one in part.command if one.endswith(".py"))


def test_every_file_of_gpu_tests_is_run() -> None:
    tests = Path(__file__).parent.glob("test_*.py")
    marked = {one for one in tests if "mark.gpu" in one.read_text() and one != Path(__file__)}
    (run,) = (part for part in PARTS if part.name == "Tests")
    assert {str(one) for one in marked} <= set(run.command)


@pytest.mark.parametrize("name", gpu_suite.OF_OTHER_PARTS)
def test_what_other_parts_run_is_a_test_there_is(name: str) -> None:
    """Else it would run twice, or be thought to run."""
    sources = sorted(Path(__file__).parent.glob("test_cuda_*.py"))
    assert any(re.search(rf"def test_\w*{name}", one.read_text()) for one in sources)


def test_a_model_that_is_none_is_told_before_any_part_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, began, model = tmp_path / "report.md", tmp_path / "began", tmp_path / "model.gguf"
    parts = (Part("Begins", ("-c", f"open({str(began)!r}, 'w')")),)
    monkeypatch.setattr(gpu_suite, "cards", list)
    model.touch()
    for name, why in ((model, "is empty"), (tmp_path / "none.gguf", "none.gguf")):
        monkeypatch.setenv("KVTAPE_GPU_MODEL", str(name))
        assert gpu_suite.cli([str(report)], parts) == 2
        assert why in capsys.readouterr().err
    assert not report.exists() and not began.exists()
    monkeypatch.setenv("KVTAPE_GPU_MODEL", str(Path(__file__).parent / "data" / "llama_tiny"))
    assert gpu_suite.cli([str(report), "Begins"], parts) == 0 and began.exists()


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        ([], "REPORT", 2),
        (["--part", "Decode"], "REPORT", 2),
        (["{}/report.md", "Decode", "decode", "nosuch"], "no part is named decode, nosuch: Che", 2),
        (["{}/none/report.md"], "none/report.md is no file", 2),
        (["{}"], "is no file that a report", 2),
        (["{}/report.md"], "no GPU", 3),
    ],
)
def test_what_cannot_be_run_is_told_before_any_part_begins(
    arguments: list[str],
    says: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def none() -> list[CardInfo]:
        raise NoCard("no GPU here")

    monkeypatch.setattr(gpu_suite, "cards", none)
    monkeypatch.delenv("KVTAPE_GPU_MODEL", raising=False)
    assert gpu_suite.cli([one.format(tmp_path) for one in arguments]) == code
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
