"""The machine code of tiles.py where four warps multiply together (sm_90a), by LLVM's builder.

Weights come to registers as planes.py has them, operand A of wgmma as they are. Rows are taken
apart on their way to shared memory: of every 8 rows and 32 inputs first the high bytes, 8 rows by
16 in the order that A has them, then 16 more, and the low bytes in the same way behind all high
ones. Products run on while the next stage is prepared, and are waited for in the one after it.
"""

from functools import reduce

from llvmlite import ir

from .fragments_code import SIGNED, UNSIGNED, WIDE, WORD, address, asm, bytes_of, load, slot
from .planes import PLANE, TILE
from .tiles import STAGE_TILES, STAGES, WARPS, plane_bytes
from .tiles_code import act, leave, repeat, rounded, shared

ROWS, CORE = 8, 128  # of x that stand together; bytes of them by 16 inputs
# Where in shared memory an operand's next 16 inputs stand, and its next 8 rows.
SHAPE = (CORE >> 4) << 16 | (2 * CORE >> 4) << 32
SUMS = (0, 1, 2)  # high by high; high by low and low by high; low by low
PRODUCTS = ((0, 0, 0), (1, 0, 1), (2, 1, 1), (1, 1, 0))  # sum, plane of weights, plane of rows


def _multiply(builder, most, sums, weights, rows, kinds):
    """sums += weights by rows, begun; sums: slots, most / 2 of them."""
    count = len(sums)
    listed = ",".join(f"${k}" for k in range(count))
    a = ",".join(f"${2 * count + k}" for k in range(4))
    text = (
        f"wgmma.mma_async.sync.aligned.m64n{most}k32.s32.{kinds[0]}.{kinds[1]} "
        f"{{{listed}}}, {{{a}}}, ${2 * count + 4}, 1;"
    )
    form = ",".join(["=r"] * count + [str(k) for k in range(count)] + ["r"] * 4 + ["l"])
    values = [*(builder.load(one) for one in sums), *weights, rows]
    result = ir.LiteralStructType([WORD] * count)
    kind = ir.FunctionType(result, [one.type for one in values])
    made = builder.call(ir.InlineAsm(kind, text, form, side_effect=True), values)
    for k, one in enumerate(sums):
        builder.store(builder.extract_value(made, k), one)


def _end(builder, sums):
    """Wait for all products; what they gave is read behind this."""
    count = len(sums)
    form = ",".join(["=r"] * count + [str(k) for k in range(count)] + ["~{memory}"])
    values = [builder.load(one) for one in sums]
    result = ir.LiteralStructType([WORD] * count)
    kind = ir.FunctionType(result, [WORD] * count)
    text = "wgmma.wait_group.sync.aligned 0;"
    made = builder.call(ir.InlineAsm(kind, text, form, side_effect=True), values)
    for k, one in enumerate(sums):
        builder.store(builder.extract_value(made, k), one)


class _Rows:
    """A warp's share of every stage: some times 8 rows by a tile, a lane 8 inputs of a row."""

    def __init__(self, builder, most, sets, me, room, x, pairs, rows, tiles, index):
        self.builder, self.most, self.tiles = builder, most, tiles
        self.units = range(most // ROWS * STAGE_TILES // WARPS)
        lane, warp = builder.and_(me, WIDE(31)), builder.lshr(me, WIDE(5))
        inside, third = builder.lshr(lane, WIDE(2)), builder.and_(lane, WIDE(3))
        self.tile = builder.and_(warp, WIDE(STAGE_TILES - 1))
        group = builder.udiv(warp, WIDE(STAGE_TILES))
        self.each = WARPS // STAGE_TILES  # times 8 rows that all warps take at once
        to = builder.mul(self.tile, WIDE(2 * plane_bytes(most)))
        to = builder.add(to, builder.mul(group, WIDE(2 * CORE)))
        to = builder.add(to, builder.mul(inside, WIDE(16)))
        to = builder.add(to, builder.mul(third, WIDE(4)))
        self.to = builder.add(room, builder.trunc(to, WORD))
        self.row_bytes = builder.mul(pairs, WIDE(4))
        inner = builder.add(builder.mul(third, WIDE(16)), builder.mul(self.tile, WIDE(64)))
        row0 = builder.add(builder.mul(group, WIDE(ROWS)), inside)
        self.row0, self.rows = builder.trunc(row0, WORD), builder.trunc(rows, WORD)
        self.start = address(builder, x, builder.add(builder.mul(row0, self.row_bytes), inner))
        self.step = builder.mul(self.row_bytes, WIDE(self.each * ROWS))
        self.listed = [self._listed(x, row0, k, index, rows, inner) for k in self.units if index]
        self.tile = builder.trunc(self.tile, WORD)
        self.held = [
            [[slot(builder, WORD) for _ in range(4)] for _ in self.units] for _ in range(sets)
        ]

    def _listed(self, x, row0, k, index, rows, inner):
        """Where the row begins that a list names; one that there is not is as its first."""
        builder, (rows_of, first, per) = self.builder, index
        row = builder.add(row0, WIDE(k * self.each * ROWS))
        row = builder.select(builder.icmp_signed("<", row, rows), row, WIDE(0))
        row = builder.sdiv(builder.load(builder.gep(rows_of, [builder.add(first, row)])), per)
        return address(builder, x, builder.add(builder.mul(row, self.row_bytes), inner))

    def take(self, stage, which):
        """Ask for a stage (a number), in a set of registers; zeros for what is not there."""
        builder = self.builder
        tile = builder.add(builder.mul(stage, WORD(STAGE_TILES)), self.tile)
        there = builder.icmp_signed("<", tile, self.tiles)
        ahead = builder.zext(builder.mul(stage, WORD(64 * STAGE_TILES)), WIDE)
        source = builder.add(self.start, ahead)
        for k, into in enumerate(self.held[which]):
            row = builder.add(self.row0, WORD(k * self.each * ROWS))
            both = builder.and_(there, builder.icmp_signed("<", row, self.rows))
            place = builder.add(self.listed[k], ahead) if self.listed else source
            words = load(builder, place, True, builder.zext(both, WORD))
            for one, word in zip(into, words, strict=True):
                builder.store(word, one)
            source = builder.add(source, self.step)

    def put(self, which, into):
        """Lay a set into bytes `into` of the room on, for the tensor cores to read."""
        builder, to = self.builder, self.builder.add(self.to, into)
        for k, held in enumerate(self.held[which]):
            words = [builder.load(one) for one in held]
            for plane, low in enumerate((False, True)):
                for half in (0, 1):
                    made = bytes_of(builder, words[2 * half], words[2 * half + 1], low)
                    offset = plane * plane_bytes(self.most) + half * CORE
                    offset += k * self.each * 2 * CORE
                    act(builder, f"st.shared.u32 [$0+{offset}], $1;", "r,r", (to, made))
        act(builder, "fence.proxy.async.shared::cta;")


class _Weights:
    """A warp's weights, a tile in one of some sets of registers."""

    def __init__(self, builder, start, tiles, sets):
        self.builder, self.start, self.tiles = builder, start, tiles
        self.held = [[slot(builder, WORD) for _ in range(8)] for _ in range(sets)]

    def take(self, tile, which):
        """Ask for a tile (a number); zeros behind the last."""
        builder, into = self.builder, self.held[which]
        there = builder.zext(builder.icmp_signed("<", tile, self.tiles), WORD)
        place = builder.add(self.start, builder.zext(builder.mul(tile, WORD(TILE)), WIDE))
        for plane in (0, 1):
            words = load(builder, builder.add(place, WIDE(plane * PLANE)), True, there)
            for one, word in zip(into[4 * plane : 4 * plane + 4], words, strict=True):
                builder.store(word, one)


def emit_group_sums(builder, most, sets, data, values, index=None, summed=False):
    """The whole of tile_sums, as emit_tile_sums.

    sets: (tiles of weights, stages of rows) that registers hold.
    """
    at, pairs, rows, tiles = values
    tiles = builder.trunc(tiles, WORD)
    me = builder.zext(asm(builder, "mov.u32 $0, %tid.x;", "=r", WORD, []), WIDE)
    lane = builder.and_(me, WIDE(31))
    room = shared(builder, data[0])
    start = address(builder, data[1], builder.add(at, builder.mul(lane, WIDE(16))))
    weights = _Weights(builder, start, tiles, sets[0])
    for tile in range(sets[0] - 1):  # before anybody waits for lists of rows
        weights.take(WORD(tile), tile)
    mine = _Rows(builder, most, sets[1], me, room, data[2], pairs, rows, tiles, index)
    kept = [[slot(builder, WORD) for _ in range(most // 2)] for _ in SUMS]
    for one in (one for sums in kept for one in sums):
        builder.store(WORD(0), one)
    mine.take(WORD(0), 0)
    mine.put(0, WORD(0))
    for later in range(1, sets[1] + 1):
        mine.take(WORD(later), later % sets[1])
    stage = slot(builder, WORD)
    builder.store(WORD(0), stage)
    stages = builder.lshr(builder.add(tiles, WORD(STAGE_TILES - 1)), WORD(1))
    turns = max(sets[0] // STAGE_TILES, sets[1])

    def body():
        first = builder.load(stage)
        for turn in range(turns):
            here = builder.add(first, WORD(turn))
            _stage(builder, most, here, turn, room, mine, weights, kept)

    repeat(builder, stage, stages, turns, body)
    _end(builder, [one for sums in kept for one in sums])
    totals = []
    made = [
        [rounded(builder, [sums[4 * column + pair] for sums in kept], totals) for pair in range(4)]
        for column in range(most // 8)
    ]
    act(builder, "bar.sync 0;")
    leave(builder, data[0], me, lane, made)
    act(builder, "bar.sync 0;")
    return reduce(builder.add, totals) if summed else None


def _stage(builder, most, here, turn, room, mine, weights, kept):
    """The products of stage `here`; what they no longer need is asked for anew.

    turn: which of a loop's stages it is, by which registers go round.
    """
    stage_bytes, sets = 2 * STAGE_TILES * plane_bytes(most), len(weights.held)
    side = builder.and_(here, WORD(STAGES - 1))
    act(builder, "bar.sync 0;")
    act(builder, "wgmma.fence.sync.aligned;")
    at_rows = builder.add(room, builder.mul(side, WORD(stage_bytes)))
    at_rows = builder.zext(builder.lshr(at_rows, WORD(4)), WIDE)
    for k in range(STAGE_TILES):
        tile = STAGE_TILES * turn + k
        words = [builder.load(one) for one in weights.held[tile % sets]]
        for which, plane, half in PRODUCTS:
            kinds = (UNSIGNED if plane else SIGNED, UNSIGNED if half else SIGNED)
            offset = (2 * k + half) * plane_bytes(most) >> 4
            rows_at = builder.add(at_rows, WIDE(SHAPE + offset))
            _multiply(builder, most, kept[which], words[4 * plane : 4 * plane + 4], rows_at, kinds)
        act(builder, "wgmma.commit_group.sync.aligned;")
        if k == STAGE_TILES - 1:
            after = builder.and_(builder.add(here, WORD(1)), WORD(STAGES - 1))
            which = (turn + 1) % len(mine.held)
            mine.put(which, builder.mul(after, WORD(stage_bytes)))
            mine.take(builder.add(here, WORD(1 + len(mine.held))), which)
        # All products but the last tile's are done: the registers of the one before are free.
        act(builder, "wgmma.wait_group.sync.aligned 1;")
        later = builder.add(builder.mul(here, WORD(STAGE_TILES)), WORD(k - 1 + sets))
        weights.take(later, (tile - 1) % sets)
