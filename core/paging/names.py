"""Names of prefixes: two 64-bit lanes, each mixed from the prefix before and a page's tokens.

A name finds candidates; whether two prompts share a page their tokens say. What is remembered of a
prefix that went hangs on its name alone, and only the order in which others go hangs on that.
"""

from .compiled import code

ONE, OTHER = -7046029254386353131, -4417276706812531889  # odd, their bits well spread


@code
def next_name(name, second, tokens, first, last):
    """The name of a prefix and the page of tokens `first` to `last` after it, excluded."""
    for at in range(first, last):
        name = (name ^ tokens[at]) * ONE
        name ^= name >> 29
        second = (second + tokens[at]) * OTHER
        second ^= second >> 32
    return name * OTHER ^ (name >> 32), second * ONE ^ (second >> 29)
