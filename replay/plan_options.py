"""Switches of a plan as text, from flags and environment: bytes with units, pages, kept states."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

from ..core.plan_pages import KvPages
from ..core.plan_wanted import Order, SpareTo
from .opening import MalformedOption

PAGES_VARIABLE = "TF_KV_PAGES"
SHARE_VARIABLE = "TF_GLM_KV_SHARE"
PAGES: tuple[KvPages, ...] = ("auto", "on", "off")
ORDERS: tuple[Order, ...] = ("proposed", "today")
SPARE_TO: tuple[SpareTo, ...] = ("free", "pages")
CACHES = ("16", "fp8")
STORES_ASKED = ("", "radix", "flat")
_UNITS = {"": 1, "b": 1} | {
    letter + binary + "b": base**power
    for binary, base in (("i", 1024), ("", 1000))
    for power, letter in enumerate("kmgt", start=1)
}
_BYTES = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-z]*)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,18})?")
_WHOLE = re.compile(r"[1-9][0-9]{0,8}")
Known = TypeVar("Known", bound=str)


def bytes_of(option: str, text: str) -> int:
    """Bytes from text such as 15.25GiB, 180MiB or 40960, rounded down. Raises MalformedOption."""
    found = _BYTES.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise MalformedOption(f"{option} {text!r}: bytes such as 15.25GiB, 180MiB or 40960")
    if "." in found[1] and not found[2]:
        raise MalformedOption(f"{option} {text!r}: a unit is missing, such as GiB")
    return int(Fraction(found[1]) * unit)


def bytes_asked(option: str, text: str) -> int | None:
    """The same; None where nothing is said. Raises MalformedOption."""
    return bytes_of(option, text) if text.strip() else None


def gib_asked(option: str, text: str) -> int | None:
    """Bytes from a number of GiB; None where nothing is said. Raises MalformedOption."""
    return gib_of(option, text) if text.strip() else None


def gib_of(option: str, text: str) -> int:
    """Bytes from a number of GiB, rounded down. Raises MalformedOption."""
    if not _NUMBER.fullmatch(text.strip()):
        raise MalformedOption(f"{option} {text!r}: a number of GiB, such as 16 or 0.5")
    return int(Fraction(text.strip()) * 2**30)


def one_of(name: str, value: str, among: tuple[Known, ...]) -> Known:
    """A value that an option or a variable has. Raises MalformedOption."""
    for known in among:
        if value == known:
            return known
    raise MalformedOption(f"{name} {value!r}: {', '.join(filter(None, among))}")


def kv_pages_of(flag: str, environment: Mapping[str, str]) -> KvPages:
    """auto, on or off: the flag, else TF_KV_PAGES, else auto; blank is unset."""
    name, value = "--kv-pages", flag.strip()
    if not value:
        name, value = PAGES_VARIABLE, environment.get(PAGES_VARIABLE, "").strip()
    return one_of(name, value or "auto", PAGES)


def kv_share_of(flag: str, environment: Mapping[str, str]) -> int:
    """Kept states by reference: the flag, else TF_GLM_KV_SHARE, else 0, none; blank is unset."""
    name, value = "--share", flag.strip()
    if value == "0":
        return 0  # a flag takes back what the environment sets
    if not value:
        name, value = SHARE_VARIABLE, environment.get(SHARE_VARIABLE, "").strip()
    if value and not _WHOLE.fullmatch(value):
        none = "blank" if name == SHARE_VARIABLE else "0"
        raise MalformedOption(f"{name} {value!r}: a whole number from 1; {none} is none")
    return int(value or 0)
