"""Ranks as CUDA devices: one in this process, each other one a process of its own with its GPU."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Any

from ...core.families.family import Choices, Family
from ...core.families.glm import Glm
from ...core.families.llama import Llama
from ...core.kernels.cuda.target import SIMULATED
from ...core.link import RankLost
from ...events.ids import Rank
from ..circle import Circle
from ..kernel_cache import use_cache
from ..links import Reply
from ..rank_main import Line
from ..rank_process import Heard, RankProcess, RankRefused
from ..settings import DeviceSettings
from ..weights.checkpoint import Checkpoint
from ..weights.find import find_model
from ..weights.glm_dir import GlmCheckpoint
from ..weights_load import Progress, load_weights
from .card import Card, NoCard, open_card
from .device import CudaDevice
from .gathering import Gather, alone
from .joined import Sizes
from .memory import gathers_of, rank_memory, recorded
from .ways import nccl, way_of

CardRank = Any  # a CudaDevice or a GlmCudaDevice: a PagedRank or a GlmRank that is OnCard
START_SECONDS = 3600.0  # that a follower may take to load; if it dies, that is heard at once


@dataclass(frozen=True, slots=True)
class Placed:
    """A rank's weights and memory on its card; the device is made once its gather is there."""

    card: Card
    digest: str
    sizes: Sizes
    device: Callable[[Gather], CardRank]


@dataclass(frozen=True, slots=True)
class CudaOrder:
    """What a rank is to be. card: its number.  way: how columns are gathered, nccl or links.

    captures: steps are graphs.
    """

    rank: int
    world: int
    card: int
    model: str
    settings: DeviceSettings
    choices: Choices
    way: str
    captures: bool = True

    def make(self, line: Line) -> CardRank:
        """This process's rank: it is placed first, and meets the others when rank 0 says so."""
        use_cache()
        checkpoint = find_model(self.model)
        placed = self.placed(checkpoint, lambda done, total: None)
        line.say(placed.digest)
        identity = line.heard()
        circle = Circle(self.rank, self.world, [line.meeting], self.settings.limit_s)
        line.cut = circle.stop
        gather: Any = self.joined(circle, placed, identity)
        line.cut = gather.stop
        return self.ready(placed, gather)

    def placed(self, checkpoint: Checkpoint, progress: Progress) -> Placed:
        """The rank's share of a model. Raises NoCard, NoRoom, UnsupportedShape."""
        from ..group import family_of  # which makes groups of this kind, too

        return place(checkpoint, family_of(checkpoint, self.choices), self, progress)

    def joined(self, circle: Circle, placed: Placed, identity: tuple[int, ...]) -> Any:
        """How this rank gathers; all ranks make it at once. identity: of NCCL's meeting."""
        if self.way == "links":
            from .by_links import GatherByLinks

            return GatherByLinks(placed.card, circle, placed.sizes)
        from .by_nccl import GatherByNccl

        limit_s = self.settings.limit_s
        return GatherByNccl(placed.card, circle, placed.sizes, identity, limit_s)

    def ready(self, placed: Placed, gather: Gather) -> CardRank:
        """The device, warm; of several ranks, all at once."""
        device = placed.device(gather)
        if not SIMULATED:  # which has nothing to compile, and takes its time for every row
            device.warm()
        return device


def place(checkpoint: Checkpoint, family: Family, order: CudaOrder, progress: Progress) -> Placed:
    """A rank of any family that runs on a GPU. Raises NoCard, NoRoom."""
    if isinstance(family, Glm):
        return place_glm(checkpoint, family, order, progress)
    assert isinstance(family, Llama), family
    return place_llama(checkpoint, family, order, progress)


def place_glm(checkpoint: Checkpoint, family: Glm, order: CudaOrder, progress: Progress) -> Placed:
    """A GLM's rank."""
    from .glm_group import glm_rank  # a llama's server need not wait for these kernels

    assert isinstance(checkpoint, GlmCheckpoint)
    card = open_card(order.card)
    digest, sizes, make = glm_rank(
        checkpoint, family, order.settings, card, order.rank, order.world, progress,
        captures=order.captures,
    )  # fmt: skip
    return Placed(card, digest, sizes, lambda gather: make(gather=gather))


def place_llama(
    checkpoint: Checkpoint, family: Llama, order: CudaOrder, progress: Progress
) -> Placed:
    """A llama's rank: weights brought over from what the CPU's loader packs."""
    rank, world, settings = order.rank, order.world, order.settings
    card = open_card(order.card)
    program = recorded(family, world, rank, settings)
    workers = max(1, os.cpu_count() or 1)
    (weights,), digest = load_weights(checkpoint, family, [program], workers, progress)
    first, last = family.heads(world, rank)
    memory = rank_memory(card, family, program, weights, settings, last - first)

    def device(gather: Gather) -> CudaDevice:
        return CudaDevice(
            Rank(rank), world, settings, checkpoint, family, program, memory, digest,
            gather=gather, captures=order.captures,
        )  # fmt: skip

    return Placed(card, digest, Sizes.of(gathers_of(program, settings)), device)


class Alarm:
    """Wakes whoever waits for a follower that is gone: nobody at first, then rank 0's gather."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._why = ""
        self._wake: Heard = lambda why: None

    def __call__(self, why: str) -> None:
        """A follower is gone; from the thread that listens to it."""
        with self._lock:
            self._why, wake = self._why or why, self._wake
        wake(why)

    def wakes(self, wake: Heard) -> None:
        """From now on this is told; at once, if a follower is gone already."""
        with self._lock:
            self._wake, why = wake, self._why
        if why:
            wake(why)


def cuda_ranks(
    checkpoint: Checkpoint,
    settings: DeviceSettings,
    *,
    world: int,
    progress: Progress,
    choices: Choices,
    gather: str = "auto",
    captures: bool = True,
) -> Sequence[CardRank]:
    """A model's ranks, rank 0 here. Raises NoCard, NoRoom, UnsupportedShape."""
    card = open_card(0)
    way = way_of(gather, world, card) if world > 1 else ""
    orders = [
        CudaOrder(
            rank, world, rank % card.count(), str(checkpoint.path), settings, choices, way,
            captures,
        )
        for rank in range(world)
    ]  # fmt: skip
    if world == 1:
        return [orders[0].ready(orders[0].placed(checkpoint, progress), alone)]
    inbox, alarm = SimpleQueue[Reply](), Alarm()
    members: list[RankProcess] = []
    try:
        for order in orders[1:]:
            members.append(RankProcess(order.rank, order, inbox, alarm))
        return [_led(orders[0], checkpoint, progress, members, alarm), *members]
    except BaseException as error:
        for member in members:
            member.end()
        if isinstance(error, RankLost | RankRefused):
            raise NoCard(f"--tp {world} --device cuda: {error}") from error
        raise


def _led(
    order: CudaOrder,
    checkpoint: Checkpoint,
    progress: Progress,
    members: Sequence[RankProcess],
    alarm: Alarm,
) -> CardRank:
    """Rank 0's device, once all are ready. Raises RankLost, RankRefused."""
    placed = order.placed(checkpoint, progress)
    for member in members:
        digest = member.answer(START_SECONDS)
        if digest != placed.digest:
            raise RankRefused(f"rank {member.rank} read other weights: {digest}, {placed.digest}")
    identity: tuple[int, ...] = ()
    if order.way == "nccl":
        identity = nccl().get_unique_id()
    circle = Circle(0, order.world, [one.meeting for one in members], order.settings.limit_s)
    alarm.wakes(circle.stop)
    for member in members:
        member.tell(identity)
    gather = order.joined(circle, placed, identity)
    alarm.wakes(gather.stop)
    device = order.ready(placed, gather)
    for member in members:
        member.answer(START_SECONDS)
    return device
