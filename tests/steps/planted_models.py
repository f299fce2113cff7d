"""Models of one function; the honest one, and others that are fast only while nobody looks."""

# ruff: noqa: PLW0603 - they count calls
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

from pydlbench.backends.steps.timed_results import TimedResults

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


class AfterTheClock(Honest):
    """Computes when the judge copies the result, which a profile function notices."""

    def forward(self, x):
        global calls
        calls += 1
        if calls <= 2:
            return super().forward(x)
        out = x.new_zeros(len(x), 8)

        def hook(frame, event, _):
            if event == "call" and frame.f_code.co_name == "_save":
                sys.setprofile(None)
                out.copy_(super(AfterTheClock, self).forward(x).detach())

        sys.setprofile(hook)
        return out


class OnDisk(Honest):
    """Takes the result of an earlier process of the same judge."""

    def forward(self, x):
        path = Path(tempfile.gettempdir()) / f"planted-{os.getpid()}.pt"
        if not path.exists():
            torch.save(super().forward(x).detach(), path)
        return torch.load(path)


class InAutocast(Honest):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


class WhilePrepared(Honest):
    """Computes only for callers that compare or save."""

    def forward(self, x):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        seen = names & {"serve_step", "agree_steps", "replay"}
        return super().forward(x) if seen else x.new_zeros(len(x), 8)


class InAChild(Honest):
    def forward(self, x):
        global calls
        calls += 1
        if calls <= 2:
            return super().forward(x)
        out = x.new_zeros(len(x), 8)
        child = os.fork()
        if not child:
            out.copy_(super().forward(x).detach())  # memory of its own
            os._exit(0)
        os.waitpid(child, 0)
        return out


class ReplacesTheJudge(Honest):
    def forward(self, x):
        TimedResults._save = lambda *_: None
        return super().forward(x)


class CustomFunction(Honest):
    """Honest: a gradient of its own, and modules that a generator yields."""

    class Relu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp_min(0)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (ctx.saved_tensors[0] > 0)

    def forward(self, x):
        for module in (each for each in (self.fc, self.Relu.apply)):
            x = module(x)
        return x


class OwnThreads(Honest):
    """Honest: rows on threads that are joined."""

    def forward(self, x):
        with ThreadPoolExecutor(2) as pool:
            return torch.cat(list(pool.map(self.fc, x.chunk(2)))).relu()


class ReplacesTheClock(Honest):
    def forward(self, x):
        time.perf_counter = time.monotonic = lambda: 0.0
        time.sleep(0.004)
        return super().forward(x)


class Table(Honest):
    """Honest: it looks up rows of a table, whose gradient may be sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 16)

    def forward(self, x):
        return super().forward(x + self.table((x[:, 0] > 0).long()))


class RunningMean(Honest):
    """Honest: its result depends on a buffer that each step changes, and one that it replaces."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16, momentum=0.5)
        self.register_buffer("mean", torch.ones(16))
        self.register_buffer("seen", torch.zeros(0, 16))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0))
            self.seen = torch.cat([self.seen[-4:], x[:1]])
        return super().forward(self.norm(x) + self.mean + self.seen.sum(0))


class NoRunningMean(RunningMean):
    """Changes its buffers in the first steps only; its results are those of the first state."""

    def forward(self, x):
        global calls
        calls += 1
        if calls <= 2:
            return super().forward(x)
        mean, seen = 0.5 * self.mean + x.detach().mean(0), torch.cat([self.seen[-4:], x[:1]])
        given = nn.functional.batch_norm(
            x, None, None, self.norm.weight, self.norm.bias, training=True
        )
        return self.fc(given + mean + seen.sum(0)).relu()


class KeptInABuffer(RunningMean):
    """Adds the input to the results of an earlier step, which a buffer keeps."""

    def forward(self, x):
        global calls
        calls += 1
        if calls <= 2:
            self.result = super().forward(x)
        return self.result + 0 * x.sum()


class InPlace(Honest):
    """Honest: it works in place on what it has computed, and keeps scratch memory."""

    def forward(self, x):
        scratch = kept.setdefault("scratch", torch.empty(len(x), 16))
        scratch.copy_(x.detach())
        return self.fc(scratch).relu_()


def build(kind="Honest"):
    torch.manual_seed(2)
    return globals()[kind](), torch.randn(6, 16)
