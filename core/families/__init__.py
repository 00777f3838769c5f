"""The model families, by the name that a checkpoint gives."""

from .family import Family
from .llama import Llama

FAMILIES: dict[str, type[Family]] = {"llama": Llama}
