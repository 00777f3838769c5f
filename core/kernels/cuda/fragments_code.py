"""The machine code of fragments.py, written with LLVM's builder: loads, bytes apart, mma, sums."""

from llvmlite import ir

from .fragments import COLUMNS, SUMS
from .planes import PLANE, TILE

WORD, WIDE, BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8)
QUAD = ir.LiteralStructType([WORD] * 4)
SIGNED, UNSIGNED = "s8", "u8"
# What each of the three sums takes: (plane of the weights, plane of the rows), high bytes first.
PRODUCTS = (((0, 0),), ((0, 1), (1, 0)), ((1, 1),))


def asm(builder, text, form, result, values):
    """An instruction that gives a value."""
    kind = ir.FunctionType(result, [one.type for one in values])
    return builder.call(ir.InlineAsm(kind, text, form), values)


def _lane(builder):
    return asm(builder, "mov.u32 $0, %laneid;", "=r", WORD, [])


def load(builder, pointer, streamed, wanted=None):
    """16 bytes that no kernel beside this one writes, as 4 words; zeros where not wanted."""
    kept = ".L1::no_allocate" if streamed else ""
    plain = f"ld.global.nc{kept}.v4.u32 {{$0,$1,$2,$3}}, [$4];"
    if wanted is None:
        quad = asm(builder, plain, "=r,=r,=r,=r,l", QUAD, [pointer])
    else:
        zeros = " ".join(f"mov.u32 ${k}, 0;" for k in range(4))
        text = f"{{ .reg .pred p; setp.ne.u32 p, $5, 0; {zeros} @p {plain} }}"
        quad = asm(builder, text, "=&r,=&r,=&r,=&r,l,r", QUAD, [pointer, wanted])
    return [builder.extract_value(quad, k) for k in range(4)]


def bytes_of(builder, a, b, low):
    """The low or the high bytes of 4 int16 in two words."""
    pick = WORD(0x6420 if low else 0x7531)
    return asm(builder, "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", WORD, [a, b, pick])


def mma(builder, kinds, a, b, sums):
    """sums + a by b on the tensor core: 16 outputs, 8 rows, 32 inputs."""
    text = (
        f"mma.sync.aligned.m16n8k32.row.col.s32.{kinds[0]}.{kinds[1]}.s32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    form = ",".join(["=r"] * 4 + ["r"] * 10)
    quad = asm(builder, text, form, QUAD, [*a, *b, *sums])
    return [builder.extract_value(quad, k) for k in range(4)]


def address(builder, base, offset):
    """Where a pointer points, so many bytes further, as a number."""
    return builder.add(builder.ptrtoint(base, WIDE), offset)


def _planes(builder, at, tile, there):
    """A tile of packed weights: the operand's high bytes, and its low ones."""
    places = (builder.add(at[0], WIDE(tile * TILE + plane * PLANE)) for plane in (0, 1))
    return [load(builder, place, True, there) for place in places]


def _planes_of_rows(builder, at, tile, there):
    """The same from int16 of outputs g and g + 8 as they lie."""
    rows = [load(builder, builder.add(one, WIDE(tile * 64)), False, there) for one in at]
    return [
        [bytes_of(builder, row[k], row[k + 1], low) for k in (0, 2) for row in rows]
        for low in (False, True)
    ]


def _tiles(builder, at_weights, at_rows, wanted, kept):
    """Tiles from given addresses on, onto kept[column][sum] of 4 registers each.

    at_weights: one address of planes, or two of rows. wanted: one entry a tile: None, or the word
    that says whether it is there.
    """
    take = _planes if len(at_weights) == 1 else _planes_of_rows
    loaded = [take(builder, at_weights, tile, there) for tile, there in enumerate(wanted)]
    for tile, planes in enumerate(loaded):
        for column, at_row in enumerate(at_rows):
            row = load(builder, builder.add(at_row, WIDE(tile * 64)), False, wanted[tile])
            halves = [
                [bytes_of(builder, row[0], row[1], low), bytes_of(builder, row[2], row[3], low)]
                for low in (False, True)
            ]
            for sums, products in zip(kept[column], PRODUCTS, strict=True):
                values = [builder.load(one) for one in sums]
                for plane, half in products:
                    kinds = (UNSIGNED if plane else SIGNED, UNSIGNED if half else SIGNED)
                    values = mma(builder, kinds, planes[plane], halves[half], values)
                for one, value in zip(sums, values, strict=True):
                    builder.store(value, one)


def loop(builder, tile, last, step, least, body):
    """body() while at least `least` tiles are left, a step further each time; tile is a slot."""
    test = builder.append_basic_block("tiles.test")
    inside = builder.append_basic_block("tiles")
    after = builder.append_basic_block("tiles.after")
    builder.branch(test)
    builder.position_at_end(test)
    end = builder.add(builder.load(tile), WIDE(least))
    builder.cbranch(builder.icmp_signed("<=", end, last), inside, after)
    builder.position_at_end(inside)
    body()
    builder.store(builder.add(builder.load(tile), WIDE(step)), tile)
    builder.branch(test)
    builder.position_at_end(after)


def slot(builder, kind):
    """Room for a value that goes round in a loop; registers hold it."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


def _row_address(builder, data, at, row, count, pairs, third):
    """Where a lane's words of a row begin; of row 0 where there are not so many."""
    row = builder.select(builder.icmp_signed("<", row, count), row, WIDE(0))
    inside = builder.add(builder.mul(row, pairs), builder.mul(third, WIDE(4)))
    return address(builder, data, builder.mul(builder.add(at, inside), WIDE(4)))


def emit_sums(builder, columns, ahead, rest, data, values, index=None, outputs=None):
    """The whole of fragment_sums; data: the pointers of room, w and x; values: the rest.

    ahead: tiles whose loads stand before their products; rest: as many where fewer are left.
    index: where rows are gathered, (pointer to int64, first, divisor). outputs: where w holds rows
    of int16, how many there are.
    """
    to, at, pairs, rows, first, last = values
    lane = builder.zext(_lane(builder), WIDE)
    group, third = builder.lshr(lane, WIDE(2)), builder.and_(lane, WIDE(3))
    weights = [address(builder, data[1], builder.add(at, builder.mul(lane, WIDE(16))))]
    if outputs is not None:
        both = (group, builder.add(group, WIDE(8)))
        weights = [_row_address(builder, data[1], at, one, outputs, pairs, third) for one in both]
    each = WIDE(TILE if outputs is None else 64)
    starts = []
    for column in range(columns):
        row = builder.add(group, WIDE(COLUMNS * column))
        row = builder.select(builder.icmp_signed("<", row, rows), row, WIDE(0))
        if index is not None:
            listed = builder.load(builder.gep(index[0], [builder.add(index[1], row)]))
            row = builder.sdiv(listed, index[2])
        inside = builder.add(builder.mul(row, pairs), builder.mul(third, WIDE(4)))
        starts.append(address(builder, data[2], builder.mul(inside, WIDE(4))))
    kept = [[[slot(builder, WORD) for _ in range(4)] for _ in PRODUCTS] for _ in range(columns)]
    for one in (one for column in kept for sums in column for one in sums):
        builder.store(WORD(0), one)
    tile = slot(builder, WIDE)
    builder.store(first, tile)

    def body(step, guarded):
        here = builder.load(tile)
        at_weights = [builder.add(one, builder.mul(here, each)) for one in weights]
        at_rows = [builder.add(one, builder.mul(here, WIDE(64))) for one in starts]
        wanted = [None] * step
        if guarded:
            left = builder.sub(last, here)
            there = [builder.icmp_signed("<", WIDE(k), left) for k in range(step)]
            wanted = [builder.zext(one, WORD) for one in there]
        _tiles(builder, at_weights, at_rows, wanted, kept)

    loop(builder, tile, last, ahead, ahead, lambda: body(ahead, False))
    loop(builder, tile, last, rest, 1, lambda: body(rest, True))
    for column, sums in enumerate(kept):
        for pair in range(4):
            high, middle, low = (builder.sext(builder.load(one[pair]), WIDE) for one in sums)
            total = builder.add(builder.shl(high, WIDE(16)), builder.shl(middle, WIDE(8)))
            place = builder.add(to, WIDE(column * SUMS + pair * 32))
            pointer = builder.gep(data[0], [builder.add(place, lane)])
            builder.store(builder.add(total, low), pointer)
