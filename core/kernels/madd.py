"""The innermost loops: exact int16 dot products whose sums stay in vector registers.

Operands.  Blocks are 16 outputs wide: w [pairs, 16, 2] int16, a line of 64 bytes for each pair of
inputs.  x is a row of pairs, seen as int32: one broadcast multiplies a pair by 16 outputs.

Bounds.  |x|, |w| <= 32639, so a pair sum t is at most 2 * 32639^2 < 2^31: exact in int32.
`wide` keeps two int32 sums a lane: low = sum t modulo 2^32, high = sum (t >> 16).  As
|t >> 16| <= 2^15, high is exact below 2^16 pairs; rest = sum (t & 0xFFFF) < 65536 * 2^16 = 2^32 and
low = 65536 high + rest, so rest = low - 65536 high modulo 2^32, read as unsigned, is exact.
The dot product 65536 high + rest is below 2^17 * 2^30 = 2^47: float64 holds it exactly, and its one
rounding to float32 is that of the integer.  So `wide` is right for at most 2^16 pairs.
`narrow` keeps one int32 sum: with |x| <= 2048 (digits of a probability) and 16 pairs it is at most
32 * 2048 * 32639 < 2^31.
A pair of -32768 by -32768 wraps: only poison holds -32768, and no caller uses a poisoned lane.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

OUTPUTS = 16  # outputs of a block
WIDE_PAIRS = 1 << 16
NARROW_PAIRS = 16
AHEAD_LINES, AHEAD_ROWS = 16, 2
DIGIT_BITS = 11  # of the low digit of a probability

_I8, _I16, _I32, _I64 = (ir.IntType(width) for width in (8, 16, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()


def route():
    """The instructions in use: "avx512", "avx2" or "portable", by what numba compiles for.

    Not by what the processor has: an intrinsic that the target lacks aborts the process.
    """
    features = set(cpu_target.target_context.codegen().magic_tuple()[2].split(","))
    if {"+avx512f", "+avx512bw"} <= features:
        return "avx512"
    return "avx2" if "+avx2" in features else "portable"


ROUTE = route()
# What 16 registers of 256 bits hold, or 32 of 512; the portable form is that of the latter.
LANES = 8 if ROUTE == "avx2" else 16  # of an int32 vector
WIDE_ROWS = 3 if ROUTE == "avx2" else 6
_VECTORS = OUTPUTS // LANES
_INTRINSIC = {"avx512": "llvm.x86.avx512.pmaddw.d.512", "avx2": "llvm.x86.avx2.pmadd.wd"}


def _vector(kind, lanes=LANES):
    return ir.VectorType(kind, lanes)


def _splat(builder, value, lanes=LANES):
    lane0 = ir.Constant(_vector(value.type, 1), ir.Undefined)
    one = builder.insert_element(lane0, value, _I32(0))
    return builder.shuffle_vector(one, lane0, ir.Constant(_vector(_I32, lanes), [0] * lanes))


def _constant(value, kind, lanes=LANES):
    return ir.Constant(_vector(kind, lanes), [value] * lanes)


def _pairs_madd(builder, x, w):
    """x, w [2 * LANES] int16 -> [LANES] int32: products of pairs, added."""
    if ROUTE in _INTRINSIC:
        kind = ir.FunctionType(_vector(_I32), [x.type, w.type])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, _INTRINSIC[ROUTE]), [x, w]
        )
    products = []
    for first in (0, 1):
        lanes = ir.Constant(_vector(_I32), list(range(first, 2 * LANES, 2)))
        halves = [builder.sext(builder.shuffle_vector(v, v, lanes), _vector(_I32)) for v in (x, w)]
        products.append(builder.mul(*halves))
    return builder.add(*products)


def _loop(builder, pairs, unroll, body):
    """body(index) for every pair, `unroll` of them a turn."""
    turns = builder.udiv(pairs, _I64(unroll))
    with cgutils.for_range(builder, turns, intp=_I64) as loop:
        first = builder.mul(loop.index, _I64(unroll))
        for step in range(unroll):
            body(builder.add(first, _I64(step)))
    if unroll == 1:
        return
    done = builder.mul(turns, _I64(unroll))
    with cgutils.for_range(builder, builder.sub(pairs, done), intp=_I64) as loop:
        body(builder.add(done, loop.index))


def _at(builder, array, offset):
    return builder.gep(array.data, [offset])


def _load_x(builder, row, pair):
    value = _splat(builder, builder.load(builder.gep(row, [pair])))
    return builder.bitcast(value, _vector(_I16, 2 * LANES))


def _load_w(builder, block, pair, vector):
    """One vector of a block's line; the block's pointer counts int32."""
    place = builder.add(builder.mul(pair, _I64(OUTPUTS)), _I64(vector * LANES))
    pointer = builder.bitcast(builder.gep(block, [place]), _vector(_I16, 2 * LANES).as_pointer())
    return builder.load(pointer, align=4)


def _ask_for(builder, place):
    """Ask for the line of a place. It may be anywhere: asking is never an access."""
    pointer = builder.bitcast(place, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    builder.call(prefetch, [pointer, _I32(0), _I32(3), _I32(1)])  # to read, to keep, data


@intrinsic
def ask_for(typing, array, index):
    """Ask for the line of the cache that holds array[index], to be read soon."""

    def generate(context, builder, signature, args):
        array = make_array(signature.args[0])(context, builder, args[0])
        _ask_for(builder, _at(builder, array, args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _ask_for_w(builder, block, pair):
    """Ask for a line well ahead: few rows use lines faster than the core fetches by itself."""
    place = builder.add(builder.mul(pair, _I64(OUTPUTS)), _I64(AHEAD_LINES * OUTPUTS))
    _ask_for(builder, builder.gep(block, [place]))


def _accumulators(builder, count):
    zero = _constant(0, _I32)
    slots = [cgutils.alloca_once(builder, zero.type) for _ in range(count)]
    for slot in slots:
        builder.store(zero, slot)
    return slots


def _add_to(builder, slot, value):
    builder.store(builder.add(builder.load(slot), value), slot)


def _rounded(builder, low, high):
    """float32 of the exact sums: one rounding."""
    rest = builder.sub(low, builder.shl(high, _constant(16, _I32)))
    wide = _vector(_F64)
    exact = builder.fadd(
        builder.fmul(builder.sitofp(high, wide), _constant(65536.0, _F64)),
        builder.uitofp(rest, wide),
    )
    return builder.fptrunc(exact, _vector(_F32))


def _scaled(builder, value, row_exponent, exponents, vector):
    """value * 2^(row_exponent + exponents), the power made in the exponent field."""
    pointer = builder.gep(exponents, [_I64(vector * LANES)])
    lanes = builder.load(builder.bitcast(pointer, _vector(_I8).as_pointer()), align=1)
    total = builder.add(
        builder.sext(lanes, _vector(_I32)), _splat(builder, builder.add(row_exponent, _I32(127)))
    )
    power = builder.bitcast(builder.shl(total, _constant(23, _I32)), _vector(_F32))
    return builder.fmul(value, power)


def _rows_of(builder, array, first, stride, rows):
    """Pointers to the rows of a tile."""
    starts = [builder.add(first, builder.mul(stride, _I64(m))) for m in range(rows)]
    return [_at(builder, array, start) for start in starts]


def _store_scaled(builder, sums, row_exponent, exponents, out, add):
    """One row of a block: (low, high) of each vector -> out, 16 float32."""
    for vector, (low, high) in enumerate(sums):
        value = _rounded(builder, builder.load(low), builder.load(high))
        value = _scaled(builder, value, row_exponent, exponents, vector)
        place = builder.gep(out, [_I64(vector * LANES)])
        pointer = builder.bitcast(place, value.type.as_pointer())
        total = builder.fadd(builder.load(pointer, align=4), value)
        builder.store(builder.select(add, total, value), pointer, align=4)


def _wide(rows):
    """An intrinsic: `rows` rows of x by a block of w."""

    def generate(context, builder, signature, args):
        arrays = [
            make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 5, 7, 10)
        ]
        xo, xs, wo, eo, fo, pairs = args[1], args[2], args[4], args[6], args[8], args[9]
        x = _rows_of(builder, arrays[0], xo, xs, rows)
        w = builder.bitcast(_at(builder, arrays[1], wo), _I32.as_pointer())
        sums = [
            [_accumulators(builder, 2) for _ in range(_VECTORS)] for _ in range(rows)
        ]  # (low, high) of each row's vectors

        def step(pair):
            if rows <= AHEAD_ROWS:
                _ask_for_w(builder, w, pair)
            lines = [_load_w(builder, w, pair, v) for v in range(_VECTORS)]
            for m in range(rows):
                value = _load_x(builder, x[m], pair)
                for (low, high), line in zip(sums[m], lines, strict=True):
                    t = _pairs_madd(builder, value, line)
                    _add_to(builder, low, t)
                    _add_to(builder, high, builder.ashr(t, _constant(16, _I32)))

        _loop(builder, pairs, max(1, 4 // rows), step)
        exponents = _at(builder, arrays[3], fo)
        y = _rows_of(builder, arrays[4], args[11], args[12], rows)
        for m in range(rows):
            row_exponent = builder.load(_at(builder, arrays[2], builder.add(eo, _I64(m))))
            row_exponent = builder.sext(row_exponent, _I32)
            _store_scaled(builder, sums[m], row_exponent, exponents, y[m], args[13])
        return context.get_dummy_value()

    @intrinsic
    def wide(typing, x, xo, xs, w, wo, ex, eo, ew, fo, pairs, y, yo, ys, add):
        """y[yo + ys m + o] (+)= RN(dot) * 2^(ex[eo + m] + ew[fo + o]), for 16 outputs o.

        x [.] int32, row m at xo + xs m; w [.] int16, the block at wo; ex, ew [.] int8;
        y [.] float32; add: bool.
        """
        at = types.int64
        signature = types.void(x, at, at, w, at, ex, at, ew, at, at, y, at, at, types.boolean)
        return signature, generate

    return wide


def _add_digits(builder, high, low, out):
    """out [LANES] int64 += 2^DIGIT_BITS * high + low."""
    kind = _vector(_I64)
    pointer = builder.bitcast(out, kind.as_pointer())
    high, low = (builder.sext(builder.load(slot), kind) for slot in (high, low))
    both = builder.add(builder.shl(high, _constant(DIGIT_BITS, _I64)), low)
    builder.store(builder.add(builder.load(pointer, align=8), both), pointer, align=8)


def _narrow(rows):
    """An intrinsic: rows of digits, high and low by turns, by one block, added to int64 sums."""

    def generate(context, builder, signature, args):
        arrays = [make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 6)]
        x = _rows_of(builder, arrays[0], args[1], args[2], rows)
        w = builder.bitcast(_at(builder, arrays[1], args[4]), _I32.as_pointer())
        sums = [_accumulators(builder, _VECTORS) for _ in range(rows)]

        def step(pair):
            lines = [_load_w(builder, w, pair, v) for v in range(_VECTORS)]
            for m in range(rows):
                value = _load_x(builder, x[m], pair)
                for slot, line in zip(sums[m], lines, strict=True):
                    _add_to(builder, slot, _pairs_madd(builder, value, line))

        _loop(builder, args[5], max(1, 6 // rows), step)
        n = _rows_of(builder, arrays[2], args[7], _I64(OUTPUTS), rows // 2)
        for query, out in enumerate(n):
            for v in range(_VECTORS):
                place = builder.gep(out, [_I64(v * LANES)])
                _add_digits(builder, sums[2 * query][v], sums[2 * query + 1][v], place)
        return context.get_dummy_value()

    @intrinsic
    def narrow(typing, x, xo, xs, w, wo, pairs, n, no):
        """n[no + 16 a + o] += 2048 dot(row 2 a) + dot(row 2 a + 1), 16 pairs at most; n int64."""
        at = types.int64
        return types.void(x, at, at, w, at, at, n, at), generate

    return narrow


wide1, wide2, wide3, wide6 = (_wide(rows) for rows in (1, 2, 3, 6))
narrow2, narrow4, narrow6 = (_narrow(rows) for rows in (2, 4, 6))
