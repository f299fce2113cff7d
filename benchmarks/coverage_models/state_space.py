"""Language: a layer of a state-space model in chunks, with decays by segment sums."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads, state, chunk):
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        self.inside = nn.Linear(width, 2 * width + 2 * state + heads)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.decay = nn.Parameter(torch.zeros(heads))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, t, d = x.shape
        z, u, b, c, dt = self.inside(x).split([d, d, self.state, self.state, self.heads], -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :t]).transpose(1, 2)
        dt = F.softplus(dt)
        a = (dt * -torch.exp(self.decay)).view(n, -1, self.chunk, self.heads).permute(0, 3, 1, 2)
        u = (u.view(n, t, self.heads, -1) * dt[..., None]).view(
            n, -1, self.chunk, self.heads, d // self.heads
        )
        b, c = b.view(n, -1, self.chunk, self.state), c.view(n, -1, self.chunk, self.state)
        total = a.cumsum(-1)
        decay = total[..., :, None] - total[..., None, :]
        decay = decay.masked_fill(
            ~torch.ones(self.chunk, self.chunk, dtype=torch.bool).tril(), float("-inf")
        ).exp()
        y = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, decay, u)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(total[..., -1:] - total), u)
        carried = torch.cumsum(states.flip(1), 1).flip(1)
        y = y + torch.einsum("bcln,bchpn,bhcl->bclhp", c, carried, total.exp())
        return self.out(y.reshape(n, t, d) * F.silu(z))


def get_inputs():
    return [torch.randn(2, 256, 128)]


def get_init_inputs():
    return [128, 4, 16, 64]
