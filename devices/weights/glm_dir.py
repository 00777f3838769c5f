"""A glm5_next directory as a checkpoint: official names, F32, F16, BF16 and e4m3 with scales."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.families.family import UnsupportedShape
from ...core.families.glm_config import GlmSizes, glm_sizes
from ...core.families.glm_tensors import (
    ABSORBED_K,
    ABSORBED_V,
    DECAY,
    EMBEDDING,
    LAYER,
    SCALE_BLOCK,
    SCALES,
    VISION,
    Shape,
    official_tensors,
    read_tensors,
    scale_shape,
)
from ...core.kernels.meaning import EMAX, EMIN, QMAX, exp
from .checkpoint import BadModel
from .e4m3 import dequantise
from .hf_dir import end_tokens
from .layout import check_shapes, refuse
from .safetensors_file import CODED, E4M3, ROWS_AT_ONCE, Place, places, read_json, widen
from .table import Halves, halves

MODEL_TYPE = "glm5_next"
CLIP = (
    1 + 2.0**-18
)  # the sums and roots of a norm are rounded: its rows may pass their bound so far


class GlmCheckpoint:
    """See `Checkpoint`; its names are those that a forward pass reads (core/families/glm_tensors).

    Three of a layer are made of what is stored when they are asked for. config is text_config with
    eos_token_ids, and num_nextn_predict_layers as the files have it.
    """

    family = "glm"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        raw = read_json(path / "config.json")
        check_support(path, raw)
        found = {n: p for n, p in places(path, CODED).items() if not n.startswith(VISION)}
        self.config, self.sizes = read_config(path, raw, found)
        if not self.sizes.mtp:
            head = LAYER.format(self.sizes.layers)
            found = {n: p for n, p in found.items() if not n.startswith(head)}
        self.places = found
        expected = dict(official_tensors(self.sizes))
        for name, place in found.items():
            if place.dtype == E4M3 and name in expected:
                expected[name + SCALES] = scale_shape(expected[name])
        check_shapes(path, expected, {name: place.shape for name, place in found.items()})
        for name, place in found.items():
            if place.dtype == E4M3 and (len(place.shape) != 2 or name == EMBEDDING):
                raise refuse(path, f"{name} is {E4M3}, which is read of matrices alone")
        self._shapes = read_tensors(self.sizes)
        self._table = found[EMBEDDING]
        self._embedding = self._table.view()

    def names(self) -> list[str]:
        """Every tensor that is read, by layer."""
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        """A matrix's shape, output rows first; a constant's number of values."""
        if name not in self._shapes:
            raise BadModel(f"{self.path}: there is no tensor {name}")
        return self._shapes[name]

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows [first, last) of a matrix: float32 [last - first, columns], C-contiguous."""
        count, columns = self.shape(name)
        assert 0 <= first <= last <= count, f"rows {first} to {last} of {name}, which has {count}"
        if name.endswith((ABSORBED_K, ABSORBED_V)):
            return self._absorbed(name, first, last, columns)
        return self._stored(name, first, last)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A constant, flattened: float32 [n]."""
        assert len(self.shape(name)) == 1, f"{name} has shape {self.shape(name)}"
        if not name.endswith("." + DECAY):
            return self._constant(name)
        decay: NDArray[np.float32] = exp(self._constant(name.removesuffix(DECAY) + "A_log"))
        return self._sound(name, decay)

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the embedding row of each id: ids int64 [n], out float32 [n, hidden]."""
        out[:] = widen(self._table.dtype, self._embedding[ids])

    def table(self) -> Halves:
        """The embedding: the halves of its float32 bits, high [V, D] and low [V, D] or [0, D]."""
        return halves(self._table)

    def latent_exponent(self) -> int:
        """The exponent at which no latent row can clip."""
        return self._exponent("latent rows", math.sqrt(self.sizes.latent))

    def pool_exponent(self, layer: int) -> int:
        """The exponent at which no pooled key of a layer can clip: its norm bounds them."""
        norm = LAYER.format(layer) + "self_attn.indexer.k_norm."
        weight, bias = (self._constant(norm + part) for part in ("weight", "bias"))
        bound = math.sqrt(self.sizes.index_dim) * float(np.abs(weight).max())
        return self._exponent(norm, bound + float(np.abs(bias).max()))

    # --- pieces ----------------------------------------------------------------------------------

    def _absorbed(self, name: str, first: int, last: int, columns: int) -> NDArray[np.float32]:
        """Each head's half of kv_b_proj times the latent norm's weight; for queries transposed."""
        s, at = self.sizes, name[: name.rfind(".absorbed") + 1]
        fold = self._constant(at + "kv_a_layernorm.weight")
        queries = name.endswith(ABSORBED_K)
        each = s.latent if queries else s.value_dim
        out = np.empty((last - first, columns), np.float32)
        for head in range(first // each, -(-last // each)):
            low, high = max(first, head * each), min(last, (head + 1) * each)
            own = slice(low - head * each, high - head * each)
            base = head * (s.nope + s.value_dim)
            here = out[low - first : high - first]
            with np.errstate(all="ignore"):  # what is no number is named where it is quantised
                if queries:
                    keys = self._stored(at + "kv_b_proj.weight", base, base + s.nope)
                    here[:] = (keys[:, own] * fold[own]).T
                else:
                    base += s.nope
                    values = self._stored(
                        at + "kv_b_proj.weight", base + own.start, base + own.stop
                    )
                    np.multiply(values, fold, out=here)
        return out

    def _stored(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows of a published matrix."""
        place = self.places[name]
        stored, columns = place.view(), place.shape[1]
        out = np.empty((last - first, columns), np.float32)
        scales = self._scales(name)
        step = max(1, ROWS_AT_ONCE // columns)
        for at in range(first, last, step):
            end = min(at + step, last)
            part = stored[at:end]
            out[at - first : end - first] = (
                widen(place.dtype, part) if scales is None else dequantise(part, scales, at)
            )
        place.let_go(first, last)
        return out

    def _scales(self, name: str) -> NDArray[np.float32] | None:
        if self.places[name].dtype != E4M3:
            return None
        scales = self.places[name + SCALES]
        return widen(scales.dtype, scales.view())

    def _constant(self, name: str) -> NDArray[np.float32]:
        """A published tensor of few values, flattened."""
        place = self.places[name]
        return self._sound(name, widen(place.dtype, place.view()).reshape(-1))

    def _sound(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise BadModel(f"{self.path}: {name} holds what is no number")
        return values

    def _exponent(self, what: str, bound: float) -> int:
        """The least e with bound <= QMAX * 2^e, and a little room."""
        for exponent in range(EMIN, EMAX + 1):
            if bound * CLIP <= QMAX * 2.0**exponent:
                return exponent
        raise BadModel(f"{self.path}: {what} may reach {bound}, which no exponent holds")


def check_support(path: Path, raw: Mapping[str, Any]) -> None:
    """Refuse by name weights that are stored in another way."""
    if raw.get("model_type") != MODEL_TYPE:
        raise refuse(path, f"model_type {raw.get('model_type')!r}; read here: {MODEL_TYPE!r}")
    stored = raw.get("quantization_config")
    if stored is None:
        return
    if not isinstance(stored, Mapping):
        raise BadModel(f"{path}: quantization_config in config.json is no object")
    known = {"quant_method": "fp8", "weight_block_size": [SCALE_BLOCK, SCALE_BLOCK], "fmt": "e4m3"}
    for key, value in known.items():
        if stored.get(key, value) != value:
            raise refuse(path, f"{key} is {stored[key]!r} in quantization_config; read: {value!r}")


def read_config(
    path: Path, raw: Mapping[str, Any], found: Mapping[str, Place]
) -> tuple[dict[str, Any], GlmSizes]:
    """What the family is made from, and its sizes. A head whose files are left out is not there."""
    text = raw.get("text_config")
    if not isinstance(text, Mapping):
        raise BadModel(f"{path}: config.json has no text_config")
    try:
        sizes = glm_sizes(raw)
        config = dict(text)
        config["eos_token_ids"] = end_tokens(path, {"eos_token_id": list(sizes.ends)})
        head = LAYER.format(sizes.layers)
        if not any(name.startswith(head) for name in found):
            config["num_nextn_predict_layers"] = 0
        return config, glm_sizes(config)
    except UnsupportedShape as error:
        raise refuse(path, str(error)) from error
