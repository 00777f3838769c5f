"""The innermost loop of the recurrence: one row through a tile of values, its sums in registers.

A tile is every key by some neighbouring values. Values are the lanes of vectors, so a lane sees the
roundings of the definition in their order, whatever the width of a vector. The decayed state is
made twice, which costs less than storing it between.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

CHAINS = 4  # of a sum over keys, by key modulo 4
LANES, VECTORS = 8, 2  # eight chains of vectors keep two units of fma busy
TILE = LANES * VECTORS

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


class _Lanes:
    """Vectors of some lanes, and what is done with them."""

    def __init__(self, builder, lanes):
        self.builder, self.lanes = builder, lanes
        self.kind = ir.VectorType(_F32, lanes)

    def splat(self, value):
        nothing = ir.Constant(self.kind, ir.Undefined)
        one = self.builder.insert_element(nothing, value, _I32(0))
        first = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, nothing, first)

    def everywhere(self, data, index):
        return self.splat(self.builder.load(self.builder.gep(data, [index])))

    def place(self, data, index, vector):
        at = self.builder.add(index, _I64(vector * self.lanes))
        return self.builder.bitcast(self.builder.gep(data, [at]), self.kind.as_pointer())

    def load(self, place):
        return self.builder.load(place, align=4)

    def of_key(self, data, first, stride, key, vector):
        """The place of one key's values in a state that begins at `first`."""
        at = self.builder.add(first, self.builder.mul(stride, key))
        return self.place(data, at, vector)

    def fma(self, a, b, c):
        kind = ir.FunctionType(self.kind, [self.kind] * 3)
        name = f"llvm.fma.v{self.lanes}f32"
        call = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(call, [a, b, c])

    def zeros(self, vectors):
        """Sums of every chain and vector, at +0."""
        zero = ir.Constant(self.kind, [0.0] * self.lanes)
        sums = [
            [cgutils.alloca_once(self.builder, self.kind) for _ in range(vectors)]
            for _ in range(CHAINS)
        ]
        for slot in (slot for chain in sums for slot in chain):
            self.builder.store(zero, slot)
        return sums

    def add_product(self, slot, a, b):
        self.builder.store(self.fma(a, b, self.builder.load(slot)), slot)

    def joined(self, sums, vector):
        c = [self.builder.load(chain[vector]) for chain in sums]
        return self.builder.fadd(self.builder.fadd(c[0], c[1]), self.builder.fadd(c[2], c[3]))


def _over_keys(builder, keys, body):
    """body(key, chain) for every key, in order."""
    with cgutils.for_range(builder, builder.udiv(keys, _I64(CHAINS)), intp=_I64) as loop:
        first = builder.mul(loop.index, _I64(CHAINS))
        for chain in range(CHAINS):
            body(builder.add(first, _I64(chain)), chain)


def _tile(lanes, vectors):
    """An intrinsic for tiles of lanes * vectors values."""

    def generate(context, builder, signature, args):
        def data(k):
            return make_array(signature.args[k])(context, builder, args[k]).data

        source, target, q, k, a, v, o = (data(i) for i in (0, 3, 7, 8, 9, 11, 14))
        row, keys, each = args[10], args[6], range(vectors)
        simd = _Lanes(builder, lanes)

        def decayed(key, vector):
            before = simd.load(simd.of_key(source, args[1], args[2], key, vector))
            return builder.fmul(before, simd.everywhere(a, builder.add(row, key)))

        recalled = simd.zeros(vectors)

        def recall(key, chain):
            at = simd.everywhere(k, builder.add(row, key))
            for vector in each:
                simd.add_product(recalled[chain][vector], decayed(key, vector), at)

        _over_keys(builder, keys, recall)
        beta = simd.splat(args[13])
        wanted = [simd.load(simd.place(v, args[12], vector)) for vector in each]
        apart = [
            builder.fmul(beta, builder.fsub(wanted[vector], simd.joined(recalled, vector)))
            for vector in each
        ]
        read = simd.zeros(vectors)

        def write(key, chain):
            at, by = (simd.everywhere(x, builder.add(row, key)) for x in (k, q))
            for vector in each:
                after = simd.fma(at, apart[vector], decayed(key, vector))
                place = simd.of_key(target, args[4], args[5], key, vector)
                builder.store(after, place, align=4)
                simd.add_product(read[chain][vector], after, by)

        _over_keys(builder, keys, write)
        for vector in each:
            place = simd.place(o, args[15], vector)
            builder.store(simd.joined(read, vector), place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def tile(typing, source, so, ss, target, to, ts, keys, q, k, a, row, v, vo, beta, o, oo):
        """State after a row from the state before it, and the row's output, for a tile of values.

        Key i stands at so + ss i of source (before) and at to + ts i of target (after; it may be
        the same place); q, k, a of the row at row + i; v at vo, o at oo; all [.] float32 but beta,
        a float32. keys: a multiple of 4.
        """
        at = types.int64
        arguments = (source, at, at, target, at, at, at, q, k, a, at, v, at, types.float32, o, at)
        return types.void(*arguments), generate

    return tile


wide_tile = _tile(LANES, VECTORS)
small_tile = _tile(4, 1)
