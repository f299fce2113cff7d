"""Inception-v3 (arXiv:1512.00567) on images of 299x299, without the auxiliary classifier.

Batch normalisations of tf_cnn_benchmarks and Keras have no trained factor (``scale=off``);
torchvision's normalisations have one. Averages exclude padding, as in TensorFlow.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

Step: TypeAlias = tuple[int, int | tuple[int, int]]

_BATCH: Final = 32
_DECAY: Final = 4e-5
_ROW_KERNEL: Final = (1, 7)
_COLUMN_KERNEL: Final = (7, 1)


@family("inception-v3")
def build(name: str, batch: int | None, *, scale: bool = True, classes: int = 1000) -> Model:
    """Build the model; ``scale``: whether batch normalisations have a trained factor."""
    net = Builder(name, batch or _BATCH, (3, 299, 299), epsilon=1e-3, momentum=1e-3, scale=scale)
    net.conv_bn("stem/conv1", 32, 3, 2)
    net.conv_bn("stem/conv2", 32, 3)
    net.conv_bn("stem/conv3", 64, 3, 1, "SAME")
    net.pool("stem/pool3", 3, 2)
    net.conv_bn("stem/conv4", 80, 1)
    net.conv_bn("stem/conv5", 192, 3)
    net.pool("stem/pool5", 3, 2)
    for module, projected in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        _grid35(net, module, projected)
    _to_grid17(net, "mixed6a")
    for module, width in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        _grid17(net, module, width)
    _to_grid8(net, "mixed7a")
    for module in ("mixed7b", "mixed7c"):
        _grid8(net, module)
    net.global_pool("avgpool")
    net.flatten()
    net.linear("fc", classes)
    return net.model(
        title="Inception-v3",
        source="C. Szegedy et al.: Rethinking the Inception Architecture for Computer Vision, "
        "arXiv:1512.00567; tensorflow/benchmarks, "
        "scripts/tf_cnn_benchmarks/models/inception_model.py",
        decay=_DECAY,
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )


def _branch(
    net: Builder,
    name: str,
    source: str,
    steps: Sequence[Step],
    *,
    halve: bool = False,
) -> str:
    """Add a chain of convolutions (channels, kernel); the last one may halve the maps."""
    for number, (channels, kernel) in enumerate(steps, start=1):
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        node = f"{name}{number}_{height}x{width}"
        if halve and number == len(steps):
            source = net.conv_bn(node, channels, kernel, 2, "VALID", after=source)
        else:
            source = net.conv_bn(node, channels, kernel, 1, "SAME", after=source)
    return source


def _pool_branch(net: Builder, name: str, source: str, channels: int) -> str:
    net.pool(f"{name}/pool", 3, 1, "SAME", mode="avg", after=source)
    return net.conv_bn(f"{name}/pool_1x1", channels, 1)


def _grid35(net: Builder, name: str, projected: int) -> None:
    source = net.last
    branches = [
        _branch(net, f"{name}/a", source, [(64, 1)]),
        _branch(net, f"{name}/b", source, [(48, 1), (64, 5)]),
        _branch(net, f"{name}/c", source, [(64, 1), (96, 3), (96, 3)]),
        _pool_branch(net, name, source, projected),
    ]
    net.concat(f"{name}/concat", branches)


def _to_grid17(net: Builder, name: str) -> None:
    source = net.last
    branches = [
        _branch(net, f"{name}/a", source, [(384, 3)], halve=True),
        _branch(net, f"{name}/b", source, [(64, 1), (96, 3), (96, 3)], halve=True),
        net.pool(f"{name}/pool", 3, 2, after=source),
    ]
    net.concat(f"{name}/concat", branches)


def _grid17(net: Builder, name: str, width: int) -> None:
    source = net.last
    factors: list[Step] = [
        (width, 1),
        (width, _COLUMN_KERNEL),
        (width, _ROW_KERNEL),
        (width, _COLUMN_KERNEL),
        (192, _ROW_KERNEL),
    ]
    branches = [
        _branch(net, f"{name}/a", source, [(192, 1)]),
        _branch(
            net, f"{name}/b", source, [(width, 1), (width, _ROW_KERNEL), (192, _COLUMN_KERNEL)]
        ),
        _branch(net, f"{name}/c", source, factors),
        _pool_branch(net, name, source, 192),
    ]
    net.concat(f"{name}/concat", branches)


def _to_grid8(net: Builder, name: str) -> None:
    source = net.last
    factors: list[Step] = [(192, 1), (192, _ROW_KERNEL), (192, _COLUMN_KERNEL), (192, 3)]
    branches = [
        _branch(net, f"{name}/a", source, [(192, 1), (320, 3)], halve=True),
        _branch(net, f"{name}/b", source, factors, halve=True),
        net.pool(f"{name}/pool", 3, 2, after=source),
    ]
    net.concat(f"{name}/concat", branches)


def _grid8(net: Builder, name: str) -> None:
    """Add a module whose second and third branch end in two parallel convolutions."""
    source = net.last
    second = _branch(net, f"{name}/b", source, [(384, 1)])
    third = _branch(net, f"{name}/c", source, [(448, 1), (384, 3)])
    branches = [
        _branch(net, f"{name}/a", source, [(320, 1)]),
        net.conv_bn(f"{name}/b_1x3", 384, (1, 3), 1, "SAME", after=second),
        net.conv_bn(f"{name}/b_3x1", 384, (3, 1), 1, "SAME", after=second),
        net.conv_bn(f"{name}/c_1x3", 384, (1, 3), 1, "SAME", after=third),
        net.conv_bn(f"{name}/c_3x1", 384, (3, 1), 1, "SAME", after=third),
        _pool_branch(net, name, source, 192),
    ]
    net.concat(f"{name}/concat", branches)
