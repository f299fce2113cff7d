"""Models of the catalogue in JAX; a step is one function that XLA compiles ahead of time.

A step takes the state that it changes (weights, velocities, running statistics, the key of dropout)
and returns it. It may reuse its memory (``donate_argnums``), as training loops in JAX do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
from jax import lax, random
from jax import numpy as jnp
from jax.extend.core import jaxprs_in_params
from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import framework_errors, op_of
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.jax.forward import FILTERS, FORWARD, JaxForwardOptions
from pydlbench.backends.jax.settings import jax, jax_device
from pydlbench.backends.steps.catalogue import host_arrays
from pydlbench.backends.steps.definition import Losses, StepDefinition
from pydlbench.backends.steps.inputs import Batch, trained
from pydlbench.backends.steps.network import (
    LOSS,
    OPTIMIZER,
    FunctionStep,
    Network,
    NetworkModel,
    NetworkRun,
)
from pydlbench.backends.steps.trace import StepTracer
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import GraphNode, Model
from pydlbench.ops.op import Layer


def _cross_entropy(logits: Any, labels: Any) -> Any:
    """Classes are the last dimension."""
    logarithms = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(logarithms, labels[..., None], axis=-1))


class JaxModel(NetworkModel):
    """A model with its weights and a minibatch."""

    losses = Losses(
        total=lambda tensor: jnp.sum(tensor.astype(jnp.float32)),
        half_square=lambda tensor: jnp.sum(jnp.square(tensor.astype(jnp.float32))) / 2,
        cross_entropy=_cross_entropy,
    )

    def _build(self, batch: Batch, *, separate: bool) -> None:  # noqa: ARG002 - as its base class
        spec = self.spec
        self.device = jax_device(spec.device, spec.precision)
        dtype = self.device.numbers.dtype
        self._net = JaxNet(self.model, spec.layout, dtype)
        self._stored = dtype if spec.cast == "whole" else "float32"
        self._names = frozenset(trained(self.model))
        #: State that steps change: ``trained`` tensors and running statistics (``buffers``) by
        #: name, and the ``key`` of dropout.
        self.state: dict[str, Any] = {}
        if spec.backward:
            self.notes.append("the whole step is one program of XLA's, updates included")
        self.initialize()
        self.host = host_arrays(batch, spec.layout)
        #: Images and labels on the device.
        self.resident = self.copy_to_device(self.host)

    @property
    def net(self) -> JaxNet:
        """The network."""
        return self._net

    def guards(self) -> Iterator[AbstractContextManager[None]]:
        """Yield the context that translates JAX's errors."""
        yield framework_errors(f"{self.spec.model} ({self.spec.mode})")

    def prepare(self, definition: StepDefinition) -> JaxStep:
        """Build and compile a step.

        Raises:
            UnsupportedError: the step has parts that are not supported in JAX.
            UsageError: training without an optimizer.
        """
        if (
            definition.zero_fill
            or definition.weights == "host"
            or definition.loss == "output"
            or definition.averages is not None
        ):
            raise UnsupportedError(
                f"step {definition.name}: published scripts are not run in JAX; nearest: "
                "--framework torch"
            )
        step = JaxStep(self, definition)
        step.compile()
        self.steps.append(step)
        return step

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights by name, and reset the key of dropout."""
        tensors = {name: self._tensor(name, tensor) for name, tensor in weights.items()}
        self.state = {
            "trained": {name: tensor for name, tensor in tensors.items() if name in self._names},
            "buffers": {
                name: tensor for name, tensor in tensors.items() if name not in self._names
            },
            "key": jax.device_put(jax.random.key(self.spec.seed), self.device.device),
        }

    def synchronize(self) -> None:
        """Wait until the device has finished; on a CPU calls return with their results."""
        for step in self.steps:
            step.wait()

    def tracer(self, run: Callable[[], Any]) -> StepTracer:  # noqa: ARG002 - as its base class
        """Refuse to trace the step; see ``steps.definition.StepModel``."""
        raise UnsupportedError(
            "jax xla: XLA's profile has its fusions, of many operations each, and no calls of the "
            "step; nearest: --framework torch"
        )

    def copy_to_device(self, arrays: tuple[NDArray[Any], ...]) -> tuple[Any, ...]:
        """Return arrays of the host on the device."""
        return tuple(jax.device_put(array, self.device.device) for array in arrays)

    # -------------------------------------------------------------------------
    # Properties of the step, which are checked before it is timed.

    def elements(self) -> int:
        """Return the number of trained elements."""
        return sum(int(tensor.size) for tensor in self.state["trained"].values())

    def flops(self) -> int:
        """Return the FLOPs of all convolutions and products in the traced step."""
        program = jax.make_jaxpr(self.step.body)(*self.step.operands())
        return _flops(program.jaxpr, self.net.images)

    def gpu(self) -> dict[str, Any]:
        """Return JAX's description of its GPU."""
        device = self.device.device
        return {
            "name": device.device_kind,
            "capability": str(getattr(device, "compute_capability", "")),
        }

    def subtract_gradients(self, rate: float) -> None:
        """Run the step, and subtract its gradients times the learning rate from the weights."""
        gradients = self.step.run()["gradients"]
        self.state["trained"] = {
            name: (tensor - rate * gradients[name]).astype(tensor.dtype)
            for name, tensor in self.state["trained"].items()
        }

    def _tensor(self, name: str, array: NDArray[Any]) -> Any:
        kind = "float32" if self.net.is_exact(name) else self._stored
        # A copy, as steps donate its memory.
        put = self.device.put(self.net.arrange(name, array), kind)
        return jnp.array(put, copy=True)


def _flops(program: Any, images: str) -> int:
    """Return the FLOPs of a traced function, two per multiply-add, including padding.

    Args:
        program: the traced function; functions within it count as well.
        images: layout of the images.
    """
    total = 0
    for equation in program.eqns:
        if equation.primitive.name == "conv_general_dilated":
            total += _convolution_flops(equation, images)
        elif equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            source, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * math.prod(result) * math.prod(source[axis] for axis in contracted)
        for inner in jaxprs_in_params(equation.params):
            total += _flops(inner, images)
    return total


def _convolution_flops(equation: Any, images: str) -> int:
    """Return the FLOPs of a convolution or of its gradients, which all have as many.

    Each element of a forward convolution's result meets the taps of a filter. JAX's gradients are
    convolutions as well, and differ in the order of axes: the gradient of the weights reads images
    with channels as the batch; the gradient of the images reads filters with inputs and outputs
    exchanged.
    A transposed convolution is itself a gradient of the images.
    """
    shapes: list[tuple[int, ...]] = [
        tensor.aval.shape for tensor in (*equation.invars, *equation.outvars)
    ]
    left, right, result = shapes
    orders: list[tuple[int, ...]] = list(equation.params["dimension_numbers"])
    source, filters, written = orders
    outputs, inputs = (3, 2) if images == "nhwc" else (0, 1)
    if source[0] != 0:  # gradient of the weights: channels are the batch
        transposed = written[:2] == (outputs, inputs)
        gradient, channels = (left, left[source[0]]) if transposed else (right, result[outputs])
        return 2 * math.prod(gradient) * math.prod(result) // channels
    if filters[:2] != (outputs, inputs):  # gradient of the images: left is the incoming gradient
        return 2 * math.prod(left) * math.prod(right) // left[source[1]]
    return 2 * math.prod(result) * math.prod(right) // right[outputs]


class JaxStep(FunctionStep):
    """A step as one program."""

    owner: JaxModel

    def __init__(self, owner: JaxModel, definition: StepDefinition) -> None:
        super().__init__(owner, definition)
        drops = definition.drops and any(node.op == "dropout" for node in owner.model)
        #: Parts of the model's state that the step changes.
        self._changed = tuple(
            name
            for name, changed in (
                ("trained", self.updates),
                ("buffers", definition.batch_statistics and definition.backward),
                ("key", drops),
            )
            if changed
        )
        self._velocity: dict[str, Any] = {}
        self._rate: Any = None
        self.reset()
        self._last: Any = None
        self._program: Any = None

    def compile(self) -> None:
        """Compile the step, before its first call."""
        self._program = self.owner.device.compile(self.body, self.operands(), donated=(0,))

    def run(self, host: tuple[NDArray[Any], ...] | None = None) -> dict[str, Any]:
        """Run the step once and return its results on the device."""
        images = None if host is None else self.owner.copy_to_device(host)
        changed, results = self._program(*self.operands(images))
        self._velocity = changed.pop("velocity", self._velocity)
        self.owner.state.update(changed)
        # All results of a program are ready at the same time.
        last = results["loss"] if "loss" in results else results.get("output")
        if self.owner.device.queues:
            self._last = last
        elif last is not None:
            last.block_until_ready()
        return dict(results)

    def wait(self) -> None:
        """Wait for the last call; a device executes calls in their order."""
        if self._last is not None:
            self._last.block_until_ready()

    def reset(self) -> None:
        """Reset the state of training: velocities and the learning rate."""
        optimizer = self.owner.model.optimizer
        has_momentum = self.updates and optimizer.kind == "momentum"
        self._velocity = {
            name: jnp.zeros_like(tensor)
            for name, tensor in (self.owner.state["trained"] if has_momentum else {}).items()
        }
        self._set_rate(optimizer.rate)

    def operands(self, images: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """Return the current operands of :meth:`body`."""
        state = self.owner.state
        changed = {name: state[name] for name in self._changed}
        if self.updates:
            changed["velocity"] = self._velocity
        kept = {name: state[name] for name in ("trained", "buffers") if name not in changed}
        return changed, kept, self._rate, self.owner.resident if images is None else images

    def body(
        self, changed: dict[str, Any], kept: dict[str, Any], rate: Any, batch: tuple[Any, ...]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the changed state and the results; XLA drops everything else.

        Args:
            changed: parts of the state that the step changes.
            kept: parts of the state that it only reads.
            rate: learning rate.
            batch: images, and labels if there are any.
        """
        definition, state = self.definition, {**kept, **changed}
        images, labels = batch[0], batch[1] if len(batch) > 1 else None
        key = next_key = None
        if "key" in changed:
            key, next_key = jax.random.split(changed["key"])

        def forward(weights: dict[str, Any], source: Any) -> Any:
            run = NetworkRun({**state["buffers"], **weights}, definition, key)
            output = self.owner.net.output(source, run)
            if not definition.backward and definition.loss == "none":
                return jnp.zeros(()), (output, run.statistics)
            with jax.named_scope(LOSS):
                loss = self.loss(output, labels, weights)
            return loss, (output, run.statistics)

        if not definition.backward:
            loss, (output, _) = forward(state["trained"], images)
            return {}, self.add_results({"output": output}, output, lambda: loss)
        arguments = (0, 1) if definition.input_gradient else (0,)
        gradient = jax.value_and_grad(forward, arguments, has_aux=True)
        (loss, (output, statistics)), (gradients, *others) = gradient(state["trained"], images)
        # The gradient of the images is returned, or XLA would drop it.
        results: dict[str, Any] = {"images": others}
        updated: dict[str, Any] = {"key": next_key, "buffers": {**state["buffers"], **statistics}}
        if self.updates:
            with jax.named_scope(OPTIMIZER):
                updated |= self._updated(state["trained"], changed["velocity"], gradients, rate)
        else:
            results["gradients"] = gradients
        self.add_results(results, output, lambda: loss)
        return {name: updated[name] for name in changed}, results

    def _updated(
        self, weights: dict[str, Any], velocity: dict[str, Any], gradients: Any, rate: Any
    ) -> dict[str, Any]:
        """Return weights and velocities after the optimizer's step."""
        if velocity:
            mu = self.owner.model.optimizer.mu
            velocity = {
                name: (mu * tensor + gradients[name]).astype(tensor.dtype)
                for name, tensor in velocity.items()
            }
        steps = velocity or gradients
        moved = {
            name: (tensor - rate * steps[name]).astype(tensor.dtype)
            for name, tensor in weights.items()
        }
        return {"trained": moved, "velocity": velocity}

    def predictions(self, output: Any) -> Any:
        """Return the softmax of an output, in float32."""
        return jax.nn.softmax(output.astype(jnp.float32))

    def _fetched(self, result: Any) -> list[NDArray[Any]]:
        names = trained(self.owner.model)
        several = [result[name] for name in names] if isinstance(result, dict) else [result]
        return [np.array(tensor, np.float32) for tensor in several]

    def _set_rate(self, rate: float) -> None:
        self._last_rate = rate
        self._rate = self.owner.device.put(np.asarray(rate, np.float32), "float32")


class JaxNet(Network):
    """A model as a function in JAX.

    Args:
        model: graph of the model.
        images: layout of the images: ``nhwc`` or ``nchw``.
        computed: type of activations; statistics of normalisations are float32.
    """

    arrays: ClassVar[Any] = jnp
    scope: ClassVar[Any] = staticmethod(jax.named_scope)

    def __init__(self, model: Model, images: str, computed: str) -> None:
        super().__init__(model, images, jnp.dtype(computed))
        self._options = JaxForwardOptions(layout=images)

    def cast(self, tensor: Any) -> Any:
        """Return a tensor in the type of activations."""
        return tensor.astype(self.computed)

    def function(self, layer: Layer) -> Callable[..., Any]:
        """Return the forward function of a layer."""
        return FORWARD[op_of(layer)](layer, self._options)

    def biased(self, result: Any, bias: Any) -> Any:
        """Return a result with a bias for each channel added."""
        return result + self._options.along_channels(bias, result.ndim)

    def layer_layout(self, layer: Layer) -> LayerLayout:
        """Return the layout of a layer's tensors."""
        return LayerLayout(layer, self.images, FILTERS[self.images])

    def pad(self, images: Any, pads: Sequence[tuple[int, int]]) -> Any:
        """Return images that are padded with zeros, or cropped."""
        return lax.pad(images, jnp.zeros((), images.dtype), [(*pair, 0) for pair in pads])

    def dropped(self, node: GraphNode, images: Any, run: NetworkRun) -> Any:
        """Return the images after dropout."""
        keep = node.layer.keep  # type: ignore[union-attr]  # dropout has it
        key = random.fold_in(run.key, self.model.nodes.index(node))
        kept = random.bernoulli(key, keep, images.shape)
        return jnp.where(kept, images / keep, jnp.zeros((), images.dtype))

    def normalised(
        self, node: GraphNode, images: Any, tensors: Mapping[str, Any], run: NetworkRun
    ) -> Any:
        """Return normalised images; statistics are float32."""
        training, roles = run.definition.batch_statistics, ("running_mean", "running_variance")
        options = JaxForwardOptions(layout=self.images, training=training)
        normalize = FORWARD["batchnorm"](node.layer, options)
        weights = tensors["weights"] if "weights" in tensors else jnp.ones_like(tensors["bias"])
        result = normalize(images, weights, tensors["bias"], *(tensors[role] for role in roles))
        if not training:
            return result
        run.statistics |= {
            f"{node.name}/{role}": tensor for role, tensor in zip(roles, result[-2:], strict=True)
        }
        return result[0]
