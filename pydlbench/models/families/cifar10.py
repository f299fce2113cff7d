"""The CIFAR-10 tutorial's network (tensorflow/models, tutorials/image/cifar10/cifar10.py).

- ``cifar10``: the tutorial's network, on crops of 24x24.
- ``alexnet-tfcnn-cifar10``: tf_cnn_benchmarks' AlexNet for CIFAR-10: the same layers on whole
  images, and one class more.

"SAME" pooling of an even size pads only below and on the right.
"""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Decay, Init, Model, Optimizer

_BATCH: Final = 128
_CONV: Final = Init(kind="normal", value=5e-2)
_LOCAL: Final = Init(kind="normal", value=0.04)
_BIAS: Final = Init(kind="constant", value=0.1)
# The script computes terms with a factor of zero, too.
_DECAYS: Final = {"conv1": 0.0, "conv2": 0.0, "local3": 4e-3, "local4": 4e-3, "softmax_linear": 0.0}


@family("cifar10", "alexnet-tfcnn-cifar10")
def build(name: str, batch: int | None, *, classes: int = 0) -> Model:
    """Build a model; ``classes`` is 0 for the default."""
    if name == "alexnet-tfcnn-cifar10":
        linear = {"affine1": 384, "affine2": 192, "affine3": classes or 11}
        return _trunk(name, batch or _BATCH, 32, linear).model(
            title="AlexNet of tf_cnn_benchmarks for CIFAR-10",
            source="tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models/alexnet_model.py",
            decay=4e-5,
            optimizer=Optimizer(kind="sgd", rate=0.1),
        )
    linear = {"local3": 384, "local4": 192, "softmax_linear": classes or 10}
    return _trunk(name, batch or _BATCH, 24, linear).model(
        title="CIFAR-10 tutorial network, 24x24 crops",
        source="tensorflow/models, tutorials/image/cifar10/cifar10.py",
        decays=[
            Decay(node=node, tensor="weights", factor=factor) for node, factor in _DECAYS.items()
        ],
        optimizer=Optimizer(kind="sgd", rate=0.1),
    )


def _trunk(name: str, batch: int, size: int, linear: dict[str, int]) -> Builder:
    """Return the layers of a model.

    Args:
        name: Name of the model.
        batch: Images.
        size: Side of an image.
        linear: Names and outputs of the three fully connected layers.
    """
    net = Builder(name, batch, (3, size, size))
    net.conv("conv1", 64, 5, 1, "SAME", weights_init=_CONV, activation="relu")
    net.pool("pool1", 3, 2, "SAME")
    # TensorFlow's depth_radius=4, alpha=0.001 / 9.
    net.lrn("norm1", 9, alpha=1e-3, beta=0.75, k=1.0)
    net.conv("conv2", 64, 5, 1, "SAME", weights_init=_CONV, bias_init=_BIAS, activation="relu")
    net.lrn("norm2", 9, alpha=1e-3, beta=0.75, k=1.0)
    net.pool("pool2", 3, 2, "SAME")
    net.flatten()
    *hidden, (last, classes) = linear.items()
    for node, outputs in hidden:
        net.linear(node, outputs, weights_init=_LOCAL, bias_init=_BIAS, activation="relu")
    net.linear(last, classes, weights_init=Init(kind="normal", value=1 / 192))
    return net
