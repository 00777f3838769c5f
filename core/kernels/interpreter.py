"""The loop that runs a recorded forward pass: every thread of every rank runs the whole program.

Threads of a rank share its buffers and take the blocks, rows or items of each op from a counter;
an op is done when all that was taken is done. So nobody is waited for who has not come: a thread
that is late, or not there at all, costs its share of the work and nothing else, and the caller may
still be writing its tape while the others compute. A single row is quantised by every thread that
takes blocks of the map behind it, into a region of its own, which saves a wait: not before it has
taken one, because until that block is done the row stays as it is.

Ranks have memory of their own and hand each other float32 columns through the exchange. A gather
has one meeting of all ranks: the exchange has two sides in turn, so a side is written again only
after everyone has met once more, which nobody does before it has read.
"""

import numpy as np

from .program_ops import (
    ATTEND,
    CHECK,
    END,
    GATED,
    GATHER,
    LINEAR,
    MEET,
    NORM,
    QUANTISE,
    SAMPLE,
    SUM_LOGITS,
    WRITE,
    run_attend,
    run_check,
    run_codes,
    run_gated,
    run_gather,
    run_linear,
    run_sample,
    run_sum_logits,
    run_write,
)
from .registry import inner
from .step_words import draws_of, note_step, step_of
from .team import (
    ARRIVED,
    MET,
    close_step,
    enter_step,
    fetch_add,
    leave_step,
    open_step,
    wait_for,
)
from .turns import wait_done

i64 = np.int64


@inner
def run_end(memory, shared, party, met):
    """END: rank 0's thread waits for its own team, then for all ranks. False if it was aborted."""
    if party.thread > 0:
        return True
    if not close_step(memory.team, party.spins):
        return False
    if party.world == 1:
        return True
    fetch_add(shared.group, ARRIVED, 1)
    goal = memory.team[MET] + (met + 1) * party.world
    memory.team[MET] = goal
    return wait_for(shared.group, ARRIVED, goal, shared.group, party.spins)


@inner
def run_program(memory, shared, words, party, seen):
    """Run every op over a step's rows: thread 0 the step that it began, a worker all after `seen`.

    A worker comes back to sleep, thread 0 when everyone is out of the step. Returns the last step
    that a worker saw, and the index of the op that was aborted or -1. One function holds both
    loops: what calls it would be compiled with all of it once more.
    """
    while True:
        if party.thread > 0:
            number = enter_step(memory.team, seen, party.spins)
            if number < 0:
                return seen, i64(-1)
            seen = number
        step, draws, stopped = step_of(words), draws_of(words), i64(-1)
        met = i64(0)  # gathers that are behind
        last, items = i64(0), i64(0)  # the op whose items the next meeting is of
        made = i64(0)  # the op that makes the codes
        for at in range(len(memory.ops)):
            op = memory.ops[at]
            code, rows = op[0], len(step.positions)
            if op[-1] != 0:
                rows = len(step.selected)
                if rows == 0:
                    continue
            sound = True
            if code in (NORM, QUANTISE):
                made, sound = i64(at), run_codes(memory, step, party, op, rows, at)
            elif code == LINEAR:
                last, items = i64(at), run_linear(memory, step, party, op, rows, at, made)
            elif code == GATED:
                last, items = i64(at), run_gated(memory, step, party, op, rows, at, made)
            elif code == WRITE:
                last, items = i64(at), run_write(memory, step, party, op, rows, at)
            elif code == ATTEND:
                last, items = i64(at), run_attend(memory, step, party, op, rows, at)
            elif code == CHECK:
                run_check(memory, step, op, at)
            elif code == MEET:
                sound = wait_done(memory, party, last, items)
            elif code == GATHER:
                sound = wait_done(memory, party, last, items)
                sound = sound and run_gather(memory, shared, party, op, rows, at, met)
                met += 1
            elif code == SUM_LOGITS:
                run_sum_logits(memory, shared, step, party, op, rows, at)
            elif code == SAMPLE:
                run_sample(memory, step, draws, party, op, rows, at)
            elif code == END:
                sound = run_end(memory, shared, party, met)
            if not sound:
                stopped = i64(at)
                break
        if party.thread == 0:
            return seen, stopped
        leave_step(memory.team)
        if stopped >= 0:
            return seen, stopped


@inner
def begin_program(memory, words, step, draws):
    """Make a step known and let workers begin it; whether some of them must be woken.

    The caller keeps `step` and `draws` until it has run its own share.
    """
    memory.turns[:] = 0
    note_step(words, step, draws)
    return open_step(memory.team)
