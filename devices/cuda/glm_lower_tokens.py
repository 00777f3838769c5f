"""How the GLM's tokens become launches: embeddings, samples, what is kept, drafts."""

from collections.abc import Callable
from functools import partial

import numpy as np

from ...core.glm_ops import Rows
from ...core.kernels.cuda.digest import add_digests
from ...core.kernels.cuda.embed import gather_rows
from ...core.kernels.cuda.glm_drafts import accept, draft
from ...core.kernels.cuda.mtp import embed_next, embed_rows
from ...core.kernels.cuda.sampling import draw_rows
from ...core.kernels.digest import PARTS
from ..glm.layout import GlmOp
from .card import Launch
from .glm_here import Here, Words


def embedded(here: Here, words: Words) -> list[Launch]:
    """EMBED: x."""
    m, x = here.memory, here.floats(words[0], here.party.streams * here.party.hidden)
    table = (m.arrays["table_high"], m.arrays["table_low"])
    return [partial(embed_rows, here.stream, *table, m.tables["tokens"], x, 0, here.rows)]


def next_embedded(here: Here, words: Words) -> list[Launch]:
    """NEXT: x."""
    m, x = here.memory, here.floats(words[0], here.party.hidden)
    tokens = m.tables["draft_tokens" if here.set is Rows.DRAFTED else "next_tokens"]
    table = (m.arrays["table_high"], m.arrays["table_low"])
    return [partial(embed_next, here.stream, *table, tokens, here.positions, x, 0, here.rows)]


def taken(here: Here, words: Words) -> list[Launch]:
    """TAKE: x, width, y."""
    at, width, to = words[:3]
    m = here.memory
    source = m.arrays["floats"][at : at + m.step.rows * width].reshape(m.step.rows, width)
    index = m.tables["draft_from" if here.set is Rows.DRAFTED else "selected"]
    return [partial(gather_rows, here.stream, source, index, here.floats(to, width), here.rows)]


def summed(here: Here, words: Words) -> list[Launch]:
    """SUM_LOGITS: logits, width. Every rank has them all."""
    at, width = words[:2]
    if not here.party.digests:
        return []
    count = here.rows * width
    words_of = here.memory.arrays["floats"][at : at + count].view(np.uint64)
    logits = words_of.reshape(here.rows, width // 2)
    positions, sums = (here.memory.tables[name] for name in ("logit_positions", "logit_sums"))
    return [
        partial(
            add_digests, here.stream, logits, PARTS["logits"], 0, 0, positions, 0, sums, 0,
            here.rows,
        )
    ]  # fmt: skip


def sampled(here: Here, words: Words) -> list[Launch]:
    """SAMPLE: logits, width; on every rank that drafts."""
    at, width = words[:2]
    tables, arrays = here.memory.tables, here.memory.arrays
    if not (here.samples or here.party.drafting):
        return []
    return [
        partial(
            draw_rows, here.stream, tables["draws"], tables["whole"], tables["bias_starts"],
            arrays["bias_ids"], arrays["biases"], arrays["penalty_counts"],
            arrays["reply_counts"], here.floats(at, width), tables["logit_positions"],
            arrays["z"], arrays["draw_weights"], tables["drawn"], here.rows,
        )
    ]  # fmt: skip


def accepted(here: Here, words: Words) -> list[Launch]:
    """ACCEPT."""
    t, runs = here.memory.tables, here.runs
    names = ("tokens", "drawn", "ends", "wants", "limits", "places", "next_tokens", "kept")
    drafting = ("from", "runs", "positions", "lanes", "limits", "wants", "of")
    return [
        partial(
            accept, here.stream, runs, t["sampled"], t["windows"], *(t[name] for name in names),
            *(t["draft_" + name] for name in drafting),
        )
    ]  # fmt: skip


def drafted(here: Here, words: Words) -> list[Launch]:
    """DRAFT: logits, width, which."""
    at, width, which = words[:3]
    t = here.memory.tables
    tokens, positions, runs, limits, wants, of = (
        t["draft_" + name][: here.rows]
        for name in ("tokens", "positions", "runs", "limits", "wants", "of")
    )
    return [
        partial(
            draft, here.stream, here.floats(at, width), which, tokens, positions, runs, limits,
            wants, of, t["drafts"], t["draft_counts"],
        )
    ]  # fmt: skip


TOKENS: dict[GlmOp, Callable[[Here, Words], list[Launch]]] = {
    GlmOp.EMBED: embedded,
    GlmOp.NEXT: next_embedded,
    GlmOp.TAKE: taken,
    GlmOp.SUM_LOGITS: summed,
    GlmOp.SAMPLE: sampled,
    GlmOp.ACCEPT: accepted,
    GlmOp.DRAFT: drafted,
}
