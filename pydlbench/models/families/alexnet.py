"""AlexNet without groups ("one weird trick", arXiv:1404.5997), in the versions of three benchmarks.

- ``alexnet``: tensorflow/models' alexnet_benchmark.py, without fully connected layers; the loss is
  half the sum of squares of the last pooling. Older copies of the script have no LRN (``lrn=off``),
  and the oldest has no padding in the first convolution (``conv1=VALID``), on images of 227x227.
- ``alexnet-owt``: soumith/convnet-benchmarks; torchvision's alexnet.
- ``alexnet-tfcnn``: tf_cnn_benchmarks; conv4 has 384 output channels, and there is one class more
  than in ImageNet.
"""

from pydlbench.errors import UsageError
from pydlbench.models import family
from pydlbench.models.graph import Builder, Init, Loss, Model, Optimizer
from pydlbench.models.options import choice


@family("alexnet", "alexnet-owt", "alexnet-tfcnn")
def build(
    name: str, batch: int | None, *, lrn: bool = True, conv1: str = "SAME", classes: int = 0
) -> Model:
    """Build a model.

    Args:
        name: Name of the model.
        batch: Images; by default 128, or 512 for ``alexnet-tfcnn``.
        lrn: Whether ``alexnet`` has its two local response normalisations.
        conv1: Padding of the first convolution of ``alexnet``: ``SAME`` or ``VALID``.
        classes: Classes of the other models; 0 for the default.

    Raises:
        UsageError: The model has no such option.
    """
    padding = choice("conv1", conv1, ("SAME", "VALID"))
    if name == "alexnet":
        if classes:
            raise UsageError(f"classes={classes}: {name} ends before them; nearest: alexnet-owt")
        return _tutorial(name, batch or 128, lrn=lrn, valid=padding == "VALID")
    if not lrn or padding != "SAME":
        raise UsageError(f"{name}: no option lrn or conv1; nearest: alexnet, which has them")
    if name == "alexnet-tfcnn":
        return _tfcnn(name, batch or 512, classes or 1001)
    return _owt(name, batch or 128, classes or 1000)


def _tutorial(name: str, batch: int, *, lrn: bool, valid: bool) -> Model:
    size = 227 if valid else 224
    init = Init(kind="normal", value=0.1)
    net = Builder(name, batch, (3, size, size))
    net.conv("conv1", 64, 11, 4, "VALID" if valid else "SAME", weights_init=init, activation="relu")
    if lrn:
        # TensorFlow's depth_radius=5, alpha=1e-4.
        net.lrn("lrn1", 11, alpha=1.1e-3, beta=0.75, k=2.0)
    net.pool("pool1", 3, 2)
    net.conv("conv2", 192, 5, 1, "SAME", weights_init=init, activation="relu")
    if lrn:
        net.lrn("lrn2", 11, alpha=1.1e-3, beta=0.75, k=2.0)
    net.pool("pool2", 3, 2)
    for node, channels in (("conv3", 384), ("conv4", 256), ("conv5", 256)):
        net.conv(node, channels, 3, 1, "SAME", weights_init=init, activation="relu")
    net.pool("pool5", 3, 2)
    return net.model(
        title="AlexNet, convolutional part (TensorFlow tutorial)",
        source="tensorflow/models, tutorials/image/alexnet/alexnet_benchmark.py",
        loss=Loss(kind="l2"),
        optimizer=Optimizer(kind="none"),
    )


def _owt(name: str, batch: int, classes: int) -> Model:
    net = Builder(name, batch, (3, 224, 224))
    net.conv("conv1", 64, 11, 4, 2, activation="relu")
    _behind_conv1(net, conv4=256)
    _head(net, classes, dropout_first=True)
    return net.model(
        title="AlexNet, one weird trick",
        source="A. Krizhevsky: One weird trick for parallelizing convolutional neural networks, "
        "arXiv:1404.5997; soumith/convnet-benchmarks, torch7/imagenet_winners/alexnet.lua",
        optimizer=Optimizer(kind="sgd", rate=0.01),
    )


def _tfcnn(name: str, batch: int, classes: int) -> Model:
    net = Builder(name, batch, (3, 227, 227))
    net.conv("conv1", 64, 11, 4, "VALID", activation="relu")
    _behind_conv1(net, conv4=384)
    _head(net, classes, dropout_first=False)
    return net.model(
        title="AlexNet of tf_cnn_benchmarks",
        source="tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models/alexnet_model.py",
        decay=4e-5,
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )


def _behind_conv1(net: Builder, *, conv4: int) -> None:
    """Add the layers that ``alexnet-owt`` and ``alexnet-tfcnn`` share, where pads equal "SAME"."""
    net.pool("pool1", 3, 2)
    net.conv("conv2", 192, 5, 1, 2, activation="relu")
    net.pool("pool2", 3, 2)
    for node, channels in (("conv3", 384), ("conv4", conv4), ("conv5", 256)):
        net.conv(node, channels, 3, 1, 1, activation="relu")
    net.pool("pool5", 3, 2)
    net.flatten()


def _head(net: Builder, classes: int, *, dropout_first: bool) -> None:
    """Add the fully connected layers, with a dropout before or behind each hidden one."""
    for node in ("fc6", "fc7"):
        if dropout_first:
            net.dropout(f"{node}/dropout", 0.5)
        net.linear(node, 4096, activation="relu")
        if not dropout_first:
            net.dropout(f"{node}/dropout", 0.5)
    net.linear("fc8", classes)
