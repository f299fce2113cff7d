"""GoogLeNet (arXiv:1409.4842) without auxiliary classifiers, in three forms.

- ``convnet`` (the default): soumith/convnet-benchmarks: true 5x5 branches, biases, no LRN, and
  poolings padded by 1.
- ``tfcnn``: tf_cnn_benchmarks: the same with TensorFlow's "SAME" padding and 1001 classes.
- ``torchvision``: batch normalisation instead of biases, 3x3 where the paper has 5x5, and
  poolings whose sizes are rounded up.
"""

from dataclasses import dataclass
from typing import Any, Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer, Pad
from pydlbench.models.options import choice

# Channels of 1x1, 3x3 (reduced, full), 5x5 (reduced, full), and of the pooling's branch.
_MODULES: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_PAPER: Final = "C. Szegedy et al.: Going Deeper with Convolutions, arXiv:1409.4842; "


@dataclass(frozen=True, slots=True, kw_only=True)
class _GooglenetForm:
    """The differences between the three forms.

    Attributes:
        source: Code that the form is from.
        batch: Images per step in the publication.
        classes: Number of outputs.
        first: Padding of the first convolution.
        pool: Padding or rounding of poolings between stages.
        last: Side of the last of these poolings.
        norm: Whether convolutions have a batch normalisation instead of a bias.
        large: Taps of the branch that is 5x5 in the paper.
        dropout: Probability of an element to stay in the dropout before the classifier; 1 if
            there is no dropout.
    """

    source: str
    batch: int
    classes: int
    first: Pad
    pool: dict[str, Any]
    last: int = 3
    norm: bool = False
    large: int = 5
    dropout: float = 1.0


_FORMS: Final = {
    "convnet": _GooglenetForm(
        source="soumith/convnet-benchmarks, torch7/imagenet_winners/googlenet.lua",
        batch=128,
        classes=1000,
        first=3,
        pool={"padding": 1},
    ),
    "tfcnn": _GooglenetForm(
        source="tensorflow/benchmarks, scripts/tf_cnn_benchmarks/models/googlenet_model.py",
        batch=32,
        classes=1001,
        first="SAME",
        pool={"padding": "SAME"},
    ),
    "torchvision": _GooglenetForm(
        source="torchvision, models/googlenet.py",
        batch=128,
        classes=1000,
        first=3,
        pool={"ceil": True},
        last=2,
        norm=True,
        large=3,
        dropout=0.8,
    ),
}


@family("googlenet")
def build(name: str, batch: int | None, *, form: str = "convnet", classes: int = 0) -> Model:
    """Build a form of the model.

    Args:
        name: Name of the model.
        batch: Images; the form's default if None.
        form: ``convnet``, ``tfcnn`` or ``torchvision``.
        classes: Number of outputs; 0 for the form's default.
    """
    settings = _FORMS[choice("form", form, tuple(_FORMS))]
    # torchvision's epsilon; the other forms have no normalisations.
    net = Builder(name, batch or settings.batch, (3, 224, 224), epsilon=1e-3)
    _conv(net, settings, "conv1", 64, 7, 2, settings.first)
    net.pool("pool1", 3, 2, **settings.pool)
    _conv(net, settings, "conv2/reduce", 64, 1)
    _conv(net, settings, "conv2", 192, 3, 1, 1)
    net.pool("pool2", 3, 2, **settings.pool)
    for module, channels in _MODULES.items():
        if module == "4a":
            net.pool("inception4/pool", 3, 2, **settings.pool)
        if module == "5a":
            net.pool("inception5/pool", settings.last, 2, **settings.pool)
        _module(net, settings, f"inception{module}", channels)
    net.global_pool("avgpool")
    net.flatten()
    if settings.dropout < 1:
        net.dropout("dropout", settings.dropout)
    net.linear("fc", classes or settings.classes)
    return net.model(
        title="GoogLeNet",
        source=_PAPER + settings.source,
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )


def _conv(
    net: Builder,
    form: _GooglenetForm,
    name: str,
    channels: int,
    kernel: int,
    stride: int = 1,
    padding: Pad = 0,
    after: str | None = None,
) -> str:
    """Add a convolution, with a bias or a normalisation, and a rectifier."""
    if form.norm:
        return net.conv_bn(name, channels, kernel, stride, padding, after=after)
    return net.conv(name, channels, kernel, stride, padding, activation="relu", after=after)


def _module(net: Builder, form: _GooglenetForm, name: str, channels: tuple[int, ...]) -> None:
    """Add the four branches and their concat."""
    source = net.last
    single, reduce3, three, reduce5, five, projected = channels
    branches = [_conv(net, form, f"{name}/1x1", single, 1)]
    _conv(net, form, f"{name}/3x3_reduce", reduce3, 1, after=source)
    branches.append(_conv(net, form, f"{name}/3x3", three, 3, 1, 1))
    _conv(net, form, f"{name}/5x5_reduce", reduce5, 1, after=source)
    branches.append(_conv(net, form, f"{name}/5x5", five, form.large, 1, form.large // 2))
    net.pool(f"{name}/pool", 3, 1, 1, after=source)
    branches.append(_conv(net, form, f"{name}/pool_proj", projected, 1))
    net.concat(f"{name}/concat", branches)
