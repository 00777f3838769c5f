"""What the shared operators mean, over NumPy arrays: slow, clear, without the compiled loops."""

import numpy as np

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64

QMAX = 32639  # 127 * 256 + 127: the largest value whose two digits fit int8
EMIN, EMAX = -63, 63  # so that every sum of two exponents is one normal power of two
LOG2E = f32(1.4426950408889634)

# 2^f on [-1/2, 1/2]: float32 coefficients of f^0 to f^6.
EXP2_COEFFICIENTS = np.array(
    [0x3F800000, 0x3F317218, 0x3E75FDF0, 0x3D6357B6, 0x3C1D952A, 0x3AAF8448, 0x392209C5], np.uint32
).view(f32)


def pow2(e):
    """2^e as float32 from integers e in [-126, 127]."""
    e = np.asarray(e)
    assert e.size == 0 or (e.min() >= -126 and e.max() <= 127), "no normal float32 power of two"
    return ((e.astype(i32) + i32(127)) << i32(23)).view(f32)


def fma(a, b, c):
    """a * b + c with one rounding, elementwise float32.

    The float64 product is exact; its sum with c is rounded to odd, after which the rounding to
    float32 is the only one that shows.
    """
    with np.errstate(all="ignore"):
        product = np.multiply(a, b, dtype=f64)
        addend = np.asarray(c, f32).astype(f64)
        total = np.asarray(product + addend)
        back = total - product
        error = (product - (total - back)) + (addend - back)
        pattern = total.view(i64)
        step = np.where((error > 0) == (total > 0), 1, -1)
        inexact = (error != 0) & np.isfinite(error) & ((pattern & 1) == 0)
        return np.where(inexact, pattern + step, pattern).view(f64).astype(f32)


def exp2c(u):
    """2^u: +0 below -126 and for NaN, +inf from 128 on; never subnormal."""
    u = np.asarray(u, f32)
    inside = (u >= f32(-126)) & (u < f32(128))
    whole = np.rint(np.where(inside, u, f32(0)))
    part = np.where(inside, u, f32(0)) - whole
    y = np.full(u.shape, EXP2_COEFFICIENTS[6], f32)
    for k in range(5, -1, -1):
        y = fma(y, part, EXP2_COEFFICIENTS[k])
    y = (y.view(i32) + (whole.astype(i32) << i32(23))).view(f32)
    return np.where(inside, y, np.where(u >= f32(128), f32(np.inf), f32(0)))


def exp(x):
    """e^x through exp2c, one rounding before it."""
    with np.errstate(all="ignore"):
        return exp2c(np.asarray(x, f32) * LOG2E)


def sigmoid(x):
    """1 / (1 + e^-x), from e^-|x| on both sides of zero."""
    x = np.asarray(x, f32)
    t = exp(-np.abs(x))
    return np.where(x >= 0, f32(1), t) / (f32(1) + t)


def silu(x):
    """x * sigmoid(x)."""
    with np.errstate(all="ignore"):
        return np.asarray(x, f32) * sigmoid(x)


def q16(x):
    """Rows x [..., width] -> q [..., width] int16, e [...] int32, flag [...] bool; x ~ q * 2^e.

    e is the least integer with rint(amax * 2^-e) <= QMAX, clamped; a zero row has EMIN. NaN gives
    q = 0. The flag says that the row held a NaN or needed an exponent above EMAX.
    """
    x = np.asarray(x, f32)
    amax = np.abs(np.where(np.isnan(x), f32(0), x)).max(-1)
    mantissa, k = np.frexp(np.minimum(amax, np.finfo(f32).max))
    least = k - 15 + (np.rint(mantissa * f32(1 << 15)) > QMAX)
    e = np.where(amax == 0, EMIN, np.clip(least, EMIN, EMAX)).astype(i32)
    with np.errstate(all="ignore"):
        scaled = np.rint(x * pow2(-e)[..., None])
    q = np.where(np.isnan(scaled), f32(0), np.clip(scaled, -QMAX, QMAX)).astype(np.int16)
    flag = np.isnan(x).any(-1) | ((amax > 0) & (least > EMAX))
    return q, e, flag


def squares(x):
    """The sum of squares of rows x [..., width], exact in the digits of Q16: float32 [...]."""
    q, e, _ = q16(x)
    with np.errstate(all="ignore"):
        return (q.astype(i64) ** 2).sum(-1).astype(f32) * pow2(2 * e)
