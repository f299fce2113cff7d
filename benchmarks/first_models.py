"""Two models of a user for ``first_answers.py``: BERT-base, and a U-Net of 0.9 M parameters."""

from __future__ import annotations

import torch
from torch import nn


class Bert(nn.Module):
    """The encoder of BERT-base with a classifier: 109 M parameters.

    Args:
        words: size of the vocabulary.
        width: size of a token's vector.
        depth: number of encoder layers.
    """

    def __init__(self, words: int = 30522, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of two classes; tokens are [batch, length]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.encoder(self.norm(self.words(tokens) + self.positions(places)))
        scores: torch.Tensor = self.classifier(states[:, 0])
        return scores


def bert(batch: int = 2, length: int = 128) -> tuple[nn.Module, torch.Tensor]:
    """Return BERT-base and its tokens."""
    return Bert(), torch.randint(0, 30522, (batch, length))


def _convolutions(channels: int, out: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for size in (channels, out):
        parts += [nn.Conv2d(size, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """A U-Net with ``depth`` levels.

    Args:
        width: channels of the first level; each further level has twice as many.
        depth: number of levels.
    """

    def __init__(self, width: int = 22, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth)]
        self.down = nn.ModuleList(map(_convolutions, [3, *sizes[:-1]], sizes))
        steps = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(far, near, 2, 2) for far, near in steps)
        self.merge = nn.ModuleList(_convolutions(2 * near, near) for _, near in steps)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a map of one channel; images are [batch, 3, height, width]."""
        known = []
        for level in self.down:
            images = level(images if not known else nn.functional.max_pool2d(images, 2))
            known.append(images)
        for up, merge, near in zip(self.up, self.merge, known[-2::-1], strict=True):
            images = merge(torch.cat((near, up(images)), 1))
        scores: torch.Tensor = self.head(images)
        return scores


def unet(batch: int = 4, size: int = 128) -> tuple[nn.Module, torch.Tensor]:
    """Return the U-Net and its images."""
    return UNet(), torch.rand(batch, 3, size, size)
