"""What a rank keeps of a model, from its config's sizes: a token's rows, a stream's fixed part."""

from collections.abc import Callable, Mapping

from .families.family import BLOCK, Span, share
from .families.glm_config import PAGE_ROWS, GlmSizes
from .families.llama import PAGE_ROWS as LLAMA_PAGE_ROWS
from .families.llama import SUM_BYTES, Llama
from .plan_wanted import Sizes

CODE_BYTES, FLOAT_BYTES = 2, 4  # of a kept row's 16-bit code, of a state's or a ring's value
FP8_TAIL_BYTES = 16  # behind the codes of an fp8 row: its scale, and zeros up to whole vectors


def glm_rank(sizes: GlmSizes, world: int, drafts: int, *, fp8: bool = False) -> Sizes:
    """The first rank of a GLM, which has the most heads; latent rows and keys are on every rank.

    fp8: latent rows of 8-bit codes, which stand in windows alone.
    """
    caches = glm_caches(sizes, drafts)
    latent = sizes.latent + FP8_TAIL_BYTES if fp8 else sizes.latent * CODE_BYTES
    return Sizes(
        page_rows=PAGE_ROWS,
        row_bytes=caches * latent + caches * sizes.index_dim * CODE_BYTES // sizes.kpool,
        fixed_bytes=glm_fixed_bytes(sizes, world, drafts),
        snapshot_bytes=glm_snapshot_bytes(sizes, world),
        pageable=not fp8,
    )


def glm_caches(sizes: GlmSizes, drafts: int) -> int:
    """Latent caches: one a sparse layer, and the drafting head's where it drafts."""
    return len(sizes.dsa_layers) - sizes.mtp * (not drafts)


def glm_fixed_bytes(sizes: GlmSizes, world: int, drafts: int) -> int:
    """Of a live stream: a recurrent state for each row of a round's window, and the rings."""
    index = glm_caches(sizes, drafts) * _ring_rows(sizes.kpool, drafts) * 2 * sizes.index_dim
    return _recurrent_bytes(sizes, world, 1 + drafts) + FLOAT_BYTES * index


def glm_snapshot_bytes(sizes: GlmSizes, world: int) -> int:
    """Of a kept state: the recurrent state at its mark, and the raw rows before it.

    No pool is unfinished at a mark, so the index ring has nothing of one.
    """
    return _recurrent_bytes(sizes, world, 1)


def _recurrent_bytes(sizes: GlmSizes, world: int, states: int) -> int:
    """So many states of every recurrent layer, and the raw rows that they and the next need."""
    first, last = share(sizes.kda_heads, world, 0)
    width = (last - first) * sizes.kda_dim
    convolved = (sizes.taps - 2 + states) * 3 * width
    return FLOAT_BYTES * len(sizes.kda_layers) * (states * width * sizes.kda_dim + convolved)


def _ring_rows(kpool: int, drafts: int) -> int:
    """Raw index rows of a stream: whole pools, more than a rejected draft can reach."""
    pools = -(-(kpool + drafts) // kpool)
    return kpool << (pools - 1).bit_length()


def llama_rank(family: Llama, world: int) -> Sizes:
    """The first rank of a llama, which has the most heads; a stream is its pages alone."""
    rows_bytes = family.page_bytes(world, 0) - SUM_BYTES
    return Sizes(
        page_rows=LLAMA_PAGE_ROWS,
        row_bytes=rows_bytes // LLAMA_PAGE_ROWS,
        fixed_bytes=0,
        snapshot_bytes=0,
    )


def weights_bytes(
    tensors: Mapping[str, tuple[int, ...]], columns: Callable[[str, int, int], Span], world: int
) -> int:
    """Weights of the first rank: 16-bit codes and an exponent a row, in blocks; constants whole.

    columns: a family's cut of a matrix over ranks.  The embedding is a table that every rank reads.
    """
    total = 0
    for name, shape in tensors.items():
        if len(shape) == 1:
            total += FLOAT_BYTES * shape[0]
            continue
        first, last = (0, shape[0]) if "embed" in name else columns(name, world, 0)
        rows = -(-(last - first) // BLOCK) * BLOCK
        total += rows * (CODE_BYTES * shape[1] + 1)
    return total
