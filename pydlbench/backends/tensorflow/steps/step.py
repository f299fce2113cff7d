"""Models of the catalogue in TensorFlow; a step is one ``tf.function``.

Networks run on NHWC images (on a GPU also NCHW).

Images are padded before convolutions and poolings unless their padding is ``SAME`` or ``VALID``.
Groups are split unless there is one per channel, as TensorFlow's gradients support none on a CPU.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.steps.catalogue import host_arrays, pass_step, product_flops
from pydlbench.backends.steps.definition import FrameworkStep, StepDefinition, StepModel
from pydlbench.backends.steps.device import GAPS
from pydlbench.backends.steps.inputs import Batch, trained
from pydlbench.backends.steps.network import (
    LOSS,
    OPTIMIZER,
    FunctionStep,
    Network,
    NetworkModel,
    NetworkRun,
    scope_of,
)
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.backends.steps.user_model import UserLosses
from pydlbench.backends.tensorflow.layers.forward import (
    FORWARD,
    TensorFlowForwardOptions,
    descend,
    descend_with_momentum,
    is_depthwise,
    normalised,
    padding_of,
)
from pydlbench.backends.tensorflow.layers.layer_pass import (
    TracedGraph,
    layout_of,
    reached_operators,
)
from pydlbench.backends.tensorflow.settings import Tracer, arithmetic, tf, translate_error
from pydlbench.backends.tensorflow.steps.graph import (
    calls_of,
    grouped_nodes,
    has_control_flow,
    inlined_graph,
    list_calls,
    ordered_calls,
    run_graphs,
)
from pydlbench.backends.tensorflow.steps.trace import (
    StepProfiles,
    gpu_profile,
    gpu_seconds,
    node_runs,
)
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import INPUT, GraphNode, Model
from pydlbench.ops.op import Layer
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import RecordedCall


def _cross_entropy(logits: Any, labels: Any) -> Any:
    """Classes are the last dimension."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=labels, logits=tf.cast(logits, tf.float32)
    )
    return tf.reduce_mean(losses)


def _random_labels(logits: Any) -> Any:
    *shape, classes = logits.shape
    return tf.constant(np.random.default_rng(0).integers(0, classes, shape), tf.int32)


class TracedModel(StepModel):
    """A model in TensorFlow whose step is one function: of the catalogue, or a user model.

    Args:
        spec: definition of the step.

    Raises:
        UnsupportedError: TensorFlow has no such precision on this device.
    """

    losses = UserLosses(
        number=lambda tensor: tf.reshape(tensor, []),
        total=lambda tensor: tf.reduce_sum(tf.cast(tensor, tf.float32)),
        mean_square=lambda tensor: tf.reduce_mean(tf.square(tf.cast(tensor, tf.float32))),
        half_square=lambda tensor: tf.nn.l2_loss(tf.cast(tensor, tf.float32)),
        cross_entropy=_cross_entropy,
        random_labels=_random_labels,
    )

    def __init__(self, spec: StepSpec) -> None:
        super().__init__(spec)
        self._precision = arithmetic(spec.precision, spec.on_gpu, frozenset(read_cpu_facts().isa))
        self.device = "/GPU:0" if spec.on_gpu else "/CPU:0"  # the only visible one
        #: Makes functions of tensors.
        self.make_function = Tracer(self.device, str(spec.mode))

    def synchronize(self) -> None:
        """Wait until the device has finished; on a CPU calls return with their results."""
        self.make_function.wait()

    def gpu(self) -> dict[str, Any]:
        """Return TensorFlow's description of the only visible GPU."""
        (device,) = tf.config.get_visible_devices("GPU")
        facts = tf.config.experimental.get_device_details(device)
        return {
            "name": facts.get("device_name", "unknown GPU"),
            "capability": ".".join(map(str, facts.get("compute_capability", ()))),
        }

    @abc.abstractmethod
    def body(self, *operands: Any) -> dict[str, Any]:
        """Return the results of the step, as a part of a graph."""

    @abc.abstractmethod
    def operands(self) -> Sequence[Any]:
        """Return the operands of the step."""

    @property
    @abc.abstractmethod
    def scopes(self) -> dict[str, str]:
        """The names of the model's layers by the scopes of their nodes."""

    def change_fusion(self) -> None:
        """Fuse no operators; see ``steps.definition.StepModel``."""
        if self.spec.mode != "graph":
            super().change_fusion()
        # The remapper is the optimizer of graphs that fuses operators.
        tf.config.optimizer.set_experimental_options({"remapping": False})

    def tracer(self, run: Callable[[], Any]) -> StepTracer:
        """Return the tracer of the case's step; see ``steps.definition.StepModel``."""
        if self.spec.mode != "graph":
            raise UnsupportedError(
                f"tensorflow {self.spec.mode}: its kernels are XLA's own, of several nodes each; "
                "nearest: --mode graph"
            )
        graphs = run_graphs(self._new_function(), self.operands())
        calls = ordered_calls(graphs, self.scopes)
        nodes = {name: call.operator for name, call in calls.items()}
        source = f"TensorFlow {tf.__version__}'s profiler"
        if self.spec.on_gpu:
            take = functools.partial(gpu_profile, run, self.synchronize, nodes)
            return StepTracer(
                calls=tuple(calls.values()),
                ways={"profile": (source, take)},
                gaps=GAPS,
                plain=functools.partial(gpu_seconds, run, self.synchronize),
            )
        profiles = StepProfiles(run, nodes, loops=has_control_flow(graphs))
        return StepTracer(calls=tuple(calls.values()), ways={"profile": (source, profiles.take)})

    def record(self) -> tuple[RecordedCall, ...]:
        """Return the nodes of the step's optimized graph; if XLA compiles it, their groups."""
        operands, function = self.operands(), self._new_function()
        if self.spec.mode == "xla":
            return grouped_nodes(*inlined_graph(function, operands), self.scopes)
        graphs = run_graphs(function, operands)
        runs = None
        if has_control_flow(graphs):
            runs = node_runs(lambda: function(*operands))
            self.notes.append(
                "nodes in loops and branches count as often as TensorFlow's own trace of a step "
                "has them; which run may depend on data"
            )
        return list_calls(graphs, self.scopes, runs)

    def _new_function(self) -> Any:
        """Return the step as a function that has not run: graphs are recorded in its first run."""
        return Tracer(self.device, "graph")(self.body)


class TensorflowModel(NetworkModel, TracedModel):
    """A model with its variables and a minibatch."""

    def _build(self, batch: Batch, *, separate: bool) -> None:  # noqa: ARG002 - as its base class
        spec = self.spec
        if spec.layout == "nchw" and not spec.on_gpu:
            raise UnsupportedError("TensorFlow on a CPU has poolings and gradients in nhwc only")
        self._home = self.device
        self._net: TensorFlowNet | None = None
        self.host = host_arrays(batch, spec.layout)
        with tf.device(self.device):
            #: Images and labels on the device.
            self.resident = tuple(tf.identity(tf.constant(array)) for array in self.host)
        self._passes: _TensorFlowPasses | None = None

    def guards(self) -> Iterator[contextlib.AbstractContextManager[None]]:
        """Yield the context that sets the switch for TF32, and translates errors."""
        yield self._guard()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        self._precision.apply()
        try:
            yield
        except tf.errors.OpError as error:
            raise translate_error(error, f"{self.spec.model} ({self.spec.mode})") from error

    @property
    def net(self) -> TensorFlowNet:
        """The network; its variables are created where the first step needs them."""
        if self._net is None:
            precision = self._precision.dtype
            self._net = TensorFlowNet(
                self.model,
                self.weights,
                images=self.spec.layout,
                stored=precision if self.spec.cast == "whole" else "float32",
                computed=precision,
                device=self._home,
            )
        return self._net

    def prepare(self, definition: StepDefinition) -> FrameworkStep:
        """Build and trace a step.

        Raises:
            UnsupportedError: the step has parts that are not supported in TensorFlow.
            UsageError: training without an optimizer.
        """
        if definition.zero_fill:
            raise UnsupportedError(
                f"step {definition.name}: TensorFlow keeps no gradients that zeros could be "
                "written over"
            )
        if definition.weights == "host" and self.spec.on_gpu:
            if self.spec.mode == "xla":
                raise UnsupportedError(
                    f"step {definition.name}: XLA on a GPU does not read variables of the host; "
                    "nearest: --quirk variables-on-cpu=off"
                )
            self._home = "/CPU:0"
        if definition.loss == "output":
            return self._prepare_pass(definition)
        step = TensorflowStep(self, definition)
        step.trace()
        self.steps.append(step)
        return step

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights by name."""
        if self._net is not None:  # else variables are created with these values
            self._net.load(weights)

    def body(self, *operands: Any) -> dict[str, Any]:
        """Return the results of the case's step."""
        return self._recorded.body(*operands)

    @functools.cached_property
    def _recorded(self) -> TensorflowStep:
        return TensorflowStep(self, self.definition)

    def operands(self) -> Sequence[Any]:
        """Return images and labels, after creating variables, which a function must not do."""
        assert self._recorded is not None, "it creates the variables"
        return self.resident

    @property
    def scopes(self) -> dict[str, str]:
        """The names of the nodes by scope."""
        return {scope_of(node.name): node.name for node in self.model}

    # -------------------------------------------------------------------------
    # Properties of the step, which are checked before it is timed.

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each node's output, NCHW or (batch, features)."""
        self._graph()  # traces the step
        return super().shapes()

    def elements(self) -> int:
        """Return the number of trained elements."""
        return sum(math.prod(variable.shape.as_list()) for variable in self.net.trained)

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the step's graph."""
        return product_flops(calls_of(_products(self._graph())))

    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the learning rate from the weights."""
        gradients = self.step.function(*self.resident)["gradients"]
        for variable, gradient in zip(self.net.trained, gradients, strict=True):
            variable.assign_sub(tf.cast(rate, variable.dtype) * gradient)

    def _graph(self) -> Any:
        return self.step.function.get_concrete_function(*self.resident).graph

    def _prepare_pass(self, definition: StepDefinition) -> FrameworkStep:
        """Return a pass that computes one kind of gradient of all nodes."""
        if self._passes is None:
            self._passes = _TensorFlowPasses(
                self.net, definition, self.resident[0], self.make_function
            )
        return pass_step(self._passes, definition)


def _products(graph: Any) -> list[Any]:
    """Return convolutions and products that results or updates depend on.

    The runtime drops all others: a graph has both gradients of a convolution, by its images and by
    its filter, even if only one is read.
    """
    reached = reached_operators(
        [*(tensor.op for tensor in graph.outputs), *graph.control_outputs],
        lambda operator: [*(tensor.op for tensor in operator.inputs), *operator.control_inputs],
    )
    return [operator for operator in reached if re.search("Conv|MatMul", operator.type)]


class TensorflowStep(FunctionStep):
    """A step as one function."""

    owner: TensorflowModel

    def __init__(self, owner: TensorflowModel, definition: StepDefinition) -> None:
        super().__init__(owner, definition)
        self._net, optimizer = owner.net, owner.model.optimizer
        variables = self._net.trained
        momentum = self.updates and optimizer.kind == "momentum"
        self._velocity = [
            _variable_like(variable, tf.zeros_like(variable)) for variable in variables if momentum
        ]
        averaged = definition.averages is not None
        self._averages = [_variable_like(variable, variable) for variable in variables if averaged]
        with tf.device(owner.device):
            self._rate = tf.Variable(optimizer.rate, dtype="float32", trainable=False)
        self.function = owner.make_function(self.body)

    def run(self, host: tuple[NDArray[Any], ...] | None = None) -> dict[str, Any]:
        """Run the step once and return its results on the device."""
        results: dict[str, Any] = self.function(*(self.owner.resident if host is None else host))
        return results

    def trace(self) -> None:
        """Build the graph, as scripts do before they start their clock."""
        self.function.get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.owner.resident)
        )

    def reset(self) -> None:
        """Reset the state of training: velocities, averages and the learning rate."""
        for velocity in self._velocity:
            velocity.assign(tf.zeros_like(velocity))
        for average, variable in zip(self._averages, self._net.trained, strict=False):
            average.assign(variable)
        self._set_rate(self.owner.model.optimizer.rate)

    def _set_rate(self, rate: float) -> None:
        self._last_rate = rate
        self._rate.assign(rate)

    def predictions(self, output: Any) -> Any:
        """Return the softmax of an output, in float32."""
        return tf.nn.softmax(tf.cast(output, tf.float32))

    def _fetched(self, result: Any) -> list[NDArray[Any]]:
        # Copies, as session.run returned them; without one the result on a CPU is a view.
        return [np.array(tensor) for tensor in tf.nest.flatten(result)]

    def update(self, gradients: list[Any]) -> None:
        """Apply the gradients of all weights, as the optimizers of TensorFlow 1 did."""
        mu = self.owner.model.optimizer.mu
        pairs = zip(self._net.trained, gradients, strict=True)
        for number, (variable, gradient) in enumerate(pairs):
            rate = tf.cast(self._rate, variable.dtype)
            if self._velocity:
                descend_with_momentum(variable, self._velocity[number], gradient, rate, mu=mu)
            else:
                descend(variable, gradient, rate)
        share = 1 - (self.definition.averages or 0.0)
        for average, variable in zip(self._averages, self._net.trained, strict=False):
            average.assign_sub((average - variable) * tf.cast(share, variable.dtype))

    def body(self, images: Any, labels: Any = None) -> dict[str, Any]:
        """Return the results; everything else is dropped from the graph, as by session.run.

        Gradients of a sum do not depend on its value, so that the last layer's forward pass is
        dropped, too, unless the loss is kept.
        """
        definition = self.definition
        if not definition.backward:
            output = self._net.output(images, NetworkRun(self._net.variables, definition))
            return self.add_results(
                {"output": output}, output, lambda: self.loss(output, labels, self._net.variables)
            )
        variables = list(self._net.trained)
        sources = [*variables, images] if definition.input_gradient else variables
        with tf.GradientTape() as tape:
            if definition.input_gradient:
                tape.watch(images)
            output = self._net.output(images, NetworkRun(self._net.variables, definition))
            with tf.name_scope(LOSS):
                loss = self.loss(output, labels, self._net.variables)
        gradients = tape.gradient(loss, sources)
        count = len(variables)
        # The gradient of the images is returned, or the graph would drop it.
        results: dict[str, Any] = {"images": gradients[count:]}
        if definition.optimizer == "model":
            with tf.name_scope(OPTIMIZER):
                self.update(gradients[:count])
        else:
            results["gradients"] = gradients[:count]
        return self.add_results(results, output, lambda: loss)


def _variable_like(variable: Any, value: Any) -> Any:
    """Return another variable on the same device."""
    with tf.device(variable.device):
        return tf.Variable(value, trainable=False)


# -----------------------------------------------------------------------------
# Backward passes that compute the gradients of one kind, by data or by weights, of all nodes.
#
# Two graphs take the activations of a forward pass as operands. A graph computes only what its
# results depend on: for a convolution's gradient by data it runs neither the convolution nor the
# other gradient. Gradients that read the node's output (ReLU, maxima) take it from the activations,
# so that no forward pass is repeated.


# Ops whose gradients read more of their forward pass than its result.
_NEEDING_FORWARD: Final = ("lrn", "batchnorm")
# Ops whose gradients read the result.
_NEEDING_RESULT: Final = ("relu", "relu6", "pool")


class _TensorFlowPasses:
    """The backward passes of a network, with its activations and gradients.

    Args:
        net: the network with its variables.
        definition: the definition of one of the passes.
        images: images on the device.
        make_function: makes a ``tf.function`` of a Python function of tensors.

    Raises:
        UnsupportedError: the gradient of a node needs its forward pass.
    """

    def __init__(
        self,
        net: TensorFlowNet,
        definition: StepDefinition,
        images: Any,
        make_function: Callable[[Callable[..., Any]], Any],
    ) -> None:
        self._net, self._run, self._images = net, NetworkRun(net.variables, definition), images
        for node in net.model:
            if node.op in _NEEDING_FORWARD:
                raise UnsupportedError(
                    f"{net.model.name}/{node.name}: TensorFlow has the gradient of {node.op} only "
                    "together with its forward pass; nearest: --framework torch"
                )
        self._tensors = trained(net.model)
        self._after_weights = self._nodes_after_weights()
        self._activations = make_function(self._forward)(images)
        self._data = make_function(self._data_gradients)
        self._weights = make_function(self._weight_gradients)
        self._sums = [
            tf.Variable(tf.zeros_like(variable), trainable=False) for variable in net.trained
        ]
        self._gradients = self._data(self._images, self._activations)

    def data(self) -> None:
        """Compute the gradients of all nodes' outputs; the last output is its own gradient."""
        self._gradients = self._data(self._images, self._activations)

    def weights(self) -> None:
        """Compute the gradients of all weights, and accumulate them."""
        self._weights(self._images, self._activations, self._gradients)

    def _nodes_after_weights(self) -> set[str]:
        """Return nodes whose outputs depend on weights; other nodes need no gradients."""
        owners = {name.rpartition("/")[0] for name in self._tensors}
        names: set[str] = set()
        for node in self._net.model:
            if node.name in owners or names.intersection(node.inputs):
                names.add(node.name)
        return names

    def _forward(self, images: Any) -> dict[str, Any]:
        values = self._net.values(images, self._run)
        del values[INPUT]
        return values

    def _data_gradients(self, images: Any, activations: dict[str, Any]) -> dict[str, Any]:
        values = {INPUT: self._net.cast(images), **activations}
        last = self._net.model.output.name
        summed = {last: activations[last]}
        for node in reversed(self._net.model.nodes):
            wanted = [name for name in node.inputs if name in self._after_weights]
            if not wanted:
                continue
            gradients = self._input_gradients(node, values, wanted, summed[node.name])
            for name, gradient in zip(wanted, gradients, strict=True):
                summed[name] = summed[name] + gradient if name in summed else gradient
        return summed

    def _weight_gradients(
        self, images: Any, activations: dict[str, Any], gradients: dict[str, Any]
    ) -> None:
        values = {INPUT: self._net.cast(images), **activations}
        names = dict(zip(self._tensors, self._sums, strict=True))
        for node in self._net.model:
            trained_names = [name for name in names if name.rpartition("/")[0] == node.name]
            if not trained_names:
                continue
            variables = [self._net.variables[name] for name in trained_names]
            with tf.GradientTape() as tape:
                inputs = [values[name] for name in node.inputs]
                output = self._net.apply(node, inputs, self._run)
            added = tape.gradient(output, variables, gradients[node.name])
            for name, gradient in zip(trained_names, added, strict=True):
                names[name].assign_add(gradient)

    def _input_gradients(
        self, node: GraphNode, values: dict[str, Any], wanted: list[str], given: Any
    ) -> Any:
        """Return the gradients of a node's inputs, given the gradient of its output."""
        inputs = [values[name] for name in node.inputs]
        if node.layer is not None and op_of(node.layer) in _NEEDING_RESULT:
            (source,) = inputs
            function = self._net.function(node.layer)
            graph = TracedGraph(function, [(source.shape, source.dtype.name)], [0])
            return graph.gradients_from_result()(source, values[node.name], given)
        sources = [values[name] for name in wanted]
        with tf.GradientTape() as tape:
            for source in sources:
                tape.watch(source)
            output = self._net.apply(node, inputs, self._run)
        return tape.gradient(output, sources, given)


class TensorFlowNet(Network):
    """A model as a function, with its variables.

    Args:
        model: graph of the model.
        weights: float32 arrays by ``<node>/<role>``.
        images: layout of the images: ``nhwc`` or ``nchw``.
        stored: type of the variables; variables of normalisations are float32.
        computed: type of activations.
        device: TensorFlow's name of the device.

    Raises:
        UnsupportedError: TensorFlow lacks one of the layers.
    """

    arrays: ClassVar[Any] = tf
    scope: ClassVar[Any] = staticmethod(tf.name_scope)

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, NDArray[Any]],
        *,
        images: str,
        stored: str,
        computed: str,
        device: str,
    ) -> None:
        super().__init__(model, images, tf.as_dtype(computed))
        self.data_format = images.upper()
        to_train = trained(model)
        with tf.device(device):
            self.variables = {
                name: tf.Variable(
                    self.arrange(name, array),
                    dtype="float32" if self.is_exact(name) else stored,
                    trainable=name in to_train,
                )
                for name, array in weights.items()
            }
        self.trained = [self.variables[name] for name in to_train]

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights by name."""
        for name, variable in self.variables.items():
            variable.assign(tf.cast(self.arrange(name, weights[name]), variable.dtype))

    def cast(self, tensor: Any) -> Any:
        """Return a tensor in the type of activations."""
        return tf.cast(tensor, self.computed)

    def function(self, layer: Layer) -> Callable[..., Any]:
        """Return the forward function of a layer."""
        return FORWARD[op_of(layer)](layer, self._options(layer))

    def biased(self, result: Any, bias: Any) -> Any:
        """Return a result with a bias for each channel added."""
        return tf.nn.bias_add(result, bias, self.data_format)

    def layer_layout(self, layer: Layer) -> LayerLayout:
        """Return the layout of a layer's tensors."""
        return layout_of(layer, self._options(layer))

    def pad(self, images: Any, pads: Sequence[tuple[int, int]]) -> Any:
        """Return images that are padded with zeros, or cropped."""
        sizes = zip(images.shape, pads, strict=True)
        cropped = images[tuple(slice(max(-a, 0), size - max(-b, 0)) for size, (a, b) in sizes)]
        added = [(max(before, 0), max(after, 0)) for before, after in pads]
        return tf.pad(cropped, added) if any(map(any, added)) else cropped

    def dropped(self, node: GraphNode, images: Any, run: NetworkRun) -> Any:  # noqa: ARG002 - as its base class
        """Return the images after dropout."""
        assert node.layer is not None, "a dropout is a layer"
        return self.function(node.layer)(images)

    def normalised(
        self, node: GraphNode, images: Any, tensors: Mapping[str, Any], run: NetworkRun
    ) -> Any:
        """Return normalised images.

        In training the running statistics, which are variables, are updated by operators of their
        own, as in scripts for TensorFlow 1.
        """
        layer: Any = node.layer
        factor = tensors["weights"] if "weights" in tensors else tf.ones([layer.channels])
        running = tensors["running_mean"], tensors["running_variance"]
        empty = tf.constant([], tf.float32)
        training = run.definition.batch_statistics
        operands = images, factor, tensors["bias"], *((empty, empty) if training else running)
        options = TensorFlowForwardOptions(layout=self.images, training=training)
        result, *batch, _, _, _ = normalised(layer, options, *operands)
        if training:
            # The operator's variance is unbiased already.
            for variable, statistic in zip(running, batch, strict=True):
                variable.assign_sub(layer.momentum * (variable - statistic))
        return result

    def _options(self, layer: Any) -> TensorFlowForwardOptions:
        """Return the options that models call a layer with."""
        options, op = TensorFlowForwardOptions(layout=self.images), op_of(layer)
        if op in ("conv", "pool"):
            word = padding_of(layer).word
            counted = op == "pool" and layer.count_include_pad and word == "SAME"
            options = dataclasses.replace(options, padded=word == "EXPLICIT" or counted)
        if op in ("conv", "deconv") and layer.groups > 1:
            _check_groups(layer)
            depthwise = is_depthwise(layer)
            options = dataclasses.replace(options, depthwise=depthwise, split=not depthwise)
        return options


def _check_groups(layer: Any) -> None:
    what = layer.name or layer.problem
    if op_of(layer) == "deconv":
        raise UnsupportedError(f"{what}: TensorFlow has no transposed convolution with groups")
    if is_depthwise(layer) and len(set(layer.stride)) > 1:
        raise UnsupportedError(
            f"{what}: TensorFlow's depthwise convolution has one stride for both directions"
        )
