"""Compiled CUDA kernels on disk: found again whole, compiled anew when what they are of changed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from kvtape.core.kernels.cuda import attend, target, twins
from kvtape.core.kernels.cuda.poison import fill_flat
from kvtape.devices.cuda import kernel_sources as sources
from kvtape.devices.cuda.ahead import of_cases
from kvtape.devices.cuda.compiling import side_by_side, stood_in
from kvtape.devices.cuda.kernel_store import Entry, KernelStore, key_of

# --- what a kernel follows from ------------------------------------------------------------------


def tree(folder: Path) -> Path:
    """a.py imports b and c of a folder below, b imports d; e is nobody's."""
    (folder / "low").mkdir()
    (folder / "a.py").write_text("from .b import x\nfrom .low import c\n")
    (folder / "b.py").write_text("def x():\n    from .d import y\n")
    (folder / "d.py").write_text("y = 1\n")
    (folder / "e.py").write_text("z = 1\n")
    (folder / "low" / "c.py").write_text("from ..b import x\n")
    return folder / "a.py"


@pytest.mark.parametrize("changed", ["a.py", "b.py", "d.py", "low/c.py", "e.py"])
def test_a_change_in_any_file_below_is_another_digest(tmp_path: Path, changed: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    digests = []
    for folder in (before, after):
        folder.mkdir()
        start = tree(folder)
        if folder is after:
            (folder / changed).write_text((folder / changed).read_text() + "# more\n")
        digests.append(sources.digest_of(frozenset([start]), folder))
    assert (digests[0] == digests[1]) == (changed == "e.py")


def test_a_kernel_is_told_by_what_it_captured() -> None:
    said = [sources.captured(attend.attend_kernel(*sizes).function)[0] for sizes in SIZES]
    assert len({json.dumps(one) for one in said}) == len(SIZES)
    again = sources.captured(attend.attend_kernel.__wrapped__(*SIZES[0]).function)[0]
    assert again == said[0]


SIZES = [(64, 32, True), (64, 32, False), (64, 16, True), (32, 32, True)]


def test_a_kernel_of_unknown_parts_has_no_key() -> None:
    room: Any = object()

    def outside(x: Any) -> None:
        x[0] = room

    with pytest.raises(sources.Unkeyed):
        sources.captured(outside)
    outside.__module__ = twins.__name__
    with pytest.raises(sources.Unkeyed):
        sources.captured(outside)


def test_every_kernel_of_a_twin_has_a_key() -> None:

    keys: dict[str, target.Kernel] = {}
    with stood_in("sm_90"):
        launches = list(of_cases())
    for kernel, types in launches:
        key = key_of(kernel, types, "sm_90")
        assert keys.setdefault(key, kernel) is kernel
    assert len(keys) > 45


# --- entries on disk -----------------------------------------------------------------------------


def a_launch(kind: type[np.generic] = np.int32) -> Any:
    """A small kernel and the types of a launch."""

    with target.recorded() as made:
        fill_flat(0, np.zeros(8, kind), kind(3))
    return made[0]


def test_what_was_compiled_is_found_again_for_its_chip_and_types_alone(tmp_path: Path) -> None:

    store, launches = KernelStore(tmp_path), [a_launch(), a_launch(np.int8)]
    assert store.fill([*launches, *launches], "sm_90", 2) == []
    found = [store.read(kernel, key_of(kernel, types, "sm_90")) for kernel, types in launches]
    assert all(one is not None and one.cubin.startswith(b"\x7fELF") for one in found)
    assert found[0] != found[1]
    assert all(one is not None and one.entry.encode() in one.cubin for one in found)
    kernel, types = launches[0]
    assert store.read(kernel, key_of(kernel, types, "sm_80")) is None
    assert store.lacking(launches, "sm_80") == launches


@pytest.mark.parametrize("at", [0, 30, 60, 400, -1])
def test_damaged_entries_are_not_found_and_are_compiled_anew(tmp_path: Path, at: int) -> None:

    store, (kernel, types) = KernelStore(tmp_path), a_launch()
    key = key_of(kernel, types, "sm_90")
    store.write(kernel, key, Entry("name", bytes(500)))
    path = store.path(kernel, key)
    whole = path.read_bytes()
    assert store.read(kernel, key) == Entry("name", bytes(500))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at:][1:])
    assert store.read(kernel, key) is None
    path.write_bytes(whole[:at])
    assert store.read(kernel, key) is None
    assert store.fill([(kernel, types)], "sm_90", 1) == []
    entry = store.read(kernel, key)
    assert entry is not None and entry.cubin.startswith(b"\x7fELF")


def test_an_entry_of_another_key_is_not_taken_by_its_name(tmp_path: Path) -> None:

    store, (kernel, types) = KernelStore(tmp_path), a_launch()
    mine, other = key_of(kernel, types, "sm_90"), key_of(kernel, types, "sm_80")
    store.write(kernel, other, Entry("name", b"code"))
    store.path(kernel, other).rename(store.path(kernel, mine))
    assert store.read(kernel, mine) is None


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path: Path) -> None:

    (tmp_path / "a file").write_text("")
    assert KernelStore.of({"KVTAPE_CACHE": str(tmp_path / "a file")}) is None
    store, (kernel, types) = KernelStore(tmp_path / "gone"), a_launch()
    key = key_of(kernel, types, "sm_90")
    store.write(kernel, key, Entry("name", b"code"))
    assert store.read(kernel, key) is None


AHEAD = """
from kvtape.devices.cuda import ahead
from kvtape.tests.cpu_rig import tiny
ahead.find_model = lambda name: tiny()
with ahead.stood_in("sm_90"):
    launches = ahead.of_model("")
print(len(launches), *sorted({kernel.name for kernel, types in launches}))
"""


def test_what_a_start_launches_is_listed_without_a_gpu() -> None:
    command = [sys.executable, "-c", AHEAD]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    count, *names = done.stdout.split()
    assert int(count) > 100
    assert {"draw_rows_kernel", "write_rows_kernel", "digest_rows_kernel"} <= set(names)


def test_work_goes_on_beside_what_fails_and_what_never_ends(tmp_path: Path) -> None:
    def do(name: str) -> None:
        if name == "fails":
            raise ValueError(name)
        if name == "dies":
            os._exit(3)
        if name == "hangs":
            time.sleep(1000)
        (tmp_path / name).write_text("")

    side_by_side(do, ["fails", "dies", "hangs", "one", "two", "three"], 3, limit_s=2.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three", "two"]
