"""Passes of layers in TensorFlow, from their forward functions, with operands.

A new op is an entry in :data:`~pydlbench.backends.tensorflow.layers.forward.FORWARD`.

A forward pass is traced together with its gradients. The graph is cut at the tensors of the forward
pass that the gradients read (a result, a mask, statistics). These become operands of the gradients,
as in a step, which keeps them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import Variant, entry_of, op_of
from pydlbench.backends.frameworks.operands import (
    FrameworkLayerPass,
    FrameworkOperator,
    LayerLayout,
    layouts_of,
)
from pydlbench.backends.tensorflow.layers.forward import (
    FORWARD,
    GRADIENT,
    KEPT,
    RESULTS,
    TensorFlowForwardOptions,
    is_depthwise,
    padding_of,
)
from pydlbench.backends.tensorflow.settings import (
    DTYPES,
    TensorFlowArithmetic,
    Tracer,
    tf,
    translate_error,
)
from pydlbench.errors import UnsupportedError
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec

Array = NDArray[Any]


# -----------------------------------------------------------------------------
# The ways to run a pass.


def variants_of(spec: KernelSpec, tracer: Tracer, numbers: TensorFlowArithmetic) -> list[Variant]:
    """List the ways to run a pass of a layer.

    Args:
        spec: the case.
        tracer: makes a ``tf.function`` of a Python function.
        numbers: the arithmetic of the precision.

    Raises:
        UnsupportedError: TensorFlow has no such layers, or not this one.
    """
    entry = entry_of("tensorflow", FORWARD, spec.layer)
    _check(spec.layer, spec)
    training = spec.pass_ != "forward" or spec.propagation == "training"
    ways = [dataclasses.replace(options, training=training) for options in _ways(spec.layer)]
    return [
        _TensorFlowPass(spec, entry(spec.layer, options), options).variant(tracer, numbers)
        for options in ways
    ]


def _ways(layer: Any) -> list[TensorFlowForwardOptions]:
    """Return the options that a layer can be called with.

    If the padding is neither ``SAME`` nor ``VALID``, images may also be padded first, as models
    written for TensorFlow do: its gradients with explicit padding do not use oneDNN, sum bfloat16
    in bfloat16, and support neither groups nor dilation.

    A convolution with one group per channel can also use TensorFlow's depthwise operators, which
    have one stride for both directions and, on CPUs, no dilation.
    """
    op, layouts = op_of(layer), layouts_of(layer)
    if op in ("lrn", "resize"):  # there are no operators for nchw
        layouts = ("nhwc",)
    ways: list[dict[str, bool]] = [{}]
    is_3d = layer.sides == 3  # 3-D operators have no explicit padding
    if op == "pool" and is_3d and padding_of(layer).word == "EXPLICIT":
        ways = [{"padded": True}]
    if op in ("conv", "deconv"):
        convolution = layer.convolution if op == "deconv" else layer
        if padding_of(convolution).word == "EXPLICIT":
            ways = [{"padded": True}] if is_3d else [{}, {"padded": True}]
        alike = len(set(convolution.stride)) == 1 and set(convolution.dilation) == {1}
        if is_depthwise(convolution) and alike and layer.sides == 2:
            ways.append({"depthwise": True})
    return [TensorFlowForwardOptions(layout=layout, **way) for way in ways for layout in layouts]


def _check(layer: Any, spec: KernelSpec) -> None:
    """Refuse layers that TensorFlow's operators do not support."""
    op = op_of(layer)
    if layer.kind == "pointwise" and spec.on_gpu:
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
    if op == "resize":
        _check_resizing(layer, spec)


def _check_resizing(layer: Any, spec: KernelSpec) -> None:
    if layer.mode not in ("nearest", "linear"):
        raise UnsupportedError(
            f"tensorflow: no {layer.mode} resampling here; nearest: resize:linear"
        )
    if layer.sides == 3:
        raise UnsupportedError("TensorFlow has no operator that resizes images of three sides")
    if spec.mode == "xla":
        raise UnsupportedError(
            "XLA's ResizeBilinear gives other values, and ResizeNearestNeighborGrad does not "
            "compile; nearest: --mode graph"
        )
    if layer.mode == "linear" and spec.precision != "fp32":
        raise UnsupportedError("TensorFlow's ResizeBilinear gives float32 only; nearest: fp32")


# Single operators that compute in the storage type; others compute in float32, or are chains.
_ROUNDING: Final = (
    *(("sigmoid", "backward-data"), ("tanh", "backward-data"), ("elu", "backward-data")),
    *(("softplus", "forward"), ("softplus", "backward-data")),
    *(("softmax", "forward"), ("log-softmax", "forward"), ("sgd", "forward")),
    *(("momentum", "forward"), ("resize", "backward-data"), ("pool max", "backward-data")),
)


def _sums(layer: Any, pass_: str, names: Sequence[str]) -> str:
    """Return the kind of accumulator of a pass; each operator of a chain rounds its result."""
    op = op_of(layer)
    if op == "gemm" and "Sum" in names:  # products are rounded to the storage type
        return "stored"
    if op in ("conv", "deconv", "gemm"):
        return "products"
    if (op, pass_) == ("bias", "backward-weights"):
        return "BiasAddGrad"
    if "Cast" in names:
        return "float32"
    word = f"pool {layer.mode}" if op == "pool" else op
    return "stored" if len(names) > 1 or (word, pass_) in _ROUNDING else "float32"


def layout_of(layer: Layer, options: TensorFlowForwardOptions) -> LayerLayout:
    """Return the layouts of a layer's tensors."""
    return LayerLayout(layer, options.layout, "hwcm" if options.depthwise else "hwio")


# -----------------------------------------------------------------------------
# A pass, from the forward function.


class _TensorFlowPass(FrameworkLayerPass):
    """A traced pass of a layer; a gradient is the part of the graph after the forward pass.

    Args:
        spec: the case.
        forward: the function of the layer's tensors.
        options: options of the forward function.
    """

    def __init__(
        self, spec: KernelSpec, forward: Callable[..., Any], options: TensorFlowForwardOptions
    ) -> None:
        super().__init__(spec, forward, layout_of(spec.layer, options), GRADIENT)
        self._options, self._stored, roles = options, DTYPES[spec.precision], self.roles
        if spec.fuse == "bias":
            self.function = _with_bias(self.function, spec.layer, options)
        operands = [(self.layout.stored_shape(role), self._type(role)) for role in roles.reads]
        rate = [((), self._stored)] * bool(self.turns)
        wanted = [*map(roles.reads.index, roles.writes)] if roles.derived else None
        self._graph = TracedGraph(self.function, [*operands, *rate], wanted, self.changed)

    def variant(self, tracer: Tracer, numbers: TensorFlowArithmetic) -> Variant:
        """Return this pass as a way to run the case."""
        algorithm = ", ".join(self._graph.names)
        if self._options.padded and self.spec.pass_ != "forward":
            algorithm += " of padded images"
        sums = _sums(self.layer, self.spec.pass_, self._graph.names)

        def build(inputs: Mapping[str, Array]) -> FunctionOperator:
            try:
                return self._build(inputs, tracer, numbers)
            except tf.errors.OpError as error:
                what = " ".join(filter(None, (algorithm, self._detail, f"({tracer.mode})")))
                raise translate_error(error, what) from error

        return Variant(
            algorithm=algorithm,
            layout=self.layout.text(self.spec.pass_),
            variant=self._options.layout,
            build=build,
            accumulate=numbers.accumulator(sums, tracer.mode),
            bias_accumulate=numbers.accumulator("BiasAddGrad", tracer.mode),
        )

    @property
    def _detail(self) -> str:
        """Special features of the problem, for error messages: ``with 2 groups``."""
        details = []
        if self.op in ("conv", "deconv"):
            details = [f"{self.layer.groups} groups"] * (self.layer.groups > 1)
            details += ["dilation"] * (max(self.layer.dilation) > 1)
        return f"with {' and '.join(details)}" if details else ""

    def _build(
        self, inputs: Mapping[str, Array], tracer: Tracer, numbers: TensorFlowArithmetic
    ) -> FunctionOperator:
        """Build the operator and run it once, so that it is traced and compiled."""
        device = tracer.device
        operands = [
            upload(self.layout.array(role, inputs), self._type(role), device)
            for role in self.roles.reads
        ]
        function = self.function
        with tf.device(device):
            for index in self.changed:
                operands[index] = tf.Variable(operands[index], trainable=False)
            if self.roles.derived:
                function = self._graph.gradients()
                operands = self._kept(operands, inputs, device)

        def results(returned: Any) -> Mapping[str, Array]:
            # An update of variables returns nothing.
            several = [] if returned is None else tf.nest.flatten(returned)
            if self.op in RESULTS and not self.roles.derived:
                several = RESULTS[self.op](self.layer, [*map(as_array, several)], operands)
            return self.plain(self.by_role(several, operands), as_array)

        turns = [upload(np.asarray(value), self._stored, device) for value in self.turns]
        operator = FunctionOperator(
            function, operands, results, tracer, numbers, changed=self.changed, turns=turns
        )
        with operator.guard():
            operator.call()
            operator.wait()
        return operator

    def _kept(self, operands: list[Any], inputs: Mapping[str, Array], device: str) -> list[Any]:
        """Return the operands of the gradients: kept tensors, and the incoming gradient."""
        graph, kept = self._graph, KEPT.get(self.op, {})
        given = [graph.tensor(name) for name in kept]
        values = [
            upload(
                self.layout.arrange("src", make(self.layer, inputs)).reshape(tensor.shape),
                tensor.dtype.name,
                device,
            )
            for make, tensor in zip(kept.values(), given, strict=True)
        ]
        keep = tf.function(graph.part([*graph.sources, *given], graph.kept), autograph=False)
        incoming = np.ones((), np.float32)  # gradient of a loss, which is a scalar
        if graph.incoming.shape.rank:
            incoming = self.layout.array("dst", inputs)
        last = upload(incoming, graph.incoming.dtype.name, device)
        return [*keep(*operands, *values), last]

    def _type(self, role: str) -> str:
        if role == "labels":
            return "int32"
        return "float32" if self.layer.in_float32(role) else self._stored


def _with_bias(
    function: Callable[..., Any], layer: Layer, options: TensorFlowForwardOptions
) -> Callable[..., Any]:
    """Return a function with an addition of a bias, which TensorFlow may fuse.

    In graph mode Grappler fuses ``Conv2D`` or ``MatMul`` with ``BiasAdd``; XLA has its own fusions.
    The gradient of the bias is a separate operator.
    """
    # Columns of a product are its last dimension.
    data_format = "NHWC" if layer.op == "gemm" else options.data_format()

    return lambda *tensors: tf.nn.bias_add(function(*tensors[:-1]), tensors[-1], data_format)


# -----------------------------------------------------------------------------
# Traced functions with their operands.


def upload(array: NDArray[Any], dtype: str, device: str) -> Any:
    """Return a tensor on the device, which is neither converted nor copied in calls."""
    with tf.device(device):
        return tf.identity(tf.constant(array.astype(tf.as_dtype(dtype).as_numpy_dtype)))


def as_array(tensor: Any) -> NDArray[Any]:
    """Return a copy of the values of a tensor or variable, as float32."""
    array: NDArray[Any] = np.asarray(tensor).astype(np.float32)
    return array


class FunctionOperator(FrameworkOperator):
    """A ``tf.function`` with its operands.

    Args:
        body: the function to trace. It takes operands as tensors, so that none is a constant that
            could be folded, and returns a result, several, or nothing.
        operands: arguments of the function on the device, without the alternating one.
        results: function that copies the results to the host, see :class:`FrameworkOperator`.
        tracer: makes the function, in its mode and on its device.
        numbers: has the process-wide switch that is set for calls.
        changed: positions of operands that the function overwrites, which are variables.
        turns: values of an alternating last argument, on the device; see
            :class:`FrameworkLayerPass`.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        operands: Sequence[Any],
        results: Callable[[Any], Mapping[str, NDArray[Any]]],
        tracer: Tracer,
        numbers: TensorFlowArithmetic,
        *,
        changed: Sequence[int] = (),
        turns: Sequence[Any] = (),
    ) -> None:
        self._body, self._tracer, self._numbers = body, tracer, numbers
        self.mode = tracer.mode
        self.function = self.new_function()
        variables = [operands[index] for index in changed]
        super().__init__(
            self.function,
            operands,
            results,
            guard=self._apply_settings,
            wait=tracer.wait,
            turns=turns,
            overwritten=[(variable.assign, tf.identity(variable)) for variable in variables],
        )

    def new_function(self) -> Any:
        """Return another ``tf.function`` of the same body, which is not yet traced."""
        return self._tracer(self._body)

    @contextlib.contextmanager
    def _apply_settings(self) -> Iterator[None]:
        self._numbers.apply()
        yield


# Operators that compute nothing: constants, views, reads and assignments of variables.
_PLUMBING: Final = (
    *("Const", "Placeholder", "Identity", "StopGradient", "PreventGradient", "Reshape", "Squeeze"),
    *("ExpandDims", "ReadVariableOp", "AssignVariableOp", "Fill"),
)


class TracedGraph:
    """The graph of a forward pass, and of its gradients if they are requested.

    Attributes:
        sources: operands of the function.
        result: first result of the function.
        incoming: the gradient of the result.
        kept: tensors of the forward pass that the gradients read, where the graph is cut.
        names: distinct names of the gradients' operators; if no gradients are requested, names of
            the forward pass's operators.

    Args:
        function: the forward pass.
        operands: shapes and types of the function's operands.
        wanted: positions of operands to differentiate by; None traces the forward pass alone.
        variables: positions of operands that are variables.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        operands: Sequence[tuple[Sequence[int], str]],
        wanted: Sequence[int] | None = None,
        variables: Sequence[int] = (),
    ) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self.sources = [tf.compat.v1.placeholder(kind, shape) for shape, kind in operands]
            arguments = list(self.sources)
            for index in variables:
                shape, kind = operands[index]
                arguments[index] = tf.Variable(tf.zeros(shape, kind), trainable=False)
            before = self._graph.get_operations()
            returned = function(*arguments)
            self.result = tf.nest.flatten(returned)[0]
            forward = self._graph.get_operations()
            self.names = _names(forward[len(before) :])
            if wanted is None:
                return
            self.incoming = tf.compat.v1.placeholder(self.result.dtype, self.result.shape)
            sources = [self.sources[index] for index in wanted]
            self._gradients = tf.gradients(self.result, sources, self.incoming)
        self.kept = self._cut(frozenset(forward))

    def tensor(self, name: str) -> Any:
        """Return a tensor of the graph by its name."""
        return self._graph.get_tensor_by_name(name)

    def gradients(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of the kept tensors and the incoming gradient."""
        return self.part([*self.kept, self.incoming], self._gradients)

    def gradients_from_result(self) -> Callable[..., list[Any]]:
        """Return the gradients as a function of sources, result and the incoming gradient."""
        return self.part([*self.sources, self.result, self.incoming], self._gradients)

    def part(self, given: Sequence[Any], wanted: Sequence[Any]) -> Callable[..., list[Any]]:
        """Return a part of the graph as a function.

        Args:
            given: operands of the function; the operators that compute them are left out.
            wanted: results of the function.
        """
        names = [tensor.name for tensor in given]
        fetched = [tensor.name for tensor in wanted if tensor.name not in names]
        needed = {
            operator.name
            for operator in reached_operators(
                (self.tensor(name).op for name in fetched),
                lambda operator: (x.op for x in operator.inputs if x.name not in names),
            )
        }
        nodes = tf.compat.v1.GraphDef()
        whole = self._graph.as_graph_def()
        nodes.versions.CopyFrom(whole.versions)
        nodes.node.extend(node for node in whole.node if node.name in needed)
        for node in nodes.node:
            node.attr.pop("_class", None)  # colocation with operators that are left out

        def function(*tensors: Any) -> list[Any]:
            by_name = dict(zip(names, tensors, strict=True))
            # TensorFlow refuses to map tensors that are not read.
            read = {
                name if ":" in name else f"{name}:0" for node in nodes.node for name in node.input
            }
            mapped = {name: tensor for name, tensor in by_name.items() if name in read}
            results = tf.graph_util.import_graph_def(
                nodes, input_map=mapped, return_elements=fetched, name=""
            )
            by_name |= dict(zip(fetched, results, strict=True))
            return [by_name[tensor.name] for tensor in wanted]

        return function

    def _cut(self, forward: frozenset[Any]) -> list[Any]:
        """Return the tensors of the forward pass that gradients read; name their operators."""

        def is_kept(tensor: Any) -> bool:
            # Constants of the forward pass stay constants, which a compiler may fold.
            return tensor.op in forward and tensor.op.type != "Const"

        reached = reached_operators(
            (tensor.op for tensor in self._gradients),
            lambda operator: (x.op for x in operator.inputs if not is_kept(x)),
        )
        self.names = _names([op for op in self._graph.get_operations() if op in reached])
        read = (tensor for operator in reached for tensor in operator.inputs)
        kept = {tensor.name: tensor for tensor in read if is_kept(tensor)}
        return list(kept.values())


def reached_operators(
    operators: Iterable[Any], inputs: Callable[[Any], Iterable[Any]]
) -> dict[Any, None]:
    """Return operators and all that they depend on, as the keys of a dictionary.

    Args:
        operators: operators to start from.
        inputs: function that returns the operators that an operator depends on.
    """
    waiting = list(operators)
    reached: dict[Any, None] = {}
    while waiting:
        operator = waiting.pop()
        if operator not in reached:
            reached[operator] = None
            waiting += inputs(operator)
    return reached


def _names(operators: Sequence[Any]) -> tuple[str, ...]:
    """Return names of operators, without those that only move data or compute integers."""
    return tuple(
        dict.fromkeys(
            operator.type
            for operator in operators
            if operator.type not in _PLUMBING
            and not (operator.outputs and all(item.dtype.is_integer for item in operator.outputs))
        )
    )
