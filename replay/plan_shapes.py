"""Models as a plan sees them: a named shape, or a directory's config.json; no weight is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..core.families.family import Choices
from ..core.families.glm import Glm
from ..core.families.glm_config import glm_sizes
from ..core.families.llama import Llama
from ..core.plan_sizes import glm_rank, llama_rank, weights_bytes
from ..core.plan_wanted import Sizes
from ..devices.settings import DeviceSettings
from ..devices.weights.checkpoint import ModelNotFound
from ..devices.weights.find import CARRIED, OWN, find_model, find_path
from ..devices.weights.hf_dir import check_support, llama_config
from ..devices.weights.layout import check_llama_config
from ..devices.weights.safetensors_file import read_json
from .fakes import CONTEXT, CONTEXT_MOST, FAKES, fake_sizes
from .opening import BadOption

CONTEXT_ROWS = 8192  # of a window by default, where the model allows more
GLM_TYPES = ("glm5_next", "glm5_next_text")
MOST_WORLD = 64  # ranks, where heads are no limit
KDA_A_GROUP = 3  # recurrent layers before each layer of selected rows

GLM_FLASH: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "hidden_size": 4096,
    "vocab_size": 154_880,
    "max_position_embeddings": 1_048_576,
    "num_hidden_layers": 45,
    "num_nextn_predict_layers": 1,
    "layer_types": [
        "deepseek_sparse_attention" if layer % 4 == KDA_A_GROUP else "linear_attention"
        for layer in range(45)
    ],
    "first_k_dense_replace": 3,
    "intermediate_size": 12_288,
    "moe_intermediate_size": 2_048,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "swiglu_limit": 10.0,
    "num_attention_heads": 64,
    "q_lora_rank": 1_536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 256,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2_048,
    "index_kpool": 4,
    "linear_attn_config": {
        "num_heads": 64,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "rms_norm_eps": 1e-5,
    "eos_token_id": [154_820, 154_827, 154_829],
}
SHAPES = {"glm-5.3-flash": GLM_FLASH}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes on one rank.

    context: the longest window; usual_context: where nobody asks for another.  sizes: with rows of
    16-bit codes; fp8: of 8-bit codes, None where there are none.  keeps: whether a kept prompt has
    more than pages, in a cache of their own.  weights: bytes of the first of so many ranks; checks:
    of what they are checked by on a GPU; on_card: of all that it holds there but pages and kept
    states.
    """

    name: str
    family: str
    context: int
    usual_context: int
    sizes: Sizes
    fp8: Sizes | None
    keeps: bool
    most_world: int
    weights: Callable[[int], int]
    checks: Callable[[int], int]
    on_card: Callable[[DeviceSettings, int], int]


def read_shape(name: str, world: int, drafts: int | None) -> Shape:
    """A model by name or path; drafts None: one, where it has a drafting head.

    Raises ModelError, UnsupportedShape, BadOption.
    """
    if name in FAKES:
        return _fake(name)
    if name in SHAPES:
        shape = _glm(name, SHAPES[name], world, drafts)
        return replace(shape, usual_context=shape.context)
    if name in CARRIED or not (path := _directory(name)):
        checkpoint = find_model(name)
        return _llama(checkpoint.name, checkpoint.config, world, drafts)
    raw, named = read_json(path / "config.json"), name if name in OWN else path.resolve().name
    if raw.get("model_type") in GLM_TYPES:
        return _glm(named, raw, world, drafts)
    check_support(path, raw)
    config = llama_config(path, raw)
    check_llama_config(path, config)
    return _llama(named, config, world, drafts)


def _directory(name: str) -> Path | None:
    """Where a directory with a config is; None for a file."""
    try:
        path = find_path(name)
    except ModelNotFound as error:
        raise ModelNotFound(f"{error}; or a shape: {', '.join(SHAPES)}") from error
    return path if path.is_dir() else None


def _fake(name: str) -> Shape:
    rules = FAKES[name]()
    return Shape(
        name=name,
        family="fake",
        context=CONTEXT_MOST,
        usual_context=CONTEXT,
        sizes=fake_sizes(rules),
        fp8=None,
        keeps=rules.snapshots,
        most_world=MOST_WORLD,
        weights=lambda world: 0,
        checks=lambda world: 0,
        on_card=lambda settings, world: 0,
    )


def _glm(name: str, config: Mapping[str, Any], world: int, drafts: int | None) -> Shape:
    sizes = glm_sizes(config)
    drafting = min(1, sizes.mtp) if drafts is None else drafts
    if drafting and not sizes.mtp:
        raise BadOption(f"--mtp-drafts {drafting}: {name} has no drafting head, 0 alone would do")
    most = min(sizes.heads, sizes.kda_heads)
    if world > most:
        raise BadOption(f"--tp {world}: {name} has {most} heads to share, --tp {most} at most")
    text = dict(config.get("text_config", config))
    family = cache(lambda: Glm(text))  # many names: if asked
    return Shape(
        name=name,
        family="glm",
        context=sizes.context,
        usual_context=min(sizes.context, CONTEXT_ROWS),
        sizes=glm_rank(sizes, world, drafting),
        fp8=glm_rank(sizes, world, drafting, fp8=True),
        keeps=True,
        most_world=most,
        weights=lambda world: _weights(family(), world),
        checks=lambda world: _checks(family(), world),
        on_card=lambda settings, world: _on_card(
            Glm(text, Choices(drafts=drafting)),
            replace(settings, drafts=drafting),
            world,
            wide=text.get("dtype", text.get("torch_dtype")) != "bfloat16",
        ),
    )


def _llama(name: str, config: Mapping[str, Any], world: int, drafts: int | None) -> Shape:
    family = Llama(dict(config))
    if drafts:
        raise BadOption(f"--mtp-drafts {drafts}: {name} has no drafting head, 0 alone would do")
    return Shape(
        name=name,
        family="llama",
        context=family.attention.context,
        usual_context=min(family.attention.context, CONTEXT_ROWS),
        sizes=llama_rank(family, world),
        fp8=None,
        keeps=False,
        most_world=MOST_WORLD,
        weights=lambda world: _weights(family, world),
        checks=lambda world: _checks(family, world),
        on_card=lambda settings, world: _on_card(family, settings, world, wide=False),
    )


def _weights(family: Glm | Llama, world: int) -> int:
    return weights_bytes(family.tensors(), family.columns, world)


def _on_card(family: Glm | Llama, settings: DeviceSettings, world: int, *, wide: bool) -> int:
    from ..devices.cuda.room import held_bytes  # what it needs is not everywhere, and slow to load

    return held_bytes(family, settings, world, wide_table=wide)


def _checks(family: Glm | Llama, world: int) -> int:
    from ..devices.cuda.checks import checks_of  # starts that verify nothing wait for none of these
    from ..devices.glm.program import GlmRecorder
    from ..devices.program import Recorder

    if isinstance(family, Llama):
        return checks_of(Recorder(family, world, 0, 1, 1, checks=False).program()).bytes
    return checks_of(GlmRecorder(family, world, 0, 1, False, [0] * family.caches).program()).bytes
