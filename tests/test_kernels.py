"""The list of kernels: every loop is in it, and every twin has the bits of its meaning."""

import dataclasses

import numpy as np
import pytest

from kvtape.core.kernels import registry

KERNELS = registry.kernels()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_cpu_twin_has_the_bits_of_its_meaning(kernel: registry.Kernel) -> None:
    verdict = registry.check(kernel, np.random.default_rng(20), 120)
    assert verdict == registry.Verdict(kernel.name, 120, "")


def test_every_compiled_loop_is_in_the_list_or_marked_as_inner() -> None:
    assert registry.unregistered() == []


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kernel_says_its_shapes_and_units(kernel: registry.Kernel) -> None:
    assert kernel.shapes
    assert kernel.units
    assert (kernel.cpu.__doc__ or "").strip()


def named(name: str) -> registry.Kernel:
    return next(kernel for kernel in KERNELS if kernel.name == name)


def test_a_twin_that_is_one_bit_off_is_found_and_named() -> None:
    good = named("q16_rows")

    def one_bit_off(x, q, e, flags, first, last):  # type: ignore[no-untyped-def]
        good.cpu(x, q, e, flags, first, last)
        q[last - 1, -1] ^= 1

    broken = dataclasses.replace(good, cpu=one_bit_off)
    verdict = registry.check(broken, np.random.default_rng(0), 5)
    assert verdict.equal == 0
    assert verdict.first.startswith("argument 1: at (")
    line = registry.summary([verdict, registry.check(good, np.random.default_rng(0), 5)])
    assert line == "SUMMARY kernels=2 cases=5 apart=1 (q16_rows)"


def test_a_twin_that_returns_something_else_is_found() -> None:
    good = named("greedy")
    broken = dataclasses.replace(good, cpu=lambda logits: good.cpu(logits) + 1)
    assert registry.check(broken, np.random.default_rng(0), 5).first.startswith("result: ")


def test_a_loop_that_nobody_registered_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtape.core.kernels import glu

    stray = registry.cpu(glu.glu_rows_meaning)
    monkeypatch.setattr(glu, "stray", stray, raising=False)
    assert "kvtape.core.kernels.glu.stray" in registry.unregistered()


def test_zeros_of_both_signs_and_nans_are_compared_by_pattern() -> None:
    assert not registry.same_bits(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    assert not registry.same_bits(0.0, -0.0)
    assert registry.same_bits(np.array([np.nan], np.float32), np.array([np.nan], np.float32))
    assert not registry.same_bits(np.array([1], np.int32), np.array([1], np.int64))
