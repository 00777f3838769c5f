"""One tool call in GLM's form, read as its text comes: its name, then its arguments as JSON."""

from collections.abc import Callable
from enum import Enum, auto

from .argument_types import TEXT, Types, quoted, value_json
from .parts import CallPiece

OPENS, CLOSES = "<tool_call>", "</tool_call>"
KEY, KEY_ENDS, VALUE, VALUE_ENDS = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
CALL_TAGS = frozenset((OPENS, CLOSES, KEY, KEY_ENDS, VALUE, VALUE_ENDS))


class At(Enum):
    """Where in a call the reader stands."""

    NAME = auto()
    BETWEEN = auto()
    KEY = auto()
    GAP = auto()
    VALUE = auto()
    END = auto()


# What ends each of them. A value may hold any tag but its own end.
WANTED = {
    At.NAME: ("\n", KEY, CLOSES, OPENS),
    At.BETWEEN: (KEY, CLOSES, OPENS),
    At.KEY: (KEY_ENDS, VALUE, CLOSES, OPENS),
    At.GAP: (VALUE, KEY, CLOSES, OPENS),
    At.VALUE: (VALUE_ENDS,),
}
FOLLOWS = {"\n": At.BETWEEN, KEY: At.KEY, KEY_ENDS: At.GAP, VALUE: At.VALUE, VALUE_ENDS: At.BETWEEN}


class CallReader:
    """Reads what follows `<tool_call>`.

    Strings are handed on as they come, other values once they are whole. `\\n` ends a name, and
    white space around names and keys is not theirs; all of a string value is its own.
    """

    def __init__(self, index: int, types: Callable[[str, str], Types]) -> None:
        """types: what the schema allows, by the names of tool and argument."""
        self.named = False
        self._index = index
        self._types = types
        self._at = At.NAME
        self._name = self._key = ""
        self._value: list[str] = []
        self._allowed: Types = frozenset()
        self._arguments = 0

    @property
    def over(self) -> bool:
        """Whether the call has ended."""
        return self._at is At.END

    @property
    def wanted(self) -> tuple[str, ...]:
        """The tags that mean something here."""
        return WANTED[self._at]

    def say(self, text: str) -> list[CallPiece]:
        """Text before the next tag."""
        if self._at is At.NAME:
            self._name += text
        elif self._at is At.KEY:
            self._key += text
        elif self._at is At.VALUE and self._allowed == TEXT:
            return self._told(quoted(text)[1:-1])
        elif self._at is At.VALUE:
            self._value.append(text)
        return []

    def turn(self, tag: str) -> list[CallPiece]:
        """A wanted tag."""
        if tag == "\n" and not self._name.strip():
            return []
        told = self._named() if self._at is At.NAME else []
        if tag == VALUE:
            told += self._value_begins()
        elif tag == VALUE_ENDS:
            told += self._value_ends()
        elif tag == KEY:
            self._key = ""
        elif tag in (OPENS, CLOSES):
            told += self._told("}" if self._arguments else "{}")
        self._at = FOLLOWS.get(tag, At.END)
        return told

    def finish(self) -> list[CallPiece]:
        """The reply ended of its own accord within the call, which models do for `</tool_call>`."""
        told = self.turn(VALUE_ENDS) if self._at is At.VALUE else []
        return told + self.turn(CLOSES)

    def _named(self) -> list[CallPiece]:
        """The name is whole; a call without one is not told."""
        name = self._name.strip()
        self.named = bool(name)
        return [CallPiece(self._index, name, "")] if name else []

    def _value_begins(self) -> list[CallPiece]:
        key = self._key.strip()
        self._allowed = self._types(self._name.strip(), key)
        self._value = []
        begun = f"{', ' if self._arguments else '{'}{quoted(key)}: "
        self._arguments += 1
        return self._told(begun + ('"' if self._allowed == TEXT else ""))

    def _value_ends(self) -> list[CallPiece]:
        if self._allowed == TEXT:
            return self._told('"')
        return self._told(value_json("".join(self._value), self._allowed))

    def _told(self, arguments: str) -> list[CallPiece]:
        return [CallPiece(self._index, "", arguments)] if self.named and arguments else []
