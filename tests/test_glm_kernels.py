"""Kernels of hyper-connections, the recurrence and experts: golden bits, any cut, any rollback."""

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

clamped: Any = import_module("kvtape.core.kernels.clamped")
conv: Any = import_module("kvtape.core.kernels.conv")
kda: Any = import_module("kvtape.core.kernels.kda")
layernorm: Any = import_module("kvtape.core.kernels.layernorm")
mtp: Any = import_module("kvtape.core.kernels.mtp")
route: Any = import_module("kvtape.core.kernels.route")
streams: Any = import_module("kvtape.core.kernels.streams")

f32 = np.float32
VECTORS = np.load(Path(__file__).parent / "data" / "glm_rows.npz")
Floats = NDArray[np.float32]


def junk(*shape: int) -> Floats:
    """What stands where nobody may look."""
    return np.full(shape, np.nan, f32)


def equal(have: NDArray[Any], want: NDArray[Any]) -> bool:
    return have.shape == want.shape and have.tobytes() == want.tobytes()


# --- rows on their own ---------------------------------------------------------------------------


def test_layernorm_is_the_golden_one_and_may_stay_in_its_place() -> None:
    x, w, b = (VECTORS[f"ln_{name}"] for name in "xwb")
    y, flags = junk(*x.shape), np.zeros(len(x), np.uint8)
    layernorm.layernorm_rows(x, w, b, f32(1e-6), y, flags, 0, len(x))
    assert equal(y, VECTORS["ln_y"])
    assert not flags.any()
    layernorm.layernorm_rows(x, w, b, f32(1e-6), x, flags, 0, len(x))
    assert equal(x, y)


def test_the_streams_are_read_written_and_collapsed_as_the_golden_ones() -> None:
    m, base, scale, x, y = (VECTORS[f"hc_{name}"] for name in ("m", "base", "scale", "x", "y"))
    rows, width = y.shape
    site, u, h = junk(rows, 24), junk(rows, width), junk(rows, width)
    for first, last in ((0, 2), (2, rows)):
        streams.hc_weights(m, base, scale, f32(1e-6), 20, site, first, last)
        streams.hc_read(x, site, u, first, last)
        streams.hc_write(x, site, y, first, last)
        streams.hc_mean(x, 4, h, first, last)
    assert equal(site, VECTORS["hc_site"])
    assert equal(u, VECTORS["hc_u"])
    assert equal(x, VECTORS["hc_after"])
    assert equal(h, VECTORS["hc_mean"])


def test_what_a_stream_keeps_sums_to_one_over_rows_and_columns() -> None:
    keep = VECTORS["hc_site"][:, 8:].reshape(-1, 4, 4).astype(float)
    assert np.abs(keep.sum(1) - 1).max() < 1e-5
    assert np.abs(keep.sum(2) - 1).max() < 0.05
    site = junk(len(keep), 24)
    arguments = (VECTORS["hc_m"], VECTORS["hc_base"], VECTORS["hc_scale"], f32(1e-6))
    streams.hc_weights(*arguments, 1, site, 0, len(keep))
    assert np.abs(site[:, 8:].reshape(-1, 4, 4).sum(1) - 1).max() < 1e-5
    assert not equal(site, VECTORS["hc_site"])


def test_the_unit_with_limits_is_the_golden_one() -> None:
    gate, up = VECTORS["glu_g"], VECTORS["glu_u"]
    assert (gate > 10).any() and (gate < -10).any() and (np.abs(up) > 10).any()
    h = junk(len(gate), 40)
    clamped.clamped_rows(np.hstack([gate, up]), 33, f32(10), h, 7, 0, len(gate))
    assert equal(h[:, 7:], VECTORS["glu_h"])
    assert np.isnan(h[:, :7]).all()


@pytest.mark.parametrize("streams_of", [1, 4])
@pytest.mark.parametrize("exact", [False, True])
def test_embedding_rows_are_the_tables_rows(streams_of: int, exact: bool) -> None:
    table = np.random.default_rng(1).standard_normal((6, 8)).astype(f32)
    pattern = table.view(np.uint32)
    if not exact:
        pattern &= np.uint32(0xFFFF0000)
    high = (pattern >> 16).astype(np.uint16)
    low = pattern.astype(np.uint16)[: 6 if exact else 0]
    tokens, x = np.array([5, 0, 0, 3]), junk(4, 8 * streams_of)
    mtp.embed_rows(high, low, tokens, x, 0, 4)
    assert equal(x, np.tile(table[tokens], streams_of))
    following = junk(4, 8)
    mtp.embed_next(high, low, tokens, np.array([0, 1, 0, 9]), following, 0, 4)
    assert equal(following[[1, 3]], table[[0, 3]])
    assert equal(following[[0, 2]], np.zeros((2, 8), f32))


# --- experts -------------------------------------------------------------------------------------


def test_experts_are_chosen_and_combined_as_the_golden_ones() -> None:
    m, bias, full, shared = (VECTORS[f"moe_{name}"] for name in ("m", "bias", "experts", "shared"))
    (many, rows, width), k = full.shape, 4
    ids, weights = np.zeros((rows, k), np.int64), junk(rows, k)
    route.route_rows(m, bias, k, f32(2.5), ids, weights, 0, rows)
    order, starts = np.full(rows * k, -1), np.full(many + 1, -1)
    route.group_rows(ids, order, starts)
    parts, y = junk(rows * k, width), junk(rows, width)
    for expert, (first, last) in enumerate(pairwise(starts.tolist())):
        slots = order[first:last]
        parts[slots] = full[expert, slots // k]
    for columns in ((0, 7), (7, width)):
        route.combine_rows(parts, weights, shared, y, *columns, 0, rows)
    assert equal(y, VECTORS["moe_y"])


def test_equal_scores_go_to_the_lower_ids_and_ids_ascend() -> None:
    m = np.array([[3, 1, 3, 3, 1], [0, 0, 0, 0, 0], [-9, 9, -9, 8, 7]], f32)
    ids, weights = np.zeros((3, 2), np.int64), junk(3, 2)
    route.route_rows(m, np.zeros(5, f32), 2, f32(1), ids, weights, 0, 3)
    assert ids.tolist() == [[0, 2], [0, 1], [1, 3]]
    assert np.abs(weights.sum(1) - 1).max() < 1e-6


def test_the_bias_chooses_but_does_not_weigh() -> None:
    m, bias = np.array([[2, 1, 0, 0]], f32), np.array([0, 0, 0, 9], f32)
    ids, weights = np.zeros((1, 2), np.int64), junk(1, 2)
    route.route_rows(m, bias, 2, f32(1), ids, weights, 0, 1)
    assert ids.tolist() == [[0, 3]]
    assert weights[0, 0] > weights[0, 1]


# --- the recurrence ------------------------------------------------------------------------------

LANES = 2


class Recurrence:
    """Convolution, recurrence and gate of two lanes over memory that begins as junk."""

    def __init__(self, name: str, slots: int, ring_rows: int = 3) -> None:
        self.data = {key[4:]: VECTORS[key] for key in VECTORS.files if key.startswith(name + "_")}
        self.heads = self.data["decay"].size
        self.width = self.data["w"].size
        self.size = self.heads * self.width
        self.slots, self.ring_rows = slots, ring_rows
        self.states = junk(LANES, slots, self.heads, self.width, self.width)
        self.ring = junk(LANES, ring_rows, 3 * self.size)
        self.first_rows = [0, int(self.data["rows"][0])]

    def inputs(self, lane: int, position: int, rows: int) -> dict[str, Floats]:
        """The golden inputs of some rows."""
        at = self.first_rows[lane] + position
        return {key: self.data[key][at : at + rows] for key in ("raw", "f", "b", "gate")}

    def step(
        self, runs: list[tuple[int, int, dict[str, Floats]]], cuts: tuple[int, ...] = ()
    ) -> Floats:
        """Runs (lane, first position, inputs) in one step -> gated outputs [rows, H * D]."""
        counts = [len(one["raw"]) for _, _, one in runs]
        rows, first_rows = sum(counts), np.cumsum([0, *counts])
        x = {key: np.concatenate([one[key] for _, _, one in runs]) for key in runs[0][2]}
        table = np.array(
            [
                (lane, first_rows[i], position, counts[i])
                for i, (lane, position, _) in enumerate(runs)
            ],
            np.int64,
        )
        d, n = self.data, self.heads
        qkv, out, o = junk(rows, 3 * self.size), junk(rows, self.size), junk(rows, self.size)
        q, k, a, beta = (*(junk(rows, self.size) for _ in range(3)), junk(rows, n))
        flags, work = np.zeros(rows, np.uint8), junk(self.width, self.width)
        edges = sorted({0, *(c % (3 * self.size) for c in cuts), 3 * self.size})
        for c0, c1 in pairwise(edges):
            conv.conv_rows(x["raw"], 0, d["taps"], self.ring, table, qkv, c0, c1)
        for first, last in pairwise(sorted({0, *(c % (rows * n) for c in cuts), rows * n})):
            kda.kda_prepare(
                qkv, x["f"], 0, d["dt"], d["decay"], f32(-5), x["b"], 0,
                q, k, a, beta, flags, first, last,
            )  # fmt: skip
        items = len(runs) * n
        for first, last in pairwise(sorted({0, *(c % items for c in cuts), items})):
            kda.kda_rows(q, k, qkv, a, beta, self.states, table, o, work, first, last)
        for first, last in pairwise(sorted({0, *(c % (rows * n) for c in cuts), rows * n})):
            kda.kda_gate(o, x["gate"], 0, d["w"], f32(1e-5), out, 0, flags, first, last)
        assert not flags.any()
        return out

    def check_memory(self) -> None:
        """The state and the ring after the last golden row of each lane."""
        for lane, rows in enumerate(self.data["rows"].tolist()):
            assert equal(self.states[lane, (rows - 1) % self.slots], self.data["states"][lane])
            at = np.arange(rows - 3, rows) % self.ring_rows
            assert equal(self.ring[lane, at], self.data["ring"][lane])

    def golden(self, lane: int, position: int, rows: int) -> Floats:
        at = self.first_rows[lane] + position
        out: Floats = self.data["out"][at : at + rows]
        return out


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["kda", "kdb"]),
    st.integers(1, 4),
    st.integers(3, 9),
    st.lists(st.integers(1, 12), min_size=1, max_size=30),
    st.lists(st.integers(0, 500), max_size=3),
)
def test_the_recurrence_is_the_golden_one_however_rows_and_threads_are_cut(
    name: str, slots: int, ring_rows: int, sizes: list[int], cuts: list[int]
) -> None:
    one = Recurrence(name, slots, ring_rows)
    done, turn = [0, 0], 0
    ends = one.data["rows"].tolist()
    while done != ends:
        runs = []
        for lane in (1, 0):
            rows = min(sizes[turn % len(sizes)], ends[lane] - done[lane])
            turn += 1
            if rows:
                runs.append((lane, done[lane], one.inputs(lane, done[lane], rows)))
        out = one.step(runs, tuple(cuts))
        at = 0
        for lane, position, x in runs:
            rows = len(x["raw"])
            assert equal(out[at : at + rows], one.golden(lane, position, rows))
            at, done[lane] = at + rows, position + rows
    one.check_memory()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_rejected_rows_leave_nothing_behind(drafts: int, accepted: list[int]) -> None:
    one = Recurrence("kda", drafts + 1, 3 + drafts)
    rng, end = np.random.default_rng(7), int(one.data["rows"][0])
    position = turn = 0
    while position < end:
        take = min(1 + accepted[turn % len(accepted)], 1 + drafts, end - position)
        turn += 1
        x = one.inputs(0, position, take)
        wrong = 1 + drafts - take
        window = {
            key: np.concatenate([rows, rng.standard_normal((wrong, rows.shape[1])).astype(f32)])
            for key, rows in x.items()
        }
        out = one.step([(0, position, window)])
        assert equal(out[:take], one.golden(0, position, take))
        position += take
    assert equal(one.states[0, (end - 1) % (drafts + 1)], one.data["states"][0])


def test_a_lane_that_begins_again_knows_nothing_of_what_was_there() -> None:
    one = Recurrence("kda", 2, 4)
    one.step([(0, 0, one.inputs(0, 0, 7)), (1, 0, one.inputs(1, 0, 2))])
    again = one.step([(1, 2, one.inputs(1, 2, 3)), (0, 0, one.inputs(0, 0, 9))])
    assert equal(again[:3], one.golden(1, 2, 3))
    assert equal(again[3:], one.golden(0, 0, 9))


def test_a_lane_is_left_alone_by_the_others_and_by_runs_of_no_rows() -> None:
    one = Recurrence("kda", 2)
    one.step([(0, 0, one.inputs(0, 0, 5))])
    states, ring = one.states.copy(), one.ring.copy()
    one.step([(0, 5, one.inputs(0, 5, 0)), (1, 0, one.inputs(1, 0, 4))])
    assert equal(one.states[0], states[0])
    assert equal(one.ring[0], ring[0])


# --- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_row_that_is_not_sound_is_flagged_and_no_other(value: float) -> None:
    x = np.random.default_rng(2).standard_normal((3, 24)).astype(f32)
    x[1, 9] = value
    ones, flags = np.ones(24, f32), np.zeros((3, 3), np.uint8)
    layernorm.layernorm_rows(x, ones, ones, f32(1e-6), junk(3, 24), flags[0], 0, 3)
    kda.kda_gate(x, x, 0, ones[:8], f32(1e-5), junk(3, 24), 0, flags[1], 0, 9)
    out = [junk(3, 8) for _ in range(3)]
    kda.kda_prepare(
        x, x, 0, ones[:8], ones[:2], f32(-5), x, 0, *out, junk(3, 2), flags[2], 0, 6
    )  # the value stands in the first head's key
    assert flags.tolist() == [[0, 1, 0]] * 3
