"""Language: the choice of tokens by temperature, repetition penalty, top-k and top-p."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, vocabulary, k, p):
        super().__init__()
        self.k, self.p = k, p
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden, tokens):
        logits = self.head(hidden).float()
        score = torch.gather(logits, 1, tokens)
        score = torch.where(score < 0, score * 1.2, score / 1.2)
        logits = logits.scatter(1, tokens, score) / 0.8
        edge = torch.topk(logits, self.k).values[:, -1:]
        logits = logits.masked_fill(logits < edge, -float("inf"))
        ordered, index = torch.sort(logits, descending=True)
        remove = ordered.softmax(-1).cumsum(-1) > self.p
        remove[..., 1:] = remove[..., :-1].clone()
        remove[..., 0] = False
        logits = logits.masked_fill(remove.scatter(1, index, remove), -float("inf"))
        return torch.multinomial(logits.softmax(-1), 1)


def get_inputs():
    return [torch.randn(16, 256), torch.randint(0, 8192, (16, 128))]


def get_init_inputs():
    return [256, 8192, 50, 0.9]
