"""DenseNet-121, 161, 169 and 201 (arXiv:1608.06993).

The new maps of each layer are appended to its input for the next layer.
"""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_BATCH: Final = 16
# Layers in each block, new maps per layer, maps of the first convolution.
_FORMS: Final = {
    "densenet121": ((6, 12, 24, 16), 32, 64),
    "densenet161": ((6, 12, 36, 24), 48, 96),
    "densenet169": ((6, 12, 32, 32), 32, 64),
    "densenet201": ((6, 12, 48, 32), 32, 64),
}


@family(*_FORMS)
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build a model."""
    blocks, growth, channels = _FORMS[name]
    net = Builder(name, batch or _BATCH, (3, 224, 224))
    net.conv_bn("conv0", channels, 7, 2, 3)
    net.pool("pool0", 3, 2, 1)
    for block, count in enumerate(blocks, start=1):
        for number in range(1, count + 1):
            _layer(net, f"block{block}/layer{number}", growth)
        if block < len(blocks):
            _preactivated(net, f"transition{block}/conv", net.shape()[0] // 2, 1, 0)
            net.pool(f"transition{block}/pool", 2, 2, mode="avg")
    net.batchnorm("norm5")
    net.relu("norm5/relu")
    net.global_pool("pool5")
    net.flatten()
    net.linear("classifier", classes)
    return net.model(
        title=f"DenseNet-{name.removeprefix('densenet')}",
        source="G. Huang et al.: Densely Connected Convolutional Networks, arXiv:1608.06993; "
        "torchvision, models/densenet.py",
        optimizer=Optimizer(kind="sgd", rate=0.01),
    )


def _layer(net: Builder, name: str, growth: int) -> None:
    """Add a bottleneck of 1x1 and 3x3, and append its maps to its input."""
    source = net.last
    _preactivated(net, f"{name}/conv1", 4 * growth, 1, 0)
    new = _preactivated(net, f"{name}/conv2", growth, 3, 1)
    net.concat(f"{name}/concat", [source, new])


def _preactivated(net: Builder, name: str, channels: int, kernel: int, padding: int) -> str:
    """Add a normalisation, a rectifier and a convolution."""
    net.batchnorm(f"{name}/bn")
    net.relu()
    return net.conv(name, channels, kernel, 1, padding, bias=False)
