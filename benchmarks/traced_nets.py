"""Networks of PyTorch that the catalogue has not, small enough for a few rounds each."""

from __future__ import annotations

import torch
from torch import nn


def encoder() -> tuple[nn.Module, torch.Tensor]:
    """Return four layers of a transformer's encoder with 256 features, and 8 x 128 words."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.rand(8, 128, 256)


class Down(nn.Module):
    """Two levels of a U-Net: convolutions, a pooling, and the way back with what was kept."""

    def __init__(self, channels: int, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True))
        self.pool, self.inner = nn.MaxPool2d(2), inner
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.last = nn.Sequential(
            nn.Conv2d(2 * width, channels, 3, padding=1), nn.ReLU(inplace=True)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return maps of the same shape."""
        kept = self.first(images)
        return self.last(torch.cat([kept, self.up(self.inner(self.pool(kept)))], 1))


def unet() -> tuple[nn.Module, torch.Tensor]:
    """Return a U-Net of three levels, and two images of 128 x 128."""
    return Down(16, Down(32, Down(64, nn.Identity(), 128), 64), 32), torch.rand(2, 16, 128, 128)


class Mixing(nn.Module):
    """A layer of MLP-Mixer: a perceptron across patches, and one across channels."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(channels) for _ in range(2)])
        self.across = nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches))
        self.within = nn.Sequential(nn.Linear(channels, 1024), nn.GELU(), nn.Linear(1024, channels))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape, (batch, patches, channels)."""
        values = values + self.across(self.norms[0](values).transpose(1, 2)).transpose(1, 2)
        return values + self.within(self.norms[1](values))


def mixer() -> tuple[nn.Module, torch.Tensor]:
    """Return four layers of a mixer of 196 patches with 256 channels, and eight images."""
    return nn.Sequential(*(Mixing(196, 256) for _ in range(4))), torch.rand(8, 196, 256)
