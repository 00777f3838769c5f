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
LANES = 16 if ROUTE == "avx512" else 8  # of an int32 vector
WIDE_ROWS = 6 if ROUTE == "avx512" else 3  # what fits the registers
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


def _wide(rows, blocks):
    """An intrinsic: `rows` rows of x by `blocks` blocks of w."""

    def generate(context, builder, signature, args):
        arrays = {
            k: make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 5, 7, 10)
        }
        xo, xs, wo, eo, fo, pairs = args[1], args[2], args[4], args[6], args[8], args[9]
        yo, ys, add = args[11], args[12], args[13]
        x = [
            _at(builder, arrays[0], builder.add(xo, builder.mul(xs, _I64(m)))) for m in range(rows)
        ]
        size = builder.mul(pairs, _I64(2 * OUTPUTS))
        w = [
            _at(builder, arrays[3], builder.add(wo, builder.mul(size, _I64(b))))
            for b in range(blocks)
        ]
        w = [builder.bitcast(pointer, _I32.as_pointer()) for pointer in w]
        tiles = [(m, b, v) for b in range(blocks) for v in range(_VECTORS) for m in range(rows)]
        low = dict(zip(tiles, _accumulators(builder, len(tiles)), strict=True))
        high = dict(zip(tiles, _accumulators(builder, len(tiles)), strict=True))

        def step(pair):
            for block in range(blocks):
                lines = [_load_w(builder, w[block], pair, v) for v in range(_VECTORS)]
                for m in range(rows):
                    value = _load_x(builder, x[m], pair)
                    for v, line in enumerate(lines):
                        t = _pairs_madd(builder, value, line)
                        _add_to(builder, low[m, block, v], t)
                        half = builder.ashr(t, _constant(16, _I32))
                        _add_to(builder, high[m, block, v], half)

        _loop(builder, pairs, max(1, 4 // (rows * blocks)), step)
        for m in range(rows):
            row_exponent = builder.load(_at(builder, arrays[5], builder.add(eo, _I64(m))))
            row_exponent = builder.sext(row_exponent, _I32)
            start = builder.add(yo, builder.mul(ys, _I64(m)))
            for block in range(blocks):
                exponents = _at(builder, arrays[7], builder.add(fo, _I64(block * OUTPUTS)))
                for vector in range(_VECTORS):
                    key = m, block, vector
                    value = _rounded(builder, builder.load(low[key]), builder.load(high[key]))
                    value = _scaled(builder, value, row_exponent, exponents, vector)
                    place = builder.add(start, _I64(block * OUTPUTS + vector * LANES))
                    pointer = builder.bitcast(
                        _at(builder, arrays[10], place), value.type.as_pointer()
                    )
                    total = builder.fadd(builder.load(pointer, align=4), value)
                    builder.store(builder.select(add, total, value), pointer, align=4)
        return context.get_dummy_value()

    @intrinsic
    def wide(typing, x, xo, xs, w, wo, ex, eo, ew, fo, pairs, y, yo, ys, add):
        """y[yo + ys m + 16 b + o] (+)= RN(dot) * 2^(ex[eo + m] + ew[fo + 16 b + o]).

        x [.] int32, row m at xo + xs m; w [.] int16, block b at wo + 32 pairs b; ex, ew [.] int8;
        y [.] float32; add: bool.
        """
        place = types.int64
        signature = types.void(
            x, place, place, w, place, ex, place, ew, place, place, y, place, place, types.boolean
        )
        return signature, generate

    return wide


def _narrow(rows):
    """An intrinsic: rows of digits, high and low by turns, by one block, added to int64 sums."""

    def generate(context, builder, signature, args):
        arrays = {k: make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 6)}
        xo, xs, wo, pairs, no = args[1], args[2], args[4], args[5], args[7]
        x = [
            _at(builder, arrays[0], builder.add(xo, builder.mul(xs, _I64(m)))) for m in range(rows)
        ]
        w = builder.bitcast(_at(builder, arrays[3], wo), _I32.as_pointer())
        tiles = [(m, v) for v in range(_VECTORS) for m in range(rows)]
        sums = dict(zip(tiles, _accumulators(builder, len(tiles)), strict=True))

        def step(pair):
            lines = [_load_w(builder, w, pair, v) for v in range(_VECTORS)]
            for m in range(rows):
                value = _load_x(builder, x[m], pair)
                for v, line in enumerate(lines):
                    _add_to(builder, sums[m, v], _pairs_madd(builder, value, line))

        _loop(builder, pairs, max(1, 6 // rows), step)
        kind = _vector(_I64)
        for m in range(0, rows, 2):
            for v in range(_VECTORS):
                place = builder.add(no, _I64(m // 2 * OUTPUTS + v * LANES))
                pointer = builder.bitcast(_at(builder, arrays[6], place), kind.as_pointer())
                parts = [builder.sext(builder.load(sums[m + d, v]), kind) for d in (0, 1)]
                both = builder.add(builder.shl(parts[0], _constant(DIGIT_BITS, _I64)), parts[1])
                builder.store(builder.add(builder.load(pointer, align=8), both), pointer, align=8)
        return context.get_dummy_value()

    @intrinsic
    def narrow(typing, x, xo, xs, w, wo, pairs, n, no):
        """n[no + 16 a + o] += 2048 dot(row 2 a) + dot(row 2 a + 1), 16 pairs at most; n int64."""
        place = types.int64
        return types.void(x, place, place, w, place, place, n, place), generate

    return narrow


wide1 = _wide(1, 1)
wide2 = _wide(2, 1)
wide3 = _wide(3, 1)
wide6 = _wide(6, 1)
wide1x2 = _wide(1, 2)
narrow2 = _narrow(2)
narrow4 = _narrow(4)
narrow6 = _narrow(6)
