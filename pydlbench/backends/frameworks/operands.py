"""A pass of a layer in a framework: its operands and results, with roles and layouts."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.ops.fused import operand_roles
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec

Array = NDArray[Any]

# -----------------------------------------------------------------------------
# Layouts of plain tensors of images and filters.

_LAYOUTS = ("nchw", "nhwc", "oihw", "hwio")


def _order(layout: str, dimensions: int) -> tuple[int, ...]:
    """Return the axes of a plain tensor (images: N, C and the sides) in the order of a layout."""
    assert layout in _LAYOUTS, layout
    sides = range(2, dimensions)
    if layout == "nhwc":
        return 0, *sides, 1
    return (*sides, 1, 0) if layout == "hwio" else (0, 1, *sides)


def axes_of(word: str, sides: int, outer: str = "nc") -> str:
    """Return the axes of images or filters with any number of sides: ``ndhwc``, ``ohwi``.

    Args:
        word: ``nchw`` or ``nhwc``.
        sides: number of spatial dimensions, one to three.
        outer: letters of the first two axes in the plain layout.
    """
    along = "dhw"[-sides:]
    return outer + along if word == "nchw" else outer[0] + along + outer[1]


def transpose(array: Array, layout: str) -> Array:
    """Return a view of a plain tensor of images or filters in a layout."""
    return array.transpose(_order(layout, array.ndim))


def arrange(array: Array, layout: str) -> Array:
    """Return a plain tensor of images or filters in a layout, contiguous."""
    return np.ascontiguousarray(transpose(array, layout))


def shape_in(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return the shape of a plain tensor of images or filters in a layout."""
    return tuple(shape[axis] for axis in _order(layout, len(shape)))


def plain(array: Array, layout: str) -> Array:
    """Return a plain view of a tensor of images or filters that has a layout."""
    return array.transpose(np.argsort(_order(layout, array.ndim)))


# -----------------------------------------------------------------------------
# The tensors of a pass.

# Kinds of layers with one layout.
_PLAIN_KINDS: Final = (
    *("elementwise", "reduction", "move", "gather", "attention", "unfold", "grid-sample"),
    *("fft", "distance"),
)


def layouts_of(layer: Layer) -> tuple[str, ...]:
    """Return the names of a layer's layouts, which ``--layout`` selects by."""
    if layer.op == "gemm":
        return "plain", "transposed"
    is_plain = layer.entry.in_one_order or layer.entry.kind in _PLAIN_KINDS
    return ("plain",) if is_plain else ("nhwc", "nchw")


def image_layout(word: str) -> str:
    """Return the layout of images: ``nhwc``, or ``nchw`` if the name of a layout has none."""
    return "nhwc" if word == "nhwc" else "nchw"


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of a pass's tensors.

    Attributes:
        reads: operands of the function; for a gradient, operands of the forward pass from which it
            is derived.
        writes: results of the function; for a gradient, the operands by which it differentiates.
        updated: operands in ``reads`` that a forward pass overwrites.
        derived: whether the pass is a gradient that the framework derives.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    updated: tuple[str, ...]
    derived: bool


def roles_of(spec: KernelSpec, explicit: Container[str] = ()) -> Roles:
    """Return the roles of a case's pass.

    Args:
        spec: the case; a fused bias is one of its tensors.
        explicit: ops whose gradients have their own functions.
    """
    layer, forward = spec.layer, spec.pass_ == "forward"
    fused = operand_roles(spec.fuse)
    derived = not forward and layer.op not in explicit
    propagation = spec.propagation if forward else "training"
    reads = layer.reads("forward" if derived else spec.pass_, propagation)
    writes = layer.writes(spec.pass_, propagation)
    updated = tuple(role for role in reads if forward and role in writes)
    return Roles((*reads, *fused), writes if forward else (*writes, *fused), updated, derived)


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """The layouts of a layer's tensors.

    Attributes:
        layer: the layer.
        word: name of the layout, one of :func:`layouts_of` the layer.
        filters: layout of a convolution's weights, for two sides: ``oihw``. Weights with one group
            per channel may be ``hwcm``: (rows, columns, channels, outputs per channel).
    """

    layer: Layer
    word: str
    filters: str = "oihw"

    def shape(self, role: str) -> tuple[int, ...]:
        """Return the plain shape of a tensor, which may be a fused bias."""
        shapes = self.layer.shapes()
        if role == "bias" and role not in shapes:
            return (int(self.layer.n if self.layer.op == "gemm" else self.layer.out_channels),)
        return shapes[role]

    def stored_shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of a tensor in this layout."""
        return self._view(role, np.broadcast_to(np.float32(0), self.shape(role))).shape

    def array(self, role: str, inputs: Mapping[str, Array]) -> Array:
        """Return an operand in this layout; zeros if it is not among the inputs."""
        if role in inputs:
            return self.arrange(role, inputs[role])
        return np.zeros(self.stored_shape(role), np.float32)

    def arrange(self, role: str, array: Array) -> Array:
        """Return a plain array in this layout, contiguous."""
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
            return transpose(array, image_layout(self.word))
        if self.filters == "hwcm":
            grouped = array.reshape(layer.groups, -1, *array.shape[2:])
            return grouped.transpose(2, 3, 0, 1)
        return transpose(array, self.filters)

    def plain(self, role: str, array: Array) -> Array:
        """Return a tensor of this layout in the plain layout."""
        shape = self.shape(role)
        if self.layer.op == "gemm" and role == "weights" and self.word == "transposed":
            array = array.swapaxes(-1, -2)
        elif self._is_filter(role) and self.filters == "hwcm":
            array = array.transpose(2, 3, 0, 1)
        elif self._is_filter(role):
            array = plain(array, self.filters)
        elif array.ndim == len(shape) > 2:
            array = plain(array, image_layout(self.word))
        return array.reshape(shape)

    def text(self, pass_: str) -> str:
        """Return the layouts of a pass's operands as text: ``src nhwc, weights hwio, dst nhwc``."""
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
            word = "nc" if layer.entry.form == "flat" else image_layout(self.word)
            return ", ".join(f"{role} {word}" for role in images)
        if self.word == "plain":
            return self.word
        filters = self.filters.replace("hw", axes_of("nchw", layer.sides)[2:])
        others = axes_of(self.word, layer.sides)
        return ", ".join(
            f"{role} {filters if role == 'weights' else others}" for role in layer.shapes()
        )

    def _is_filter(self, role: str) -> bool:
        return role == "weights" and self.layer.op in ("conv", "deconv")


# -----------------------------------------------------------------------------
# Forward functions: each entry of a framework's table is a factory. Given a layer and options, it
# returns a function of tensors.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions:
    """How a layer is called, besides its sizes.

    Attributes:
        layout: ``nhwc`` or ``nchw`` for images; ``transposed`` for products whose weights are
            stored with their columns as rows.
        training: whether the layer is trained: normalisations then use the batch's statistics.
    """

    layout: str = "nhwc"
    training: bool = False

    @property
    def images(self) -> str:
        """The layout of images."""
        return image_layout(self.layout)

    def around(self, values: Sequence[Any], others: Any) -> tuple[Any, ...]:
        """Return a value for each axis of images: ``others`` for the batch and the channels."""
        return (others, *values, others) if self.images == "nhwc" else (others, others, *values)


def always(function: Callable[..., Any]) -> Callable[[Any, Any], Callable[..., Any]]:
    """Return the table entry of a function that does not depend on the layer."""
    return lambda _layer, _options: function


Function = Callable[..., Any]


class FrameworkLayerPass:
    """A pass of a layer: the function that computes it, and the roles of its tensors.

    Attributes:
        function: the pass; for a gradient that the framework derives, the forward pass that it is
            derived from.
        turns: values of a last operand that alternate from call to call: an optimizer that steps
            forth and back does the same work in each call, and the weights do not drift.

    Args:
        spec: the case.
        forward: the function of the layer's tensors, in the order of the roles that it reads.
        layout: layout of the tensors.
        gradients: functions of the gradients that cannot be derived, by op.
    """

    def __init__(
        self,
        spec: KernelSpec,
        forward: Function,
        layout: LayerLayout,
        gradients: Mapping[str, Callable[[Any], Function]],
    ) -> None:
        self.spec, self.layer, self.op, self.layout = spec, spec.layer, op_of(spec.layer), layout
        self.roles = roles_of(spec, gradients)
        written_out = spec.pass_ != "forward" and not self.roles.derived
        self.function = gradients[self.op](spec.layer) if written_out else forward
        optimizer = self.op in ("sgd", "momentum")
        self.turns: tuple[float, ...] = (self.layer.rate, -self.layer.rate) if optimizer else ()

    @property
    def changed(self) -> tuple[int, ...]:
        """Positions of the operands that the function overwrites."""
        return tuple(map(self.roles.reads.index, self.roles.updated))

    def by_role(self, returned: Sequence[Any], operands: Sequence[Any]) -> dict[str, Any]:
        """Return the results by role, including operands that were overwritten.

        Args:
            returned: results of the function.
            operands: operands of the function.
        """
        roles = self.roles
        updated = {
            role: operands[index] for role, index in zip(roles.updated, self.changed, strict=True)
        }
        written = [role for role in roles.writes if role not in updated]
        return dict(zip(written, returned, strict=False)) | updated

    def plain(
        self, results: Mapping[str, Any], read: Callable[[Any], NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return results in plain layouts, in the order in which the layer writes them.

        Args:
            results: results by role.
            read: function that copies a tensor to the host, as float32.
        """
        written = [role for role in self.roles.writes if role in results]
        return {
            role: np.ascontiguousarray(self.layout.plain(role, read(results[role])))
            for role in written
        }


class FrameworkOperator:
    """A framework's function with its operands; see ``host_clock.Operator``.

    Attributes:
        call: runs the function once. No Python frame of pydlbench stands between the clock and the
            framework, unless calls alternate.
        operands: arguments of the first call.
        guard: makes the context of its calls, which the caller enters.
        wait: returns when all calls have finished.

    Args:
        function: the function to call.
        operands: arguments of the function, without the alternating one.
        results: function that copies the results to the host by role, in plain layouts, as float32.
        guard: makes the context of its calls.
        wait: returns when all calls have finished; by default calls return with their results.
        turns: values of an alternating last argument, see :class:`FrameworkLayerPass`.
        overwritten: for each operand that the function overwrites, the function that assigns a
            value to it, and its initial value.
    """

    def __init__(
        self,
        function: Function,
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        *,
        guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        wait: Callable[[], None] = lambda: None,
        turns: Sequence[Any] = (),
        overwritten: Sequence[tuple[Callable[[Any], Any], Any]] = (),
    ) -> None:
        first = functools.partial(function, *operands)
        calls = [functools.partial(first, value) for value in turns] or [first]
        self.operands = calls[0].args
        self.call: Callable[[], Any] = calls[0] if len(calls) == 1 else _alternate(calls)
        self.guard, self.wait = guard, wait
        self._results, self._overwritten = results, overwritten
        self._alternates, self._first = len(calls) > 1, calls[0]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run the function once on its first operands; return float32 results in plain layouts.

        Overwritten operands have their initial values in this call.
        """
        with self.guard():
            self._restore()
            results = self._results((self._first if self._alternates else self.call)())
            self._restore()
        return dict(results)

    def _restore(self) -> None:
        for assign, value in self._overwritten:
            assign(value)


def _alternate(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a function that calls several functions in turn."""
    next_call = itertools.cycle(calls).__next__

    def call() -> Any:
        return next_call()()

    return call
