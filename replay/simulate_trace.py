"""A public trace of requests (Mooncake's JSON lines) as prompts of a machine on coarse rows.

A line is a request: `timestamp` (ms), `input_length`, `output_length` (tokens), and `hash_ids`: an
id for each 512 tokens of the prompt, equal where all tokens up to there are. The machine's page
stands for those 512 tokens in 8 rows of 64 (or in any number of rows), and the token of a row is
the id itself: what the ids say is equal is equal to the prompt tree, and nothing else is.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..events.ids import Token

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
PAGE_TOKENS = 512
PAGE_ROWS = 8
LEAST_REPLY = 2  # rows: a prompt is kept in the turn after its first token, while it is there
OWN = 2**30  # tokens from here on are a request's own: they repeat in no other
VOCAB = 2**31 - 1


class TraceError(Exception):
    """A line that is no request of the form."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when, its prompt in rows, rows of its reply, and how many ids it names."""

    at_us: int
    prompt: tuple[Token, ...]
    reply: int
    ids: int


def read_trace(path: Path, limit: int = 0, page_rows: int = PAGE_ROWS) -> list[Asked]:
    """The requests in order of arrival, at most `limit` of them (0: all). Raises TraceError."""
    try:
        found = list(_lines(path, limit, page_rows))
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is no trace: it is not text in UTF-8") from error
    if not found:
        raise TraceError(f"{path} has no requests")
    return sorted(found, key=lambda asked: asked.at_us)


def _lines(path: Path, limit: int, page_rows: int) -> Iterator[Asked]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if limit and number >= limit:
                return
            try:
                yield asked_by(json.loads(line), number, page_rows)
            except ValueError as error:
                raise TraceError(f"{path}, line {number + 1}: {error}") from error


def asked_by(line: Any, number: int, page_rows: int) -> Asked:
    """The request of a line, as `page_rows` rows for each page. Raises ValueError."""
    if not isinstance(line, dict):
        raise ValueError("a request is a JSON object")
    for name in FIELDS:
        if name not in line:
            raise ValueError(f"no {name}")
    at, length, reply, ids = (line[name] for name in FIELDS)
    for name, value, least in (("timestamp", at, 0), ("input_length", length, 1)):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}")
    if type(reply) is not int or reply < 0:
        raise ValueError(f"output_length is {reply!r}")
    if not isinstance(ids, list):
        raise ValueError("hash_ids is no list")
    if len(ids) != -(-length // PAGE_TOKENS):
        raise ValueError(f"{len(ids)} hash_ids for {length} tokens")
    if any(type(one) is not int or not 0 <= one < OWN for one in ids):
        raise ValueError("a hash_id is no integer from 0 to 2^30")
    whole, rest = divmod(length, PAGE_TOKENS)
    row_tokens = PAGE_TOKENS // page_rows
    rows = [Token(one) for one in ids[:whole] for _ in range(page_rows)]
    rows += [own_token(number)] * -(-rest // row_tokens)
    return Asked(at * 1000, tuple(rows), max(LEAST_REPLY, -(-reply // row_tokens)), len(ids))


def own_token(number: int) -> Token:
    """The token of what only one request holds: its last, partial page and its reply."""
    return Token(OWN + number)
