"""Optical flow."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, radius):
        super().__init__()
        self.radius = radius
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 2, 1),
        )
        self.update = nn.Sequential(nn.Conv2d((2 * radius + 1) ** 2 * 2, 64, 1), nn.ReLU())
        self.flow, self.mask = nn.Conv2d(64, 2, 3, padding=1), nn.Conv2d(64, 9 * 64, 1)

    def forward(self, a, b):
        fa, fb = self.encode(a), self.encode(b)
        n, c, h, w = fa.shape
        corr = torch.matmul(fa.flatten(2).transpose(1, 2), fb.flatten(2)) / c**0.5
        corr = corr.reshape(n * h * w, 1, h, w)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        coords = torch.stack((xs, ys)).float()[None].repeat(n, 1, 1, 1)
        d = torch.linspace(-self.radius, self.radius, 2 * self.radius + 1)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), -1)
        looked = []
        for level in range(2):
            at = coords.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2) / 2**level + delta[None]
            hh, ww = corr.shape[-2:]
            at = torch.stack((2 * at[..., 0] / (ww - 1) - 1, 2 * at[..., 1] / (hh - 1) - 1), -1)
            looked.append(F.grid_sample(corr, at, align_corners=True).view(n, h, w, -1))
            corr = F.avg_pool2d(corr, 2, stride=2)
        y = self.update(torch.cat(looked, -1).permute(0, 3, 1, 2).contiguous())
        flow, mask = self.flow(y), torch.softmax(self.mask(y).view(n, 1, 9, 8, 8, h, w), 2)
        up = F.unfold(8 * flow, (3, 3), padding=1).view(n, 2, 9, 1, 1, h, w)
        return torch.sum(mask * up, 2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)


def get_inputs():
    return [torch.rand(1, 3, 160, 192), torch.rand(1, 3, 160, 192)]


def get_init_inputs():
    return [64, 3]
