"""Recommendation."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, tables, width):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 128), nn.ReLU(), nn.Linear(128, 1), nn.Sigmoid()
        )
        self.register_buffer("at", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, sparse, offsets):
        x = self.bottom(torch.log1p(dense))
        parts = [x] + [bag(sparse[i], offsets) for i, bag in enumerate(self.bags)]
        t = torch.stack(parts, 1)
        z = torch.bmm(t, t.transpose(1, 2))
        flat = z[:, self.at[0], self.at[1]]
        return self.top(torch.cat((x, flat), 1))


def get_inputs():
    return [torch.rand(512, 13), torch.randint(0, 5000, (6, 512 * 4)), torch.arange(0, 2048, 4)]


def get_init_inputs():
    return [5000, 6, 32]
