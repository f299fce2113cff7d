"""``torch.compile`` of one function, apart from every other one."""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compiled"]

_numbers = itertools.count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for exactly the shapes that it is called with.

    The compiler keeps what it made by code object, tries one after the other in each call, and
    refuses after eight. Functions made by the same ``def`` share theirs: each gets its own here.

    Args:
        function: Made by ``def``; of tensors only.
    """
    name = f"{function.__name__}_{next(_numbers)}"
    own = types.FunctionType(
        function.__code__.replace(co_name=name),
        function.__globals__,
        name,
        function.__defaults__,
        function.__closure__,
    )
    found: Callable[..., Any] = torch.compile(own, fullgraph=True, dynamic=False)
    return found
