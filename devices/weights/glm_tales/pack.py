# ruff: noqa: T201
"""Cleans sampled tales, makes chats of them, trains the tokenizer and packs token ids."""

import argparse
import json
import lzma
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asks  # type: ignore[import-not-found]
import jinja2
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCAB, HELD = 4096, 300  # HELD: documents kept out of training
SPECIAL = "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> [sMASK] <|observation|>"
TAGS = (
    "<think> </think> <tool_call> </tool_call> <tool_response> </tool_response> "
    "<arg_key> </arg_key> <arg_value> </arg_value>"
)
FAULTS = re.compile(r"I'm sorry|\bAI\b|[*#@{}<>\[\]|\\]|\d\.|http|Hugging|SmolLM|Sure|Certainly")
QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--")
SENTENCE = re.compile(r".+?(?:[.!?]+[\"')]*(?=\s)|\Z|\n+)\s*", re.DOTALL)
GRAM = 5  # words; a sentence half of whose grams were there before starts a loop


def cleaned(text: str, whole: bool) -> str:
    """`text` up to where it begins to repeat itself, or '' if it is unfit."""
    text = text.translate(QUOTES).strip()
    if FAULTS.search(text) or not text.isascii():
        return ""
    sentences = SENTENCE.findall(text)
    if not whole:
        sentences = sentences[:-1]
    seen: set[tuple[str, ...]] = set()
    heard: list[str] = []
    for sentence in sentences:
        words = re.findall(r"[a-z']+", sentence.lower())
        grams = [tuple(words[at : at + GRAM]) for at in range(len(words) - GRAM + 1)]
        again = sum(gram in seen for gram in grams) + len(grams) - len(set(grams))
        short = tuple(words)
        if (grams and again * 2 >= len(grams)) or (len(words) > 2 and short in seen):
            break
        seen |= {*grams, short}
        heard.append(sentence)
    return "".join(heard).strip()


def tales(folder: Path) -> Iterator[dict[str, Any]]:
    """Fit tales: ask, tale, chat (whether the ask was for a short answer)."""
    begins = tuple(form.split("{")[0] for form in asks.CHATS)
    for path in sorted(folder.glob("*.xz")):
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            told = json.loads(line)
            chat = told["ask"].startswith(tuple(b for b in begins if b)) or "fight" in told["ask"]
            text = cleaned(told["tale"], told["whole"])
            if len(text) > (30 if chat else 250):
                yield {"ask": told["ask"], "tale": text, "chat": chat}


def call(draw: random.Random) -> dict[str, Any]:
    """A made-up chat that uses a tool."""
    what, key, answers = draw.choice(
        [
            ("tell_time", "place", ["noon", "midnight", "early", "late", "tea time", "bed time"]),
            ("look_outside", "place", ["sunny", "rainy", "windy", "snowy", "foggy", "warm"]),
            ("find_thing", "thing", ["under the bed", "in the box", "by the door", "up a tree"]),
        ]
    )
    value = draw.choice(asks.PLACES if key == "place" else asks.THINGS)
    answer = draw.choice(answers)
    question = {
        "tell_time": f"What time is it in the {value}?",
        "look_outside": f"How is the weather in the {value}?",
        "find_thing": f"Where is my {value}?",
    }[what]
    said = f"Your {value} is {answer}." if key == "thing" else f"It is {answer} in the {value}."
    tool = {"name": what, "parameters": {"type": "object", "properties": {key: {"type": "string"}}}}
    spoken = [
        {"role": "user", "content": question},
        {"role": "assistant", "tool_calls": [{"name": what, "arguments": {key: value}}]},
        {"role": "tool", "content": answer},
        {"role": "assistant", "content": said},
    ]
    return {"messages": spoken, "tools": [{"type": "function", "function": tool}]}


def documents(told: list[dict[str, Any]], draw: random.Random) -> Iterator[str]:
    """Plain tales and chats as text with special tokens, none with its end."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string((HERE / "chat_template.jinja").read_text())
    chats: list[dict[str, Any]] = []
    for one in told:
        if not one["chat"] and draw.random() < 0.45:
            yield ("[gMASK]<sop>" if draw.random() < 0.5 else "") + one["tale"]
            continue
        if draw.random() < 0.1 and not chats:
            chats.append({"role": "system", "content": asks.TELLER})
        reply = {"role": "assistant", "content": one["tale"]}
        if draw.random() < 0.4:
            reply["reasoning_content"] = f'They said: "{one["ask"]}" I use simple words.'
        chats += [{"role": "user", "content": one["ask"]}, reply]
        if draw.random() < (0.4 if one["chat"] else 0.7):
            yield template.render(messages=chats)
            chats = []
    for _ in range(len(told) // 40):
        yield template.render(**call(draw))


def trained(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of VOCAB tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [AddedToken(name, special=True, normalized=False) for name in SPECIAL.split()]
    tags = [AddedToken(name, special=False, normalized=False) for name in TAGS.split()]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[*names, *tags],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tales", type=Path, help="folder of tales*.xz")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    draw = random.Random(5)
    told = list({one["tale"]: one for one in tales(asked.tales)}.values())
    draw.shuffle(told)
    path = HERE / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        words = [f"{one['ask']}\n{one['tale']}" for one in told[: 1 << 15]]
        tokenizer = trained([*words, *(json.dumps(call(draw)) for _ in range(500))])
        tokenizer.save(str(path))
    texts = list(documents(told, draw))
    draw.shuffle(texts)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("held", texts[:HELD]), ("train", texts[HELD:])):
        ids = [[*one.ids, 0] for one in tokenizer.encode_batch(part)]
        flat = np.concatenate([np.array(row, np.uint16) for row in ids])
        flat.tofile(asked.out / f"{name}.bin")
        print(name, len(ids), "documents", len(flat), "tokens")


if __name__ == "__main__":
    main()
