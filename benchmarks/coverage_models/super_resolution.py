"""Super resolution."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, blocks, scale):
        super().__init__()
        self.scale = scale
        self.head = nn.Conv2d(3, width, 3, padding=1, padding_mode="reflect")
        self.body = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.PReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.tail = nn.Sequential(
            nn.Conv2d(width, 3 * scale**2, 3, padding=1), nn.PixelShuffle(scale)
        )

    def forward(self, x):
        y = self.head(x)
        for block in self.body:
            y = y + 0.1 * block(y)
        base = F.interpolate(x, scale_factor=self.scale, mode="bicubic", align_corners=False)
        return (self.tail(y) + base).clamp(0, 1)


def get_inputs():
    return [torch.rand(4, 3, 48, 64)]


def get_init_inputs():
    return [32, 2, 3]
