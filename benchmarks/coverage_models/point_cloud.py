"""Point clouds: nearest neighbours by distances, features of edges, maxima over neighbours."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, k, width, classes):
        super().__init__()
        self.k = k
        self.one = nn.Sequential(
            nn.Conv2d(6, width, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2)
        )
        self.two = nn.Sequential(
            nn.Conv1d(width, 4 * width, 1, bias=False), nn.BatchNorm1d(4 * width), nn.LeakyReLU(0.2)
        )
        self.out = nn.Linear(8 * width, classes)

    def forward(self, x):
        points = x.transpose(1, 2)
        near = torch.cdist(points, points).topk(self.k, dim=-1, largest=False).indices
        n, p, _ = points.shape
        flat = (near + torch.arange(n)[:, None, None] * p).view(-1)
        beside = points.reshape(n * p, -1)[flat].view(n, p, self.k, -1)
        centre = points[:, :, None].expand(-1, -1, self.k, -1)
        edge = torch.cat((beside - centre, centre), 3).permute(0, 3, 1, 2).contiguous()
        y = self.one(edge).max(-1)[0]
        y = self.two(y)
        return self.out(
            torch.cat(
                (F.adaptive_max_pool1d(y, 1).squeeze(-1), F.adaptive_avg_pool1d(y, 1).squeeze(-1)),
                1,
            )
        )


def get_inputs():
    return [torch.randn(4, 3, 512)]


def get_init_inputs():
    return [20, 32, 40]
