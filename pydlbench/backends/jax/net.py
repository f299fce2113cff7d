"""Networks of the catalogue as functions in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
from jax import lax, random
from jax import numpy as jnp

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.jax.forward import FILTERS, FORWARD, JaxForwardOptions
from pydlbench.backends.steps.network import Network, NetworkRun
from pydlbench.models.graph import GraphNode, Model
from pydlbench.ops.op import Layer


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
        keep = node.layer.keep  # type: ignore[union-attr]  # a dropout's
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
