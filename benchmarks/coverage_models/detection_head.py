"""Detection: scores and boxes of anchors, the best of each image, their overlaps, matrix NMS."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, classes, keep):
        super().__init__()
        self.keep = keep
        self.tower = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()
        )
        self.score, self.box = (
            nn.Conv2d(width, classes, 3, padding=1),
            nn.Conv2d(width, 4, 3, padding=1),
        )

    def forward(self, x):
        y = self.tower(x)
        score = self.score(y).sigmoid().flatten(2)
        box = self.box(y).exp().flatten(2).transpose(1, 2)
        best, label = score.max(1)
        best, index = best.topk(self.keep, 1)
        label = label.gather(1, index)
        box = torch.gather(box, 1, index[..., None].expand(-1, -1, 4))
        w = x.shape[-1]
        cx, cy = (index % w).float() + 0.5, torch.div(index, w, rounding_mode="floor").float() + 0.5
        corner = torch.stack(
            (cx - box[..., 0], cy - box[..., 1], cx + box[..., 2], cy + box[..., 3]), -1
        )
        area = (corner[..., 2] - corner[..., 0]) * (corner[..., 3] - corner[..., 1])
        low = torch.max(corner[:, :, None, :2], corner[:, None, :, :2])
        high = torch.min(corner[:, :, None, 2:], corner[:, None, :, 2:])
        wh = (high - low).clamp(min=0)
        both = wh[..., 0] * wh[..., 1]
        iou = both / (area[:, :, None] + area[:, None] - both + 1e-6)
        iou = torch.triu(iou.masked_fill(label[:, :, None] != label[:, None], 0.0), 1)
        comp = iou.max(1).values
        decay = torch.exp((comp[:, :, None] ** 2 - iou**2) * 2).min(1).values
        return corner, best * decay, label


def get_inputs():
    return [torch.randn(4, 64, 40, 40)]


def get_init_inputs():
    return [64, 20, 200]
