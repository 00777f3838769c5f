"""Stop strings over text that comes in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may become one.

    The stop string that is complete first ends the text, of several the longest: so the result
    depends on the text alone and never on how it is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every text"
        self._stops = tuple(stops)
        self._held = ""
        self.matched = False

    def push(self, piece: str) -> str:
        """The text that may be shown now."""
        if self.matched or not piece:
            return ""
        text = self._held + piece
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.matched = True
            self._held = ""
            return text[: min(ends)[1]]
        shown = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text still held back, once no more will come."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of text that begin stop, fewer than all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
