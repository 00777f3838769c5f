"""What tensor cores need, by name: products of bytes, 16-byte moves, columns of shared tiles.

Each is one instruction, or a few, on a device, and plain Python under the simulator, where the
lanes of a warp tell one another what they hold.

product_XY(a0..a3, b0, b1, c0..c3) is mma.m16n8k32: lane 4 g + t holds rows g and g + 8 of A (four
bytes at 4 t, then at 16 + 4 t), column g of B alike, and of C row g, columns 2 t and 2 t + 1, then
the same of row g + 8. X, Y: s signed bytes, u unsigned ones.
"""

import numpy as np
from numba import cuda
from numba.core import types

from .intrinsics import _instruction, _signed
from .target import SIMULATED, device

i32 = np.int32


def _byte_of(word, which):
    return int(word) >> 8 * which & 255


def _low_bytes(a, b):
    return _signed(sum(_byte_of((a, b)[k // 2], 2 * (k % 2)) << 8 * k for k in range(4)))


def _high_bytes(a, b):
    return _signed(sum(_byte_of((a, b)[k // 2], 2 * (k % 2) + 1) << 8 * k for k in range(4)))


# The low, or the high, bytes of the four int16 of two words, in their order.
low_bytes = _instruction("low_bytes", "prmt.b32 $0, $1, $2, 0x6420;", 2, _low_bytes)
high_bytes = _instruction("high_bytes", "prmt.b32 $0, $1, $2, 0x7531;", 2, _high_bytes)

if SIMULATED:
    from .warps import everyone

    def _operand(told, rows, words, signed):
        """A [16, 32] or B [8, 32] as numbers, from the registers that every lane told."""
        made = np.zeros((rows, 32), np.int64)
        for lane, held in enumerate(told):
            for at, word in enumerate(held):
                row = lane // 4 + 8 * (at % (words // 2))
                start = 4 * (lane % 4) + 16 * (at // (words // 2))
                for k in range(4):
                    byte = _byte_of(word, k)
                    made[row, start + k] = byte - 256 if signed and byte > 127 else byte
        return made

    def _product(signed_a, signed_b):
        def product(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
            told, lane = everyone(((a0, a1, a2, a3), (b0, b1))), cuda.threadIdx.x
            a = _operand([one[0] for one in told], 16, 4, signed_a)
            b = _operand([one[1] for one in told], 8, 2, signed_b)
            g, t = lane // 4, lane % 4
            places = ((g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1))
            both = zip((c0, c1, c2, c3), places, strict=True)
            return tuple(_signed(int(c) + int(a[row] @ b[column])) for c, (row, column) in both)

        return device(product)

    product_ss, product_su = _product(True, True), _product(True, False)
    product_us, product_uu = _product(False, True), _product(False, False)

    @device
    def four_words(array, at):
        """Four neighbouring int32 of an array [.]; `at` is a multiple of 4."""
        return array[at], array[at + 1], array[at + 2], array[at + 3]

    @device
    def put_four(array, at, a, b, c, d):
        """Store four neighbouring int32 of an array [.]; `at` is a multiple of 4."""
        array[at], array[at + 1], array[at + 2], array[at + 3] = a, b, c, d

    @device
    def two_of(array, at):
        """Two neighbouring float32 of an array [.]; `at` is a multiple of 2."""
        return array[at], array[at + 1]

    @device
    def put_two(array, at, a, b):
        """Store two neighbouring float32 of an array [.]; `at` is a multiple of 2."""
        array[at], array[at + 1] = a, b

    put_floats = put_four

    @device
    def put_words(array, at, a, b):
        """Store two neighbouring int32 of an array [.]; `at` is a multiple of 2."""
        array[at], array[at + 1] = a, b

    @device
    def columns_of(array, at):
        """Of 32 rows of 8 int16, lane l naming row l's first word: pairs of neighbouring rows.

        Lane 4 g + t gets of column g the rows 8 m + 2 t and 8 m + 2 t + 1, for m of 0 to 3.
        """
        starts, lane = everyone(at), cuda.threadIdx.x
        g, t = lane // 4, lane % 4

        def digit(row):
            return int(array[starts[row] + g // 2]) >> 16 * (g % 2) & 0xFFFF

        rows = (8 * m + 2 * t for m in range(4))
        return tuple(_signed(digit(row) | digit(row + 1) << 16) for row in rows)

    @device
    def copy_four(to, at, source, start):
        """Four neighbouring words into shared memory, when copies_done says so."""
        for k in range(4):
            to[at + k] = source[start + k]

    @device
    def copy_one(to, at, source, start):
        """A word into shared memory, when copies_done says so."""
        to[at] = source[start]

    @device
    def copies_end():
        """The copies since the last end are a group."""

    @device
    def copies_done(left):
        """Wait until all of a thread's groups but the last `left` have arrived; 0 or 1."""

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    WORD, WIDE = ir.IntType(32), ir.IntType(64)
    QUAD = ir.LiteralStructType([WORD] * 4)
    FOUR = types.UniTuple(types.int32, 4)

    def _product(kinds):
        text = (
            f"mma.sync.aligned.m16n8k32.row.col.s32.{kinds[0]}8.{kinds[1]}8.s32 "
            "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        )
        form = ",".join(["=r"] * 4 + ["r"] * 10)
        inline = ir.InlineAsm(ir.FunctionType(QUAD, [WORD] * 10), text, form)

        def emit(context, builder, signature, values):
            made = builder.call(inline, values)
            each = [builder.extract_value(made, k) for k in range(4)]
            return context.make_tuple(builder, signature.return_type, each)

        def product(typing, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
            return FOUR(*[types.int32] * 10), emit

        product.__name__ = f"product_{kinds}"
        return intrinsic(product)

    product_ss, product_su = _product("ss"), _product("su")
    product_us, product_uu = _product("us"), _product("uu")

    def _place(context, builder, kind, array, at):
        given = context.make_array(kind)(context, builder, value=array)
        return builder.gep(given.data, [at])

    def _shared(context, builder, kind, array, at):
        """The address in shared memory's own space of an array's element."""
        whole = builder.ptrtoint(_place(context, builder, kind, array, at), WIDE)
        text = "cvta.to.shared.u64 $0, $1;"
        inline = ir.InlineAsm(ir.FunctionType(WIDE, [WIDE]), text, "=l,l")
        return builder.call(inline, [whole])

    @intrinsic
    def four_words(typing, array, at):
        """Four neighbouring int32 of an array [.] in one load; `at` is a multiple of 4."""

        def emit(context, builder, signature, values):
            quad = ir.VectorType(WORD, 4)
            place = _place(context, builder, signature.args[0], *values)
            pointer = builder.bitcast(place, quad.as_pointer(place.type.addrspace))
            loaded = builder.load(pointer, align=16)
            each = [builder.extract_element(loaded, WORD(k)) for k in range(4)]
            return context.make_tuple(builder, signature.return_type, each)

        return FOUR(array, types.int64), emit

    @intrinsic
    def two_of(typing, array, at):
        """Two neighbouring float32 of an array [.] in one load; `at` is a multiple of 2."""

        def emit(context, builder, signature, values):
            pair = ir.VectorType(ir.FloatType(), 2)
            place = _place(context, builder, signature.args[0], *values)
            pointer = builder.bitcast(place, pair.as_pointer(place.type.addrspace))
            loaded = builder.load(pointer, align=8)
            each = [builder.extract_element(loaded, WORD(k)) for k in range(2)]
            return context.make_tuple(builder, signature.return_type, each)

        return types.UniTuple(types.float32, 2)(array, types.int64), emit

    def _put(name, count, kind, element):
        def emit(context, builder, signature, values):
            pair = ir.VectorType(element, count)
            place = _place(context, builder, signature.args[0], *values[:2])
            whole = ir.Constant(pair, ir.Undefined)
            for k in range(count):
                whole = builder.insert_element(whole, values[2 + k], WORD(k))
            pointer = builder.bitcast(place, pair.as_pointer(place.type.addrspace))
            builder.store(whole, pointer, align=4 * count)
            return context.get_dummy_value()

        def two(typing, array, at, a, b):
            return types.void(array, types.int64, kind, kind), emit

        def four(typing, array, at, a, b, c, d):
            return types.void(array, types.int64, kind, kind, kind, kind), emit

        put = two if count == 2 else four
        put.__name__ = name
        return intrinsic(put)

    # Store neighbouring int32, or float32, of an array [.] at once; `at` is a multiple of as many.
    put_two = _put("put_two", 2, types.float32, ir.FloatType())
    put_words = _put("put_words", 2, types.int32, WORD)
    put_floats = _put("put_floats", 4, types.float32, ir.FloatType())
    put_four = _put("put_four", 4, types.int32, WORD)

    @intrinsic
    def columns_of(typing, array, at):
        """Of 32 rows of 8 int16, lane l naming row l's first word: pairs of neighbouring rows.

        Lane 4 g + t gets of column g the rows 8 m + 2 t and 8 m + 2 t + 1, for m of 0 to 3.
        """

        def emit(context, builder, signature, values):
            place = _shared(context, builder, signature.args[0], *values)
            text = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];"
            kind = ir.FunctionType(QUAD, [WIDE])
            form = "=r,=r,=r,=r,l,~{memory}"
            made = builder.call(ir.InlineAsm(kind, text, form, side_effect=True), [place])
            each = [builder.extract_value(made, k) for k in range(4)]
            return context.make_tuple(builder, signature.return_type, each)

        return FOUR(array, types.int64), emit

    def _copy(name, bytes_, cached):
        def emit(context, builder, signature, values):
            to = _shared(context, builder, signature.args[0], *values[:2])
            source = _place(context, builder, signature.args[2], *values[2:])
            kind = ir.FunctionType(ir.VoidType(), [WIDE, WIDE])
            text = f"cp.async.{cached}.shared.global [$0], [$1], {bytes_};"
            inline = ir.InlineAsm(kind, text, "l,l,~{memory}", side_effect=True)
            builder.call(inline, [to, builder.ptrtoint(source, WIDE)])
            return context.get_dummy_value()

        def copy(typing, to, at, source, start):
            return types.void(to, types.int64, source, types.int64), emit

        copy.__name__ = name
        return intrinsic(copy)

    copy_four, copy_one = _copy("copy_four", 16, "cg"), _copy("copy_one", 4, "ca")

    def _alone(builder, text):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])

    @intrinsic
    def copies_end(typing):
        """The copies since the last end are a group."""

        def emit(context, builder, signature, values):
            _alone(builder, "cp.async.commit_group;")
            return context.get_dummy_value()

        return types.void(), emit

    def _waits(left):
        @intrinsic
        def waits(typing):
            def emit(context, builder, signature, values):
                _alone(builder, f"cp.async.wait_group {left};")
                return context.get_dummy_value()

            return types.void(), emit

        return waits

    _wait_all, _wait_others = _waits(0), _waits(1)

    @device
    def copies_done(left):
        """Wait until all of a thread's groups but the last `left` have arrived; 0 or 1."""
        if left:
            _wait_others()
        else:
            _wait_all()
