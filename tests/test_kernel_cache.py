"""Compiled kernels on disk: keyed by all that matters, and a second process compiles nothing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from kvtape.core.kernels import registry
from kvtape.devices import kernel_cache

RUN = """
import sys
from kvtape.core.kernels import registry
from kvtape.devices import kernel_cache

chosen = [one for one in registry.kernels() if one.name in ("sample_row", "rmsnorm_q16")]
registry.kernels = lambda: chosen
kernel_cache.kernels_key = lambda sources, processor: "one"
lines = []
folder = kernel_cache.use_cache()
made = kernel_cache.warm(folder, lines.append)
kernel_cache.done_mark(folder).unlink()
again = kernel_cache.warm(folder, lines.append)
print(folder.name, *registry.compiled(), made, again, "|".join(lines[:2]), sep=";")
"""


def run_once(folder: Path) -> list[str]:
    environment = os.environ | {"KVTAPE_CACHE": str(folder)}
    command = [sys.executable, "-W", "error", "-c", RUN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(";")


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = run_once(tmp_path), run_once(tmp_path)
    assert first[0] == second[0] == "kernels-one"
    taken, compiled = int(first[1]), int(first[2])
    assert taken == 0
    assert compiled > 0
    assert int(second[2]) == 0
    assert int(second[1]) > 0
    assert first[3] == str(compiled)
    assert first[4] == "0"
    assert first[5] == "kernel 1 of 2: rmsnorm_q16|kernel 2 of 2: sample_row"


def test_any_changed_source_or_processor_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("ONE = 1")
    (tmp_path / "two.py").write_text("TWO = 2")
    keys = {kernel_cache.kernels_key(tmp_path, "zen"), kernel_cache.kernels_key(tmp_path, "zen+")}
    (tmp_path / "two.py").write_text("TWO = 3")
    keys.add(kernel_cache.kernels_key(tmp_path, "zen"))
    (tmp_path / "three.py").write_text("")
    keys.add(kernel_cache.kernels_key(tmp_path, "zen"))
    assert len(keys) == 4
    assert kernel_cache.kernels_key(tmp_path, "zen") == kernel_cache.kernels_key(tmp_path, "zen")


def test_the_folder_is_the_named_one_or_the_users() -> None:
    assert kernel_cache.cache_root({"KVTAPE_CACHE": "/named"}) == Path("/named")
    assert kernel_cache.cache_root({"XDG_CACHE_HOME": "/shared"}) == Path("/shared/kvtape")
    assert kernel_cache.cache_root({}) == Path.home() / ".cache" / "kvtape"


def test_without_a_folder_nothing_is_kept_and_nothing_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert kernel_cache.use_cache({"KVTAPE_CACHE": str(tmp_path / "file")}) is None
    assert f"cannot be kept in {tmp_path / 'file'}" in caplog.text


def test_a_finished_folder_is_not_run_again(tmp_path: Path) -> None:
    kernel_cache.done_mark(tmp_path).touch()
    lines: list[str] = []
    assert kernel_cache.warm(tmp_path, lines.append) == 0
    assert lines == []


def test_another_copy_of_the_same_sources_is_not_compiled_yet(tmp_path: Path) -> None:
    """Else a server that says that it is ready would compile in its first request."""
    copies = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        source = tmp_path / name / "kernel.py"
        source.write_text("ONE = 1")
        os.utime(source, (1000, 1000))
        copies.append(SimpleNamespace(__file__=str(source)))
    marks = [kernel_cache.done_mark(tmp_path, one) for one in copies]
    assert marks[0] != marks[1] and marks[0] == kernel_cache.done_mark(tmp_path, copies[0])
    os.utime(copies[0].__file__, (1001, 1001))
    assert kernel_cache.done_mark(tmp_path, copies[0]) not in marks


def test_kernels_are_kept_under_the_key_of_this_build() -> None:
    folder = kernel_cache.use_cache()
    assert folder is not None
    assert registry.__file__ is not None
    key = kernel_cache.kernels_key(Path(registry.__file__).parent, kernel_cache.processor())
    assert folder.name == f"kernels-{key}"


def test_a_loop_can_only_be_kept_in_a_named_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    with pytest.raises(AssertionError, match="no folder"):
        registry.keep_on_disk()


def test_each_part_that_is_compiled_is_told_and_no_other() -> None:
    lines: list[str] = []

    def doubled(x: int) -> int:
        return 2 * x

    njit: Any = numba.njit
    with kernel_cache.told_of_compiles(lines.append):
        compiled = njit(doubled)
        assert compiled(3) == 6
        assert compiled(4) == 8
    assert [line.rsplit(" ", 2)[1] for line in lines] == ["1"]
    assert njit(doubled)(2.5) == 5
    assert len(lines) == 1
