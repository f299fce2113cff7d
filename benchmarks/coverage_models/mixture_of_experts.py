"""Language: tokens are sent to two of eight experts and their results added at their places."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, inner, experts):
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * inner) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, inner, width) * 0.02)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probability = self.router(flat).softmax(-1)
        weight, chosen = probability.topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        load = F.one_hot(chosen, self.experts).float().mean((0, 1))
        out = torch.zeros_like(flat)
        for e in range(self.experts):
            token, slot = torch.where(chosen == e)
            a, b = (flat[token] @ self.up[e]).chunk(2, -1)
            out.index_add_(0, token, (F.silu(a) * b) @ self.down[e] * weight[token, slot, None])
        return out.view_as(x), (load * probability.mean(0)).sum() * self.experts


def get_inputs():
    return [torch.randn(4, 128, 128)]


def get_init_inputs():
    return [128, 256, 8]
