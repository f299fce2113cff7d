"""Overfeat's fast network (arXiv:1312.6229) in the version of soumith/convnet-benchmarks."""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_BATCH: Final = 128


@family("overfeat-fast")
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build the model."""
    net = Builder(name, batch or _BATCH, (3, 231, 231))
    net.conv("conv1", 96, 11, 4, activation="relu")
    net.pool("pool1", 2, 2)
    net.conv("conv2", 256, 5, activation="relu")
    net.pool("pool2", 2, 2)
    for node, channels in (("conv3", 512), ("conv4", 1024), ("conv5", 1024)):
        net.conv(node, channels, 3, 1, 1, activation="relu")
    net.pool("pool5", 2, 2)
    net.flatten()
    for node, outputs in (("hidden1", 3072), ("hidden2", 4096)):
        net.dropout(f"{node}/dropout", 0.5)
        net.linear(node, outputs, activation="relu")
    net.linear("classifier", classes)
    return net.model(
        title="Overfeat, fast",
        source="P. Sermanet et al.: OverFeat, arXiv:1312.6229; soumith/convnet-benchmarks, "
        "torch7/imagenet_winners/overfeat.lua",
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )
