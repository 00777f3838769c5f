"""The bytes of a step's sums, joined from their texts: most of what a tape holds is this one kind.

They are those that the serializer gives, or none: a record of anything beyond plain integers and
sums is left to it, and so is saying what is wrong with that.
"""

from functools import lru_cache

from .facts import StepClosed

_DIGITS = b"0123456789abcdef"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG = b"0" * 19  # digits of what may not fit int64
_HEAD = '{"kind":"step_closed","step":'
_TAIL = '},"ranks":{}},"book":"%s","flagged":[]}'
_BETWEEN = '","'


def plain_closed(closed: StepClosed) -> bytes | None:
    """The canonical bytes of the `StepClosed` of one rank without faults; None of any other."""
    digests = closed.digests
    streams, parts = digests.streams, digests.parts
    if closed.flagged != () or digests.ranks or not streams or not parts:
        return None
    names = tuple(sorted(parts))
    ids = f'{closed.step},"digests":{{"streams":{[*streams]}'.replace(" ", "")
    try:
        sums = ",".join([f'"{name}":["{_BETWEEN.join(parts[name])}"]' for name in names])
        body = f'{_HEAD}{ids},"parts":{{{sums}{_TAIL % closed.book}'.encode()
    except (TypeError, UnicodeError):
        return None
    plain = body.translate(None, _DIGITS) == _frame(names, len(streams))
    tuples = set(map(type, (streams, *parts.values()))) == {tuple}
    return body if plain and tuples and _LONG not in ids.encode().translate(_ZEROS) else None


@lru_cache
def _frame(names: tuple[str, ...], streams: int) -> bytes:
    """What is left of such bytes without their digits and the letters a to f; empty if none are."""
    if not all(name.isascii() and name.isidentifier() for name in names):
        return b""
    ids = f',"digests":{{"streams":[{"," * (streams - 1)}]'
    some = _BETWEEN.join([""] * streams)
    sums = ",".join(f'"{name}":["{some}"]' for name in names)
    return f'{_HEAD}{ids},"parts":{{{sums}{_TAIL % ""}'.encode().translate(None, _DIGITS)
