"""Spatial transformer: a small network finds an affine map, and the image is sampled by it."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.localize = nn.Sequential(
            nn.Conv2d(channels, 16, 7),
            nn.MaxPool2d(2, 2),
            nn.ReLU(True),
            nn.Conv2d(16, 32, 5),
            nn.MaxPool2d(2, 2),
            nn.ReLU(True),
        )
        self.theta = nn.Sequential(
            nn.AdaptiveAvgPool2d(5),
            nn.Flatten(),
            nn.Linear(32 * 25, 32),
            nn.Tanh(),
            nn.Linear(32, 6),
        )
        self.classify = nn.Sequential(
            nn.Conv2d(channels, 32, 3, stride=2),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )

    def forward(self, x):
        theta = self.theta(self.localize(x)).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False, padding_mode="border")
        return F.log_softmax(self.classify(x), dim=1)


def get_inputs():
    return [torch.rand(16, 3, 96, 96)]


def get_init_inputs():
    return [3, 10]
