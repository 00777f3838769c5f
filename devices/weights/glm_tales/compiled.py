# mypy: ignore-errors
# pyright: basic, reportMissingImports=false
"""Whether torch compiles what is element by element, for the whole of glm-tales' training."""

from collections.abc import Callable
from typing import Any

import torch

_made: dict[Callable[..., Any], Callable[..., Any]] = {}
compiling = False


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled where `compiling` is set."""
    if not compiling:
        return function
    if function not in _made:
        _made[function] = torch.compile(function, dynamic=False)
    return _made[function]
