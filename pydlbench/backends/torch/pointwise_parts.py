"""What the recipes of memory-bound layers are made of: operands by role, in their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pydlbench.backends.reference.dropout_mask import kept_elements
from pydlbench.backends.torch.recipe import FORMATS, Made, Place, Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from pydlbench.layers import Pointwise

__all__ = ["Parts", "flat_recipe", "image_recipes", "made"]


class Parts:
    """Operands of one layer, by role.

    Args:
        layer: The layer.
        inputs: Plain float32 arrays by role.
        place: Where tensors live.
        like: Memory format of images.
    """

    def __init__(
        self,
        layer: Pointwise,
        inputs: Mapping[str, NDArray[Any]],
        place: Place,
        like: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.layer = layer
        self.place = place
        self.like = like
        self._inputs = inputs

    def operand(self, role: str) -> torch.Tensor:
        """Return what has a role: images in their format, parameters and statistics in rows."""
        array = self._inputs[role]
        if role == "labels":
            return torch.from_numpy(array.astype(np.int64)).to(self.place.device)
        dtype = torch.float32 if self.layer.in_float32(role) else None
        return self.place.tensor(array, self.like if array.ndim == 4 else None, dtype)

    def mask(self) -> torch.Tensor:
        """Return the reference's mask of a dropout: ones where elements stay, else zeros."""
        shape = self.layer.dims("src")
        whole = tuple(slice(0, size) for size in shape)
        kept = kept_elements(shape, whole, self.layer.keep)
        return self.place.tensor(kept.astype(np.float32), self.like)


def itself(result: Any) -> Any:
    """Return the one result that there is."""
    return result


def made(
    function: Callable[..., Any],
    *arguments: torch.Tensor,
    plain: Callable[[Any], Any] = itself,
    updated: tuple[int, ...] = (),
    turns: tuple[float, ...] = (),
) -> Made:
    """Return a function with its operands; see :class:`Made`."""
    return Made(function=function, arguments=arguments, plain=plain, updated=updated, turns=turns)


def image_recipes(
    layer: Pointwise,
    pass_: str,
    algorithm: str,
    make: Callable[[Parts], Made],
    *,
    accumulate: str = "float32",
    notes: tuple[str, ...] = (),
    training: bool = False,
) -> list[Recipe]:
    """List the ways to run a pass on images: one per memory format.

    Args:
        layer: The layer.
        pass_: One of its passes.
        algorithm: PyTorch's name of what is called.
        make: Puts operands in place.
        accumulate: What sums are kept in.
        notes: What a reader has to know.
        training: Whether a forward pass is that of a training.
    """

    def recipe(word: str) -> Recipe:
        def put(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
            return make(Parts(layer, inputs, place, FORMATS[word]))

        return Recipe(
            algorithm=algorithm,
            layout=_layout(layer, pass_, word, training=training),
            variant=word,
            make=put,
            accumulate=accumulate,
            notes=notes,
        )

    return [recipe(word) for word in FORMATS]


def _layout(layer: Pointwise, pass_: str, word: str, *, training: bool = False) -> str:
    """Return the layouts of a pass's images: ``src nhwc, dst nhwc``."""
    kind = "training" if training else "inference"
    roles = dict.fromkeys((*layer.reads(pass_, kind), *layer.writes(pass_, kind)))
    images = [role for role in roles if role.startswith(("src", "dst"))]
    return ", ".join(f"{role} {word}" for role in sorted(images, key=_order))


def _order(role: str) -> tuple[bool, int]:
    return role == "dst", int(role[3:] or 1)


def flat_recipe(
    layer: Pointwise,
    algorithm: str,
    make: Callable[[Parts], Made],
    *,
    layout: str,
    accumulate: str = "float32",
    notes: tuple[str, ...] = (),
) -> list[Recipe]:
    """List the one way to run a pass on rows of logits or on weights; as ``image_recipes``."""

    def put(inputs: Mapping[str, NDArray[Any]], place: Place) -> Made:
        return make(Parts(layer, inputs, place))

    return [
        Recipe(
            algorithm=algorithm,
            layout=layout,
            variant="plain",
            make=put,
            accumulate=accumulate,
            notes=notes,
        )
    ]
