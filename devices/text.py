"""Text to token ids and back: special tokens are parsed only where the caller says so."""

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, pre_tokenizers

from .weights.checkpoint import UnsupportedModel
from .weights.tokenizer_file import TokenizerFile, read_tokenizer

SPACE = "\u2581"  # how sentencepiece vocabularies write a space
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# What chat models write around the parts of a reply, where the vocabulary holds it as one token.
TAGS = frozenset(
    f"<{slash}{name}>"
    for name in ("think", "tool_call", "arg_key", "arg_value", "tool_response")
    for slash in ("", "/")
)


class BadText(ValueError):
    """Text that no tokenizer can take; the message says where."""


class Cut(NamedTuple):
    """ids of a text.  counts: how many stand before each cut, up to the last special token or tag
    that ends there or before.  seams: where that is in the text."""

    ids: list[int]
    counts: list[int]
    seams: list[int]


class Codec:
    """A model's tokenizer.

    vocab: tokens it knows.  special: text and id of each special token.  tags: of each added token
    in TAGS.  structure: of both.  opening: ids before every prompt.  pieces[id]: the bytes that a
    token stands for, special tokens' text included.
    """

    def __init__(self, file: TokenizerFile) -> None:
        description = json.loads(file.tokenizer.to_str())
        added = description["added_tokens"]
        self.special = {token["content"]: token["id"] for token in added if token["special"]}
        self.tags = {token["content"]: token["id"] for token in added if token["content"] in TAGS}
        self.structure = self.special | self.tags
        self.opening = file.opening
        self.bos, self.eos = file.bos, file.eos
        self.pieces, self.drops_space = pieces_of(file.tokenizer, description)
        self.vocab = len(self.pieces)
        self._special_ids = frozenset(self.special.values())
        self._first = tags_as_special(file.tokenizer, description)
        self._first.encode_special_tokens = True  # which means: as ordinary text
        self._later = later_segments(self._first, description)
        self._split = special_pattern([t for t in added if t["content"] in self.structure])

    def encode(self, text: str, *, special: bool = False, guard: str = "") -> list[int]:
        """Token ids of a text, without the opening.

        special False: `<|im_end|>` in the text is ordinary characters.  True: special tokens and
        tags are parsed. guard: a character to drop once that is done; what it cuts in two stays
        ordinary text. Raises BadText for half a surrogate pair.
        """
        if special:
            return self.encode_cut(text, (), guard).ids
        check(text)
        return self._plain(self._first, text.replace(guard, "") if guard else text)

    def encode_cut(self, text: str, cuts: Sequence[int], guard: str = "", seam: int = 0) -> "Cut":
        """Token ids with special tokens and tags, and which of them stay whatever follows each cut.

        cuts: places in the text. seam: where to begin, 0 or a seam of a text that is alike so far.
        """
        check(text)
        ids, tokenizer, at = list[int](), self._later if seam else self._first, seam
        seams, counts = [at], [0]  # where a special token or tag ends, and the ids up to there
        for found in self._split.finditer(text, at):
            if guard and text.startswith(guard, found.end()):
                continue  # a special token of one character, which a guard can only follow
            self._segment(ids, tokenizer, text[at : found.start()], guard)
            ids.append(self.structure[found.group(found.lastindex or 0)])
            tokenizer, at = self._later, found.end()
            seams.append(at)
            counts.append(len(ids))
        self._segment(ids, tokenizer, text[at:], guard)
        last = [max(bisect_right(seams, cut) - 1, 0) for cut in cuts]
        return Cut(ids, [counts[at] for at in last], [seams[at] for at in last])

    def prompt(self, text: str) -> list[int]:
        """Token ids of a whole prompt that is no chat: the opening, then ordinary text."""
        return [*self.opening, *self.encode(text)]

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of ids; special: with the special tokens' text. Broken UTF-8 becomes U+FFFD."""
        reader = self.detokeniser(special=special)
        return "".join([*map(reader.push, ids), reader.flush()])

    def detokeniser(self, *, special: bool = False, shown: Iterable[str] = ()) -> "Detokeniser":
        """A reader of one reply, token by token. shown: tags whose text is given in any case."""
        return Detokeniser(self, special=special, shown=shown)

    def bytes_of(self, token: int, *, special: bool) -> bytes:
        """What a token stands for; nothing for ids that only pad the vocabulary."""
        if token >= self.vocab or (not special and token in self._special_ids):
            return b""
        return self.pieces[token]

    def _segment(self, ids: list[int], tokenizer: Tokenizer, text: str, guard: str) -> None:
        if guard:
            text = text.replace(guard, "")
        if text:
            ids.extend(self._plain(tokenizer, text))

    def _plain(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids


class Detokeniser:
    """Reads one reply: `push` gives the text that no later token can change."""

    def __init__(self, codec: Codec, *, special: bool = False, shown: Iterable[str] = ()) -> None:
        self._codec = codec
        self._special = special
        self._shown = frozenset(codec.tags[tag] for tag in shown)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop = codec.drops_space  # the space that the vocabulary puts before the first word

    def push(self, token: int) -> str:
        """The text that this token completes: often its own, at times none or more."""
        data = self._codec.bytes_of(token, special=self._special or token in self._shown)
        if self._drop and data:
            self._drop = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def flush(self) -> str:
        """What is left when no token follows: U+FFFD for an unfinished character."""
        return self._utf8.decode(b"", final=True)


def read_codec(path: Path) -> Codec:
    """The tokenizer of a .gguf file or a Hugging Face directory. Raises ModelError."""
    return Codec(read_tokenizer(path))


def check(text: str) -> None:
    """Refuse half a surrogate pair, which UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadText(f"character {error.start} is half a surrogate pair") from error


def tags_as_special(tokenizer: Tokenizer, description: dict[str, Any]) -> Tokenizer:
    """The tokenizer that can leave tags alone, which it does with special tokens only."""
    added = description["added_tokens"]
    if all(token["special"] for token in added if token["content"] in TAGS):
        return tokenizer
    told = [token | {"special": token["special"] or token["content"] in TAGS} for token in added]
    return Tokenizer.from_str(json.dumps(description | {"added_tokens": told}))


def special_pattern(added: list[dict[str, Any]]) -> re.Pattern[str]:
    """Finds special tokens, the longest first, with the spaces that some of them swallow."""
    ways = []
    for token in sorted(added, key=lambda token: -len(token["content"])):
        before, after = (r"\s*" if token[side] else "" for side in ("lstrip", "rstrip"))
        ways.append(f"{before}({re.escape(token['content'])}){after}")
    return re.compile("|".join(ways) or r"(?!)")


def later_segments(tokenizer: Tokenizer, description: dict[str, Any]) -> Tokenizer:
    """The tokenizer for text after a special token: some put a space before the first word only."""
    cut = description["pre_tokenizer"] or {}
    if cut.get("type") != "Metaspace" or cut.get("prepend_scheme") != "first":
        return tokenizer
    later = Tokenizer.from_str(tokenizer.to_str())
    later.encode_special_tokens = True
    later.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=cut["replacement"], prepend_scheme="never", split=cut.get("split", True)
    )
    return later


def pieces_of(tokenizer: Tokenizer, description: dict[str, Any]) -> tuple[list[bytes], bool]:
    """Every token's bytes by id, and whether the text's first space is the vocabulary's own."""
    decoder = description["decoder"] or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = {token["content"] for token in description["added_tokens"]}
    pieces = [b""] * (max(vocab.values()) + 1)
    if "ByteLevel" in kinds:
        letters = byte_letters()
        for token, at in vocab.items():
            bare = token in added or any(ord(letter) not in letters for letter in token)
            pieces[at] = token.encode() if bare else token.translate(letters).encode("latin-1")
        return pieces, False
    if not kinds & {"ByteFallback", "Metaspace"}:
        raise UnsupportedModel(f"a tokenizer whose decoder is {sorted(map(str, kinds))}")
    for token, at in vocab.items():
        byte = BYTE.fullmatch(token) if "ByteFallback" in kinds else None
        raw = bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()
        pieces[at] = token.encode() if token in added else raw
    drops = any(step.get("type") == "Strip" and step.get("start") for step in steps)
    first = any(step.get("prepend_scheme") in ("first", "always") for step in steps)
    return pieces, drops or first


def byte_letters() -> dict[int, int]:
    """The letter that stands for each byte in byte-level vocabularies: printable ones as they are,
    the others in order from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: byte for byte in shown} | {256 + at: byte for at, byte in enumerate(hidden)}
