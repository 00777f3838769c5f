"""Packed weights of ranks that are cut anywhere, and the model digest, which no cut changes."""

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvtape.core.digests import add_pairs, pair_hex
from kvtape.core.families.family import Family
from kvtape.core.families.glm_tensors import EMBEDDING, LAYER, read_tensors
from kvtape.core.kernels.digest import PARTS, digest_of, row_words
from kvtape.core.kernels.meaning import q16
from kvtape.core.kernels.pack import unpack
from kvtape.core.ops import Floats
from kvtape.devices.placing import Matrix, Vector, padded
from kvtape.devices.program import Program
from kvtape.devices.weights.checkpoint import BadModel, Checkpoint
from kvtape.devices.weights.find import find_model
from kvtape.devices.weights.glm_dir import GlmCheckpoint
from kvtape.devices.weights_load import ROWS_AT_ONCE, load_weights
from kvtape.tests import tiny_glm

Span = tuple[int, int]
CONV = LAYER.format(0) + "self_attn.v_conv1d.weight"
BETA = LAYER.format(0) + "self_attn.b_proj.weight"
KEYS = LAYER.format(3) + "self_attn.absorbed_k.weight"
QUERIES = LAYER.format(3) + "self_attn.indexer.wq_b.weight"
VALUES = LAYER.format(5) + "self_attn.absorbed_v.weight"
SCALE = LAYER.format(1) + "hc_ffn_scale"


class Shapes:
    """As much of a family as loading asks for."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = dict(shapes)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._shapes


class Held:
    """A checkpoint of arrays that remembers what it was asked for."""

    name = "held"

    def __init__(self, named: Mapping[str, NDArray[np.float32]]) -> None:
        self.named = named
        self.most = 0

    def names(self) -> list[str]:
        return list(self.named)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.named[name].shape

    def vector(self, name: str) -> NDArray[np.float32]:
        return self.named[name]

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        self.most = max(self.most, last - first)
        return np.ascontiguousarray(self.named[name][first:last])


@functools.cache
def tiny() -> GlmCheckpoint:
    found = find_model(str(tiny_glm.TINY))
    assert isinstance(found, GlmCheckpoint)
    return found


def program(matrices: list[tuple[int, list[tuple[str, Span]]]], vectors: list[Vector]) -> Program:
    """A program that computes nothing, with weights as asked for: (inputs, own rows of tensors)."""
    made, weights, exponents = list[Matrix](), 0, 0
    for inputs, own in matrices:
        made.append(Matrix(tuple(own), inputs, weights, exponents))
        weights += made[-1].columns * inputs
        exponents += made[-1].columns
    at, constants = dict[Vector, int](), 0
    for vector in vectors:
        at[vector] = constants
        constants += vector[2] - vector[1]
    none = Floats(0, 0)
    return Program(
        np.zeros((0, 10), np.int64), 0, 0, 0, weights, exponents, constants, made, at, none, none
    )


def load(
    checkpoint: Any,
    shapes: Mapping[str, tuple[int, ...]],
    programs: list[Program],
    threads: int = 2,
) -> tuple[list[Any], str, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    weights, digest = load_weights(
        cast(Checkpoint, checkpoint), cast(Family, Shapes(shapes)), programs, threads,
        lambda done, total: told.append((done, total)),
    )  # fmt: skip
    return list(weights), digest, told


def assert_packed(programs: list[Program], weights: list[Any], checkpoint: Any) -> None:
    """Each rank's arena holds the Q16 rows of its spans, blocks filled up with zero rows."""
    for made, mine in zip(programs, weights, strict=True):
        for matrix in (matrix for matrix in made.matrices if matrix.columns):
            size = matrix.columns * matrix.inputs
            packed = mine.packed[matrix.at : matrix.at + size]
            rows = unpack(packed, matrix.columns, matrix.inputs)
            at = 0
            for name, (first, last) in matrix.tensors:
                codes, exponents, _ = q16(checkpoint.rows(name, first, last))
                want = np.zeros((padded(last - first), matrix.inputs), np.int16)
                want[: last - first] = codes
                assert (rows[at : at + len(want)] == want).all(), (name, first, last)
                here = mine.exponents[matrix.exponents_at + at :][: len(want)]
                assert (here[: last - first] == exponents).all() and not here[last - first :].any()
                at += len(want)
            assert at == matrix.columns
        for (name, first, last), at in made.vectors.items():
            want = checkpoint.vector(name)[first:last]
            assert (mine.constants[at : at + last - first] == want).all(), name


def cuts(data: st.DataObject, rows: int, ranks: int) -> list[Span]:
    """Spans of ranks, anywhere, some of them empty."""
    inner = sorted(
        data.draw(st.lists(st.integers(0, rows), min_size=ranks - 1, max_size=ranks - 1))
    )
    return list(itertools.pairwise([0, *inner, rows]))


SOME = (BETA, KEYS, QUERIES, VALUES)


@functools.cache
def digest_whole() -> str:
    return load(tiny(), some(), [program([], [])])[1]


def some() -> dict[str, tuple[int, ...]]:
    """A few tensors of all sorts, so that an example costs little."""
    names = (*SOME, CONV, SCALE, EMBEDDING)
    return {name: shape for name, shape in read_tensors(tiny().sizes).items() if name in names}


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_cut_is_packed_where_the_program_says_and_has_the_same_digest(
    data: st.DataObject,
) -> None:
    ranks, shapes = data.draw(st.integers(1, 4)), some()
    spans = {name: cuts(data, shapes[name][0], ranks) for name in (*SOME, CONV)}
    programs = [
        program(
            [
                (128, [(BETA, spans[BETA][rank]), (EMBEDDING, (rank, 40 + rank))]),
                (24, [(KEYS, spans[KEYS][rank])]),
                (48, [(QUERIES, spans[QUERIES][rank]), (QUERIES, (17, 18 + rank))]),
                (32, [(VALUES, span) for span in cuts(data, shapes[VALUES][0], 3)]),
            ],
            [(CONV, *spans[CONV][rank]), (SCALE, 0, 3), (SCALE, 1, 2)],
        )
        for rank in range(ranks)
    ]
    weights, digest, told = load(tiny(), shapes, programs, threads=data.draw(st.integers(1, 3)))
    assert_packed(programs, weights, tiny())
    assert digest == digest_whole()
    total = sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)
    assert told[-1] == (total, total) and [done for done, _ in told] == sorted(d for d, _ in told)


ROWS = 2 * ROWS_AT_ONCE + 37


@pytest.mark.parametrize(
    "inner",
    [
        [3, ROWS_AT_ONCE - 1, ROWS_AT_ONCE + 5, 2 * ROWS_AT_ONCE + 1],
        [3],
        [ROWS_AT_ONCE - 16, 2 * ROWS_AT_ONCE - 7],
    ],
)
def test_rows_of_many_pieces_cut_beside_their_borders(inner: list[int]) -> None:
    """Pieces begin at multiples of ROWS_AT_ONCE; here blocks of a rank begin elsewhere."""
    rng = np.random.default_rng(1)
    held = Held({"m": rng.standard_normal((ROWS, 8), np.float32)})
    spans = itertools.pairwise([0, *inner, ROWS])
    programs = [program([(8, [("m", span)])], []) for span in spans]
    weights, digest, _ = load(held, {"m": (ROWS, 8)}, programs)
    assert held.most == ROWS_AT_ONCE  # memory beside the weights does not grow with the model
    assert_packed(programs, weights, held)
    assert digest == load(held, {"m": (ROWS, 8)}, [program([], [])])[1]


def test_the_digest_of_more_tensors_than_a_layer_has_places() -> None:
    """A tensor's index among the sorted names: its low 12 bits are the layer, the rest the head."""
    rng = np.random.default_rng(2)
    named = {f"v{at:05d}": rng.standard_normal(1 + at % 3, np.float32) for at in range(8200)}
    for at in (4, 4095, 4096, 8195):
        named[f"v{at:05d}"] = rng.standard_normal((2, 4), np.float32)
    held, sums = Held(named), []
    for index, name in enumerate(sorted(named)):
        place = (PARTS["weights"], index & 4095, index >> 12)
        values = named[name]
        if values.ndim == 1:
            words = row_words(np.append(values, np.zeros(len(values) % 2, np.float32)))
            sums.append(digest_of(words, *place, 0, np.arange(words.size)))
            continue
        codes, exponents, _ = q16(values)
        for row in range(len(values)):
            words = np.append(row_words(codes[row]), np.int64(exponents[row]).view(np.uint64))
            sums.append(digest_of(words, *place, row, np.arange(words.size)))
    shapes = {name: values.shape for name, values in named.items()}
    assert load(held, shapes, [program([], [])])[1] == pair_hex(add_pairs(*sums))


@pytest.mark.parametrize("name", [BETA, KEYS, CONV, SCALE, EMBEDDING])
def test_every_value_is_in_the_digest(name: str) -> None:
    shapes = some()
    found = tiny()
    named = {
        n: found.vector(n) if len(s) == 1 else found.rows(n, 0, s[0]) for n, s in shapes.items()
    }
    assert load(Held(named), shapes, [program([], [])])[1] == digest_whole()
    other = named[name].copy()
    other.reshape(-1)[-1] *= np.float32(0.5)
    assert load(Held(named | {name: other}), shapes, [program([], [])])[1] != digest_whole()


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("self_attn.q_b_proj.weight", "self_attn.q_b_proj.weight row 5"),
        ("self_attn.kv_b_proj.weight", "self_attn.absorbed_k.weight row "),
        ("indexer.index_kpool_compress_ape", "index_kpool_compress_ape holds"),
    ],
)
def test_what_is_no_number_is_named_with_its_row(tmp_path: Path, name: str, reads: str) -> None:
    of = tiny_glm.config()
    named = tiny_glm.weights(of)
    (found,) = (n for n in named if n.startswith(LAYER.format(3)) and n.endswith(name))
    named[found][min(5, len(named[found]) - 1), 2] = np.nan
    checkpoint = find_model(str(tiny_glm.write(tmp_path, of, tiny_glm.stored(named, "BF16"))))
    assert isinstance(checkpoint, GlmCheckpoint)
    with pytest.raises(BadModel, match=reads):
        load(checkpoint, read_tensors(checkpoint.sizes), [program([], [])])


def test_a_tensor_of_another_shape_than_the_family_reads() -> None:
    shapes = some()
    with pytest.raises(BadModel, match=rf"{BETA} is \(4, 128\), expected \(5, 128\)"):
        load(tiny(), shapes | {BETA: (5, 128)}, [program([], [])])
    with pytest.raises(BadModel, match="has no tensor other"):
        load(tiny(), shapes | {"other": (5, 128)}, [program([], [])])
