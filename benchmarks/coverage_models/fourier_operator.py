"""Physics: a layer of a Fourier neural operator, with its coordinates as channels."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.lift, self.skip, self.out = (
            nn.Conv2d(3, width, 1),
            nn.Conv2d(width, width, 1),
            nn.Conv2d(width, 1, 1),
        )
        self.low = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width)
        self.high = nn.Parameter(
            torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width
        )

    def forward(self, x):
        n, _, h, w = x.shape
        gy = torch.linspace(0, 1, h).view(1, 1, h, 1).expand(n, 1, h, w)
        gx = torch.linspace(0, 1, w).view(1, 1, 1, w).expand(n, 1, h, w)
        x = self.lift(torch.cat((x, gy, gx), 1))
        f, m = torch.fft.rfft2(x), self.modes
        y = torch.zeros(n, x.shape[1], h, w // 2 + 1, dtype=torch.cfloat)
        y[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.low)
        y[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.high)
        x = F.gelu(torch.fft.irfft2(y, s=(h, w)) + self.skip(x))
        y = self.out(x)
        return y, torch.norm(y.flatten(1), 2, 1)


def get_inputs():
    return [torch.randn(4, 1, 64, 64)]


def get_init_inputs():
    return [24, 12]
