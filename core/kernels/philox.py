"""Random numbers as a function of seed, position and choice alone: Philox4x32-10."""

import numpy as np
from numba.extending import register_jitable

from .registry import cpu, register

u64 = np.uint64
M32, S32 = u64(0xFFFFFFFF), u64(32)
MULTIPLIER_0, MULTIPLIER_1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL_0, WEYL_1 = u64(0x9E3779B9), u64(0xBB67AE85)


def philox_meaning(seed, position, choice):
    """As philox, in whole numbers of any size."""
    mask = 2**32 - 1
    key_0, key_1 = seed & mask, (seed >> 32) & mask
    a, b, c, d = position & mask, choice & mask, 0, 0
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ key_0, q & mask, (p >> 32) ^ d ^ key_1, p & mask
        key_0, key_1 = (key_0 + 0x9E3779B9) & mask, (key_1 + 0xBB67AE85) & mask
    return a | (b << 32)


@register_jitable
def random_bits(seed, position, choice):
    """64 random bits. seed int64 (its pattern is the key); position and choice below 2^32."""
    key_0, key_1 = u64(seed) & M32, u64(seed) >> S32
    a, b, c, d = u64(position) & M32, u64(choice) & M32, u64(0), u64(0)
    for _ in range(10):
        p, q = MULTIPLIER_0 * a, MULTIPLIER_1 * c
        a, b, c, d = (q >> S32) ^ b ^ key_0, q & M32, (p >> S32) ^ d ^ key_1, p & M32
        key_0, key_1 = (key_0 + WEYL_0) & M32, (key_1 + WEYL_1) & M32
    return a | (b << S32)


@cpu
def philox(seed, position, choice):
    """The same, as a kernel."""
    return random_bits(seed, position, choice)


@register_jitable
def high_product(a, b):
    """The upper 64 bits of the 128-bit product of two uint64."""
    a_low, a_high, b_low, b_high = a & M32, a >> S32, b & M32, b >> S32
    middle = a_high * b_low + ((a_low * b_low) >> S32)
    cross = a_low * b_high + (middle & M32)
    return a_high * b_high + (middle >> S32) + (cross >> S32)


def philox_cases(rng):
    """Seeds of both signs, positions up to 2^32."""
    yield 0, 0, 0
    for _ in range(20):
        seed = int(rng.integers(-(2**63), 2**63))
        yield seed, int(rng.integers(0, 2**32)), int(rng.integers(0, 9))


register(
    "philox",
    meaning=philox_meaning,
    cpu=philox,
    shapes="seed, position, choice int64 -> uint64",
    units="position: the token's index in its stream; choice: index among a request's replies",
    cases=philox_cases,
)
