"""A GLM on one card over random weights and rows: its program, its memory, steps by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtape.core.families.glm import Glm
from kvtape.core.glm_ops import Rows
from kvtape.core.kernels.glm_memory import GlmStep
from kvtape.core.kernels.program_memory import Draws
from kvtape.devices.cuda.card import Card, Launch
from kvtape.devices.cuda.checks import checks_of
from kvtape.devices.cuda.glm_lower import GlmLowering, Segment
from kvtape.devices.cuda.glm_memory import GlmCudaMemory, allocated, planned, room_of
from kvtape.devices.cuda.glm_tables import GlmTables
from kvtape.devices.cuda.tables import PLAIN
from kvtape.devices.glm.arena import ring_sizes
from kvtape.devices.glm.layout import GlmOp
from kvtape.devices.glm.party import party_of
from kvtape.devices.glm.program import GlmProgram, GlmRecorder
from kvtape.devices.settings import DeviceSettings

from . import cuda_random
from .cuda_real_sums import bring_checks

LATENT, KEYS = -10, -12  # static exponents
LATENT_DOWN, KEYS_DOWN = 4, 3  # random rows' codes, so that their values are near one
DIGIT_RMS = 18844  # of random packed weights
Words = tuple[int, ...]


class RealRig:
    """The program and its memory; weights give rows of about the size of what they are given.

    Steps look at their products where they are lowered so; the settings say if memory is for that.
    """

    def __init__(self, card: Card, family: Glm, settings: DeviceSettings) -> None:
        self.card, self.family, self.settings = card, family, settings
        self.rings = ring_sizes(family)
        exponents = [KEYS] * family.caches
        recorder = GlmRecorder(family, 1, 0, settings.rows, settings.poisons, exponents)
        self.program: GlmProgram = recorder.program()
        heads = (family.sizes.heads, family.sizes.kda_heads)
        self.shapes = planned(
            family, self.program, settings, self.rings, heads, wide_table=False
        )  # fmt: skip
        checks = checks_of(self.program, verify=settings.verify)
        self.memory: GlmCudaMemory = allocated(
            card, self.program, self.shapes, room_of(family, settings, checks), checks
        )
        self.tables = GlmTables(
            self.memory.step, card.staged(self.memory.step.bytes), settings.pages
        )
        self.lowering = self.lowered_for(replace(settings, verify=False))
        self._fill()

    def lowered_for(self, settings: DeviceSettings) -> GlmLowering:
        """The lowering of the program under settings that differ in what is summed or verified."""
        party = party_of(self.family, settings, 0, 1, 0, 1, 0, LATENT)
        return GlmLowering(self.program, self.memory, party, verify=settings.verify)

    def _fill(self) -> None:
        arrays, stream = self.memory.arrays, self.card.stream
        cuda_random.planes(stream, arrays["planes"], 1)
        bring_checks(self.memory)
        cuda_random.halves(stream, arrays["table_high"], 2)
        cuda_random.codes(stream, arrays["latent"], 3, LATENT_DOWN)
        cuda_random.codes(stream, arrays["keys"], 4, KEYS_DOWN)
        for seed, name in enumerate(("states", "conv_ring", "index_ring"), 5):
            cuda_random.floats(stream, arrays[name], seed)
        exponents = np.zeros(self.program.exponents, np.int8)
        for one in self.program.matrices:
            size = round(float(np.log2(DIGIT_RMS * one.inputs**0.5)))
            exponents[one.exponents_at : one.exponents_at + one.columns] = -size
        self.card.upload(exponents, arrays["weight_exponents"])
        constants = self._constants()
        self.card.upload(constants, arrays["constants"])
        self.card.wait()

    def _constants(self) -> NDArray[np.float32]:
        rng = np.random.default_rng(8)
        constants = np.ones(self.program.constants, np.float32)
        for (name, first, last), at in self.program.vectors.items():
            constants[at : at + last - first] = constant(rng, name, last - first)
        return constants

    # --- steps -----------------------------------------------------------------------------------

    def seat(self, runs: Sequence[tuple[int, int, int]], *, spread: bool = False) -> None:
        """Put a step of runs (lane, first position, rows) onto the card; the last row is sampled.

        Lanes have pages of their own, in order; spread: the pool's pages in random order.
        """
        settings, page_rows = self.settings, self.family.choices.page_rows
        entries = self.memory.step.entries
        order = np.arange(settings.pages)
        if spread:
            order = np.random.default_rng(9).permutation(settings.pages)
        tables = np.full((settings.lanes, entries), settings.pages + 1, np.int32)
        at = 0
        for lane, first, rows in runs:
            need = -(-(first + rows) // page_rows)
            tables[lane, :need] = order[at : at + need]
            at += need
        assert at <= settings.pages, f"{at} pages are seated of {settings.pages}"
        self.page_tables = tables
        counts = [rows for _, _, rows in runs]
        starts = np.cumsum([0, *counts])
        positions = [np.arange(first, first + rows) for _, first, rows in runs]
        total, sampled = int(starts[-1]), len(runs)
        draws = Draws(
            np.tile(np.array(PLAIN, np.float32)[:, None], (1, sampled)),
            np.zeros((4, sampled), np.int64), np.zeros(sampled + 1, np.int64),
            np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((1, 1), np.int32),
            np.zeros((1, 1), np.int32), np.zeros(sampled, np.int64),
        )  # fmt: skip
        tokens = np.random.default_rng(10).permutation(self.family.vocab)[:total]
        step = GlmStep(
            tokens=tokens,
            positions=np.concatenate(positions),
            lanes=np.repeat([lane for lane, _, _ in runs], counts),
            selected=starts[1:] - 1,
            tables=tables,
            runs=np.array(
                [(lane, at, first, rows)
                 for at, (lane, first, rows) in zip(starts[:-1], runs, strict=True)], np.int64
            ),
            next_tokens=tokens,
            sampled=np.array([(i, 1) for i in range(sampled)], np.int64),
            windows=np.ones(sampled, np.int64),
            kept=np.array(counts, np.int64),
            ends=np.full((sampled, 1), -1, np.int64),
            wants=np.zeros(sampled, np.int64),
            limits=np.full(sampled, settings.context, np.int64),
            poisoned=np.zeros(sampled, np.int64),
            side=0,
        )  # fmt: skip
        self.tables.write(step, draws, total, sampled)
        self.card.upload(self.tables.block, self.memory.arrays["step"])
        self.card.wait()

    # --- launches --------------------------------------------------------------------------------

    @property
    def layers(self) -> list[Words]:
        """The ops between the embedding and the mean of the streams."""
        ops = list(self._segment(Rows.ALL).ops)
        ends = [at for at, words in enumerate(ops) if words[0] == GlmOp.HC_MEAN]
        assert ops[0][0] == GlmOp.EMBED and len(ends) == 1
        return ops[1 : ends[0]]

    def _segment(self, rows: Rows) -> Segment:
        return next(one for one in self.lowering.segments() if one.set is rows)

    def of_layers(self, rows: int, *, verify: bool = False) -> list[list[Launch]]:
        """Launches of each op of the layers, or of two that are one."""
        lowering = self.lowered_for(self.settings) if verify else self.lowering
        return list(lowering.together(self.layers, Rows.ALL, rows))

    def embedding(self, rows: int) -> list[Launch]:
        """Launches of the embedding."""
        first = self._segment(Rows.ALL).ops[0]
        return self.lowering.lowered(first, Rows.ALL, rows)

    def logits(self, rows: int, sampled: int) -> list[Launch]:
        """Launches from the mean of the streams to the drawn tokens."""
        behind = self._segment(Rows.ALL).ops[1 + len(self.layers) :]
        found = [one for words in behind for one in self.lowering.lowered(words, Rows.ALL, rows)]
        return [*found, *self.lowering.launches(self._segment(Rows.SELECTED), sampled)]

    def of(self, op: GlmOp, which: int = 0) -> Words:
        """The which-th op of a kind."""
        return [words for words in self.layers if words[0] == op][which]

    def host(self, array: Any) -> NDArray[Any]:
        """What stands in an array of the card."""
        found = np.empty(array.shape, array.dtype)
        self.card.download(array, found)
        self.card.wait()
        return found


def constant(rng: np.random.Generator, name: str, size: int) -> Any:
    """Values of a constant, by its name."""
    if name.endswith("conv1d.weight"):
        return rng.standard_normal(size) / 2
    if name.endswith(("_base", "compress_ape", "dt_bias")):
        return rng.standard_normal(size) / 10
    if name.endswith(("k_norm.bias", "e_score_correction_bias")):
        return np.zeros(size)
    return np.ones(size)
