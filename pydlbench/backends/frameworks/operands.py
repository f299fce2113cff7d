"""The tensors of a pass as frameworks take them: which ones, and how they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

    Array = NDArray[Any]

# -----------------------------------------------------------------------------
# Layouts of plain tensors of images and filters.

# What images and filters are called whose sides lie between, or before, the other axes.
_LAYOUTS = ("nchw", "nhwc", "oihw", "hwio")


def _order(layout: str, dimensions: int) -> tuple[int, ...]:
    """Return where the axes of a plain tensor go: images are plain as N, C and the sides."""
    assert layout in _LAYOUTS, layout
    sides = range(2, dimensions)
    if layout == "nhwc":
        return 0, *sides, 1
    return (*sides, 1, 0) if layout == "hwio" else (0, 1, *sides)


def axes_of(word: str, sides: int, outer: str = "nc") -> str:
    """Return a layout of images, or of filters, with any number of sides: ``ndhwc``, ``ohwi``.

    Args:
        word: ``nchw`` or ``nhwc``.
        sides: how many there are, one to three.
        outer: letters of the first two axes of the plain layout.
    """
    along = "dhw"[-sides:]
    return outer + along if word == "nchw" else outer[0] + along + outer[1]


def turned_to(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout; a view."""
    return array.transpose(_order(layout, array.ndim))


def arranged(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout, contiguous."""
    return np.ascontiguousarray(turned_to(array, layout))


def arranged_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of a plain tensor of images or filters once it is in a layout."""
    return tuple(shape[axis] for axis in _order(layout, len(shape)))


def plain(array: Array, layout: str) -> Array:
    """Return a tensor that lies in a layout as a plain one; a view."""
    return array.transpose(np.argsort(_order(layout, array.ndim)))


# -----------------------------------------------------------------------------
# The tensors of a pass.

# Kinds whose tensors lie one way only.
_PLAIN: Final = ("elementwise", "reduction", "move", "gather", "attention")


def layouts_of(layer: Layer) -> tuple[str, ...]:
    """Return the words of the ways that a layer's tensors can lie: what ``--layout`` chooses by."""
    if layer.op == "gemm":
        return "plain", "transposed"
    one_way = layer.entry.in_one_order or layer.entry.kind in _PLAIN
    return ("plain",) if one_way else ("nhwc", "nchw")


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a pass's tensors.

    Attributes:
        reads: what the function takes: of a gradient, the forward pass that it is derived from.
        writes: the results; of a gradient, what it is the gradient of.
        updated: those of ``reads`` that a forward pass overwrites.
        derived: whether the pass is a gradient that the framework derives.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    updated: tuple[str, ...]
    derived: bool


def roles_of(spec: KernelSpec, own: Container[str] = ()) -> Roles:
    """Return the roles of a case's pass.

    Args:
        spec: what is computed; a fused bias is one of its tensors.
        own: ops whose gradients are written out.
    """
    layer, forward = spec.layer, spec.pass_ == "forward"
    fused = ("bias",) if spec.fuse == "bias" else ()
    derived = not forward and layer.op not in own
    propagation = spec.propagation if forward else "training"
    reads = layer.reads("forward" if derived else spec.pass_, propagation)
    writes = layer.writes(spec.pass_, propagation)
    updated = tuple(role for role in reads if forward and role in writes)
    return Roles((*reads, *fused), writes if forward else (*writes, *fused), updated, derived)


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """How the tensors of a layer lie in memory.

    Attributes:
        layer: the layer.
        word: see :func:`layouts_of`.
        filters: layout of a convolution's weights, for two sides: ``oihw``. Those for one group per
            channel are ``hwcm``: (rows, columns, channels, outputs per channel).
    """

    layer: Layer
    word: str
    filters: str = "oihw"

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the plain shape of a tensor, that of a fused bias too."""
        shapes = self.layer.shapes()
        if role == "bias" and role not in shapes:
            return (int(self.layer.n if self.layer.op == "gemm" else self.layer.out_channels),)
        return shapes[role]

    def stored_shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of a tensor as it lies."""
        return self._view(role, np.broadcast_to(np.float32(0), self.shape(role))).shape

    def array(self, role: str, inputs: Mapping[str, Array]) -> Array:
        """Return an operand as it lies; of what is not given, zeros."""
        if role in inputs:
            return self.arranged(role, inputs[role])
        return np.zeros(self.stored_shape(role), np.float32)

    def arranged(self, role: str, array: Array) -> Array:
        """Return a plain array as it lies, contiguous."""
        return np.ascontiguousarray(self._view(role, array))

    def _view(self, role: str, array: Array) -> Array:
        layer = self.layer
        if layer.op == "gemm" and array.ndim > 2:
            turned = role == "weights" and self.word == "transposed"
            array = array.swapaxes(-1, -2) if turned else array
            return array[0] if layer.batch_count == 1 else array
        if layer.entry.form == "flat" and array.ndim == 4:
            return array.reshape(-1, layer.channels)
        if array.ndim < 3:
            return array
        if not self._is_filter(role):
            return turned_to(array, self._images)
        if self.filters == "hwcm":
            grouped = array.reshape(layer.groups, -1, *array.shape[2:])
            return grouped.transpose(2, 3, 0, 1)
        return turned_to(array, self.filters)

    def plain(self, role: str, array: Array) -> Array:
        """Return a tensor that lies so as a plain one."""
        shape = self.shape(role)
        if self.layer.op == "gemm" and role == "weights" and self.word == "transposed":
            array = array.swapaxes(-1, -2)
        elif self._is_filter(role) and self.filters == "hwcm":
            array = array.transpose(2, 3, 0, 1)
        elif self._is_filter(role):
            array = plain(array, self.filters)
        elif array.ndim == len(shape) > 2:
            array = plain(array, self._images)
        return array.reshape(shape)

    def text(self, pass_: str) -> str:
        """Return the layouts of a pass's operands in words."""
        layer = self.layer
        if layer.op == "gemm":
            many, weights = "g" * (layer.batch_count > 1), "nk" * (self.word == "transposed")
            return f"src {many}mk, weights {many}{weights or 'kn'}, dst {many}mn"
        if layer.entry.form == "weights":
            return ", ".join(dict.fromkeys(layer.reads(pass_)))
        if layer.kind == "pointwise":
            roles = dict.fromkeys((*layer.reads(pass_), *layer.writes(pass_)))
            images = [role for role in roles if role.startswith(("src", "dst"))]
            images.sort(key=lambda role: (role == "dst", int(role[3:] or 1)))
            word = "nc" if layer.entry.form == "flat" else self._images
            return ", ".join(f"{role} {word}" for role in images)
        if self.word == "plain":
            return self.word
        filters = self.filters.replace("hw", axes_of("nchw", layer.sides)[2:])
        others = axes_of(self.word, layer.sides)
        return ", ".join(
            f"{role} {filters if role == 'weights' else others}" for role in layer.shapes()
        )

    @property
    def _images(self) -> str:
        return "nhwc" if self.word == "nhwc" else "nchw"

    def _is_filter(self, role: str) -> bool:
        return role == "weights" and self.layer.op in ("conv", "deconv")
