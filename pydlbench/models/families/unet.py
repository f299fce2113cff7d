"""U-Net (arXiv:1505.04597), which classifies each pixel of an image.

On the way down, convolutions without padding and poolings halve the maps and double the channels.
On the way up, transposed convolutions undo that, and the maps from the way down are cropped and
concatenated. An image of 572x572 gives the classes of the 388x388 pixels in the middle.
"""

from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_CHANNELS: Final = (64, 128, 256, 512, 1024)


@family("unet")
def build(name: str, batch: int | None, *, classes: int = 2) -> Model:
    """Build the model; the paper has a single image in a batch, and a high momentum."""
    net = Builder(name, batch or 1, (1, 572, 572))
    levels = []
    for level, channels in enumerate(_CHANNELS[:-1], start=1):
        levels.append(_twice(net, f"down{level}", channels))
        if level == len(_CHANNELS) - 1:
            net.dropout(f"down{level}/dropout", 0.5)
        net.pool(f"down{level}/pool", 2, 2)
    _twice(net, "bottom", _CHANNELS[-1])
    net.dropout("bottom/dropout", 0.5)
    for level in range(len(levels), 0, -1):
        channels = _CHANNELS[level - 1]
        up = net.deconv(f"up{level}/deconv", channels, 2, 2)
        copied = net.crop(f"up{level}/crop", up, after=levels[level - 1])
        net.concat(f"up{level}/concat", [copied, up])
        _twice(net, f"up{level}", channels)
    net.conv("classes", classes, 1)
    return net.model(
        title="U-Net",
        source="O. Ronneberger et al.: U-Net: Convolutional Networks for Biomedical Image "
        "Segmentation, arXiv:1505.04597, figure 1",
        optimizer=Optimizer(kind="momentum", rate=0.01, mu=0.99),
    )


def _twice(net: Builder, name: str, channels: int) -> str:
    """Add two 3x3 convolutions with rectifiers."""
    for number in (1, 2):
        net.conv(f"{name}/conv{number}", channels, 3, activation="relu")
    return net.last
