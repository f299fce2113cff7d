"""A layer's pass as TensorFlow runs it, from its forward function.

A new op is an entry in :data:`~pydlbench.backends.tensorflow.forward.FORWARD`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.backends.frameworks.backend import entry_of, op_of
from pydlbench.backends.frameworks.operands import Lie, roles_of, words_of
from pydlbench.backends.tensorflow.forward import (
    FORWARD,
    GRADIENT,
    KEPT,
    RESULTS,
    How,
    is_depthwise,
    padding_of,
)
from pydlbench.backends.tensorflow.gradients import Traced
from pydlbench.backends.tensorflow.operator import Recipe, as_array
from pydlbench.backends.tensorflow.settings import DTYPES, tf
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.records.specs import KernelSpec

    Array = NDArray[Any]


# -----------------------------------------------------------------------------
# The ways to run a pass.


def recipes_of(layer: Layer, case: KernelSpec) -> list[Recipe]:
    """List the ways to run a pass of a layer.

    Args:
        layer: of the case.
        case: what is computed.

    Raises:
        UnsupportedError: TensorFlow has no such layers, or not this one.
    """
    entry = entry_of("tensorflow", FORWARD, layer)
    _check(layer, case)
    training = case.pass_ != "forward" or case.propagation == "training"
    return [
        _Pass(entry, layer, case, dataclasses.replace(how, training=training)).recipe()
        for how in _ways(layer)
    ]


def _ways(layer: Any) -> list[How]:
    """Return how a layer can be called.

    Where no word describes the padding, the images may also be padded first, as models written for
    TensorFlow do: its gradients with explicit padding are not oneDNN's, sum bfloat16 in bfloat16,
    and know neither groups nor dilation.

    A convolution with one group per channel also goes through TensorFlow's operators for just that;
    these have one stride for both directions and, on CPUs, no dilation.
    """
    op, words = op_of(layer), words_of(layer)
    if op in ("lrn", "resize"):  # neither has operators for other images
        words = ("nhwc",)
    ways: list[dict[str, bool]] = [{}]
    whole = layer.sides == 3  # whose operators pad by a word only
    if op == "pool" and whole and padding_of(layer).word == "EXPLICIT":
        ways = [{"padded": True}]
    if op in ("conv", "deconv"):
        convolution = layer.convolution if op == "deconv" else layer
        if padding_of(convolution).word == "EXPLICIT":
            ways = [{"padded": True}] if whole else [{}, {"padded": True}]
        alike = len(set(convolution.stride)) == 1 and set(convolution.dilation) == {1}
        if is_depthwise(convolution) and alike and layer.sides == 2:
            ways.append({"depthwise": True})
    return [How(word=word, **way) for way in ways for word in words]


def _check(layer: Any, case: KernelSpec) -> None:
    """Refuse what TensorFlow's operators do not compute."""
    op = op_of(layer)
    if layer.kind == "pointwise" and case.on_gpu:
        raise UnsupportedError("tensorflow: memory-bound layers are run on CPUs so far")
    if op == "pool" and layer.mode == "avg" and (padding := padding_of(layer)).word != "VALID":
        if layer.count_include_pad:
            raise UnsupportedError("TensorFlow's averages leave padding out of the count")
        if padding.word == "EXPLICIT":
            raise UnsupportedError(
                f"TensorFlow's averages are padded as SAME or VALID, not {layer.problem}"
            )
    if op == "pool" and max(layer.dilation) > 1:
        raise UnsupportedError("TensorFlow's poolings have no windows with holes")
    if op != "resize":
        return
    if layer.sides == 3:
        raise UnsupportedError("TensorFlow has no operator that resizes images of three sides")
    if case.mode == "xla":
        raise UnsupportedError(
            "XLA's ResizeBilinear gives other values, and ResizeNearestNeighborGrad does not "
            "compile; nearest: --mode graph"
        )
    if layer.mode == "linear" and case.precision != "fp32":
        raise UnsupportedError("TensorFlow's ResizeBilinear gives float32 only; nearest: fp32")


# What sums in the type that is stored though it is one operator: the rest is exact, or a chain.
_ROUNDING: Final = (
    *(("sigmoid", "backward-data"), ("tanh", "backward-data"), ("elu", "backward-data")),
    *(("softplus", "forward"), ("softplus", "backward-data")),
    *(("softmax", "forward"), ("log-softmax", "forward"), ("sgd", "forward")),
    *(("momentum", "forward"), ("resize", "backward-data"), ("pool max", "backward-data")),
)


def _sums(layer: Any, pass_: str, names: Sequence[str]) -> str:
    """Return what a pass sums in, see :class:`Recipe`: each operator of a chain rounds."""
    op = op_of(layer)
    if op == "gemm" and "Sum" in names:  # of products that are rounded to storage
        return "stored"
    if op in ("conv", "deconv", "gemm"):
        return "products"
    if (op, pass_) == ("bias", "backward-weights"):
        return "BiasAddGrad"
    if "Cast" in names:
        return "float32"
    word = f"pool {layer.mode}" if op == "pool" else op
    return "stored" if len(names) > 1 or (word, pass_) in _ROUNDING else "float32"


def lie_of(layer: Layer, how: How) -> Lie:
    """Return how the tensors of a layer lie that is called in a way."""
    return Lie(layer, how.word, "hwcm" if how.depthwise else "hwio")


# -----------------------------------------------------------------------------
# A pass, from the forward function.


class _Pass:
    """A pass of a layer.

    Args:
        entry: of the table.
        layer: the layer.
        case: says which pass.
        how: the layer is called.
    """

    def __init__(
        self, entry: Callable[[Any, How], Any], layer: Layer, case: KernelSpec, how: How
    ) -> None:
        self._layer, self._case, self._how = layer, case, how
        self._op, self._stored = op_of(layer), DTYPES[case.precision]
        self._roles, self._lie = roles_of(case, GRADIENT), lie_of(layer, how)
        self._function = entry(layer, how)
        if case.pass_ != "forward" and not self._roles.derived:
            self._function = GRADIENT[self._op](layer)
        if case.fuse == "bias":
            self._function = _with_bias(self._function, layer, how)

    def recipe(self) -> Recipe:
        """Return how it is computed."""
        return self._gradient() if self._roles.derived else self._forward()

    def _forward(self) -> Recipe:
        layer, roles = self._layer, self._roles
        variables = tuple(map(roles.reads.index, roles.updated))
        rate = layer.rate if self._op in ("sgd", "momentum") else 0.0
        operands = [*self._operands, *[((), self._stored)] * bool(rate)]
        names = Traced(self._function, operands, variables=variables).names

        def by_role(results: Sequence[Array], tensors: Sequence[Any]) -> dict[str, Array]:
            if self._op in RESULTS:
                results = RESULTS[self._op](layer, results, tensors)
            changed = [as_array(tensors[place]) for place in variables]
            written = [one for one in roles.writes if one not in roles.updated]
            pairs = zip((*written, *roles.updated), (*results, *changed), strict=True)
            return {role: self._lie.plain(role, one) for role, one in pairs}

        return dataclasses.replace(
            self._named(names),
            function=self._function,
            operands=self._arrays,
            by_role=by_role,
            types=tuple(map(self._type, roles.reads)),
            variables=variables,
            turns=(rate, -rate) if rate else (),
        )

    def _gradient(self) -> Recipe:
        layer, roles = self._layer, self._roles
        traced = Traced(self._function, self._operands, [*map(roles.reads.index, roles.writes)])
        kept = KEPT.get(self._op, {})
        given = [traced.tensor(name) for name in kept]
        keep = tf.function(traced.part([*traced.sources, *given], traced.kept), autograph=False)

        def arrays(inputs: Mapping[str, Array]) -> tuple[Array, ...]:
            values = [self._lie.arranged("src", make(layer, inputs)) for make in kept.values()]
            incoming = np.ones((), np.float32)  # of a number: the loss
            if traced.incoming.shape.rank:
                incoming = self._lie.array("dst", inputs)
            return (*self._arrays(inputs), *values, incoming)

        def by_role(results: Sequence[Array], tensors: Sequence[Any]) -> dict[str, Array]:
            del tensors
            pairs = zip(roles.writes, results, strict=True)
            return {role: self._lie.plain(role, one) for role, one in pairs}

        return dataclasses.replace(
            self._named(traced.names),
            function=traced.gradients(),
            operands=arrays,
            by_role=by_role,
            complete=lambda tensors: (*keep(*tensors[:-1]), tensors[-1]),
            types=(
                *map(self._type, roles.reads),
                *(one.dtype.name for one in (*given, traced.incoming)),
            ),
        )

    def _named(self, names: Sequence[str]) -> Recipe:
        """Return a recipe that knows all but what is computed."""
        layer, how = self._layer, self._how
        algorithm = ", ".join(names)
        if how.padded and self._case.pass_ != "forward":
            algorithm += " of padded images"
        details = []
        if self._op in ("conv", "deconv"):
            details = [f"{layer.groups} groups"] * (layer.groups > 1)
            details += ["dilation"] * (max(layer.dilation) > 1)
        return Recipe(
            algorithm=algorithm,
            layout=self._lie.text(self._case.pass_),
            variant=how.word,
            function=self._function,
            operands=lambda _: (),
            by_role=lambda *_: {},
            detail=f"with {' and '.join(details)}" if details else "",
            sums=_sums(layer, self._case.pass_, names),
        )

    def _arrays(self, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
        return tuple(self._lie.array(role, inputs) for role in self._roles.reads)

    @property
    def _operands(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of what the function takes."""
        return [(self._lie.lying_shape(role), self._type(role)) for role in self._roles.reads]

    def _type(self, role: str) -> str:
        if role == "labels":
            return "int32"
        return "float32" if self._layer.in_float32(role) else self._stored


def _with_bias(function: Callable[..., Any], layer: Layer, how: How) -> Callable[..., Any]:
    """Return a function that adds a bias too, which TensorFlow may fuse.

    In graph mode Grappler makes one kernel of ``Conv2D`` or ``MatMul`` and ``BiasAdd``; XLA fuses
    on its own. The gradient of the bias is an operator of its own beside that of the weights.
    """
    # Columns of a product are its last dimension.
    data_format = "NHWC" if layer.op == "gemm" else how.data_format()

    def forward(*tensors: Any) -> Any:
        return tf.nn.bias_add(function(*tensors[:-1]), tensors[-1], data_format)

    return forward
