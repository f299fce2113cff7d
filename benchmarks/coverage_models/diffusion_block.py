"""Diffusion."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width = heads, width
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 2 * width)
        )
        self.n1, self.c1 = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"),
        )
        self.n2, self.c2 = (
            nn.GroupNorm(8, width),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"),
        )
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)
        self.up = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-math.log(10000) * torch.arange(self.width // 2) / (self.width // 2))
        a = t[:, None].float() * f[None]
        scale, shift = self.time(torch.cat((a.cos(), a.sin()), -1))[:, :, None, None].chunk(2, 1)
        h = self.c1(F.silu(self.n1(x)))
        h = self.n2(h) * (1 + scale) + shift
        x = x + self.c2(F.silu(h))
        n, c, height, w = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(n, 3, self.heads, c // self.heads, height * w)
            .transpose(-1, -2)
            .unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(-1, -2).reshape(n, c, height, w))
        return self.up(F.interpolate(x, scale_factor=2.0, mode="nearest"))


def get_inputs():
    return [torch.randn(4, 64, 24, 24), torch.randint(0, 1000, (4,))]


def get_init_inputs():
    return [64, 4]
