"""U-Net (arXiv:1505.04597), which gives each pixel of an image a class.

On the way down convolutions without padding and poolings halve the maps and double the channels; on
the way up transposed convolutions undo that, and what the way down had at the same size is cropped
and joined to it. 572x572 pixels give classes of the 388x388 in their middle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.models import family
from pydlbench.models.builder import Builder
from pydlbench.models.graph import Optimizer

if TYPE_CHECKING:
    from pydlbench.models.graph import Model

_CHANNELS: Final = (64, 128, 256, 512, 1024)


@family("unet")
def build(name: str, batch: int | None, *, classes: int = 2) -> Model:
    """Build it; the paper has one image in a batch, and a high momentum in its place."""
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
    """Add two convolutions of 3x3 with their rectifiers."""
    for number in (1, 2):
        net.conv(f"{name}/conv{number}", channels, 3)
        net.relu()
    return net.last
