"""A model's graph as a function of JAX: of images and weights to outputs and moved statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax import lax, random
from jax import numpy as jnp

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.layouts import arranged, plain
from pydlbench.backends.jax.forward import FILTERS, FORWARD, How
from pydlbench.backends.steps.inputs import weight_shapes
from pydlbench.models.graph import INPUT, cropped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.steps.definition import StepDefinition
    from pydlbench.models.graph import Model, Node


#: Scopes of what is no node's.
LOSS: Final = "step_loss"
OPTIMIZER: Final = "step_optimizer"


def scope_of(name: str) -> str:
    """Return the scope that a node's operations are in; one with a line in it would be several."""
    return name.replace("/", ".")


@dataclass(slots=True)
class Run:
    """One pass forward through a network, while it is traced.

    Attributes:
        tensors: weights and running statistics by ``<node>/<role>``.
        definition: what the step does.
        key: of what dropout draws; None where nothing is dropped.
        moved: running statistics as the pass has moved them, by name.
    """

    tensors: Mapping[str, Any]
    definition: StepDefinition
    key: Any
    moved: dict[str, Any]


class Net:
    """A model as a function.

    Args:
        model: the graph.
        images: their layout: ``nhwc`` or ``nchw``.
        computed: type of activations; what normalisations keep is float32.
    """

    def __init__(self, model: Model, images: str, computed: str) -> None:
        self.model = model
        self.images = images
        self._how = How(images)
        self.channels = self._how.channels()
        self.computed = jnp.dtype(computed)
        #: Shapes of the nodes' outputs, as the last tracing found them, NCHW.
        self.shapes: dict[str, tuple[int, ...]] = {}

    def arranged(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a plain tensor by its name's role as the functions want it: filters turned."""
        return arranged(array, FILTERS[self.images]) if array.ndim == 4 else array

    def plain(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what :meth:`arranged` made (or its gradient) as a plain tensor."""
        return plain(array, FILTERS[self.images]) if array.ndim == 4 else array

    def output(self, images: Any, run: Run) -> Any:
        """Return the output for images, in the type of activations."""
        values = self._values(images.astype(self.computed), run)
        self.shapes = {node.name: self._logical(values[node.name].shape) for node in self.model}
        return values[self.model.output.name]

    def _values(self, images: Any, run: Run) -> dict[str, Any]:
        """Return the outputs of all nodes by name."""
        found = {INPUT: images}
        for node in self.model:
            with jax.named_scope(scope_of(node.name)):
                found[node.name] = self._apply(node, [found[one] for one in node.inputs], run)
        return found

    def _apply(self, node: Node, inputs: Sequence[Any], run: Run) -> Any:
        own = {role: run.tensors[f"{node.name}/{role}"] for role in weight_shapes(node)}
        layer: Any = node.layer
        if node.op in ("flatten", "shift", "crop"):
            return self._moved(node, inputs[0])
        if node.op == "dropout":
            return self._dropped(node, inputs[0], run)
        if node.op == "batchnorm":
            return self._normalised(node, inputs[0], own, run)
        own = {role: tensor.astype(self.computed) for role, tensor in own.items()}
        weights = [own["weights"]] if "weights" in own else []
        found = FORWARD[op_of(layer)](layer, self._how)(*inputs, *weights)
        if "bias" not in own:
            return found
        return found + self._how.along_channels(own["bias"], found.ndim)

    def _moved(self, node: Node, images: Any) -> Any:
        """Return images as features in the order channel, row, column; or in another frame."""
        if node.op == "flatten":
            if images.ndim == 4 and self.images == "nhwc":
                images = images.transpose(0, 3, 1, 2)
            return images.reshape(images.shape[0], -1)
        left, right, above, below = (
            (1, -1, 1, -1) if node.op == "shift" else cropped(self.model, node)
        )
        # A negative width of padding drops so much.
        pads = [(0, 0, 0)] * 4
        first = 1 if self.images == "nhwc" else 2
        pads[first : first + 2] = (-above, -below, 0), (-left, -right, 0)
        return lax.pad(images, jnp.zeros((), images.dtype), pads)

    def _dropped(self, node: Node, images: Any, run: Run) -> Any:
        if not run.definition.drops:
            return images
        keep = node.layer.keep  # type: ignore[union-attr]  # a dropout's
        key = random.fold_in(run.key, self.model.nodes.index(node))
        kept = random.bernoulli(key, keep, images.shape)
        return jnp.where(kept, images / keep, jnp.zeros((), images.dtype))

    def _normalised(self, node: Node, images: Any, own: Mapping[str, Any], run: Run) -> Any:
        """Return normalised images; statistics are taken, and kept, in float32."""
        layer: Any = node.layer
        exact = images.astype(jnp.float32)
        mean, variance = own["running_mean"], own["running_variance"]
        if run.definition.batch_statistics:
            axes = tuple(axis for axis in range(images.ndim) if axis != self.channels)
            mean, variance = jnp.mean(exact, axes), jnp.var(exact, axes)
            count = images.size // images.shape[self.channels]
            unbiased = variance * (count / max(count - 1, 1))
            for role, new in (("running_mean", mean), ("running_variance", unbiased)):
                run.moved[f"{node.name}/{role}"] = own[role] + layer.momentum * (new - own[role])
        factor = lax.rsqrt(variance + layer.epsilon)
        factor = factor * own["weights"] if "weights" in own else factor
        mean, factor, offset = (
            self._how.along_channels(one, images.ndim) for one in (mean, factor, own["bias"])
        )
        return ((exact - mean) * factor + offset).astype(images.dtype)

    def _logical(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) == 4 and self.images == "nhwc":
            return shape[0], shape[3], shape[1], shape[2]
        return tuple(int(one) for one in np.asarray(shape))
