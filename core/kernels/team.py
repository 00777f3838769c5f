"""How the threads of one process meet inside compiled code, and how they are told to give up."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from .registry import inner

WORDS = 16  # int64 words of a meeting: two lines of the cache, so that spinning stays apart
ARRIVED, ABORT = 0, 8


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
def abort(words):
    """Send everyone who waits, or will wait, home."""
    store(words, ABORT, 1)
