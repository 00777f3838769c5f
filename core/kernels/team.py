"""How the threads of one process meet inside compiled code, share work and are told to give up."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from .registry import inner

i64 = np.int64
# int64 words of a meeting: two lines of the cache, so that spinning stays apart.
WORDS = 16
ARRIVED, INSIDE, STEP, SLEEPING, MET, ABORT = 0, 1, 2, 3, 4, 8
CLOSED = 1 << 32  # added to INSIDE while no step is under way
IDLE_TURNS = 20_000  # times that a worker gives its core away before it goes to sleep


def _pointer(context, builder, signature, args):
    array = make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def fetch_add(typing, words, index, value):
    """words[index] += value at once for all threads; the value before. words [.] of 8 bytes."""

    def generate(context, builder, signature, args):
        place = _pointer(context, builder, signature, args)
        return builder.atomic_rmw("add", place, args[2], "seq_cst")

    return words.dtype(words, types.int64, words.dtype), generate


@intrinsic
def load(typing, words, index):
    """words[index], and all that its writer wrote before it."""

    def generate(context, builder, signature, args):
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 8)

    return words.dtype(words, types.int64), generate


@intrinsic
def store(typing, words, index, value):
    """words[index] = value, after all that this thread wrote before."""

    def generate(context, builder, signature, args):
        place = _pointer(context, builder, signature, args)
        builder.store_atomic(args[2], place, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, words.dtype), generate


@intrinsic
def pause(typing):
    """Tell the core that this is a spin; nothing where it cannot be told."""

    def generate(context, builder, signature, args):
        if builder.module.triple.startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing):
    """Let another thread have the core."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@inner
def meet(words, parties, spins):
    """Wait until every party has come; False if the meeting was aborted, and for ever after.

    words [WORDS] int64, zero at first; spins: turns before the core is given away (0 where parties
    outnumber cores).  The count only grows, so a party that runs ahead cannot be taken for a late
    one of the meeting before.  Setting words[ABORT], from any thread, sends everyone home.
    """
    if load(words, ABORT) != 0:
        return False
    if parties == 1:
        return True
    goal = (fetch_add(words, ARRIVED, 1) // parties + 1) * parties
    turns = 0
    while load(words, ARRIVED) < goal:
        if load(words, ABORT) != 0:
            return False
        turns += 1
        if turns < spins:
            pause()
        else:
            give_way()
    return load(words, ABORT) == 0


@inner
def wait_for(words, index, goal, meeting, spins):
    """Wait until words[index] is at least `goal`; False if the meeting was aborted."""
    turns = 0
    while load(words, index) < goal:
        if load(meeting, ABORT) != 0:
            return False
        turns += 1
        if turns < spins:
            pause()
        else:
            give_way()
    return load(meeting, ABORT) == 0


@inner
def new_team(words, workers):
    """No step is under way, and every worker sleeps."""
    words[:] = 0
    words[INSIDE], words[SLEEPING] = CLOSED, workers


@inner
def wake_up(words):
    """A worker that slept goes on."""
    fetch_add(words, SLEEPING, -1)


@inner
def open_step(words):
    """Let workers into a step that is ready; whether some of them sleep and must be woken."""
    fetch_add(words, INSIDE, -CLOSED)
    fetch_add(words, STEP, 1)
    return fetch_add(words, SLEEPING, 0) != 0


@inner
def close_step(words, spins):
    """Let nobody in any more and wait until all who came are out; False if it was aborted.

    Whoever is inside has taken something, or is about to see that nothing is left.
    """
    fetch_add(words, INSIDE, CLOSED)
    turns = 0
    while load(words, INSIDE) != CLOSED:
        if load(words, ABORT) != 0:
            return False
        turns += 1
        if turns < spins:
            pause()
        else:
            give_way()
    return load(words, ABORT) == 0


@inner
def enter_step(words, seen, spins):
    """Wait for a step after the one `seen` and go in; its number, or -1 to sleep until woken.

    Whoever finds nothing to do for long says that it sleeps and looks once more: a step that was
    opened meanwhile is either seen here, or its opener has seen the sleeper.
    """
    turns = 0
    while load(words, ABORT) == 0:
        step = load(words, STEP)
        if step > seen:
            if fetch_add(words, INSIDE, 1) < CLOSED:
                return step
            fetch_add(words, INSIDE, -1)  # it is over: others did all of it
            seen = step
        turns += 1
        if turns < spins:
            pause()
        elif turns < spins + IDLE_TURNS:
            give_way()
        else:
            fetch_add(words, SLEEPING, 1)
            if fetch_add(words, STEP, 0) == seen:
                return i64(-1)
            fetch_add(words, SLEEPING, -1)
            turns = 0
    fetch_add(words, SLEEPING, 1)
    return i64(-1)


@inner
def leave_step(words):
    """Nothing is left that this thread could do in the step."""
    fetch_add(words, INSIDE, -1)


@inner
def abort(words):
    """Send everyone who waits, or will wait, home."""
    store(words, ABORT, 1)
