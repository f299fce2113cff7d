"""An invented network with what is hard to record: branches, views, in-place calls, sharing."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from pydlbench.backends.torch.steps.recording import by_module, record


class Odd(torch.nn.Module):
    """Two branches that are summed, a shared weight, a view that is written into, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.block = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.ReLU(inplace=True))
        self.pool = torch.nn.MaxPool2d(2)
        self.drop = torch.nn.Dropout(0.25)
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.table = torch.nn.Embedding(7, 8)

    def forward(self, images: Any, words: Any) -> Any:
        """Return scores, (batch, 8)."""
        found = self.norm(self.conv(images))
        found = found + self.block(found)
        found = self.pool(found).mean((2, 3)) + self.table(words)
        found[:, 0] += 1.0
        return self.second(self.drop(self.first(found)))


def make() -> types.SimpleNamespace:
    """Return a training step of the network, run once, and what records it."""
    torch.manual_seed(0)
    module = Odd()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    images = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    words, labels = torch.tensor([1, 0, 6, 1]), torch.tensor([2, 7, 0, 2])

    def step() -> Any:
        optimizer.zero_grad()
        output = module(images, words)
        loss = torch.nn.functional.cross_entropy(output, labels)
        loss.backward()
        optimizer.step()
        return output, loss

    step()
    named = {one: name.rpartition(".")[0] for name, one in module.named_parameters()}
    return types.SimpleNamespace(
        module=module,
        optimizer=optimizer,
        step=step,
        parameters=named,
        record=functools.partial(
            record, step, naming=by_module(module), parameters=named, optimizer=optimizer
        ),
    )
