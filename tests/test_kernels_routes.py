"""Every set of instructions gives the same bits; each is tried in a process of its own."""

import os
import subprocess
import sys
from hashlib import sha256
from importlib import import_module
from typing import Any

import llvmlite.binding
import numpy as np
import pytest

from kvtape.core.kernels import registry

madd: Any = import_module("kvtape.core.kernels.madd")

KERNELS = ("linear", "attend")
ABSENT = "-avx512f,-avx512bw,-avx512vl,-avx512dq,-avx512cd,-avx512vnni"
# By route: what numba is told to compile for.
TARGETS = {
    "portable": {"NUMBA_CPU_NAME": "generic"},
    "avx2": {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": f"+avx2,+fma,+avx,{ABSENT}"},
    "avx512": {},
}
PROGRAM = """
from kvtape.devices.kernel_cache import use_cache
use_cache()
from kvtape.tests.test_kernels_routes import madd, results
print(madd.ROUTE, results())
"""


def results() -> str:
    """A digest of what the kernels make of fixed cases, each compared with its meaning as well."""
    digest = sha256()
    for kernel in (one for one in registry.kernels() if one.name in KERNELS):
        for seed in range(4):
            for arguments in kernel.cases(np.random.default_rng(seed)):
                meant = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
                kernel.cpu(*arguments)
                kernel.meaning(*meant)
                for made, want in zip(arguments, meant, strict=True):
                    assert registry.same_bits(made, want), kernel.name
                    digest.update(made.tobytes() if isinstance(made, np.ndarray) else b"")
    return digest.hexdigest()


def lacks(route: str) -> bool:
    """Whether this machine cannot run a route."""
    have = llvmlite.binding.get_host_cpu_features()
    needed = {"portable": [], "avx2": ["avx2", "fma"], "avx512": ["avx512f", "avx512bw"]}[route]
    return not all(have.get(name) for name in needed)


@pytest.mark.parametrize("route", TARGETS)
def test_a_route_has_the_bits_of_every_other(route: str) -> None:
    if lacks(route):
        pytest.skip(f"this processor lacks {route}")
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | TARGETS[route],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [route, results()]


def test_the_route_is_one_that_the_processor_has() -> None:
    assert not lacks(madd.ROUTE)
    assert madd.route() == madd.ROUTE
