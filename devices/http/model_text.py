"""The text side of a model that has a tokenizer, and perhaps a chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..chat import Chat, ChatError
from ..text import BadText, Codec
from .engine import BadPrompt, Detokeniser


class ModelText:
    """Codec and Chat as the door asks for them."""

    def __init__(self, codec: Codec, chat: Chat | None) -> None:
        """chat: None for a model that was never taught to chat."""
        self._codec = codec
        self._chat = chat

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a whole prompt that is no chat. Raises BadPrompt."""
        try:
            return self._codec.prompt(text)
        except BadText as error:
            raise BadPrompt(str(error)) from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[int], int]:
        """Prompt ids and how many of them are history. Raises BadPrompt."""
        if self._chat is None:
            raise BadPrompt("this model has no chat template: use /v1/completions")
        try:
            return self._chat.render(messages, tools)
        except (ChatError, BadText) as error:
            raise BadPrompt(str(error)) from error

    def detokeniser(self) -> Detokeniser:
        """A fresh one for one reply."""
        return self._codec.detokeniser()
