"""Text that comes in pieces, cut at tags: wherever the pieces end, the cuts are the same."""

import functools
import re


class Tagged:
    """Takes text piece by piece and hands it out up to the next of the tags that are wanted.

    Which tags are wanted may change after each cut. No wanted tag may begin another one.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0

    def push(self, piece: str) -> None:
        """More text."""
        self._text = self._text[self._at :] + piece
        self._at = 0

    def cut(self, wanted: tuple[str, ...]) -> tuple[str, str]:
        """The text before the next wanted tag, and that tag; "" while there is none.

        Text that may become a wanted tag is held back.
        """
        found = finder(wanted).search(self._text, self._at)
        if found is None:
            end = len(self._text) - held(self._text, self._at, wanted)
            said, self._at = self._text[self._at : end], end
            return said, ""
        said, self._at = self._text[self._at : found.start()], found.end()
        return said, found.group()

    def rest(self) -> str:
        """What is held back, once no more will come."""
        said, self._at = self._text[self._at :], len(self._text)
        return said


@functools.cache
def finder(tags: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the first of some tags; the program has a handful of such sets."""
    return re.compile("|".join(map(re.escape, tags)))


def held(text: str, at: int, tags: tuple[str, ...]) -> int:
    """Characters at the end of text[at:] that begin a tag."""
    longest = max(map(len, tags)) - 1
    for length in range(min(len(text) - at, longest), 0, -1):
        if any(tag.startswith(text[len(text) - length :]) for tag in tags):
            return length
    return 0
