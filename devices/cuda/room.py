"""What a rank holds on its GPU beside pages, from a model's sizes, before anything is there."""

from ...core.families.family import Family
from ...core.families.glm import Glm
from ...core.families.llama import Llama
from ..glm.arena import ring_sizes
from ..settings import DeviceSettings
from . import glm_memory, memory
from .card import LINE, Shape, size_of
from .checks import checks_of
from .joined import Sizes

F32 = 4  # bytes


def held_bytes(family: Family, settings: DeviceSettings, world: int, *, wide_table: bool) -> int:
    """Bytes of the first rank, which has the most heads: weights, lanes, reserved pages, buffers.

    settings: of no pages and no kept states, which come on top with their own bytes.  wide_table:
    embedding rows are of 32 bits.
    """
    assert not settings.pages and not settings.states, settings
    if isinstance(family, Glm):
        shapes, sizes = _glm(family, settings, world, wide_table=wide_table)
    else:
        assert isinstance(family, Llama), family
        shapes, sizes = _llama(family, settings, world)
    gathers = F32 * sizes.own * (1 + world) if world > 1 else 0
    padding = LINE * len(shapes)  # of arrays that are to have pages or states as well
    return size_of(shapes) + padding + gathers


def _llama(family: Llama, settings: DeviceSettings, world: int) -> tuple[dict[str, Shape], Sizes]:
    program = memory.recorded(family, world, 0, settings)
    first, last = family.heads(world, 0)
    step = memory.step_room(family, settings, checks_of(program, verify=settings.verify))
    shapes = memory.planned(family, program, settings, last - first, step)
    return shapes, Sizes.of(memory.gathers_of(program, settings))


def _glm(
    family: Glm, settings: DeviceSettings, world: int, *, wide_table: bool
) -> tuple[dict[str, Shape], Sizes]:
    program = glm_memory.recorded(family, world, 0, settings, [0] * family.caches)
    heads = glm_memory.heads_of(family, world, 0)
    shapes = glm_memory.planned(
        family, program, settings, ring_sizes(family), heads, wide_table=wide_table
    )
    return shapes, Sizes.of(glm_memory.gathers_of(program, settings))
