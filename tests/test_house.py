"""Rules about the code itself, each with its mend in the message."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from kvtape.__main__ import app

ROOT = Path(__file__).parent.parent
FLOORS = ("events", "core", "devices", "replay")
SOURCES = sorted(
    path for floor in FLOORS for path in (ROOT / floor).rglob("*.py") if ".types" not in path.parts
)
TESTS = sorted((ROOT / "tests").glob("*.py"))
TEXTS = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *(ROOT / "traces").glob("*.md"),
    ]
)
LINES_MAX, FUNCTION_LINES_MAX = 400, 60
BANNED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
PLACES = re.compile(r"/(?:root|tmp|home/[a-z]+)/")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_root_holds_two_python_files() -> None:
    found = {path.name for path in ROOT.glob("*.py")}
    assert found == {"__init__.py", "__main__.py"}, "setuptools ships every root *.py: move it"


def test_every_package_is_listed() -> None:
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    found = {"kvtape"} | {
        "kvtape." + ".".join(path.parent.relative_to(ROOT).parts)
        for floor in FLOORS
        for path in (ROOT / floor).rglob("__init__.py")
    }
    assert found == listed, "pyproject's packages must name every folder with an __init__.py"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name)
def test_a_module_is_small_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX, f"{len(lines)} lines: split it"
    said = ast.get_docstring(ast.parse(text))
    assert said, "begin the module with one sentence that says what it is for"
    assert not BANNED.search(text) or path == Path(__file__), "finish it, or leave it out"
    assert not PLACES.search(text) or path == Path(__file__), "no machine's paths"
    assert str(ROOT) not in text, "not where this tree stands, either"
    assert max(map(len, lines), default=0) <= 100, "one hundred columns"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_functions_fit_a_screen_and_public_ones_say_what_they_do(path: Path) -> None:
    for function in functions(path):
        assert function.end_lineno is not None
        long = function.end_lineno - function.lineno + 1
        assert long <= FUNCTION_LINES_MAX, f"{function.name} has {long} lines: split it"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} lacks its docstring"


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_papers_name_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not PLACES.search(text) and str(ROOT) not in text


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.parts[-2] in ("events", "core", "families")], ids=name
)
def test_the_pure_floors_have_no_chance_and_no_order_from_outside(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("hash", "id"), (
                f"line {node.lineno}: differs from run to run"
            )
        if isinstance(node, ast.For | ast.comprehension):
            assert not isinstance(node.iter, ast.Set | ast.SetComp), "a set has no order: sort it"
            called = node.iter.func if isinstance(node.iter, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in ("set", "frozenset"))


def test_no_drawer_is_called_utils() -> None:
    drawers = {"utils", "common", "misc", "helpers", "manager", "model"}
    assert not [path for path in [*SOURCES, *TESTS] if path.stem in drawers]


def test_every_command_and_option_has_help() -> None:
    commands = dict(get_command(app).commands)  # type: ignore[attr-defined]
    for label, command in list(commands.items()):
        commands.update(getattr(command, "commands", {}))
        assert command.help or command.get_short_help_str(), f"{label} has no help"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for label in ("serve", "replay", "diff", "audit", "doctor", "demo", "bench", "trace"):
        assert f"kvtape {label}" in readme, f"README does not name kvtape {label}"


def test_large_files_stay_out() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    large = [
        file
        for file in listed
        if (ROOT / file).is_file() and (ROOT / file).stat().st_size > 32 * 2**20
    ]
    assert not large, f"over 32 MiB: {large}"
