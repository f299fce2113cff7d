"""Style."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.pad = nn.ReflectionPad2d(4)
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 9),
            nn.InstanceNorm2d(width, affine=True),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.InstanceNorm2d(2 * width, affine=True),
            nn.ReLU(),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.InstanceNorm2d(width, affine=True),
            nn.ReLU(),
            nn.ReplicationPad2d(1),
            nn.Conv2d(width, 3, 3),
        )
        self.register_buffer("blur", torch.rand(3, 1, 5, 5))

    def forward(self, x, style):
        f = self.down(self.pad(x))
        y = torch.sigmoid(self.up(f))
        n, c, h, w = f.shape
        flat = f.view(n, c, h * w)
        gram = flat.bmm(flat.transpose(1, 2)) / (c * h * w)
        loss = F.mse_loss(gram, style.expand_as(gram))
        tv = (y[..., 1:, :] - y[..., :-1, :]).abs().mean() + (y[..., 1:] - y[..., :-1]).abs().mean()
        soft = F.conv2d(
            F.pad(y, (2, 2, 2, 2), mode="replicate"),
            self.blur / self.blur.sum((2, 3), keepdim=True),
            groups=3,
        )
        small = F.interpolate(soft, scale_factor=0.25, mode="area")
        sharp = F.interpolate(y, size=(50, 50), mode="nearest-exact")
        flip = torch.where(torch.rand(n, 1, 1, 1) < 0.5, y, y.flip(-1))
        return flip, loss + 0.1 * tv, small, torch.rot90(sharp, 1, (2, 3))


def get_inputs():
    return [torch.rand(2, 3, 128, 128), torch.rand(1, 64, 64)]


def get_init_inputs():
    return [32]
