"""VGG-11, 13, 16 and 19 (arXiv:1409.1556, table 1, columns A, B, D and E)."""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_BATCH: Final = 64
_CHANNELS: Final = (64, 128, 256, 512, 512)
# Convolutions in each of the five stages, and the column of the paper's table.
_STAGES: Final = {
    "vgg11": ((1, 1, 2, 2, 2), "A"),
    "vgg13": ((2, 2, 2, 2, 2), "B"),
    "vgg16": ((2, 2, 3, 3, 3), "D"),
    "vgg19": ((2, 2, 4, 4, 4), "E"),
}


@family(*_STAGES)
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build a model."""
    stages, column = _STAGES[name]
    net = Builder(name, batch or _BATCH, (3, 224, 224))
    for stage, (count, channels) in enumerate(zip(stages, _CHANNELS, strict=True), start=1):
        for number in range(1, count + 1):
            net.conv(f"conv{stage}_{number}", channels, 3, 1, 1, activation="relu")
        net.pool(f"pool{stage}", 2, 2)
    net.flatten()
    for node in ("fc6", "fc7"):
        net.linear(node, 4096, activation="relu")
        net.dropout(f"{node}/dropout", 0.5)
    net.linear("fc8", classes)
    return net.model(
        title=f"VGG-{name.removeprefix('vgg')} (configuration {column})",
        source="K. Simonyan, A. Zisserman: Very Deep Convolutional Networks for Large-Scale Image "
        f"Recognition, arXiv:1409.1556, table 1, column {column}",
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )
