"""A layer's pass as XLA compiles it, from JAX's forward function.

A gradient is what :func:`jax.vjp` makes of the forward pass: a function of the incoming gradient
and of what it keeps, which are the row's operands. A new op is an entry in
:data:`~pydlbench.backends.jax.forward.FORWARD`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jax import jit, tree_util, vjp

from pydlbench.backends.frameworks.backend import Variant, entry_of, op_of
from pydlbench.backends.frameworks.layouts import (
    arranged,
    arranged_matrices,
    axes_of,
    layout_of_images,
    plain,
    plain_matrices,
)
from pydlbench.backends.jax.forward import FILTERS, FORWARD, SOURCES, How
from pydlbench.backends.jax.operator import JaxOperator
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.jax.settings import Place
    from pydlbench.ops.op import Layer

    Array = NDArray[Any]

#: What JAX calls what it computes for a layer; others are called by their op.
_NAMES: Final = {
    "conv": "lax.conv_general_dilated",
    "deconv": "transpose of lax.conv_general_dilated",
    "gemm": "lax.dot_general",
    "pool": "lax.reduce_window",
}


def variants_of(layer: Layer, pass_: str, place: Place) -> list[Variant]:
    """Return the ways to compute a pass of a layer.

    Args:
        layer: the layer.
        pass_: which one.
        place: where it is computed, and in what.

    Raises:
        UnsupportedError: JAX has no such layers here.
    """
    entry = entry_of("jax", FORWARD, layer)
    if layer.kind == "pointwise" and place.queues:
        raise UnsupportedError("jax: memory-bound layers are run on CPUs so far")
    backward_maxima = layer.op == "pool" and layer.mode == "max" and pass_ != "forward"
    if backward_maxima and max(layer.dilation) > 1:
        raise UnsupportedError("jax: no gradient of maxima over windows with holes")
    if layer.op == "gemm":
        ways = {"plain": How(), "transposed": How(transposed=True)}
    elif layer.entry.in_one_order or layer.op == "attention":
        ways = {"plain": How(images="nchw")}
    else:
        ways = {images: How(images=images) for images in FILTERS}
    return [
        _variant(entry(layer, how), layer, pass_, word, how, place) for word, how in ways.items()
    ]


def _variant(
    function: Callable[..., Any], layer: Layer, pass_: str, word: str, how: How, place: Place
) -> Variant:
    """Return a way to compute a pass.

    Args:
        function: of the forward pass.
        layer: the layer.
        pass_: which one.
        word: what ``--layout`` chooses by.
        how: tensors lie.
        place: where it is computed, and in what.
    """
    writes = layer.writes(pass_)

    def build(inputs: Mapping[str, Array]) -> JaxOperator:
        given = dict(inputs)
        if pass_ != "forward" and layer.op in SOURCES:
            given["src"] = SOURCES[layer.op](given["result"])
        shapes, reads = layer.shapes(), layer.reads("forward")
        for role in reads:  # what is not given is not read, but for its shape
            given.setdefault(role, np.broadcast_to(np.float32(0), shapes[role]))

        def put(role: str) -> Any:
            kind = "float32" if layer.in_float32(role) else None
            return place.put(_lying(layer, how, role, given[role]), kind)

        operands = {role: put(role) for role in reads}
        called, tensors = function, list(operands.values())
        if pass_ != "forward":
            with place.exact():
                called, kept = _gradient(function, operands, writes)
            tensors = [*kept, put("dst")]
        results = {
            role: lambda array, role=role: _plainly(layer, how, role, array) for role in writes
        }
        return JaxOperator(called, tensors, results, place)

    name = _NAMES.get(op_of(layer), layer.op)
    products = layer.op in ("conv", "deconv", "gemm", "attention")
    return Variant(
        algorithm=name if pass_ == "forward" else f"gradient of {name}",
        layout=_layout(layer, pass_, word, how),
        variant=word,
        build=build,
        accumulate=place.numbers.accumulate if products else place.numbers.dtype,
    )


def _gradient(
    function: Callable[..., Any], operands: Mapping[str, Any], wanted: Sequence[str]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return gradients as a function of what they keep and the incoming gradient, and what is kept.

    Args:
        function: of the forward pass.
        operands: of it, by role.
        wanted: roles whose gradients are wanted.
    """

    def of_wanted(*tensors: Any) -> Any:
        known = {**operands, **dict(zip(wanted, tensors, strict=True))}
        return function(*known.values())

    pull = jit(lambda *tensors: vjp(of_wanted, *tensors)[1])(*(operands[role] for role in wanted))
    kept, structure = tree_util.tree_flatten(pull)

    def gradient(*tensors: Any) -> Any:
        return tree_util.tree_unflatten(structure, tensors[:-1])(tensors[-1])

    return gradient, kept


# -----------------------------------------------------------------------------
# How tensors lie.


def _layout(layer: Layer, pass_: str, word: str, how: How) -> str:
    """Return the layouts of all operands in words."""
    if layer.op == "gemm":
        return f"src mk, weights {'nk' if how.transposed else 'kn'}, dst mn"
    if layer.kind == "pointwise":
        return layout_of_images(layer, pass_, how.images)
    if word == "plain":
        return word
    images, sides = axes_of(word, layer.sides), axes_of("nchw", layer.sides)[2:]
    filters = f"oi{sides}" if word == "nchw" else f"{sides}io"
    return ", ".join(f"{one} {filters if one == 'weights' else images}" for one in layer.shapes())


def _order(layer: Layer, how: How, role: str) -> str:
    filters = role == "weights" and layer.op in ("conv", "deconv")
    return FILTERS[how.images] if filters else how.images


def _lying(layer: Layer, how: How, role: str, array: Array) -> Array:
    """Return a plain array as the layer's function takes it, contiguous."""
    if layer.op == "gemm":
        return arranged_matrices(layer, role, array, transposed=how.transposed)
    return arranged(array, _order(layer, how, role)) if array.ndim > 2 else array


def _plainly(layer: Layer, how: How, role: str, array: Array) -> Array:
    """Return a tensor as :func:`_lying` has it as a plain one."""
    if layer.op == "gemm":
        return plain_matrices(layer, role, array, transposed=how.transposed)
    return plain(array, _order(layer, how, role)) if array.ndim > 2 else array
