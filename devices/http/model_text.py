"""The text side of a model that has a tokenizer, and perhaps a chat template."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..chat import Chat
from ..messages import ChatError
from ..text import BadText, Codec
from .engine import BadPrompt, Detokeniser, Rendered


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
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> Rendered:
        """The prompt that asks for the next message of a chat.

        options: what else the chat template may ask for by name. Raises BadPrompt.
        """
        if self._chat is None:
            raise BadPrompt("this model has no chat template: use /v1/completions")
        try:
            return Rendered(*self._chat.render(messages, tools, options))
        except (ChatError, BadText) as error:
            raise BadPrompt(str(error)) from error

    @property
    def tags(self) -> Mapping[str, bool]:
        """The tags that the vocabulary holds as one token each, and whether each can be text."""
        return {tag: tag not in self._codec.special for tag in self._codec.tags}

    def detokeniser(self, shown: Collection[str] = ()) -> Detokeniser:
        """A fresh one for one reply; shown: tags whose text is given in any case."""
        return self._codec.detokeniser(shown=shown)
