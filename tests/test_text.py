"""Tokenizers: the reference's ids, text that comes back whole, and replies read token by token."""

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from kvtape.devices.text import BadText, Codec, byte_letters, read_codec
from kvtape.devices.weights.checkpoint import BadModel, ModelNotFound, UnsupportedModel
from kvtape.devices.weights.find import find_path
from kvtape.tests import tiny_llama

TEXT = Path(__file__).parent / "data" / "text.txt"
# Bytes of UTF-8 text that SmolLM2's vocabulary has no token for: six controls, two lead bytes.
LACKS = frozenset([4, 6, 19, 20, 22, 29, 0xF1, 0xF2])


@functools.cache
def smollm2() -> Codec:
    """SmolLM2's tokenizer, out of its GGUF file."""
    return read_codec(find_path("smollm2"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    """The tiny model's tokenizer: every byte has a token."""
    path = tmp_path_factory.mktemp("text") / "tiny.gguf"
    of = tiny_llama.config()
    tiny_llama.write_gguf(path, tiny_llama.weights(of), {}, of)
    return read_codec(path)


def test_every_byte_has_the_letter_that_the_library_gives_it() -> None:
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = byte_letters()
    assert sorted(letters.values()) == list(range(256))
    for text in (chr(code) for code in (*range(0x800), 0xFFFF, 0x10FFFF, 0x40000)):
        shown = cut.pre_tokenize_str(text)[0][0]
        assert bytes(letters[ord(letter)] for letter in shown) == text.encode()


@pytest.mark.smollm2
def test_smollm2_text_is_869_tokens() -> None:
    text = TEXT.read_bytes().decode()
    ids = smollm2().encode(text)
    assert len(ids) == 869
    assert smollm2().decode(ids) == text
    assert smollm2().prompt(text) == ids


@pytest.mark.smollm2
def test_smollm2_ids_by_its_own_vocabulary() -> None:
    codec = smollm2()
    assert codec.vocab == 49152
    assert codec.special["<|im_start|>"] == 1
    assert codec.special["<|im_end|>"] == 2
    assert [codec.pieces[token] for token in codec.encode("Hello, world 42!\n")] == [
        b"Hello",
        b",",
        b" world",
        b" ",
        b"4",
        b"2",
        b"!",
        b"\n",
    ]


@pytest.mark.smollm2
@given(text=st.text())
def test_smollm2_text_comes_back(text: str) -> None:
    kept = "".join(letter for letter in text if not LACKS & set(letter.encode()))
    assert smollm2().decode(smollm2().encode(kept)) == kept


@given(text=st.text())
def test_any_text_comes_back_where_every_byte_has_a_token(tiny: Codec, text: str) -> None:
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text
    assert not set(ids) & set(tiny.special.values())


@given(parts=st.lists(st.text() | st.sampled_from(tiny_llama.SPECIAL)))
def test_special_tokens_are_parsed_only_on_request(tiny: Codec, parts: list[str]) -> None:
    text = "".join(parts)
    assert tiny.decode(tiny.encode(text)) == text
    assert not set(tiny.encode(text)) & set(tiny.special.values())
    ids = tiny.encode(text, special=True)
    assert tiny.decode(ids, special=True) == text
    found = [token for token in ids if token in tiny.special.values()]
    assert len(found) == sum(text.count(special) for special in tiny.special)


@given(before=st.text(), after=st.text())
def test_a_guard_keeps_a_special_token_from_being_parsed(
    tiny: Codec, before: str, after: str
) -> None:
    guard = "\ufdd0"
    before, after = before.replace(guard, ""), after.replace(guard, "")
    text = f"{before}<{guard}|im_end|>{after}"
    ids = tiny.encode(text, special=True, guard=guard)
    assert tiny.decode(ids) == text.replace(guard, "")


@given(ids=st.lists(st.integers(0, len(tiny_llama.tokens()) + 2)), special=st.booleans())
def test_pieces_join_to_the_whole_for_any_ids(tiny: Codec, ids: list[int], special: bool) -> None:
    reader = tiny.detokeniser(special=special)
    pieces = [reader.push(token) for token in ids]
    whole = b"".join(tiny.bytes_of(token, special=special) for token in ids)
    assert "".join(pieces) + reader.flush() == whole.decode("utf-8", "replace")
    assert tiny.decode(ids, special=special) == whole.decode("utf-8", "replace")


@given(text=st.text(min_size=1), data=st.data())
def test_what_was_pushed_never_changes_and_is_never_half_a_character(
    tiny: Codec, text: str, data: st.DataObject
) -> None:
    raw = text.encode()
    byte_ids = {piece[0]: at for at, piece in enumerate(tiny.pieces) if len(piece) == 1}
    ids = [byte_ids[byte] for byte in raw[: data.draw(st.integers(0, len(raw)))]]
    reader = tiny.detokeniser()
    shown = "".join(reader.push(token) for token in ids)
    assert text.startswith(shown)
    assert len(shown) == len(raw[: len(ids)].decode("utf-8", "ignore"))


def test_half_a_surrogate_pair_is_refused(tiny: Codec) -> None:
    with pytest.raises(BadText, match="character 2"):
        tiny.encode("ab\ud800")


# --- directories ---------------------------------------------------------------------------------


def save(folder: Path, tokenizer: Tokenizer) -> Codec:
    """A directory's codec."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    return read_codec(folder)


def byte_level() -> Tokenizer:
    """A byte-level tokenizer with an opening token, as the library writes it."""
    vocab = {token: at for at, token in enumerate(tiny_llama.tokens())}
    merges = [(left, right) for left, right in map(str.split, tiny_llama.MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in tiny_llama.SPECIAL])
    tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A", pair=None, special_tokens=[("<|end|>", 0)]
    )
    return tokenizer


def sentencepiece(*, first_only: bool) -> Tokenizer:
    """Spaces as U+2581 and bytes as <0x..>, in the older and the newer way to put the first one."""
    space = "\u2581"
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [space, "h", "i", "t", f"{space}h", f"{space}hi"]
    vocab = {word: at for at, word in enumerate(words)}
    merges = [(space, "h"), (f"{space}h", "i")]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    if first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        steps = [normalizers.Prepend(space), normalizers.Replace(" ", space)]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(space, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def test_the_opening_stands_before_a_prompt_and_not_in_a_text(tmp_path: Path) -> None:
    codec = save(tmp_path, byte_level())
    assert codec.opening == (0,)
    assert codec.prompt("the") == [0, *codec.encode("the")]


@pytest.mark.parametrize(
    "tokenizer",
    [byte_level(), sentencepiece(first_only=True), sentencepiece(first_only=False)],
    ids=["bytes", "first", "prepend"],
)
def test_ids_and_text_are_the_librarys(tmp_path: Path, tokenizer: Tokenizer) -> None:
    specials = [token for token in tokenizer.get_added_tokens_decoder().values()]
    codec = save(tmp_path, tokenizer)
    texts = ["hi", " hi", "hi hi", "é hi", "h\ni", "好 hi"]
    for special in specials:
        texts += [f"hi{special.content}hi", f"{special.content} hi{special.content}"]
    for text in texts:
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=False).ids
        assert codec.encode(text, special=True) == parsed
        assert codec.decode(parsed, special=True) == tokenizer.decode(
            parsed, skip_special_tokens=False
        )
        assert codec.decode(parsed) == tokenizer.decode(parsed)
        tokenizer.encode_special_tokens = True
        assert codec.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_truncation_in_the_file_is_not_followed(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(max_length=3)
    assert len(save(tmp_path, tokenizer).encode("abcdefgh")) == 8


def test_what_is_not_there_or_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        read_codec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{]")
    with pytest.raises(BadModel, match="not JSON"):
        read_codec(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        read_codec(tmp_path)
    plain = json.loads(byte_level().to_str()) | {"decoder": {"type": "BPEDecoder", "suffix": "_"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    with pytest.raises(UnsupportedModel, match="BPEDecoder"):
        read_codec(tmp_path)


def test_a_gguf_tokenizer_of_another_kind_is_named(tmp_path: Path) -> None:
    of = tiny_llama.config()
    path = tmp_path / "m.gguf"
    tiny_llama.write_gguf(path, tiny_llama.weights(of), {}, of)
    path.write_bytes(path.read_bytes().replace(b"smollm", b"qwen22"))
    with pytest.raises(UnsupportedModel, match="'qwen22'"):
        read_codec(path)
