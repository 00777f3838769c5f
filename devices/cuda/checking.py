"""Every CUDA kernel held to what it means, on this machine's GPU: random cases, golden vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from ...core.kernels import registry
from ...core.kernels.cuda import golden, twins
from ...core.kernels.cuda.quantise import q16_rows
from .card import open_card

VECTORS = Path(__file__).parent.parent / "golden.npz"
SEED = 30
SCALARS = (
    ("fma", golden.fma_values, ("fma_a", "fma_b", "fma_c"), "fma_y"),
    ("exp2c", golden.exp2c_values, ("exp2c_u",), "exp2c_y"),
    ("sigmoid", golden.sigmoid_values, ("sig_x",), "sig_y"),
)


def verdicts_of_card() -> int:
    """How many verdicts check_card gives."""
    return len(twins.twins()) + len(SCALARS) + 2


def check_card(count: int) -> Iterator[registry.Verdict]:
    """A verdict a twin over so many random cases, then one a set of vectors. Raises NoCard."""
    open_card(0).use()
    for one in twins.twins():
        try:
            yield twins.check(one, np.random.default_rng(SEED), count)
        except Exception as error:  # a kernel that is not even launched is one that parts
            yield registry.Verdict(one.name, 0, f"{type(error).__name__}: {error}")
    yield from check_vectors()


def check_vectors() -> Iterator[registry.Verdict]:
    """The scalars that all others rest on, and the digits of rows, over vectors made beforehand."""
    vectors = np.load(VECTORS)
    for name, of, given, wanted in SCALARS:
        out = cuda.to_device(np.empty(vectors[wanted].size, np.float32))
        golden.over_each(0, of, [_floats(vectors, one) for one in given], out)
        yield _verdict(name, vectors[wanted].view(np.float32), out.copy_to_host())
    rows, codes = vectors["q16_x"].shape[0], vectors["q16_q"]
    exponents = vectors["q16_e"].astype(np.int8)
    made = cuda.to_device(np.zeros_like(codes)), cuda.to_device(np.zeros_like(exponents))
    flags = cuda.to_device(np.zeros(rows, np.uint8))
    q16_rows(0, _floats(vectors, "q16_x"), *made, flags, 0, rows)
    yield _verdict("digits", codes, made[0].copy_to_host())
    yield _verdict("exponents", exponents, made[1].copy_to_host())


def _floats(vectors: Any, name: str) -> Any:
    return cuda.to_device(vectors[name].view(np.float32))


def _verdict(name: str, want: Any, have: Any) -> registry.Verdict:
    """How many of the vectors' values came out."""
    same = registry.same_bits(twins.one_nan(want), twins.one_nan(have))
    apart = np.flatnonzero(want.reshape(-1) != have.reshape(-1))
    first = "" if same else f"values {apart[:3].tolist()} of {want.size}"
    return registry.Verdict(f"golden {name}", want.size if same else 0, first)
