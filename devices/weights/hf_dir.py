"""A Hugging Face directory of the llama family as a checkpoint: config.json and safetensors."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import BadModel
from .layout import check_llama_config, check_shapes, llama_shapes, refuse
from .safetensors_file import ROWS_AT_ONCE, Place, places, read_json, widen

ROTARY_BUFFER = ".rotary_emb.inv_freq"  # old checkpoints keep this table; it is computed here


class HfCheckpoint:
    """See `Checkpoint`."""

    family = "llama"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        raw = read_json(path / "config.json")
        check_support(path, raw)
        self.config = llama_config(path, raw)
        check_llama_config(path, self.config)
        found = {n: p for n, p in places(path).items() if not n.endswith(ROTARY_BUFFER)}
        if self.config["tie_word_embeddings"]:
            found.pop("lm_head.weight", None)  # a tied head may be written out a second time
        self.places = found
        shapes = {name: place.shape for name, place in found.items()}
        check_shapes(path, llama_shapes(self.config), shapes)
        self.table = found["model.embed_tokens.weight"]
        self._stored = self.table.view()

    def names(self) -> list[str]:
        """Every tensor, by layer."""
        return list(llama_shapes(self.config))

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, output rows first."""
        return self._place(name).shape

    def rows(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows [first, last) of a matrix: float32 [last - first, columns]."""
        place = self._place(name)
        count, columns = place.shape
        assert 0 <= first <= last <= count, f"rows {first} to {last} of {name}, which has {count}"
        stored, out = place.view(), np.empty((last - first, columns), np.float32)
        step = max(1, ROWS_AT_ONCE // columns)
        for at in range(first, last, step):
            end = min(at + step, last)
            out[at - first : end - first] = widen(place.dtype, stored[at:end])
        place.let_go(first, last)
        return out

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one axis: float32 [n]."""
        place = self._place(name)
        assert len(place.shape) == 1, f"{name} has shape {place.shape}"
        return widen(place.dtype, place.view())

    def embed(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the embedding row of each id: ids int64 [n], out float32 [n, hidden_size]."""
        out[:] = widen(self.table.dtype, self._stored[ids])

    def _place(self, name: str) -> Place:
        if name not in self.places:
            raise BadModel(f"{self.path}: there is no tensor {name}")
        return self.places[name]


def check_support(path: Path, raw: dict[str, Any]) -> None:
    """Refuse by name what a llama forward here would compute wrongly."""
    if raw.get("model_type") != "llama":
        said = f"model_type {raw.get('model_type')!r}"
        raise refuse(path, f"{said}; computed here: 'llama', 'glm5_next'")
    for key in ("attention_bias", "mlp_bias", "quantization_config"):
        if raw.get(key):
            raise refuse(path, f"{key} is set in config.json and is not computed here")
    if raw.get("hidden_act", "silu") != "silu":
        raise refuse(path, f"hidden_act {raw['hidden_act']!r}; only 'silu' is computed here")
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise refuse(path, "partial_rotary_factor is not computed here")
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get(key) or {}
        if not isinstance(rope, dict):
            raise BadModel(f"{path}: {key} in config.json is no object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise refuse(path, f"rope scaling of type {kind!r} is not computed here")
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise refuse(path, "partial_rotary_factor is not computed here")


def llama_config(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The config in one form, with the defaults that the format gives to absent keys."""

    def need(key: str) -> Any:
        if raw.get(key) is None:
            raise BadModel(f"{path}: config.json has no {key}")
        return raw[key]

    heads, hidden = need("num_attention_heads"), need("hidden_size")
    if not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1:
        raise BadModel(f"{path}: {heads!r} heads of {hidden!r} columns are no model")
    rope = raw.get("rope_parameters") or {}
    theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
    return {
        "hidden_size": hidden,
        "intermediate_size": need("intermediate_size"),
        "num_hidden_layers": need("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or hidden // heads,
        "vocab_size": need("vocab_size"),
        "rms_norm_eps": single(path, "rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        "rope_theta": number(path, "rope_theta", theta),
        "tie_word_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "max_position_embeddings": raw.get("max_position_embeddings", 2048),
        "eos_token_ids": end_tokens(path, raw),
    }


def number(path: Path, key: str, value: Any) -> float:
    """A number of config.json."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadModel(f"{path}: {key} is {value!r}, not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise BadModel(f"{path}: {key} is {value!r}, out of range") from error


def single(path: Path, key: str, value: Any) -> float:
    """A number of config.json, rounded to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(number(path, key, value)))


def end_tokens(path: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """Tokens that end a reply: those of generation_config.json and of config.json, each once."""
    told = [raw.get("eos_token_id")]
    if (path / "generation_config.json").exists():
        told.insert(0, read_json(path / "generation_config.json").get("eos_token_id"))
    found: list[int] = []
    for value in told:
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool):
                raise BadModel(f"{path}: eos_token_id {token!r} is not a token id")
            if token not in found:
                found.append(token)
    return tuple(found)
