"""What scratch the rows of a step touch, by array: poison is laid over it before the next step."""

from collections.abc import Mapping
from functools import partial

from ..glm.program import GlmProgram
from ..program import Program
from ..settings import DeviceSettings
from .card import Array
from .filling import DRAFTING, SAMPLED, Soil, Span
from .glm_memory import BAND, GlmCudaMemory
from .glm_memory import SCRATCH as GLM_SCRATCH
from .memory import SCRATCH, CudaMemory

SETS = {"logits": SAMPLED, "draft logits": DRAFTING}  # buffers of fewer rows than the step


def soil_of_llama(memory: CudaMemory, program: Program, settings: DeviceSettings) -> Soil | None:
    """The soil of a llama's scratch; None where nothing is poisoned."""
    if not settings.poisons:
        return None
    rows, whole = settings.rows, partial(_rows_of, memory.arrays)
    spans = {
        "floats": _floats(program),
        "codes": [Span(0, -(-program.codes // rows))],
        **{name: whole(name) for name in ("queries", "query_exponents", "scores")},
        "z": [Span(0, memory.z.shape[1], SAMPLED)],
    }
    scratch = {name: memory.arrays[name] for name in SCRATCH}
    return Soil(memory.card, scratch, spans, settings.poison)


def soil_of_glm(
    memory: GlmCudaMemory, program: GlmProgram, settings: DeviceSettings
) -> Soil | None:
    """The soil of a GLM's scratch; None where nothing is poisoned."""
    if not settings.poisons:
        return None
    rows, band = settings.rows, min(settings.rows, BAND)
    spans = {
        "floats": _floats(program),
        "codes": [Span(one.at, one.width) for one in program.digits],
        "both": [Span(0, memory.both.shape[0] // rows)],
        "pool_scores": [Span(0, memory.pool_scores.shape[1], most=band)],
        "attend_scores": [Span(0, -(-memory.attend_scores.shape[0] // band), most=band)],
        "z": [Span(0, memory.z.shape[1], SAMPLED)],
    }
    scratch = {name: memory.arrays[name] for name in GLM_SCRATCH}
    return Soil(memory.card, scratch, spans, settings.poison)


def _floats(program: Program) -> list[Span]:
    return [Span(x.at, x.width, SETS.get(name, 0)) for name, x in program.buffers.items()]


def _rows_of(arrays: Mapping[str, Array], name: str) -> list[Span]:
    """An array whose first axis is rows."""
    array = arrays[name]
    return [Span(0, int(array.size) // int(array.shape[0]))]
