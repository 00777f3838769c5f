"""A model's tokenizer and chat template, from GGUF settings or a directory's JSON files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .checkpoint import BadModel, ModelNotFound, UnsupportedModel
from .gguf_blocks import block_size
from .gguf_header import Header, read_header
from .safetensors_file import read_json

CONTROL, USER_DEFINED = 3, 4  # token types of a GGUF vocabulary
# How text is cut before merges are applied, by the name that a GGUF file gives it.
CUTS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [],
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
}


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """How a model reads text.

    tokenizer: the library's, with everything in it but the use of special tokens.
    opening: ids that stand before every prompt.  bos, eos: their text, "" where there is none.
    """

    tokenizer: Tokenizer
    opening: tuple[int, ...]
    bos: str
    eos: str


def read_tokenizer(path: Path) -> TokenizerFile:
    """From a .gguf file or a Hugging Face directory. Raises ModelError."""
    found = from_folder(path) if path.is_dir() else from_gguf(path, read_header(path, block_size))
    found.tokenizer.no_truncation()
    found.tokenizer.no_padding()
    return found


def from_gguf(path: Path, header: Header) -> TokenizerFile:
    """Byte-level BPE out of the tokenizer.ggml settings."""
    settings = header.settings
    kind, cut = settings.get("tokenizer.ggml.model"), settings.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in CUTS:
        said = f"its tokenizer is {kind!r} with cuts {cut!r}"
        raise UnsupportedModel(f"{path}: {said}; from GGUF files: gpt2 with {', '.join(CUTS)}")
    tokens = header.strings("tokenizer.ggml.tokens")
    kinds = settings.get("tokenizer.ggml.token_type")
    kinds = [1] * len(tokens) if kinds is None else list(kinds)
    vocab = {token: at for at, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or len(kinds) != len(tokens):
        raise BadModel(f"{path}: the vocabulary names a token twice or lacks token types")
    merges = [tuple(m.split(" ")) for m in header.strings("tokenizer.ggml.merges")]
    if any(len(merge) != 2 for merge in merges):
        raise BadModel(f"{path}: a merge in tokenizer.ggml.merges is not of two tokens")
    try:
        tokenizer = Tokenizer(models.BPE(vocab, merges))  # type: ignore[arg-type]
    except Exception as error:  # the library raises no narrower type
        raise BadModel(f"{path}: the merges do not fit the vocabulary: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*CUTS[cut], pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    pairs = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, k in pairs if k == CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, k in pairs if k == USER_DEFINED]
    )

    def text(key: str) -> str:
        at = settings.get(f"tokenizer.ggml.{key}_token_id")
        return tokens[at] if isinstance(at, int) and 0 <= at < len(tokens) else ""

    bos, eos = text("bos"), text("eos")
    opens = settings.get("tokenizer.ggml.add_bos_token") is True and bos in vocab
    return TokenizerFile(
        tokenizer,
        opening=(vocab[bos],) if opens else (),
        bos=bos,
        eos=eos,
    )


def from_folder(path: Path) -> TokenizerFile:
    """The library's own tokenizer.json, and what tokenizer_config.json says beside it."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise ModelNotFound(f"{file} is not there; text needs it (token ids do not)")
    try:
        tokenizer = Tokenizer.from_str(json.dumps(read_json(file)))
    except BadModel:
        raise
    except Exception as error:  # the library raises no narrower type
        raise BadModel(f"{file}: {error}") from error
    settings = folder_settings(path)
    return TokenizerFile(
        tokenizer,
        opening=opening(tokenizer),
        bos=token_text(settings.get("bos_token")),
        eos=token_text(settings.get("eos_token")),
    )


def opening(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the tokenizer's own rules put before a text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    dressed = tokenizer.encode("a", add_special_tokens=True).ids
    for at in range(len(dressed) - len(bare) + 1):
        if dressed[at : at + len(bare)] == bare:
            return tuple(dressed[:at])
    return ()


def token_text(value: Any) -> str:
    """A token of tokenizer_config.json, which writes it as text or as an object."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def folder_settings(path: Path) -> dict[str, Any]:
    """tokenizer_config.json, empty where there is none."""
    file = path / "tokenizer_config.json"
    return read_json(file) if file.exists() else {}


def read_template(path: Path) -> str | None:
    """The chat template of a .gguf file or a directory: there a file of its own, or a setting."""
    if not path.is_dir():
        found = read_header(path, block_size).settings.get("tokenizer.chat_template")
        return found if isinstance(found, str) else None
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise BadModel(f"{file}: not UTF-8") from error
    found = folder_settings(path).get("chat_template")
    if isinstance(found, list):  # templates by name
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
        found = named.get("default")
    return found if isinstance(found, str) else None
