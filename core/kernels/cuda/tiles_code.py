"""The machine code of tiles.py, by LLVM's builder: copies, barriers, mma, rounded sums."""

from functools import reduce

from llvmlite import ir

from .fragments_code import (
    COLUMNS,
    PRODUCTS,
    SIGNED,
    UNSIGNED,
    WIDE,
    WORD,
    address,
    asm,
    bytes_of,
    load,
    mma,
    slot,
)
from .planes import OUTPUTS, PLANE, TILE
from .tiles import LINE, STAGE_TILES, STAGES, THREADS, slab_bytes

VOID, REAL = ir.VoidType(), ir.FloatType()
PIECES = 4 * STAGE_TILES  # of 16 bytes, of a row in a stage
GROUP = 2  # mma side by side whose rows are loaded together


def act(builder, text, form="", values=()):
    """An instruction for what it does: it stays where it stands among others of its kind."""
    form = ",".join([one for one in (form, "~{memory}") if one])
    kind = ir.FunctionType(VOID, [one.type for one in values])
    builder.call(ir.InlineAsm(kind, text, form, side_effect=True), values)


def shared(builder, pointer):
    """Where a pointer points within shared memory."""
    text = "{ .reg .u64 at; cvta.to.shared.u64 at, $1; cvt.u32.u64 $0, at; }"
    return asm(builder, text, "=r,l", WORD, [builder.ptrtoint(pointer, WIDE)])


def _row_words(builder, at, offset):
    """16 bytes of shared memory, as 4 words."""
    quad = ir.LiteralStructType([WORD] * 4)
    text = f"ld.shared.v4.u32 {{$0,$1,$2,$3}}, [$4+{offset}];"
    inline = ir.InlineAsm(
        ir.FunctionType(quad, [WORD]), text, "=r,=r,=r,=r,r,~{memory}", side_effect=True
    )
    loaded = builder.call(inline, [at])
    return [builder.extract_value(loaded, k) for k in range(4)]


class _Copies:
    """A thread's share of every stage: some pieces of 16 bytes, the same of each stage."""

    def __init__(self, builder, most, me, room, x, pairs, rows, tiles, index):
        self.builder, self.tiles = builder, tiles
        self.each = THREADS // PIECES  # rows that all threads copy at once
        self.turns = range(most // self.each)
        piece, row0 = builder.and_(me, WIDE(PIECES - 1)), builder.udiv(me, WIDE(PIECES))
        tile, third = builder.lshr(piece, WIDE(2)), builder.and_(piece, WIDE(3))
        to = builder.add(builder.mul(tile, WIDE(slab_bytes(most))), builder.mul(third, WIDE(16)))
        to = builder.add(to, builder.mul(row0, WIDE(64)))
        self.to = builder.add(room, builder.trunc(to, WORD))
        self.tile, self.piece = builder.trunc(tile, WORD), builder.mul(piece, WIDE(16))
        self.row0, self.rows = builder.trunc(row0, WORD), builder.trunc(rows, WORD)
        self.row_bytes = builder.mul(pairs, WIDE(4))
        self.step = builder.mul(self.row_bytes, WIDE(self.each))
        self.start = self._source(x, row0)
        self.listed = [self._listed(x, row0, k, index, rows) for k in self.turns if index]

    def _source(self, x, row):
        inside = self.builder.add(self.builder.mul(row, self.row_bytes), self.piece)
        return address(self.builder, x, inside)

    def _listed(self, x, row0, k, index, rows):
        """Where the row begins that a list names; one that there is not is as its first."""
        builder, (rows_of, first, per) = self.builder, index
        row = builder.add(row0, WIDE(k * self.each))
        row = builder.select(builder.icmp_signed("<", row, rows), row, WIDE(0))
        row = builder.load(builder.gep(rows_of, [builder.add(first, row)]))
        return self._source(x, builder.sdiv(row, per))

    def begin(self, stage, into):
        """Ask for a stage (a number), into bytes `into` of the room on; zeros for what is not."""
        builder = self.builder
        tile = builder.add(builder.mul(stage, WORD(STAGE_TILES)), self.tile)
        there = builder.icmp_signed("<", tile, self.tiles)
        ahead = builder.zext(builder.mul(stage, WORD(64 * STAGE_TILES)), WIDE)
        source, to = builder.add(self.start, ahead), builder.add(self.to, into)
        for k in self.turns:
            row = builder.add(self.row0, WORD(k * self.each))
            both = builder.and_(there, builder.icmp_signed("<", row, self.rows))
            size = builder.select(both, WORD(16), WORD(0))
            place = builder.add(self.listed[k], ahead) if self.listed else source
            text = f"cp.async.cg.shared.global [$0+{64 * k * self.each}], [$1], 16, $2;"
            act(builder, text, "r,l,r", (to, place, size))
            source = builder.add(source, self.step)
        act(builder, "cp.async.commit_group;")


def _multiply(builder, planes, kept, at, offset):
    """One tile of weights, in registers, by the rows of a stage; onto kept[column][sum]."""
    for first in range(0, len(kept), GROUP):
        halves = []
        for column in range(first, first + GROUP):
            row = _row_words(builder, at, offset + 64 * COLUMNS * column)
            halves.append([
                [bytes_of(builder, row[0], row[1], low), bytes_of(builder, row[2], row[3], low)]
                for low in (False, True)
            ])  # fmt: skip
        # The two products of one sum stand apart, others between them.
        for which, turn in ((0, 0), (1, 0), (2, 0), (1, 1)):
            plane, half = PRODUCTS[which][turn]
            kinds = (UNSIGNED if plane else SIGNED, UNSIGNED if half else SIGNED)
            for column in range(GROUP):
                sums = kept[first + column][which]
                values = [builder.load(one) for one in sums]
                values = mma(builder, kinds, planes[plane], halves[column][half], values)
                for one, value in zip(sums, values, strict=True):
                    builder.store(value, one)


def emit_tile_sums(builder, most, ahead, data, values, index=None, summed=False):
    """The whole of tile_sums; data: the pointers of room, w and x; values: the rest.

    ahead: tiles of weights on their way. index: where rows are gathered, (pointer to int64, first,
    divisor). summed: whether to return what the thread's products add up to.
    """
    at, pairs, rows, tiles = values
    tiles = builder.trunc(tiles, WORD)
    me = builder.zext(asm(builder, "mov.u32 $0, %tid.x;", "=r", WORD, []), WIDE)
    lane = builder.and_(me, WIDE(31))
    room = shared(builder, data[0])
    copies = _Copies(builder, most, me, room, data[2], pairs, rows, tiles, index)
    weights = address(builder, data[1], builder.add(at, builder.mul(lane, WIDE(16))))
    stage_bytes = STAGE_TILES * slab_bytes(most)
    kept = [[[slot(builder, WORD) for _ in range(4)] for _ in PRODUCTS] for _ in range(most // 8)]
    for one in (one for column in kept for sums in column for one in sums):
        builder.store(WORD(0), one)
    held = [[slot(builder, WORD) for _ in range(8)] for _ in range(ahead)]

    def take(tile, into):
        there = builder.zext(builder.icmp_signed("<", tile, tiles), WORD)
        place = builder.add(weights, builder.zext(builder.mul(tile, WORD(TILE)), WIDE))
        for plane in (0, 1):
            words = load(builder, builder.add(place, WIDE(plane * PLANE)), True, there)
            for one, word in zip(into[4 * plane : 4 * plane + 4], words, strict=True):
                builder.store(word, one)

    for stage in range(STAGES - 1):
        copies.begin(WORD(stage), WORD(stage * stage_bytes))
    for tile, into in enumerate(held):
        take(WORD(tile), into)
    at_lane = builder.add(room, builder.trunc(builder.mul(lane, WIDE(16)), WORD))
    tile = slot(builder, WORD)
    builder.store(WORD(0), tile)

    def body():
        here = builder.load(tile)
        for k, planes in enumerate(held):
            if k % STAGE_TILES == 0:
                stage = builder.lshr(builder.add(here, WORD(k)), WORD(1))
                side = builder.and_(stage, WORD(STAGES - 1))
                act(builder, f"cp.async.wait_group {STAGES - 2};")
                act(builder, "bar.sync 0;")
                later = builder.and_(builder.add(side, WORD(STAGES - 1)), WORD(STAGES - 1))
                into = builder.mul(later, WORD(stage_bytes))
                copies.begin(builder.add(stage, WORD(STAGES - 1)), into)
                from_here = builder.add(at_lane, builder.mul(side, WORD(stage_bytes)))
            now = [[builder.load(one) for one in planes[4 * p : 4 * p + 4]] for p in (0, 1)]
            _multiply(builder, now, kept, from_here, (k % STAGE_TILES) * slab_bytes(most))
            take(builder.add(here, WORD(k + ahead)), planes)

    repeat(builder, tile, tiles, ahead, body)
    totals = []
    made = [[rounded(builder, [s[k] for s in sums], totals) for k in range(4)] for sums in kept]
    act(builder, "cp.async.wait_all;")
    act(builder, "bar.sync 0;")
    leave(builder, data[0], me, lane, made)
    act(builder, "bar.sync 0;")
    return reduce(builder.add, totals) if summed else None


def repeat(builder, tile, tiles, step, body):
    """body() once and on while a tile is left, a step further each time."""
    inside = builder.append_basic_block("stages")
    after = builder.append_basic_block("stages.after")
    builder.branch(inside)
    builder.position_at_end(inside)
    body()
    next_one = builder.add(builder.load(tile), WORD(step))
    builder.store(next_one, tile)
    builder.cbranch(builder.icmp_signed("<", next_one, tiles), inside, after)
    builder.position_at_end(after)


def rounded(builder, sums, totals):
    """RN of 65536 high + 256 middle + low, an int64 that `totals` gets."""
    high, middle, low = (builder.sext(builder.load(one), WIDE) for one in sums)
    total = builder.add(builder.shl(high, WIDE(16)), builder.shl(middle, WIDE(8)))
    total = builder.add(total, low)
    totals.append(total)
    return asm(builder, "cvt.rn.f32.s64 $0, $1;", "=f,l", REAL, [total])


def leave(builder, room, me, lane, made):
    """Every rounded sum into its place."""
    group, third = builder.lshr(lane, WIDE(2)), builder.and_(lane, WIDE(3))
    warp = builder.lshr(me, WIDE(5))
    mine = builder.add(builder.mul(warp, WIDE(OUTPUTS)), group)
    mine = builder.add(mine, builder.mul(third, WIDE(2 * LINE)))
    for column, four in enumerate(made):
        for pair, one in enumerate(four):
            place = (COLUMNS * column + (pair & 1)) * LINE + 8 * (pair >> 1)
            builder.store(one, builder.gep(room, [builder.add(mine, WIDE(place))]))
