"""Models of one function; the honest one, and others that are fast only while nobody looks."""

# ruff: noqa: PLW0603 - they count calls
import threading
import time

import torch
from torch import nn

kept = {}
calls = 0


class Honest(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = nn.Linear(16, 8)

    def forward(self, x):
        return self.fc(x).relu()


class KeptByPointer(Honest):
    def forward(self, x):
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = super().forward(x)
        return kept[x.data_ptr()]


class KeptByValue(Honest):
    def forward(self, x):
        key = round(float(x.detach().double().sum()), 3)
        if key not in kept:
            kept[key] = super().forward(x)
        return kept[key]


class OnlyTheFirstCalls(Honest):
    def forward(self, x):
        global calls
        calls += 1
        return super().forward(x) if calls <= 2 else x.new_zeros(len(x), 8, requires_grad=True)


class PartOfTheBatch(Honest):
    def forward(self, x):
        global calls
        calls += 1
        if calls <= 2:
            return super().forward(x)
        half = super().forward(x[: len(x) // 2])
        return torch.cat([half, half])


class ChangesItsInput(Honest):
    def forward(self, x):
        result = super().forward(x)
        x.detach().zero_()
        return result


class OnAThread(Honest):
    def forward(self, x):
        out = x.new_zeros(len(x), 8)

        def work():
            time.sleep(0.02)
            out.copy_(super(OnAThread, self).forward(x).detach())

        thread = threading.Thread(target=work)
        thread.start()
        global calls
        calls += 1
        if calls <= 2:
            thread.join()
        return out


class Lazy(torch.Tensor):
    @staticmethod
    def __new__(cls, make, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    def __init__(self, make, _shape):
        self.make = make

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [arg.make() if isinstance(arg, Lazy) else arg for arg in args]
        return func(*args, **(kwargs or {}))


class LazyResult(Honest):
    def forward(self, x):
        return Lazy(lambda: super(LazyResult, self).forward(x).detach(), (len(x), 8))


class ReplacesTheClock(Honest):
    def forward(self, x):
        time.perf_counter = time.monotonic = lambda: 0.0
        time.sleep(0.004)
        return super().forward(x)


class InPlace(Honest):
    """Honest: it works in place on what it has computed, and keeps scratch memory."""

    def forward(self, x):
        scratch = kept.setdefault("scratch", torch.empty(len(x), 16))
        scratch.copy_(x.detach())
        return self.fc(scratch).relu_()


def build(kind="Honest"):
    torch.manual_seed(2)
    return globals()[kind](), torch.randn(6, 16)
