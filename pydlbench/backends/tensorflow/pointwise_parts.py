"""Recipes of memory-bound layers on images, from a function and the roles of its operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.tensorflow.recipe import FORMATS, as_they_are, from_plain, to_plain
from pydlbench.backends.tensorflow.roles import RolesRecipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.tensorflow.recipe import Recipe
    from pydlbench.layers import Pointwise

__all__ = ["image_recipes", "unused_plain"]


def unused_plain(result: NDArray[Any]) -> NDArray[Any]:
    """Stand where a recipe of one result has a function for it; ``by_role`` does that here."""
    return result


def image_recipes(
    layer: Pointwise,
    pass_: str,
    algorithm: str,
    function: Callable[[str], Callable[..., Any]],
    reads: Sequence[str],
    writes: Sequence[str],
    *,
    further: Sequence[NDArray[Any]] = (),
    types: tuple[str | None, ...] = (),
    variables: tuple[int, ...] = (),
    complete: Callable[[Sequence[Any]], Sequence[Any]] = as_they_are,
    formats: Sequence[str] = FORMATS,
    sums: str = "float32",
    finish: Callable[[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]] = dict,
) -> list[Recipe]:
    """Return one recipe per format of images.

    Args:
        layer: the layer.
        pass_: one of its passes.
        algorithm: TensorFlow's names.
        function: makes what is traced, for a format.
        reads: roles of its operands, in order.
        writes: roles of its results, in order; those of variables follow.
        further: NCHW images behind them.
        types: of all operands, where they differ.
        variables: places of operands that become variables.
        complete: computes on operands beforehand.
        formats: that there are operators for.
        sums: see :class:`Recipe`.
        finish: makes results by role of what the function computed by role.
    """
    words = dict.fromkeys((*layer.reads(pass_), *layer.writes(pass_)))
    names = [role for role in words if role.startswith(("src", "dst"))]
    names.sort(key=lambda role: (role == "dst", int(role[3:] or 1)))

    def recipe(data_format: str) -> Recipe:
        def arranged(array: NDArray[Any]) -> NDArray[Any]:
            return from_plain(array, data_format) if array.ndim == 4 else array

        def operands(inputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
            return tuple(arranged(array) for array in (*(inputs[role] for role in reads), *further))

        def by_role(
            results: list[NDArray[Any]], stands: list[NDArray[Any]]
        ) -> dict[str, NDArray[Any]]:
            plain = (
                to_plain(one, data_format) if one.ndim == 4 else one for one in (*results, *stands)
            )
            return finish(dict(zip(writes, plain, strict=True)))

        images = data_format.lower()
        return RolesRecipe(
            algorithm=algorithm,
            layout=", ".join(f"{role} {images}" for role in names),
            variant=images,
            function=function(data_format),
            operands=operands,
            result=writes[0],
            plain=unused_plain,
            complete=complete,
            sums=sums,
            by_role=by_role,
            types=types,
            variables=variables,
        )

    return [recipe(data_format) for data_format in formats]
