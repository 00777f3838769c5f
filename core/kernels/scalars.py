"""The named rounding operations and what is built of them, in Python and under a compiler alike.

Every name can be called from Python with float32 scalars and from a compiled loop. A compiled loop
uses these names, never bare operators, so that no compiler may fuse or widen what is written. They
take float32 only: a Python float would be a float64, and is refused.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, register_jitable, type_callable

from . import meaning

f32, i32, i64 = np.float32, np.int32, np.int64

QMAX, EMIN, EMAX, LOG2E = meaning.QMAX, meaning.EMIN, meaning.EMAX, meaning.LOG2E
ZERO, ONE, INF = f32(0), f32(1), f32(np.inf)
EXP2_LOW, EXP2_HIGH = f32(-126), f32(128)
C0, C1, C2, C3, C4, C5, C6 = meaning.EXP2_COEFFICIENTS
SIGN_OFF = i32(0x7FFFFFFF)
INF_BITS = i32(0x7F800000)  # above it, with the sign off, stands a NaN
Q_LIMIT = f32(QMAX)


# --- one rounding each: the meaning --------------------------------------------------------------


def mul(a, b):
    """RN(a * b)."""
    with np.errstate(all="ignore"):
        return f32(a) * f32(b)


def add(a, b):
    """RN(a + b)."""
    with np.errstate(all="ignore"):
        return f32(a) + f32(b)


def sub(a, b):
    """RN(a - b)."""
    with np.errstate(all="ignore"):
        return f32(a) - f32(b)


def div(a, b):
    """RN(a / b)."""
    with np.errstate(all="ignore"):
        return f32(a) / f32(b)


def sqrt(a):
    """RN(the root of a)."""
    with np.errstate(all="ignore"):
        return np.sqrt(f32(a))


def fma(a, b, c):
    """RN(a * b + c), rounded once."""
    return f32(meaning.fma(f32(a), f32(b), f32(c)))


def rint(a):
    """The nearest whole number, ties to even."""
    return np.rint(f32(a))


def rn(n):
    """RN of an int64 to float32, directly (through float64 it would round twice)."""
    return i64(n).astype(f32)


def to_int(a):
    """A whole float32 within int32 -> int32."""
    return i32(a)


def bits(a):
    """float32 -> its pattern as int32."""
    return f32(a).view(i32)


def flt(pattern):
    """A pattern as int32 -> float32."""
    return i32(pattern).view(f32)


# --- one rounding each: the machine code ---------------------------------------------------------


def _lower(function, arguments, result, emit):
    """Give a named operation its type (exactly these float32 arguments) and its instruction."""

    def fits(*given):
        for have, want in zip(given, arguments, strict=True):
            whole = isinstance(want, types.Integer) and isinstance(have, types.Integer)
            if have != want and not whole:
                return None
        return result(*arguments)

    # The typer's own parameters are read by the compiler, so each count needs its own.
    typers = (None, lambda a: fits(a), lambda a, b: fits(a, b), lambda a, b, c: fits(a, b, c))
    type_callable(function)(lambda context: typers[len(arguments)])

    @lower_builtin(function, *arguments)
    def _emit(context, builder, signature, values):
        return emit(builder, *values)


def _call(name):
    """An LLVM intrinsic over float32."""

    def emit(builder, *values):
        return builder.call(builder.module.declare_intrinsic(name, [ir.FloatType()]), values)

    return emit


_F, _I = types.float32, types.int32
_lower(mul, (_F, _F), _F, lambda builder, a, b: builder.fmul(a, b))
_lower(add, (_F, _F), _F, lambda builder, a, b: builder.fadd(a, b))
_lower(sub, (_F, _F), _F, lambda builder, a, b: builder.fsub(a, b))
_lower(div, (_F, _F), _F, lambda builder, a, b: builder.fdiv(a, b))
_lower(fma, (_F, _F, _F), _F, lambda builder, a, b, c: builder.fma(a, b, c))
_lower(sqrt, (_F,), _F, _call("llvm.sqrt"))
_lower(rint, (_F,), _F, _call("llvm.rint"))
_lower(rn, (types.int64,), _F, lambda builder, n: builder.sitofp(n, ir.FloatType()))
_lower(to_int, (_F,), _I, lambda builder, a: builder.fptosi(a, ir.IntType(32)))
_lower(bits, (_F,), _I, lambda builder, a: builder.bitcast(a, ir.IntType(32)))
_lower(flt, (_I,), _F, lambda builder, n: builder.bitcast(n, ir.FloatType()))


# --- written once --------------------------------------------------------------------------------


@register_jitable
def absolute_bits(x):
    """The pattern of |x|; as int32 it orders as |x| does, and every NaN is above INF_BITS."""
    return i32(bits(x) & SIGN_OFF)


@register_jitable
def pow2(e):
    """2^e for an integer e in [-126, 127]."""
    return flt(i32(i32(i32(e) + i32(127)) << i32(23)))


@register_jitable
def exp2c(u):
    """2^u: +0 below -126 and for NaN, +inf from 128 on; never subnormal."""
    if not (u >= EXP2_LOW):
        return ZERO
    if u >= EXP2_HIGH:
        return INF
    n = rint(u)
    f = sub(u, n)
    y = fma(C6, f, C5)
    y = fma(y, f, C4)
    y = fma(y, f, C3)
    y = fma(y, f, C2)
    y = fma(y, f, C1)
    y = fma(y, f, C0)
    return flt(i32(bits(y) + i32(to_int(n) << i32(23))))


@register_jitable
def exp(x):
    """e^x through exp2c, one rounding before it."""
    return exp2c(mul(x, LOG2E))


@register_jitable
def sigmoid(x):
    """1 / (1 + e^-x), from t = e^-|x|: 1 / (1 + t) or t / (1 + t)."""
    t = exp2c(mul(-abs(x), LOG2E))
    top = ONE if x >= ZERO else t
    return div(top, add(ONE, t))


@register_jitable
def silu(x):
    """x * sigmoid(x)."""
    return mul(x, sigmoid(x))


@register_jitable
def least_exponent(amax):
    """The least e with rint(amax * 2^-e) <= QMAX, not clamped; EMIN for 0, above EMAX for inf."""
    if amax == ZERO:
        return i32(EMIN)
    pattern = bits(amax)
    e = i32(i32(pattern >> i32(23)) - i32(141))
    # A mantissa from here on rounds to QMAX + 1 at this exponent (the tie goes to even).
    if i32(pattern & i32(0x7FFFFF)) >= i32(0x7EFF00):
        e = i32(e + i32(1))
    return e


@register_jitable
def row_exponent(amax):
    """The Q16 exponent of a row whose largest magnitude is amax (not NaN), in [EMIN, EMAX]."""
    return i32(min(max(least_exponent(amax), i32(EMIN)), i32(EMAX)))


@register_jitable
def q16_value(x, scale):
    """rint(x * scale) within +-QMAX as int16; NaN gives 0. scale = pow2(-e)."""
    v = rint(mul(x, scale))
    if v != v:
        return np.int16(0)
    if v > Q_LIMIT:
        return np.int16(QMAX)
    if v < -Q_LIMIT:
        return np.int16(-QMAX)
    return np.int16(to_int(v))
