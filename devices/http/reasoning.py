"""A chat reply's text read into parts: reasoning, answer and tool calls, as the text comes."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from .argument_types import argument_types
from .parts import CallPiece, Content, Part, Reasoning
from .tagged import Tagged
from .tool_calls import CALL_TAGS, OPENS, CallReader

THINK, THINK_ENDS = "<think>", "</think>"
THINK_TAGS = frozenset((THINK, THINK_ENDS))


class ReplyReader:
    """Reads one reply; however its text is cut into pieces, the parts add up to the same.

    `<think>` opens reasoning at the beginning of a reply only. `</think>` closes it, and so does a
    tool call. A tag out of its place is text, unless the tokenizer says that it is none; a
    `</think>` that closes nothing never is. White space beside tags is no part of the answer, and
    reasoning of white space alone is none; else both are handed on to the letter.
    """

    def __init__(
        self,
        tags: Mapping[str, bool],
        *,
        thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        calls_max: int | None = None,
    ) -> None:
        """tags: those that the model's tokenizer knows, and whether each can be text. thinking: the
        prompt opened a `<think>`. tools: those offered; calls past calls_max are not told."""
        self._tags = tags
        thinks, calls = tags.keys() >= THINK_TAGS, bool(tools) and tags.keys() >= CALL_TAGS
        self._wanted = ((THINK, THINK_ENDS) if thinks else ()) + ((OPENS,) if calls else ())
        self.reads = (THINK_TAGS if thinks else frozenset()) | (CALL_TAGS if calls else frozenset())
        self._thinking = thinking and thinks
        self._types = partial(argument_types, tools)
        self._calls_max = calls_max
        self._text = Tagged()
        self._calls = 0  # that ended
        self._call: CallReader | None = None
        self._blank = ""  # white space whose place is not known yet
        self._begun = False  # anything was said in the reply
        self._spoken = False  # anything since the last tag
        self._answered = False  # anything of the answer

    @property
    def called(self) -> bool:
        """Whether the reply calls a tool."""
        return self._calls > 0 or (self._call is not None and self._call.named)

    def push(self, piece: str) -> list[Part]:
        """The parts that this text adds."""
        if not self._wanted:
            return [Content(piece)] if piece else []
        parts: list[Part] = []
        self._text.push(piece)
        while True:
            call = self._call
            said, tag = self._text.cut(call.wanted if call else self._wanted)
            parts += self._say(said)
            if not tag:
                return parts
            parts += self._turn(tag)

    def finish(self, *, cut: bool) -> list[Part]:
        """What is left at the end. cut: by a limit, so that an open call stays unfinished."""
        if self._call is not None and cut:
            return []
        parts: list[Part] = [*self._say(self._text.rest())]
        if self._call is not None:
            parts += self._kept(self._call.finish())
        elif self._blank and not self._thinking and (self._spoken or not self._begun):
            parts.append(Content(self._blank))
        return parts

    def _say(self, text: str) -> list[Part]:
        """Text between tags."""
        if self._call is not None:
            return self._kept(self._call.say(text))
        text, self._blank = self._blank + text, ""
        if self._thinking:
            if not self._spoken and not text.strip():
                self._blank = text
                return []
            self._begun = self._spoken = True
            return [Reasoning(text)] if text else []
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        if not shown:
            return []
        if self._begun and not self._answered:
            shown = shown.lstrip()
        self._begun = self._spoken = self._answered = True
        return [Content(shown)]

    def _turn(self, tag: str) -> list[Part]:
        """A wanted tag."""
        if self._call is not None:
            parts = self._kept(self._call.turn(tag))
            if self._call.over:
                self._calls += self._call.named
                self._call = CallReader(self._calls, self._types) if tag == OPENS else None
            return parts
        if tag == OPENS:
            self._call = CallReader(self._calls, self._types)
        elif tag == THINK and self._begun:
            return self._say(tag) if self._tags[tag] else []
        self._thinking = tag == THINK
        self._begun = self._begun or not self._thinking
        self._blank, self._spoken = "", False
        return []

    def _kept(self, pieces: list[CallPiece]) -> list[Part]:
        """The pieces of calls that the client wants to hear of."""
        return [p for p in pieces if self._calls_max is None or p.at < self._calls_max]
