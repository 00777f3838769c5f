"""Messages to token ids by the model's own chat template, which runs in a sandbox."""

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..core.marks import alike
from .messages import ChatError, checked
from .text import Codec
from .weights.checkpoint import BadModel
from .weights.tokenizer_file import read_template

# Characters that text never holds: the first one that a request does not use guards its text.
GUARDS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF0100))]
PROBE = "kvtape"  # a reply that no template changes
SYSTEM = ("system", "developer")


# What a template is given in any case, so that callers may not.
OWN = frozenset(("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"))


class Prompt(NamedTuple):
    """ids: the whole prompt.  history_tokens: those before the header of the coming reply.
    thinking: the header opened a `<think>`, so the reply begins within it.  system_tokens: ids
    that every chat with these tools and system messages begins with.  rewind_tokens: those that
    stay when the user's latest message is written anew."""

    ids: list[int]
    history_tokens: int
    thinking: bool = False
    system_tokens: int = 0
    rewind_tokens: int = 0


class Chat:
    """A chat template with its tokenizer. ends: tokens that end a reply.

    Callers' text never becomes a special token or a tag. In every string of theirs, such tokens'
    text is cut in two by a guard character before the template sees it; the template's own special
    tokens and tags are then parsed, the guard is dropped, and what it cut is encoded as text.
    """

    def __init__(
        self,
        codec: Codec,
        template: str,
        ends: Iterable[int] = (),
        today: datetime.date | None = None,
    ) -> None:
        """today: what the template's strftime_now says; without it the name is not defined."""
        self.codec = codec
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = refuse
        if today is not None:
            environment.globals["strftime_now"] = today.strftime
        try:
            self._template = environment.from_string(template)
        except TemplateSyntaxError as error:
            raise BadModel(f"chat template, line {error.lineno}: {error.message}") from error
        self._guards = [guard for guard in GUARDS if guard not in template]
        self.ends = tuple(dict.fromkeys([*ends, *self._reply_end()]))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The prompt that asks for the next assistant message. Raises ChatError.

        options: what else the template may ask for by name, such as enable_thinking.
        """
        thinks = "</think>" in self.codec.tags
        said = [checked(at, message, thinks=thinks) for at, message in enumerate(messages)]
        if not said:
            raise ChatError("messages: at least one is needed")
        if taken := OWN & (options or {}).keys():
            raise ChatError(f"chat_template_kwargs: {min(taken)} is not the caller's to set")
        given = {**(options or {}), "messages": said, "tools": tools}
        try:
            guard = self._guard_for(given)
            if guard:
                given = {name: guarded(value, self.codec, guard) for name, value in given.items()}
        except RecursionError:
            raise ChatError("messages or tools are nested too deeply") from None
        text, other = (self._text(given, reply=reply) for reply in (True, False))
        cuts = [*self._cuts(given, text), alike(text, other)]
        whole, (system, rewind, first), seams = self.codec.encode_cut(text, cuts, guard)
        # A template may end the history otherwise when it asks for a reply: what both begin with.
        # Most of it was encoded already, and stays.
        rest = self.codec.encode_cut(other, (), guard, seams[-1]).ids
        shared = first + alike(whole[first:], rest)
        return Prompt(whole, shared, self._opened(whole[shared:]), system, rewind)

    def _cuts(self, given: Mapping[str, Any], text: str) -> list[int]:
        """Where a prompt's text parts from that of other users' words, first and latest ones."""
        roles = [message["role"] for message in given["messages"]]
        first = next((at for at, role in enumerate(roles) if role not in SYSTEM), len(roles))
        latest = max((at for at, role in enumerate(roles) if role == "user"), default=0)
        cuts = {at: self._parts_at(given, text, at) for at in {first, latest}}
        return [cuts[first], cuts[latest] if "user" in roles else 0]

    def _parts_at(self, given: Mapping[str, Any], text: str, at: int) -> int:
        """How much of a prompt's text stays if the user says something else at message `at`."""
        kept = given["messages"][:at]
        theirs = given["messages"][at]["content"].lstrip() if at < len(given["messages"]) else ""
        other = "b" if theirs.startswith("a") else "a"  # it differs in its first letter
        said = [*kept, {"role": "user", "content": other}]
        try:
            return alike(text, self._text({**given, "messages": said}, reply=False))
        except ChatError:
            return 0  # the template does not take such messages

    def _opened(self, header: list[int]) -> bool:
        """Whether the last of a header's think tags opens."""
        tags = {self.codec.tags.get("<think>"): True, self.codec.tags.get("</think>"): False}
        return next((tags[token] for token in reversed(header) if token in tags), False)

    def _text(self, given: Mapping[str, Any], *, reply: bool) -> str:
        try:
            return self._template.render(
                given,
                add_generation_prompt=reply,
                bos_token=self.codec.bos,
                eos_token=self.codec.eos,
            )
        except ChatError:
            raise
        # Whatever a template does with messages that it was not written for.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ChatError(f"messages do not fit the model's chat template: {error}") from error
        except (ArithmeticError, RecursionError) as error:
            raise ChatError(f"the model's chat template fails: {error}") from error

    def _guard_for(self, value: Any) -> str:
        """A character that no string uses, "" when no string holds the text of such a token."""
        texts = list(strings(value))
        if not any(special in text for special in self.codec.structure for text in texts):
            return ""
        used = set().union(*texts)
        guard = next((guard for guard in self._guards if guard not in used), "")
        if not guard:
            raise ChatError("messages hold special tokens and every noncharacter of Unicode")
        return guard

    def _reply_end(self) -> list[int]:
        """The special token that the template writes after an assistant's message."""
        said = [{"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}]
        try:
            text = self._text({"messages": said, "tools": None}, reply=False)
        except ChatError:
            return []  # a template for messages of another form; the config's ends remain
        ids = self.codec.encode(text.rpartition(PROBE)[2], special=True)
        specials = self.codec.special.values()
        return [token for token in ids if token in specials][:1]


def read_chat(
    path: Path, codec: Codec, ends: Iterable[int] = (), today: datetime.date | None = None
) -> Chat | None:
    """The chat template of a .gguf file or a Hugging Face directory; None when it has none."""
    template = read_template(path)
    return None if template is None else Chat(codec, template, ends, today)


class Generation(Extension):
    """`{% generation %}` marks what a model is trained on; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[Node]:
        """The statements within, as if the tag were not there."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def refuse(message: Any) -> NoReturn:
    """What a template calls when messages are not what it was written for."""
    raise ChatError(f"messages do not fit the model's chat template: {message}")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for prompts: as models were trained on it, not escaped for web pages."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def strings(value: Any) -> Iterable[str]:
    """Every string within a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from strings(item)


def guarded(value: Any, codec: Codec, guard: str) -> Any:
    """The same with the text of every special token and tag cut in two by the guard."""
    if isinstance(value, str):
        for special in codec.structure:
            value = value.replace(special, special[:1] + guard + special[1:])
        return value
    if isinstance(value, Mapping):
        return {guarded(k, codec, guard): guarded(v, codec, guard) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [guarded(item, codec, guard) for item in value]
    return value
