"""Vision transformer."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.n1, self.n2, self.n3 = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            nn.LayerNorm(4 * width),
        )
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.merge = nn.Linear(4 * width, 2 * width, bias=False)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads))
        at = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        d = (at[:, :, None] - at[:, None]) + window - 1
        self.register_buffer("index", d[0] * (2 * window - 1) + d[1])

    def forward(self, x):
        n, h, w, c = x.shape
        m, s = self.window, self.window // 2
        y = torch.roll(self.n1(x), (-s, -s), (1, 2))
        y = y.view(n, h // m, m, w // m, m, c).transpose(2, 3).reshape(-1, m * m, c)
        q, k, v = self.qkv(y).view(-1, m * m, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(m * m, m * m, -1).permute(2, 0, 1)
        p = F.softmax(q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5 + bias[None], -1)
        y = self.proj((p @ v).transpose(1, 2).reshape(-1, m * m, c))
        y = y.view(n, h // m, w // m, m, m, c).transpose(2, 3).reshape(n, h, w, c)
        x = x + torch.roll(y, (s, s), (1, 2))
        x = x + self.mlp(self.n2(x))
        return self.merge(
            self.n3(
                torch.cat((x[:, ::2, ::2], x[:, 1::2, ::2], x[:, ::2, 1::2], x[:, 1::2, 1::2]), -1)
            )
        )


def get_inputs():
    return [torch.randn(2, 28, 28, 96)]


def get_init_inputs():
    return [96, 3, 7]
