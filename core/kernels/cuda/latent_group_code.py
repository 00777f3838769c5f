"""Products of four warps together (wgmma, sm_90a), as parts of kernels over registers and tiles.

Operand A is in registers, as tensor.py has it for each of the four warps. Operand B is bytes in
shared memory: of every 8 columns 16 bytes each, in the order of A's first two registers, then 16 in
that of its last two; WORDS words in all, the next 8 columns behind them.
"""

from functools import cache

from llvmlite import ir
from numba.core import types

from .target import SIMULATED

WORD, WIDE = ir.IntType(32), ir.IntType(64)
WORDS = 64  # of 8 columns
# Where an operand's other half stands, and its next 8 columns.
SHAPE = (128 >> 4) << 16 | (256 >> 4) << 32


def _act(builder, text):
    kind = ir.FunctionType(ir.VoidType(), [])
    builder.call(ir.InlineAsm(kind, text, "~{memory}", side_effect=True), [])


def _multiply(builder, columns, kinds, sums, a, rows):
    """sums (values, a list) + A by B, begun."""
    count = len(sums)
    listed = ",".join(f"${k}" for k in range(count))
    given = ",".join(f"${2 * count + k}" for k in range(4))
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{columns}k32.s32.{kinds[0]}8.{kinds[1]}8 "
        f"{{{listed}}}, {{{given}}}, ${2 * count + 4}, 1;"
    )
    form = ",".join(["=r"] * count + [str(k) for k in range(count)] + ["r"] * 4 + ["l"])
    values = [*sums, *a, rows]
    kind = ir.FunctionType(ir.LiteralStructType([WORD] * count), [one.type for one in values])
    made = builder.call(ir.InlineAsm(kind, text, form, side_effect=True), values)
    return [builder.extract_value(made, k) for k in range(count)]


def _wait(builder, sums):
    """All products are done; what they gave is read behind this."""
    count = len(sums)
    form = ",".join(["=r"] * count + [str(k) for k in range(count)] + ["~{memory}"])
    kind = ir.FunctionType(ir.LiteralStructType([WORD] * count), [WORD] * count)
    text = "wgmma.wait_group.sync.aligned 0;"
    made = builder.call(ir.InlineAsm(kind, text, form, side_effect=True), sums)
    return [builder.extract_value(made, k) for k in range(count)]


def _held(context, builder, kind, array, count):
    """The places of a local array's first elements."""
    return [_place(context, builder, kind, array, WIDE(k)) for k in range(count)]


if SIMULATED:  # no warps multiply together there
    products = products_done = operand_at = operands_laid = None
else:
    from numba.cuda.extending import intrinsic

    from .tensor import _place, _shared

    @cache
    def products(columns, plan, count, given):
        """products(sums, a, rows): begins products by `columns` columns each.

        plan: (first of sums [count], kinds, first of a [given], bytes from `rows` on); rows is what
        operand_at gives.
        """

        @intrinsic
        def begin(typing, sums, a, rows):
            def emit(context, builder, signature, values):
                places = _held(context, builder, signature.args[0], values[0], count)
                sums_now = [builder.load(one) for one in places]
                operands = _held(context, builder, signature.args[1], values[1], given)
                operands = [builder.load(one) for one in operands]
                _act(builder, "wgmma.fence.sync.aligned;")
                for first, kinds, at, offset in plan:
                    mine = slice(first, first + columns // 2)
                    rows_at = builder.add(values[2], WIDE(offset >> 4))
                    sums_now[mine] = _multiply(
                        builder, columns, kinds, sums_now[mine], operands[at : at + 4], rows_at
                    )
                _act(builder, "wgmma.commit_group.sync.aligned;")
                for one, value in zip(places, sums_now, strict=True):
                    builder.store(value, one)
                return context.get_dummy_value()

            return types.void(sums, a, types.int64), emit

        return begin

    @cache
    def products_done(count):
        """products_done(sums): waits for all that were begun onto sums [count]."""

        @intrinsic
        def done(typing, sums):
            def emit(context, builder, signature, values):
                places = _held(context, builder, signature.args[0], values[0], count)
                now = _wait(builder, [builder.load(one) for one in places])
                for one, value in zip(places, now, strict=True):
                    builder.store(value, one)
                return context.get_dummy_value()

            return types.void(sums), emit

        return done

    @intrinsic
    def operand_at(typing, array, at):
        """Operand B that begins at an element of a shared array, a multiple of 16 bytes."""

        def emit(context, builder, signature, values):
            place = _shared(context, builder, signature.args[0], *values)
            return builder.or_(builder.lshr(place, WIDE(4)), WIDE(SHAPE))

        return types.int64(array, types.int64), emit

    @intrinsic
    def operands_laid(typing):
        """What a thread wrote into shared memory is there for products behind a barrier."""

        def emit(context, builder, signature, values):
            _act(builder, "fence.proxy.async.shared::cta;")
            return context.get_dummy_value()

        return types.void(), emit
