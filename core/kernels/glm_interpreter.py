"""The loop that runs a GLM's recorded pass: every thread of every rank runs the whole program.

As in interpreter.py, threads of a rank share its buffers and split the rows, blocks or heads of
each op, and ranks hand each other float32 columns through the exchange. All meet after every op.
"""

import numpy as np

from . import glm_common as common
from . import glm_drafts as drafts
from . import glm_layers as layers
from .glm_memory import (
    DRAFT_FROM,
    DRAFT_LANES,
    DRAFT_POSITIONS,
    DRAFT_RUNS,
    DRAFT_SUMS,
    DRAFT_TOKENS,
    DRAFTING,
    FLAGS,
    KEY_SUMS,
    OPS,
    ROW_SUMS,
    SPARE_FLAGS,
    SPARE_SUMS,
    TEAM,
)
from .places import i64_1, i64_2, u8_1, u64_2
from .registry import inner
from .team import meet

i64 = np.int64

(
    EMBED, NORM, NORM_FLOATS, QUANTISE, QUANTISE_SLOTS, QUANTISE_HEADS, LINEAR, LINEAR_HEADS, GATED,
    GATHER, ADD, HC_WEIGHTS, HC_READ, HC_WRITE, HC_MEAN, CONV, PREPARE, RECUR, HEAD_GATE, LATENT,
    KEY_NORM, POOL, SELECT, ATTEND, ROUTE, EXPERT_UP, EXPERT_DOWN, COMBINE, TAKE, SUM_LOGITS,
    SAMPLE, ACCEPT, NEXT, DRAFT, CHECK, END,
) = range(1, 37)  # fmt: skip
ALL, SELECTED, DRAFTED = 0, 1, 2


@inner
def run_row_op(memory, party, op, rows, flags):
    """An op whose rows do not know where they stand. False if it is none of these."""
    code = op[0]
    if code == NORM:
        common.run_norm(memory, party, op, rows, flags)
    elif code == NORM_FLOATS:
        common.run_norm_floats(memory, party, op, rows, flags)
    elif code == QUANTISE:
        common.run_quantise(memory, party, op, rows, flags)
    elif code == QUANTISE_SLOTS:
        common.run_quantise_slots(memory, party, op, rows, flags)
    elif code == QUANTISE_HEADS:
        common.run_quantise_heads(memory, party, op, rows, flags)
    elif code == LINEAR:
        common.run_linear(memory, party, op, rows)
    elif code == LINEAR_HEADS:
        common.run_linear_heads(memory, party, op, rows)
    elif code == GATED:
        common.run_gated(memory, party, op, rows)
    elif code == ADD:
        common.run_add(memory, party, op, rows)
    elif code == HC_WEIGHTS:
        common.run_hc_weights(memory, party, op, rows)
    elif code == HC_READ:
        common.run_hc_read(memory, party, op, rows)
    elif code == HC_WRITE:
        common.run_hc_write(memory, party, op, rows)
    elif code == HC_MEAN:
        common.run_hc_mean(memory, party, op, rows)
    else:
        return run_unit_op(memory, party, op, rows, flags)
    return True


@inner
def run_unit_op(memory, party, op, rows, flags):
    """The heads' and the experts' row ops. False if it is none of these."""
    code = op[0]
    if code == PREPARE:
        layers.run_prepare(memory, party, op, rows, flags)
    elif code == HEAD_GATE:
        layers.run_head_gate(memory, party, op, rows, flags)
    elif code == KEY_NORM:
        layers.run_key_norm(memory, party, op, rows, flags)
    elif code == ROUTE:
        layers.run_route(memory, party, op, rows)
    elif code == EXPERT_UP:
        layers.run_expert_up(memory, party, op, rows)
    elif code == EXPERT_DOWN:
        layers.run_expert_down(memory, party, op, rows)
    elif code == COMBINE:
        layers.run_combine(memory, party, op, rows)
    else:
        return False
    return True


@inner
def run_placed_op(memory, step, draws, party, op, rows, flags):
    """An op over the step's own rows, which stand in lanes at positions."""
    code = op[0]
    tables, positions, lanes = step.tables, step.positions, step.lanes
    drafter = (code == LATENT and op[3] >= party.trunk_caches) or (
        code == POOL and op[5] >= party.trunk_caches
    )
    if code == EMBED:
        drafts.run_embed(memory, step, party, op, rows)
    elif code == CONV:
        layers.run_conv(memory, party, step.runs, op, rows)
    elif code == RECUR:
        layers.run_recur(memory, party, step.runs, op, rows)
    elif code == LATENT:
        sums = u64_2(memory, DRAFT_SUMS) if drafter else u64_2(memory, ROW_SUMS)
        layers.run_latent(memory, party, positions, lanes, tables, op, rows, sums, flags)
    elif code == POOL:
        sums = u64_2(memory, DRAFT_SUMS) if drafter else u64_2(memory, KEY_SUMS)
        layers.run_pool(memory, party, step.runs, tables, op, rows, sums)
    elif code == SELECT:
        layers.run_select(memory, party, positions, lanes, tables, op, rows)
    elif code == ATTEND:
        layers.run_attend(memory, party, positions, lanes, tables, op, rows)
    elif code == NEXT:
        drafts.run_next(memory, party, step.next_tokens, positions, op, rows)
    elif code == CHECK:
        layers.run_check(memory, step, party, op)
    elif code == ACCEPT:
        drafts.run_accept(memory, step, draws, party)


@inner
def run_draft_op(memory, step, party, op, rows):
    """An op over the drafting rows, one a stream, which stand past what is kept."""
    code = op[0]
    tables, positions, lanes = (
        step.tables,
        i64_1(memory, DRAFT_POSITIONS),
        i64_1(memory, DRAFT_LANES),
    )
    sums, flags, runs = (
        u64_2(memory, SPARE_SUMS),
        u8_1(memory, SPARE_FLAGS),
        i64_2(memory, DRAFT_RUNS)[:rows],
    )
    if code == LATENT:
        layers.run_latent(memory, party, positions, lanes, tables, op, rows, sums, flags)
    elif code == POOL:
        layers.run_pool(memory, party, runs, tables, op, rows, sums)
    elif code == SELECT:
        layers.run_select(memory, party, positions, lanes, tables, op, rows)
    elif code == ATTEND:
        layers.run_attend(memory, party, positions, lanes, tables, op, rows)
    elif code == NEXT:
        drafts.run_next(memory, party, i64_1(memory, DRAFT_TOKENS), positions, op, rows)
    elif code == TAKE:
        drafts.run_take(memory, party, i64_1(memory, DRAFT_FROM), op, rows)
    elif code == DRAFT:
        drafts.run_draft(memory, party, op, rows)


@inner
def run_selected_op(memory, shared, step, draws, party, op, rows):
    """An op over the rows that get logits."""
    code = op[0]
    if code == TAKE:
        drafts.run_take(memory, party, step.selected, op, rows)
    elif code == SUM_LOGITS:
        if party.digests:
            drafts.run_sum_logits(memory, shared, step, party, op, rows)
    elif code == SAMPLE and (party.rank == 0 or party.drafting):
        drafts.run_sample(memory, step, draws, party, op, rows)


@inner
def run_glm(memory, shared, step, draws, party):
    """Run every op over its row set; the index of the op that was aborted, or -1."""
    side = i64(0)
    for at in range(len(i64_2(memory, OPS))):
        op = i64_2(memory, OPS)[at]
        chosen, code = op[-1], op[0]
        rows = len(step.positions)
        flags = u8_1(memory, SPARE_FLAGS) if op[-2] != 0 else u8_1(memory, FLAGS)
        if chosen == SELECTED:
            rows = len(step.selected)
        elif chosen == DRAFTED:
            rows = i64_1(memory, DRAFTING)[0]
        sound = True
        if code == END:
            sound = meet(shared.group, party.world * party.threads, party.spins)
        elif rows == 0:
            continue
        elif code == GATHER:
            sound = common.run_gather(memory, shared, party, op, rows, side)
            side = 1 - side
        else:
            if not run_row_op(memory, party, op, rows, flags):
                if chosen == ALL:
                    run_placed_op(memory, step, draws, party, op, rows, flags)
                elif chosen == SELECTED:
                    run_selected_op(memory, shared, step, draws, party, op, rows)
                else:
                    run_draft_op(memory, step, party, op, rows)
            sound = meet(i64_1(memory, TEAM), party.threads, party.spins)
        if not sound:
            return at
    return i64(-1)
