"""The MNIST tutorial's network (tensorflow/models, tutorials/image/mnist/convolutional.py)."""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Decay, Init, Model, Optimizer

_BATCH: Final = 64
_DECAY: Final = 5e-4
_WEIGHTS: Final = Init(kind="normal", value=0.1)
_BIAS: Final = Init(kind="constant", value=0.1)


@family("mnist")
def build(name: str, batch: int | None, *, classes: int = 10) -> Model:
    """Build the model; only fully connected layers have L2 terms, for weights and biases."""
    net = Builder(name, batch or _BATCH, (1, 28, 28))
    net.conv("conv1", 32, 5, 1, "SAME", weights_init=_WEIGHTS, activation="relu")
    net.pool("pool1", 2, 2, "SAME")
    net.conv("conv2", 64, 5, 1, "SAME", weights_init=_WEIGHTS, bias_init=_BIAS, activation="relu")
    net.pool("pool2", 2, 2, "SAME")
    net.flatten()
    net.linear("fc1", 512, weights_init=_WEIGHTS, bias_init=_BIAS, activation="relu")
    net.dropout("dropout", 0.5)
    net.linear("fc2", classes, weights_init=_WEIGHTS, bias_init=_BIAS)
    return net.model(
        title="MNIST tutorial network",
        source="tensorflow/models, tutorials/image/mnist/convolutional.py",
        decays=[
            Decay(node=node, tensor=tensor, factor=_DECAY)
            for node in ("fc1", "fc2")
            for tensor in ("weights", "bias")
        ],
        optimizer=Optimizer(kind="momentum", rate=0.01, mu=0.9),
    )
