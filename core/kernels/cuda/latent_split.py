"""Attention over latent rows, dealt over the whole chip: scores, weights, weighted sums, close.

Few rows are cut into parts along what they see; where rows are many, each is one part.
"""

import numpy as np

from .latent_scores import HEADS, TILE, list_latents, score_kernel
from .latent_sums import BLOCKS, COLUMNS, MOST_ROWS, PAIR, QUARTERS, close_latents, sums_kernel
from .latent_weights import weigh_latents
from .target import SIMULATED, WARP, threads

i32 = np.int32
MOST_WIDTH = 512
AT_ONCE = 256  # rows whose scores stand in scratch
SCORING, SUMMING = 264, 132  # blocks of threads that a chip takes at once
SCORERS, SUMMERS = 128, 256  # threads of them


def fits(width):
    """Whether rows of so many values can be attended here."""
    return width % 32 == 0 and width <= MOST_WIDTH


def parts_of(blocks, at_once, tiles):
    """Into how many parts the tiles of a row are cut, if so many blocks do a part of all rows."""
    return max(1, min(tiles, at_once // blocks))


def scratch_shapes(rows, heads, width, most):
    """(scores int32, tops int32, n int64, d int64): shapes for steps of up to so many rows.

    most: rows of latents that a row sees at most.
    """
    rows = min(rows, AT_ONCE)
    tiles, blocks = -(-most // WARP), -(-heads // HEADS)
    return (
        (rows * tiles * (blocks * TILE + WARP),), (max(rows, SCORING), blocks * HEADS),
        (SUMMING * heads * width // max(1, width // COLUMNS),), (rows, blocks * HEADS),
    )  # fmt: skip


def attend_split(
    stream, q, eq, positions, lanes, tables, latent, exponent, page_rows, kpool, picked, counts,
    scale, out, scratch, first, last,
):  # fmt: skip
    """As latent_attend of rows first to last; scratch: arrays of scratch_shapes, of any content.

    latent and q begin at a multiple of 16 bytes.
    """
    scores, tops, n, d = scratch
    heads, width, most = eq.shape[1], latent.shape[2], (picked.shape[1] + 1) * kpool
    assert most <= MOST_ROWS, most
    words, flat = q.reshape(q.size).view(i32), latent.reshape(latent.size).view(i32)
    tiles, blocks = -(-most // WARP), -(-heads // HEADS)
    scorers, summers = threads(SCORERS), threads(SUMMERS)
    groups = -(-blocks * WARP // scorers)
    slices, units = -(-width // COLUMNS), -(-blocks // PAIR) * QUARTERS
    halves = -(-units * WARP // summers)
    for row in range(first, last, AT_ONCE):
        rows = min(AT_ONCE, last - row)
        listed = rows * tiles * blocks * TILE
        places, across = scores[listed:], -(-max(tiles * WARP, blocks * HEADS) // scorers)
        list_latents[(across, rows), scorers, stream](
            positions, lanes, tables, page_rows, kpool, picked, counts, tiles, places, d, row
        )
        parts = parts_of(rows * groups, SCORING, tiles)
        score_kernel(width)[(parts, groups, rows), scorers, stream](
            words, eq, positions, flat, exponent, kpool, counts, scale, places, scores, tiles, tops,
            row,
        )  # fmt: skip
        across = -(-tiles * WARP // scorers)
        weigh_latents[(across, blocks, rows), scorers, stream](
            positions, counts, kpool, scores, tiles, tops, parts, d, row
        )
        parts = parts_of(rows * slices * halves, SUMMING, tiles)
        sums_kernel(width)[(slices, halves, rows * parts), summers, stream](
            positions, flat, kpool, counts, places, scores, tiles, heads, parts, n, out, row
        )
        close_latents[(heads, rows), threads(SUMMERS), stream](
            n, parts, heads, width, d, exponent, out, row
        )


assert SIMULATED or SUMMERS // WARP // QUARTERS * PAIR <= BLOCKS
