"""How an operator of PyTorch is called: a function of tensors, and where its tensors live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["FORMATS", "Made", "Place", "Recipe", "padding_text"]

#: Memory formats of images by their word.
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True, slots=True)
class Place:
    """Where tensors live.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        dtype: of all that is stored in the case's precision.
    """

    device: torch.device
    dtype: torch.dtype

    def tensor(
        self,
        array: NDArray[Any],
        like: torch.memory_format | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return a copy of an array, aligned as PyTorch's own tensors are."""
        tensor = self.empty(array.shape, like, dtype)
        tensor.copy_(torch.from_numpy(array))
        return tensor

    def empty(
        self,
        shape: Sequence[int],
        like: torch.memory_format | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return a tensor that nobody reads: some gradients ask an operand for its shape only."""
        return torch.empty(
            tuple(shape),
            dtype=dtype or self.dtype,
            device=self.device,
            memory_format=like or torch.contiguous_format,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An operator with its operands.

    Attributes:
        function: of tensors, nothing else but what takes turns; may be compiled.
        arguments: the tensors.
        plain: picks the main result from what the function returns and gives it the dimensions of
            the plain layout; where there are several, all by role, the main one first.
        updated: positions of arguments that the function overwrites.
        turns: a last argument that takes turns from call to call. An optimizer that steps forth and
            back does the same work and leaves the weights where they were, however often it runs.
    """

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    plain: Callable[[Any], torch.Tensor | Mapping[str, torch.Tensor]]
    updated: tuple[int, ...] = ()
    turns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to call PyTorch for a layer and pass; the fields are those of a ``Variant``.

    Attributes:
        make: puts operands (plain float32 arrays by role) in place.
    """

    algorithm: str
    layout: str
    variant: str
    make: Callable[[Mapping[str, NDArray[Any]], Place], Made]
    accumulate: str = "float32"
    notes: tuple[str, ...] = ()


def padding_text(sides: Sequence[int]) -> str:
    """Return paddings (left, right, top, bottom) in words."""
    left, right, top, bottom = sides
    return f"top {top}, bottom {bottom}, left {left}, right {right}"
