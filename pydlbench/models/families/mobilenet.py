"""MobileNetV2 (arXiv:1801.04381) and MobileNetV3-Large (arXiv:1905.02244), both of width 1.0.

A unit widens its maps by a 1x1 convolution, convolves each channel separately and narrows the maps
again. If it changes neither size nor channels, its input is added. Some units of the third version
scale each channel by a factor that a small network computes from the channels' means (squeeze and
excitation).

Both are torchvision's versions, which are the networks of the papers except for the classifier of
the third version: the paper has 1x1 convolutions there, which compute the same as products.
"""

from typing import Final, NamedTuple

from pydlbench.models import family
from pydlbench.models.graph import Activation, Builder, Model, Optimizer

_BATCH: Final = 64
# The papers train with RMSProp; this is SGD with the same momentum, at the first paper's rate for
# 96 images.
_RATE: Final = 0.045 / 96
_DECAY: Final = 4e-5


class _Unit(NamedTuple):
    """One inverted residual.

    Attributes:
        kernel: Taps of the depthwise convolution, for both sides.
        width: Channels of the depthwise convolution.
        channels: Channels of the output.
        stride: Stride of the depthwise convolution.
        squeezes: Whether channels are scaled.
        activation: Activation behind the first two convolutions.
    """

    kernel: int
    width: int
    channels: int
    stride: int
    squeezes: bool
    activation: Activation


# Table 2 of the paper: expansion factor, channels, units, stride of the first unit.
_V2: Final = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
# Table 1 of the paper.
_V3: Final = (
    _Unit(3, 16, 16, 1, False, "relu"),
    _Unit(3, 64, 24, 2, False, "relu"),
    _Unit(3, 72, 24, 1, False, "relu"),
    _Unit(5, 72, 40, 2, True, "relu"),
    _Unit(5, 120, 40, 1, True, "relu"),
    _Unit(5, 120, 40, 1, True, "relu"),
    _Unit(3, 240, 80, 2, False, "hardswish"),
    _Unit(3, 200, 80, 1, False, "hardswish"),
    _Unit(3, 184, 80, 1, False, "hardswish"),
    _Unit(3, 184, 80, 1, False, "hardswish"),
    _Unit(3, 480, 112, 1, True, "hardswish"),
    _Unit(3, 672, 112, 1, True, "hardswish"),
    _Unit(5, 672, 160, 2, True, "hardswish"),
    _Unit(5, 960, 160, 1, True, "hardswish"),
    _Unit(5, 960, 160, 1, True, "hardswish"),
)


@family("mobilenet-v2", "mobilenet-v3-large")
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build a model."""
    batch = batch or _BATCH
    if name == "mobilenet-v2":
        net = _v2(name, batch, classes)
        title = "MobileNetV2 1.0"
        source = (
            "M. Sandler et al.: MobileNetV2: Inverted Residuals and Linear Bottlenecks, "
            "arXiv:1801.04381, table 2; torchvision, models/mobilenetv2.py"
        )
    else:
        net = _v3(name, batch, classes)
        title = "MobileNetV3-Large 1.0"
        source = (
            "A. Howard et al.: Searching for MobileNetV3, arXiv:1905.02244, table 1; "
            "torchvision, models/mobilenetv3.py"
        )
    return net.model(
        title=title,
        source=source,
        decay=_DECAY,
        optimizer=Optimizer(kind="momentum", rate=_RATE * batch, mu=0.9),
    )


def _v2(name: str, batch: int, classes: int) -> Builder:
    net = Builder(name, batch, (3, 224, 224))
    net.conv_bn("conv0", 32, 3, 2, 1, activation="relu6")
    number = 0
    for factor, channels, count, first in _V2:
        for index in range(count):
            number += 1
            width = factor * net.shape()[0]
            stride = 1 if index else first
            _unit(net, f"unit{number}", _Unit(3, width, channels, stride, False, "relu6"))
    net.conv_bn("conv_last", 1280, 1, activation="relu6")
    net.global_pool("avgpool")
    net.flatten()
    net.dropout("dropout", 0.8)
    net.linear("fc", classes)
    return net


def _v3(name: str, batch: int, classes: int) -> Builder:
    net = Builder(name, batch, (3, 224, 224), epsilon=1e-3, momentum=1e-2)
    net.conv_bn("conv0", 16, 3, 2, 1, activation="hardswish")
    for number, unit in enumerate(_V3, start=1):
        _unit(net, f"unit{number}", unit)
    net.conv_bn("conv_last", 960, 1, activation="hardswish")
    net.global_pool("avgpool")
    net.flatten()
    net.linear("head1", 1280, activation="hardswish")
    net.dropout("dropout", 0.8)
    net.linear("head2", classes)
    return net


def _unit(net: Builder, name: str, unit: _Unit) -> None:
    """Add a unit; without expansion, it has no first convolution."""
    source = net.last
    if unit.width != net.shape()[0]:
        net.conv_bn(f"{name}/expand", unit.width, 1, activation=unit.activation)
    net.conv_bn(
        f"{name}/depthwise",
        unit.width,
        unit.kernel,
        unit.stride,
        unit.kernel // 2,
        groups=unit.width,
        activation=unit.activation,
    )
    if unit.squeezes:
        _squeeze(net, f"{name}/se")
    branch = net.conv_bn(f"{name}/project", unit.channels, 1, activation=None)
    if unit.stride == 1 and net.shape(source) == net.shape(branch):
        net.add(f"{name}/add", branch, source)


def _squeeze(net: Builder, name: str) -> None:
    """Add the scaling of channels by factors from two 1x1 convolutions of their means."""
    source = net.last
    channels = net.shape()[0]
    net.global_pool(f"{name}/pool")
    net.conv(f"{name}/reduce", _round_channels(channels // 4), 1, activation="relu")
    factors = net.conv(f"{name}/restore", channels, 1, activation="hardsigmoid")
    net.scale(f"{name}/scale", source, factors)


def _round_channels(channels: int) -> int:
    """Return the nearest multiple of 8 that is at least 0.9 times a number."""
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
