"""A run as lines of JSON that people review, byte for byte the same each time, and back again."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .canon import decode_command, decode_fact, encode
from .errors import BrokenLine, BrokenRecord, TapeError, WrongFormat
from .facts import FORMAT, RunOpened
from .files import remove_files
from .reader import Tape
from .tape import TapeWriter

_HEAD = re.compile(r'\{"kvtape":(\d{1,9}),"run":(\d{1,9})\}')
_BLOB = re.compile(r'\{"blob":"((?:[0-9a-f]{2})*)"\}')
_FIRST = ("0", "0", "fact")
_ROW = re.compile(r'\{"seq":(\d{1,18}),"step":(\d{1,18}),"(fact|command)":(\{.*\})\}')


def export(tape: Tape) -> Iterator[str]:
    """The lines of a run, without line ends: a head, then each command and fact with its token ids.

    Clocks and hints are left out, so that runs of the same facts have the same lines. Bytes that a
    record names stand before it. Two tapes are equal when these lines are.
    """
    yield f'{{"kvtape":{FORMAT},"run":{tape.run}}}'
    shown: set[str] = set()
    for entry in tape.entries():
        for name in getattr(entry.record, "blobs", ()):
            if name not in shown:
                yield f'{{"blob":"{_blob(tape, name).hex()}"}}'
            shown.add(name)
        side = "fact" if entry.is_fact else "command"
        body = encode(entry.record).decode()
        yield f'{{"seq":{entry.seq},"step":{entry.step},"{side}":{body}}}'


def import_jsonl(lines: Iterable[str], path: str | Path) -> int:
    """Write a tape with these lines: the same rows and chain, and a seal if the run was closed.

    Returns how many rows it has.

    Raises BrokenLine with the line's number and what is wrong with it; no file is left then.
    """
    path = Path(path)
    numbered = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1))
    run = _head(*next(numbered, (1, "")))
    opened = _opened(*next(numbered, (2, "")))
    writer = TapeWriter.create(path, opened, run=run)
    try:
        for number, line in numbered:
            _take(writer, number, line)
        rows = writer.seq
        if writer.ended:
            writer.close()
    except BaseException:
        writer.abandon()
        remove_files(path)
        raise
    writer.abandon()
    return rows


def _blob(tape: Tape, name: str) -> bytes:
    try:
        return tape.blob(name)
    except KeyError:
        raise TapeError(f"{tape.path}: the blob {name} is missing") from None


def _head(number: int, line: str) -> int:
    found = _HEAD.fullmatch(line)
    if found is None:
        raise BrokenLine(f"line {number}: no head of an exported tape: {line:.80}")
    if int(found[1]) != FORMAT:
        raise WrongFormat(f"line {number}: format {found[1]}, this build reads {FORMAT}")
    return int(found[2])


def _opened(number: int, line: str) -> RunOpened:
    found = _ROW.fullmatch(line)
    try:
        first = decode_fact(found[4].encode()) if found is not None else None
    except BrokenRecord as error:
        raise BrokenLine(f"line {number}: {error}") from None
    if found is None or not isinstance(first, RunOpened) or found.group(1, 2, 3) != _FIRST:
        raise BrokenLine(f"line {number}: a run begins with run_opened as row 0: {line:.80}")
    return first


def _take(writer: TapeWriter, number: int, line: str) -> None:
    """Append what one line says; the grouping of rows leaves no trace on a tape."""
    blob = _BLOB.fullmatch(line)
    if blob is not None:
        writer.keep(bytes.fromhex(blob[1]))
        return
    found = _ROW.fullmatch(line)
    if found is None:
        raise BrokenLine(f"line {number}: neither a row nor a blob: {line:.80}")
    seq, step, side, body = int(found[1]), int(found[2]), found[3], found[4].encode()
    if seq != writer.seq:
        raise BrokenLine(f"line {number}: row {seq}, row {writer.seq} should stand here")
    if step < writer.step:
        raise BrokenLine(f"line {number}: step {step} after step {writer.step}")
    if writer.ended:
        raise BrokenLine(f"line {number}: nothing can follow run_closed")
    try:
        if side == "fact":
            fact = decode_fact(body)
            if isinstance(fact, RunOpened):
                raise BrokenLine(f"line {number}: a second run_opened")
            writer.append(step, (), (fact,))
        else:
            writer.append(step, (decode_command(body),), ())
    except BrokenRecord as error:
        raise BrokenLine(f"line {number}: {error}") from None
