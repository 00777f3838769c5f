"""What can be wrong with a tape, each with the exit code that a command ends with."""


class TapeError(Exception):
    """A tape cannot be read or written; the message says which one, where and what to do."""

    exit_code = 2


class TapeExists(TapeError):
    """A tape is to be made where some file already is."""


class NotATape(TapeError):
    """The file is something else, or lacks a table that every tape has."""


class TornTape(TapeError):
    """The file was cut short or damaged below its rows."""


class BrokenRecord(TapeError):
    """A command or fact whose bytes are not the one form of any record."""


class BrokenLine(TapeError):
    """A line of an exported tape that cannot be taken back."""


class WrongFormat(TapeError):
    """A tape of another format, which this build refuses."""

    exit_code = 3
