"""ResNet-18, 50, 101 and 152 (arXiv:1512.03385), in two versions.

- ``resnet50``... are v1.5, as in torchvision: the stride of a bottleneck is in its 3x3 convolution.
- ``resnet50-v1``... are the networks of the paper, as in tf_cnn_benchmarks: the stride of a
  bottleneck is in its first 1x1 convolution. The two versions of ResNet-18, whose units have
  two 3x3 convolutions with the stride in the first one, differ only in the
  padding of the first pooling.
"""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_UNITS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_BATCH: Final = {"resnet18": 64, "resnet50": 64, "resnet101": 32, "resnet152": 32}
_RATE_PER_IMAGE: Final = 0.128 / 256
_DECAY: Final = 4e-5


@family(*_UNITS, *(f"{depth}-v1" for depth in _UNITS))
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build a model."""
    depth, _, version = name.partition("-")
    batch = batch or _BATCH[depth]
    first = version == "v1"
    net = Builder(name, batch, (3, 224, 224))
    net.conv_bn("conv1", 64, 7, 2, 3)
    # The versions pad differently: (0, 1) and (1, 1); the last element of the latter is never read.
    net.pool("pool1", 3, 2, "SAME" if first else 1)
    unit = _basic if depth == "resnet18" else _bottleneck
    for stage, count in enumerate(_UNITS[depth]):
        for number in range(count):
            stride = 2 if stage and not number else 1
            unit(net, f"stage{stage + 2}/unit{number + 1}", 64 << stage, stride, first)
    net.global_pool("pool5")
    net.flatten()
    net.linear("fc", classes)
    return net.model(
        title=f"ResNet-{depth.removeprefix('resnet')} {'v1' if first else 'v1.5'}",
        source="K. He et al.: Deep Residual Learning for Image Recognition, arXiv:1512.03385; "
        + (
            "tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models/resnet_model.py"
            if first
            else "torchvision, models/resnet.py"
        ),
        decay=_DECAY,
        optimizer=Optimizer(kind="sgd", rate=_RATE_PER_IMAGE * batch),
    )


def _basic(net: Builder, name: str, channels: int, stride: int, first: bool) -> None:  # noqa: ARG001 - called like _bottleneck
    source = net.last
    net.conv_bn(f"{name}/conv1", channels, 3, stride, 1)
    branch = net.conv_bn(f"{name}/conv2", channels, 3, 1, 1, activation=None)
    _join(net, name, source, branch, stride)


def _bottleneck(net: Builder, name: str, channels: int, stride: int, first: bool) -> None:
    """Add a bottleneck with the stride in the first or the second convolution."""
    source = net.last
    net.conv_bn(f"{name}/conv1", channels, 1, stride if first else 1)
    net.conv_bn(f"{name}/conv2", channels, 3, 1 if first else stride, 1)
    branch = net.conv_bn(f"{name}/conv3", 4 * channels, 1, activation=None)
    _join(net, name, source, branch, stride)


def _join(net: Builder, name: str, source: str, branch: str, stride: int) -> None:
    """Add the shortcut, projected if shapes differ, and the sum."""
    channels = net.shape(branch)[0]
    if net.shape(source) != net.shape(branch):
        source = net.conv_bn(f"{name}/shortcut", channels, 1, stride, activation=None, after=source)
    net.add(f"{name}/add", branch, source)
    net.relu()
