"""A step's tables as words: where each array lies, so that threads in compiled code find it."""

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from .program_memory import Draws, StepTables
from .registry import inner

i64 = np.int64

ARRAYS = len(StepTables._fields) - 1 + len(Draws._fields)
STEP_WORDS = 3 * ARRAYS + 1  # address and two lengths of each array; side


def _pointer(kind):
    """An intrinsic: the pointer to elements of one kind that an address is."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    @intrinsic
    def pointer(typing, address):
        return types.CPointer(kind)(types.int64), generate

    return pointer


_int64_at, _int32_at = _pointer(types.int64), _pointer(types.int32)
_float32_at = _pointer(types.float32)


@inner
def _note(words, at, address, first, second):
    words[3 * at], words[3 * at + 1], words[3 * at + 2] = address, first, second


@inner
def note_step(words, step, draws):
    """Write down where a step's arrays lie; whoever calls keeps them alive until it is over."""
    _note(words, 0, step.positions.ctypes.data, len(step.positions), 0)
    _note(words, 1, step.lanes.ctypes.data, len(step.lanes), 0)
    _note(words, 2, step.selected.ctypes.data, len(step.selected), 0)
    _note(words, 3, step.tables.ctypes.data, *step.tables.shape)
    _note(words, 4, step.tiles.ctypes.data, *step.tiles.shape)
    _note(words, 5, step.runs.ctypes.data, *step.runs.shape)
    _note(words, 6, step.poisoned.ctypes.data, len(step.poisoned), 0)
    _note(words, 7, draws.floats.ctypes.data, *draws.floats.shape)
    _note(words, 8, draws.whole.ctypes.data, *draws.whole.shape)
    _note(words, 9, draws.bias_starts.ctypes.data, len(draws.bias_starts), 0)
    _note(words, 10, draws.bias_ids.ctypes.data, len(draws.bias_ids), 0)
    _note(words, 11, draws.biases.ctypes.data, len(draws.biases), 0)
    _note(words, 12, draws.counts.ctypes.data, *draws.counts.shape)
    _note(words, 13, draws.reply_counts.ctypes.data, *draws.reply_counts.shape)
    _note(words, 14, draws.tokens.ctypes.data, len(draws.tokens), 0)
    words[3 * ARRAYS] = step.side


@inner
def _int64s(words, at):
    return carray(_int64_at(words[3 * at]), (words[3 * at + 1],))


@inner
def _int64_rows(words, at):
    return carray(_int64_at(words[3 * at]), (words[3 * at + 1], words[3 * at + 2]))


@inner
def _int32_rows(words, at):
    return carray(_int32_at(words[3 * at]), (words[3 * at + 1], words[3 * at + 2]))


@inner
def step_of(words):
    """The step's tables that `note_step` wrote down."""
    return StepTables(
        _int64s(words, 0), _int64s(words, 1), _int64s(words, 2), _int32_rows(words, 3),
        _int64_rows(words, 4), _int64_rows(words, 5), _int64s(words, 6), words[3 * ARRAYS],
    )  # fmt: skip


@inner
def draws_of(words):
    """The draws that `note_step` wrote down."""
    return Draws(
        carray(_float32_at(words[21]), (words[22], words[23])), _int64_rows(words, 8),
        _int64s(words, 9), carray(_int32_at(words[30]), (words[31],)),
        carray(_float32_at(words[33]), (words[34],)), _int32_rows(words, 12),
        _int32_rows(words, 13), _int64s(words, 14),
    )  # fmt: skip
