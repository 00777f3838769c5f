"""The CUDA twins of words.py: digests of paged rows, states and rings, and a look for poison."""

import numpy as np
from numba import cuda

from ..digest import SEED_0, SEED_1, mix64, place, word_mix
from ..poison import is_poison_q
from ..poisoned import LAYER_BITS
from ..words import ALL_SOUND
from .placed import on_device
from .rows import wrapped_sum
from .target import SIMULATED, WARP, device, kernel, threads
from .twins import twin

THREADS = threads(256)
STATE_WORDS = THREADS * (2 if SIMULATED else 16)  # of a head's state, that a block sums
i16, i64, u16, u64 = np.int16, np.int64, np.uint16, np.uint64


@device
def add_to(sums, sum_0, sum_1):
    """Add a warp's shares."""
    sum_0, sum_1 = wrapped_sum(sum_0), wrapped_sum(sum_1)
    if cuda.threadIdx.x % WARP == 0:
        cuda.atomic.add(sums, 0, sum_0)
        cuda.atomic.add(sums, 1, sum_1)


@kernel
def sum_paged_warp(words, table, first, step, part, cache0, layer0, sums):
    """Row first + blockIdx.x, cache cache0 + blockIdx.y."""
    per_page, row, cache = words.shape[2], first + cuda.blockIdx.x, cache0 + cuda.blockIdx.y
    page, at, position = table[row // per_page], row % per_page, row * step + step - 1
    where = place(part, layer0 + cache, 0)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for i in range(cuda.threadIdx.x, words.shape[3], WARP):
        word = words[cache, page, at, i]
        sum_0 += word_mix(word, where | u64(i), mix_0)
        sum_1 += word_mix(word, where | u64(i), mix_1)
    add_to(sums, sum_0, sum_1)


def sum_paged(stream, words, table, first, last, step, part, cache0, cache1, layer0, sums):
    """As the CPU's sum_paged."""
    if last > first and cache1 > cache0:
        grid = (last - first, cache1 - cache0)
        sum_paged_warp[grid, WARP, stream](words, table, first, step, part, cache0, layer0, sums)


@kernel
def sum_state_block(states, lane, slot, layer0, head0, part, sums):
    """Words blockIdx.x * STATE_WORDS on of head blockIdx.y, layer layer0 + blockIdx.z."""
    head, layer = cuda.blockIdx.y, layer0 + cuda.blockIdx.z
    wide, first = states.shape[5], cuda.blockIdx.x * STATE_WORDS
    last = min(first + STATE_WORDS, states.shape[4] * wide)
    where = place(part, layer, head0 + head)
    mix_0, mix_1 = mix64(SEED_0), mix64(SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for i in range(first + cuda.threadIdx.x, last, cuda.blockDim.x):
        word = states[layer, lane, slot, head, i // wide, i % wide]
        sum_0 += word_mix(word, where | u64(i), mix_0)
        sum_1 += word_mix(word, where | u64(i), mix_1)
    add_to(sums, sum_0, sum_1)


def sum_state(stream, states, lane, slot, layer0, layer1, head0, part, sums):
    """As the CPU's sum_state."""
    if layer1 > layer0 and states.shape[3]:
        blocks = -(-states.shape[4] * states.shape[5] // STATE_WORDS)
        grid = (blocks, states.shape[3], layer1 - layer0)
        sum_state_block[grid, THREADS, stream](states, lane, slot, layer0, head0, part, sums)


@kernel
def sum_ring_warp(ring, lane, first, layer0, head0, heads, part, sums):
    """Position first + blockIdx.x, head blockIdx.y, layer layer0 + blockIdx.z; ring as uint64."""
    position, head, layer = first + cuda.blockIdx.x, cuda.blockIdx.y, layer0 + cuda.blockIdx.z
    slot, third = position % ring.shape[2], ring.shape[3] // 3
    words = third // heads
    where = place(part, layer, head0 + head)
    mix_0, mix_1 = mix64(u64(position) ^ SEED_0), mix64(u64(position) ^ SEED_1)
    sum_0, sum_1 = u64(0), u64(0)
    for i in range(cuda.threadIdx.x, 3 * words, WARP):
        word = ring[layer, lane, slot, i // words * third + head * words + i % words]
        sum_0 += word_mix(word, where | u64(i), mix_0)
        sum_1 += word_mix(word, where | u64(i), mix_1)
    add_to(sums, sum_0, sum_1)


def sum_ring(stream, ring, lane, first, last, layer0, layer1, head0, heads, part, sums):
    """As the CPU's sum_ring."""
    first = max(first, 0)
    if last > first and layer1 > layer0 and heads:
        grid = (last - first, heads, layer1 - layer0)
        words = ring.view(u64)
        sum_ring_warp[grid, WARP, stream](words, lane, first, layer0, head0, heads, part, sums)


@kernel
def note_poisoned_paged(rows, table, first, last, step, cache0, cache1, layer0, found):
    """A warp a row and cache: the least finding stands in found [1] in the end."""
    per_page, wide = rows.shape[2], rows.shape[3]
    row = first + cuda.blockIdx.x
    for cache in range(cache0 + cuda.blockIdx.y, cache1, cuda.gridDim.y):
        page, at, poisoned = table[row // per_page], row % per_page, False
        for i in range(cuda.threadIdx.x, wide, WARP):
            poisoned = poisoned or is_poison_q(rows[cache, page, at, i])
        if poisoned:
            position = row * step + step - 1
            cuda.atomic.min(found, 0, i64(position << LAYER_BITS | (layer0 + cache)))


def look_for_poison(stream, rows, table, first, last, step, cache0, cache1, layer0, found):
    """The least finding of first_poisoned_paged and of found [1] int64 stands in found."""
    if last > first and cache1 > cache0:
        grid = (last - first, cache1 - cache0)
        note_poisoned_paged[grid, WARP, stream](
            rows, table, first, last, step, cache0, cache1, layer0, found
        )


def first_poisoned_paged(stream, rows, table, first, last, step, cache0, cache1, layer0):
    """As the CPU's first_poisoned_paged; the finding comes back as an array [1] on the device."""
    found = on_device(np.full(1, ALL_SOUND, i64))
    look_for_poison(stream, rows, table, first, last, step, cache0, cache1, layer0, found)
    return found


twin("sum_paged", sum_paged)
twin("sum_state", sum_state)
twin("sum_ring", sum_ring)
twin("first_poisoned_paged", first_poisoned_paged)
