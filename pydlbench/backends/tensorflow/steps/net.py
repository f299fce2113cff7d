"""Networks of the catalogue as functions in TensorFlow, on NHWC images (on a GPU also NCHW).

Images are padded before convolutions and poolings unless their padding is ``SAME`` or ``VALID``.
Groups are split unless there is one per channel, as TensorFlow's gradients support none on a CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray

from pydlbench.backends.frameworks.backend import op_of
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.steps.inputs import trained
from pydlbench.backends.steps.network import Network, NetworkRun
from pydlbench.backends.tensorflow.layers.forward import (
    FORWARD,
    TensorFlowForwardOptions,
    is_depthwise,
    normalised,
    padding_of,
)
from pydlbench.backends.tensorflow.layers.layer_pass import layout_of
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.errors import UnsupportedError
from pydlbench.models.graph import GraphNode, Model
from pydlbench.ops.op import Layer


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

    def dropped(self, node: GraphNode, images: Any, run: NetworkRun) -> Any:
        """Return the images after dropout."""
        del run
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
