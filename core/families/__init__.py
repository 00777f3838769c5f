"""The model families, by the name that a checkpoint gives."""

from .family import Family
from .glm import Glm
from .llama import Llama

FAMILIES: dict[str, type[Family]] = {"llama": Llama, "glm": Glm}
