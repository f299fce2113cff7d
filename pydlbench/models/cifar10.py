"""The CIFAR-10 tutorial's network (tensorflow/models, tutorials/image/cifar10/cifar10.py).

It sees crops of 24x24. "SAME" pooling of an even size pads only below and on the right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.models.builder import Builder
from pydlbench.models.graph import Decay, Init, Optimizer

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

__all__ = ["build", "trunk"]

_BATCH: Final = 128
_CONV: Final = Init(kind="normal", value=5e-2)
_LOCAL: Final = Init(kind="normal", value=0.04)
_TENTH: Final = Init(kind="constant", value=0.1)
# The script keeps the terms whose factor is zero, and they cost time.
_DECAYS: Final = {"conv1": 0.0, "conv2": 0.0, "local3": 4e-3, "local4": 4e-3, "softmax_linear": 0.0}


def build(name: str, batch: int | None, *, classes: int = 10) -> Model:
    """Build it."""
    net = trunk(
        name, batch or _BATCH, 24, {"local3": 384, "local4": 192, "softmax_linear": classes}
    )
    return net.model(
        title="CIFAR-10 tutorial network, 24x24 crops",
        source="tensorflow/models, tutorials/image/cifar10/cifar10.py",
        decays=[
            Decay(node=node, tensor="weights", factor=factor) for node, factor in _DECAYS.items()
        ],
        optimizer=Optimizer(kind="sgd", rate=0.1),
    )


def trunk(name: str, batch: int, size: int, linear: dict[str, int]) -> Builder:
    """Return the layers, which tf_cnn_benchmarks' AlexNet for CIFAR-10 has on larger images too.

    Args:
        name: Of the model.
        batch: Images.
        size: Side of an image.
        linear: The three fully connected layers' names and outputs.
    """
    net = Builder(name, batch, (3, size, size))
    net.conv("conv1", 64, 5, 1, "SAME", weights_init=_CONV)
    net.relu()
    net.pool("pool1", 3, 2, "SAME")
    # TensorFlow's depth_radius=4, alpha=0.001 / 9.
    net.lrn("norm1", 9, alpha=1e-3, beta=0.75, k=1.0)
    net.conv("conv2", 64, 5, 1, "SAME", weights_init=_CONV, bias_init=_TENTH)
    net.relu()
    net.lrn("norm2", 9, alpha=1e-3, beta=0.75, k=1.0)
    net.pool("pool2", 3, 2, "SAME")
    net.flatten()
    *hidden, (last, classes) = linear.items()
    for node, outputs in hidden:
        net.linear(node, outputs, weights_init=_LOCAL, bias_init=_TENTH)
        net.relu()
    net.linear(last, classes, weights_init=Init(kind="normal", value=1 / 192))
    return net
