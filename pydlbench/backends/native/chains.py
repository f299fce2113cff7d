"""What the native module says of the kernels of a step that it runs on each other's outputs."""

from __future__ import annotations

from typing import TypedDict


class Step(TypedDict):
    """A kernel of a chain, or a conversion of ``tensor``."""

    name: str
    tensor: str
    algorithm: str
    layout: str
    bytes: int


class Load(TypedDict):
    """A tensor as it lies before the first execution."""

    tensor: str
    layout: str
    bytes: int
    plain: bool
