"""The shipped glm-tales: a whole checkpoint of the official form that a chat can be written for."""

import json
from pathlib import Path

import numpy as np
from safetensors import safe_open

import kvtape
from kvtape.devices.weights.tokenizer_file import read_template, read_tokenizer

TALES = Path(kvtape.__file__).parent / "devices" / "weights" / "glm_tales"
LOGITS = Path(__file__).parent / "data" / "glm_tales_logits.npz"
FLOAT32 = ("e_score_correction_bias", "A_log", "dt_bias", "_base", "_scale")


def test_it_is_small_and_whole() -> None:
    assert sum(file.stat().st_size for file in TALES.iterdir()) < 32 * 2**20
    config = json.loads((TALES / "config.json").read_text())["text_config"]
    prefix = f"model.language_model.layers.{config['num_hidden_layers']}."
    with safe_open(TALES / "model.safetensors", "np") as found:
        names = list(found.keys())
        kinds = {name: found.get_slice(name).get_dtype() for name in names}
    assert prefix + "eh_proj.weight" in names, "it has its draft head"
    for name, kind in kinds.items():
        assert kind == ("F32" if name.endswith(FLOAT32) else "BF16"), name


def test_its_tokenizer_keeps_every_text_and_knows_the_marks() -> None:
    tokenizer = read_tokenizer(TALES).tokenizer
    config = json.loads((TALES / "config.json").read_text())["text_config"]
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    for text in ("Once upon a time", " \n\ttwo  spaces", "Größe, 猫 and \U0001f98a"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    ends = [tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    settings = json.loads((TALES / "generation_config.json").read_text())
    assert ends == config["eos_token_id"] == settings["eos_token_id"]


def test_the_kept_logits_are_of_a_chat_in_its_template() -> None:
    kept = np.load(LOGITS)
    text = read_tokenizer(TALES).tokenizer.decode(kept["ids"].tolist(), skip_special_tokens=False)
    template = read_template(TALES)
    assert template is not None and template.startswith("[gMASK]<sop>")
    assert text.startswith("[gMASK]<sop><|user|>\nTell me a story")
    assert len(kept["ids"]) == 96 and (kept["top_ids"][:, 0] == kept["argmax"]).all()
    assert kept["long_top_logits"].shape == (800, 8)
