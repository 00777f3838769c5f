"""Looking for poison among the rows that a query reads."""

from itertools import product

import numpy as np
from numba.extending import register_jitable

from .packed import gather
from .poison import is_poison_exponent, is_poison_q
from .registry import cpu, register
from .rows import ARENAS, SHAPES, random_arenas, row_view, side_of

i16, i64 = np.int16, np.int64
LAYER_BITS = 12  # of a finding: position << 12 | digest layer


def first_poisoned_meaning(keys, key_exponents, values, value_exponents, table, first, last, layer):
    """As first_poisoned."""
    page_rows = key_exponents.shape[3]
    for position in range(first, last):
        page, row = table[position // page_rows], position % page_rows
        for side, (data, exponents) in enumerate(
            ((keys, key_exponents), (values, value_exponents))
        ):
            for head in range(data.shape[2]):
                view = row_view(data, page_rows, layer, page, head, row, side)
                if (view < -32639).any() or abs(int(exponents[layer, page, head, row])) > 63:
                    return position << LAYER_BITS | 2 * layer + side
    return -1


@register_jitable
def page_is_sound(data, exponents):
    """Whether one page of one head holds no poison at all."""
    lowest = i16(0)
    for i in range(data.shape[0]):
        lowest = min(lowest, data[i])
    sound = not is_poison_q(lowest)
    for i in range(exponents.shape[0]):
        sound = sound and not is_poison_exponent(exponents[i])
    return sound


@register_jitable
def row_is_sound(data, exponents, row, side, digits):
    """Whether one row of one head holds no poison."""
    if is_poison_exponent(exponents[row]):
        return False
    gather(data, exponents.shape[0], row, side, digits)
    lowest = i16(0)
    for i in range(digits.shape[0]):
        lowest = min(lowest, digits[i])
    return not is_poison_q(lowest)


@cpu
def first_poisoned(keys, key_exponents, values, value_exponents, table, first, last, layer):
    """The first row of a stream, from first to last (excluded), that holds poison in any head.

    table [entries] int32: the stream's pages; layer: of the arenas. Every row that a query sees
    enters its scores, so every visible row must be sound, whatever its weight. Returns
    position << 12 | digest layer, keys before values, or -1.
    """
    kv_heads, page_rows = key_exponents.shape[2], key_exponents.shape[3]
    digits = np.empty(keys.shape[3] // page_rows, i16)
    position = first
    while position < last:
        page, row = table[position // page_rows], position % page_rows
        sound = row == 0 and position + page_rows <= last
        if sound:
            for head in range(kv_heads):
                sound = sound and page_is_sound(
                    keys[layer, page, head], key_exponents[layer, page, head]
                )
                sound = sound and page_is_sound(
                    values[layer, page, head], value_exponents[layer, page, head]
                )
        if sound:
            position += page_rows
            continue
        for side in range(2):
            data, exponents = side_of(keys, key_exponents, values, value_exponents, side)
            for head in range(kv_heads):
                one, e_one = data[layer, page, head], exponents[layer, page, head]
                if not row_is_sound(one, e_one, row, side, digits):
                    return i64(position << LAYER_BITS | 2 * layer + side)
        position += 1
    return i64(-1)


def poisoned_cases(rng):
    """Sound rows, with a poisoned value or exponent here and there; the others often unwritten."""
    for kv_heads, _, page_rows, width in SHAPES:
        arenas = random_arenas(rng, 2, 5, kv_heads, page_rows, width)
        for data, exponents in (arenas[:2], arenas[2:]):
            for _ in range(rng.integers(0, 3)):
                data.flat[rng.integers(0, data.size)] = rng.choice([-0x8000, -0x7F80])
                exponents.flat[rng.integers(0, exponents.size)] = rng.choice([-128, 127])
        first, last = (int(n) for n in np.sort(rng.integers(0, 5 * page_rows + 1, 2)))
        table, layer = rng.permutation(5).astype(np.int32), int(rng.integers(0, 2))
        if rng.integers(0, 2):
            unwritten = (*range(first), *range(last, 5 * page_rows))
            _poison_rows(arenas, table, layer, unwritten)
        yield *arenas, table, first, last, layer


def _poison_rows(arenas, table, layer, positions):
    keys, key_exponents, values, value_exponents = arenas
    page_rows = key_exponents.shape[3]
    for position, head in product(positions, range(keys.shape[2])):
        page, row = table[position // page_rows], position % page_rows
        for side, data in enumerate((keys, values)):
            row_view(data, page_rows, layer, page, head, row, side)[:] = -0x8000
        key_exponents[layer, page, head, row] = value_exponents[layer, page, head, row] = -128


register(
    "first_poisoned",
    meaning=first_poisoned_meaning,
    cpu=first_poisoned,
    shapes=ARENAS + "; table [entries] int32",
    units="first, last: positions; layer of the arenas; result: position << 12 | digest layer",
    cases=poisoned_cases,
)
