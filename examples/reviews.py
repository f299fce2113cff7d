"""A text classifier, as its author wrote it: the model of the tutorial (docs/tutorial.md)."""

import torch
from torch import nn


class Reviews(nn.Module):
    """Tells good reviews from bad ones."""

    def __init__(self, words=8_000, width=256, layers=4, classes=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(
            width, nhead=8, dim_feedforward=4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, text):
        """Return a score for each class, of texts of shape (batch, length)."""
        return self.head(self.encoder(self.words(text)).mean(1))


def build(batch=8, length=64):
    """Return the model, a batch of inputs, and the loss of its output."""
    text = torch.randint(0, 8_000, (batch, length))
    labels = torch.randint(0, 2, (batch,))
    return Reviews(), text, lambda output: nn.functional.cross_entropy(output, labels)
