"""What the measuring tools ask: prompts of their own, and prompts from files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .measure_reply import Prompt

IDS_LOW, IDS_HIGH = 32, 255  # every model has them, and few use them as special tokens
IDS_A_PROMPT = 64
TOKENS_A_LINE = 20  # about as many, in any tokenizer

CODE = '''def fibonacci(n):
    """Return the n-th Fibonacci number, counted from zero."""
'''
QUESTION = (
    "Explain how a graphics card multiplies two large matrices, from the first load to the last"
    " store, and what limits its speed."
)


class BadPromptFile(Exception):
    """A file of a prompt that cannot be read."""


def prompts(form: str, file: str = "") -> list[Prompt]:
    """The prompts of a tool: the file's alone; else a raw text and a chat, or two lists of ids."""
    if file:
        return [read_prompt(Path(file))]
    if form == "ids":
        return [ids_prompt(f"ids-{name}", IDS_A_PROMPT, name) for name in "ab"]
    return [Prompt("fibonacci-raw", CODE), chat("gpu-chat-no-think", QUESTION)]


def long_prompt(form: str, tokens: int, seed: int) -> Prompt:
    """A prompt of so many tokens (ids), or of about as many (text, chat); alike for a seed."""
    if form == "ids":
        return ids_prompt("ids", tokens, str(seed))
    lines = [
        f"Line {at}: ship {ship} passed the lighthouse, and its keeper wrote it down."
        for at, ship in enumerate(drawn(str(seed), -(-tokens // TOKENS_A_LINE)), 1)
    ]
    text = "\n".join(lines)
    return chat("chat", text) if form == "chat" else Prompt("text", text)


def chat(name: str, question: str) -> Prompt:
    """A chat of one question."""
    return Prompt(name, ({"role": "user", "content": question},))


def ids_prompt(name: str, count: int, seed: str) -> Prompt:
    """Token ids that any model has."""
    span = IDS_HIGH - IDS_LOW + 1
    return Prompt(name, tuple(IDS_LOW + value % span for value in drawn(seed, count)))


def drawn(seed: str, count: int) -> list[int]:
    """Numbers of 0 to 65,535, the same ones for a seed on every machine."""
    found: list[int] = []
    while len(found) < count:
        block = hashlib.sha256(f"{seed}:{len(found)}".encode()).digest()
        found += [int.from_bytes(block[at : at + 2], "big") for at in range(0, len(block), 2)]
    return found[:count]


def read_prompt(path: Path) -> Prompt:
    """A JSON file: a list of token ids, a text, or the messages of a chat."""
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadPromptFile(f"{path}: {error}") from None
    whole = isinstance(told, list) and told
    if (isinstance(told, str) and told) or (whole and all(type(one) is int for one in told)):
        return Prompt(path.stem, told)
    if whole and all(isinstance(one, Mapping) and "role" in one for one in told):
        return Prompt(path.stem, told)
    raise BadPromptFile(f"{path}: neither token ids, nor a text, nor the messages of a chat")
