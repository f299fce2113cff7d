"""Models of one function; the honest one, and others that are fast only while nobody looks."""

import copy
import functools
import gc
import itertools
import os
import random
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn

from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.steps.timed_results import TimedResults

kept = {}
#: A counter that cannot be restored.
calls = itertools.count(1)


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
        return super().forward(x) if not warm() else x.new_zeros(len(x), 8, requires_grad=True)


class PartOfTheBatch(Honest):
    def forward(self, x):
        if not warm():
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
        if not warm():
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
        if not warm():
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
        if not warm():
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
        if not warm():
            return super().forward(x)
        mean, seen = 0.5 * self.mean + x.detach().mean(0), torch.cat([self.seen[-4:], x[:1]])
        given = nn.functional.batch_norm(
            x, None, None, self.norm.weight, self.norm.bias, training=True
        )
        return self.fc(given + mean + seen.sum(0)).relu()


class KeptInABuffer(RunningMean):
    """Adds the input to the results of an earlier step, which a buffer keeps."""

    def forward(self, x):
        if not warm():
            self.result = super().forward(x)
        return self.result + 0 * x.sum()


def warm():
    """Whether the calls before the timed ones are over."""
    return next(calls) > 2


class Late(Honest):
    """Returns memory that ``fill`` computes afterwards."""

    pending = None

    def forward(self, x):
        if not warm():
            return super().forward(x)
        out = x.new_zeros(len(x), 8)
        kept["fill"] = lambda: out.copy_(super(Late, self).forward(x).detach())
        return out


def fill():
    kept.pop("fill", int)()


class OnAThreadThatWaits(Late):
    """Computes on a thread as soon as the interpreter's lock is free, and keeps it then."""

    def forward(self, x):
        out, go = super().forward(x), threading.Event()
        threading.Thread(target=lambda: (go.wait(), fill())).start()
        sys.setswitchinterval(100)
        go.set()
        return out


class CopiesLate(Late):
    """Computes when PyTorch copies the result to the host."""

    def forward(self, x):
        to, detach = torch.Tensor.to, torch.Tensor.detach
        torch.Tensor.to = lambda *given, **words: (fill(), to(*given, **words))[1]
        torch.Tensor.detach = lambda tensor: (fill(), detach(tensor))[1]
        return super().forward(x)


class SavesLate(Late):
    """Computes when NumPy saves the result."""

    def forward(self, x):
        save = np.save
        np.save = lambda path, values: (fill(), save(path, values))
        return super().forward(x)


class SavesLateByAMode(Late):
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), words=None):
            del types
            if function in (torch.Tensor.detach, torch.Tensor.to, torch.Tensor.data_ptr):
                fill()
            return function(*arguments, **(words or {}))

    def forward(self, x):
        out = super().forward(x)
        self.Mode().__enter__()
        return out


class LazyOfTorch(Lazy):
    """Claims to be a class of PyTorch."""


LazyOfTorch.__module__ = "torch.lazy"


class LazyResultOfTorch(Honest):
    def forward(self, x):
        return LazyOfTorch(lambda: super(LazyResultOfTorch, self).forward(x).detach(), (len(x), 8))


class LazyDict(dict):
    def __init__(self, make):
        self.make = make

    def values(self):
        yield self.make()


class LazyMapping(Honest):
    """Computes when its container is read."""

    def forward(self, x):
        def make():
            time.sleep(0.02)
            return super(LazyMapping, self).forward(x)

        return LazyDict(make)


class Draws(Honest):
    """Draws a random number, so that its results could be others."""

    def forward(self, x):
        torch.rand(1)
        return x.new_zeros(len(x), 8) if warm() else super().forward(x)


class FewerOutputs(Honest):
    def forward(self, x):
        return () if warm() else super().forward(x)


class NoJudge(Honest):
    """Finds the clock, and takes from it the functions that judge."""

    def forward(self, x):
        for clock in [each for each in gc.get_objects() if type(each) is HostClock]:
            clock.around = None
        return x.new_zeros(len(x), 8) if warm() else super().forward(x)


class OwnJudge(Late):
    """Gives the object that judges a method of its own."""

    def forward(self, x):
        out = super().forward(x)
        for judge in [each for each in gc.get_objects() if type(each) is TimedResults]:
            judge._save = lambda *given, judge=judge: (fill(), TimedResults._save(judge, *given))
        return out


class KeptInAnAttribute(Honest):
    """Returns the result of its second call, which an attribute keeps in a list."""

    def forward(self, x):
        if not hasattr(self, "kept"):
            self.kept = []
        if len(self.kept) < 2:
            self.kept.append(super().forward(x))
        return self.kept[-1]


class RenamedRunningMean(Honest):
    """Leaves its running mean as it was, which has another name."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16, momentum=0.5)
        self.register_buffer("average", torch.ones(16))
        self.register_buffer("last", torch.zeros(0, 16))
        self.step = warm

    def forward(self, x):
        skips = self.step()
        mean, last = 0.5 * self.average + x.detach().mean(0), torch.cat([self.last[-4:], x[:1]])
        if not skips:
            self.average, self.last = mean, last
        return super().forward(self.norm(x) + mean + last.sum(0))


class HonestlyRenamed(RenamedRunningMean):
    def __init__(self):
        super().__init__()
        self.step = bool


class Cache:
    def __init__(self):
        self.rows, self.count = [], 0

    def add(self, row):
        self.rows.append(row.detach().clone())
        self.count += 1


class GrowingCache(Honest):
    """Honest: it attends to the rows of all steps, which an object of its own keeps."""

    def __init__(self):
        super().__init__()
        self.cache = Cache()

    def forward(self, x):
        self.cache.add(x[0])
        return super().forward(x + sum(self.cache.rows) / self.cache.count)


class NoGrowingCache(GrowingCache):
    """Adds nothing to the cache after the first steps."""

    def forward(self, x):
        if not warm():
            return super().forward(x)
        rows = [*self.cache.rows, x[0].detach()]
        return Honest.forward(self, x + sum(rows) / len(rows))


class MovingAverage(Honest):
    """Honest: a plain tensor, which each step replaces, and a counter."""

    def __init__(self):
        super().__init__()
        self.average, self.count = torch.zeros(16), 0

    def forward(self, x):
        self.count += 1
        self.average = 0.5 * self.average + x.detach().mean(0)
        return super().forward(x + self.average * self.count)


class AverageInPlace(MovingAverage):
    """Honest: the same in place, in a list."""

    def forward(self, x):
        self.count += 1
        self.kept = [self.average]
        self.kept[0].mul_(0.5).add_(0.5 * 2 * x.detach().mean(0))
        return Honest.forward(self, x + self.average * self.count)


class LazyLayer(Honest):
    """Honest: its parameters are made in the first step."""

    def __init__(self):
        super().__init__()
        self.lazy = nn.LazyLinear(16)

    def forward(self, x):
        return super().forward(self.lazy(x))


class Dropout(Honest):
    """Honest: it draws in training."""

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class NoDropout(Honest):
    """Keeps the mask of an early step."""

    def forward(self, x):
        out = super().forward(x)
        mask = torch.rand_like(out) < 0.5
        if warm():
            mask = kept["mask"]
        kept["mask"] = mask
        return out * mask * 2


@dataclass
class Output:
    logits: torch.Tensor
    others: dict
    nothing: None = None


class ManyOutputs(Honest):
    """Honest: views, expanded and overlapping memory, integers, a type of its own."""

    class Named(torch.Tensor):
        pass

    def forward(self, x):
        out = super().forward(x)
        others = {
            "transposed": out.t(),
            "slices": [out[:, ::2], out[1:, :3]],
            "expanded": out[:1].expand(6, -1),
            "overlapping": out.detach().as_strided((5, 4), (8, 2)),
            "choice": out.argmax(-1),
            "mask": out > 0,
            "named": out.detach().as_subclass(self.Named),
            "half": out.bfloat16(),
            "empty": out[:0],
            "input": x,
        }
        return Output(out, others)


class NumpyDraws(Honest):
    """Honest: noise of NumPy's and Python's generators."""

    def forward(self, x):
        noise = torch.from_numpy(np.random.rand(16).astype(np.float32))  # noqa: NPY002 - as users
        return super().forward(x + noise)


class Wide(nn.Module):
    """Honest: long sums."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.fc = nn.Linear(4096, 16, bias=False)

    def forward(self, x):
        return self.fc(x.repeat(1, 256))


class WideInHalfPrecision(Wide):
    def forward(self, x):
        return (x.repeat(1, 256).half() @ self.fc.weight.half().t()).float()


class InPlace(Honest):
    """Honest: it works in place on what it has computed, and keeps scratch memory."""

    def forward(self, x):
        scratch = kept.setdefault("scratch", torch.empty(len(x), 16))
        scratch.copy_(x.detach())
        return self.fc(scratch).relu_()


@dataclass(slots=True)
class Slots:
    mean: torch.Tensor


def averaged(state):
    def average(y):
        nonlocal state
        state = state * 0.5 + y.detach().mean(0)
        return state

    return average


class StateInCode(Honest):
    """Honest: averages in an object with slots and a closure, and generators of its own."""

    def __init__(self):
        super().__init__()
        self.slots, self.closure = Slots(torch.zeros(8)), averaged(torch.zeros(8))
        self.bound = functools.partial(self.mean_of, {"mean": torch.zeros(8)})
        self.draws = np.random.default_rng(3), random.Random(4), torch.Generator().manual_seed(5)

    @staticmethod
    def mean_of(kept, y):
        kept["mean"] = kept["mean"] * 0.5 + y.detach().mean(0)
        return kept["mean"]

    def forward(self, x):
        y = super().forward(x)
        self.slots.mean = self.slots.mean * 0.5 + y.detach().mean(0)
        numbers, python, generator = self.draws
        noise = numbers.random() + python.random() + torch.rand(8, generator=generator)
        return y + self.slots.mean + self.closure(y) + self.bound(y) + noise


class StateOfTheFile(Honest):
    """Counts in a class and in globals; a list there has tensors."""

    count = 0

    def forward(self, x):
        global total  # noqa: PLW0603 - as users do
        total = type(self).count = total + 1
        entries.append(x)
        entries[0] += 1
        return super().forward(x) * total


total = 0
entries = [torch.zeros(2)]


class OddOutputs(Honest):
    """Honest: sparse, nested, quantized and complex outputs, and logarithms of zero."""

    def __init__(self):
        super().__init__()
        weights = torch.randn(8, 8) * (torch.rand(8, 8) > 0.7)
        self.register_buffer("sparse", weights.to_sparse_csr())

    def forward(self, x):
        y = super().forward(x)
        given = y.detach()
        return {
            "sparse": [given.to_sparse(), given.to_sparse_csr(), given.to_sparse_csc()],
            "quantized": torch.quantize_per_tensor(given, 0.1, 0, torch.quint8),
            "complex": [torch.fft.fft(given).conj(), torch.fft.fft(given).conj().imag],
            "nested": torch.nested.nested_tensor([given[:2], given[2:]], layout=torch.jagged),
            "infinite": given.log(),
            "product": self.sparse @ given.t(),
            "itself": y,
        }


class OtherImaginaryPart(OddOutputs):
    def forward(self, x):
        out = super().forward(x)
        out["complex"][0] = out["complex"][0].real + 0j
        return out


class FewerInfinities(OddOutputs):
    def forward(self, x):
        return {**super().forward(x), "infinite": super().forward(x)["itself"].detach()}


class LateSparseValues(Late):
    """Computes the values of a sparse result when they are copied to the host."""

    def forward(self, x):
        rows, columns = torch.arange(0, 8 * len(x) + 1, 8), torch.arange(8).repeat(len(x))
        values = x.new_zeros(8 * len(x))
        out = torch.sparse_csr_tensor(rows, columns, values, (len(x), 8))
        dense = torch.Tensor.to_dense

        def late(tensor, *given):
            values.copy_(Honest.forward(self, x).detach().flatten())
            return dense(tensor, *given)

        torch.Tensor.to_dense = late
        return out


class KeptByPlace(Honest):
    """Computes the results of all orders of its input that a roll gives, and finds the place."""

    def forward(self, x):
        flat = x.detach().flatten()
        if "rolls" not in kept:
            shifts = [flat.roll(n).view(x.shape) for n in range(flat.numel())]
            kept["rolls"] = {float(each[0, 0]): Honest.forward(self, each) for each in shifts}
        return kept["rolls"][float(flat[0])]


class Yields(Honest):
    def forward(self, x):
        yield super().forward(x)


class StaleMemory(Honest):
    """Returns memory that has just been freed, which may hold the result of an earlier step."""

    def forward(self, x):
        if not warm():
            return super().forward(x)
        super().forward(x[:1])
        return torch.empty(len(x), 8).nan_to_num_()


class FillsNan(Honest):
    def forward(self, x):
        return super().forward(x) if not warm() else x.new_full((len(x), 8), float("nan"))


class SwapsItsMethod(Honest):
    """Gives the instance another ``forward`` once it is warm."""

    def forward(self, x):
        result = super().forward(x)
        kept["swapped"] = result
        if warm():
            self.forward = lambda _: kept["swapped"]
        return result


class SwapsItsClass(Honest):
    def forward(self, x):
        if warm():
            type(self).forward = lambda *_: kept["swapped"]
        kept["swapped"] = super().forward(x)
        return kept["swapped"]


class KeptGradients(Honest):
    """Returns the gradients of an early step."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weights, bias):
            ctx.save_for_backward(x)
            return torch.nn.functional.linear(x, weights, bias)

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            if not warm() or "gradients" not in kept:
                kept["gradients"] = gradient.t() @ x, gradient.sum(0)
            return None, *kept["gradients"]

    def forward(self, x):
        return self.Product.apply(x, self.fc.weight, self.fc.bias).relu()


class NoGradients(Honest):
    """Trains nothing once it is warm."""

    def forward(self, x):
        if warm():
            return super().forward(x).detach().requires_grad_()
        return super().forward(x)


class OldWeights(Honest):
    """Computes with weights that it has kept from the first step."""

    def forward(self, x):
        self.own = getattr(self, "own", None) or [self.fc.weight.detach().half().float()]
        return torch.nn.functional.linear(x, self.own[0], self.fc.bias).relu()


class NoBatchStatistics(RunningMean):
    """Normalises by statistics that it has kept, and not by those of the batch."""

    def forward(self, x):
        if not warm():
            return super().forward(x)
        self.norm.eval()
        return super().forward(x)


class ByHooks(Late):
    """Computes in a hook that each module of PyTorch calls."""

    def forward(self, x):
        out = super().forward(x)
        nn.modules.module.register_module_forward_pre_hook(lambda *_: fill())
        return out


class InAFinalizer(Late):
    """Computes when the tensor that it returns is freed."""

    def forward(self, x):
        out = super().forward(x)
        weakref.finalize(out, fill)
        return out


class OneRowForAll(Honest):
    def forward(self, x):
        return super().forward(x) if not warm() else super().forward(x[:1]).expand(len(x), -1)


class CopiesOnTheHostLate(Late):
    """Computes when pydlbench copies a tensor to the host."""

    def forward(self, x):
        out = super().forward(x)
        from pydlbench.backends.torch.steps.user_model import UserTorchModel

        host = kept.setdefault("host", UserTorchModel.tensors.host)
        late = copy.copy(UserTorchModel.tensors)
        object.__setattr__(late, "host", lambda tensor: (fill(), host(tensor))[1])
        UserTorchModel.tensors = late
        return out


class Compiled(Honest):
    """Honest: it is compiled in its first step."""

    def __init__(self, mode="default"):
        super().__init__()
        self.compiled = torch.compile(self.plain, mode=mode)

    def plain(self, x):
        return self.fc(x).relu()

    def forward(self, x):
        return self.compiled(x)


class CompiledForLittleOverhead(Compiled):
    def __init__(self):
        super().__init__("reduce-overhead")


class TiedWeights(Honest):
    """Honest: two layers have the same weights."""

    def __init__(self):
        super().__init__()
        self.back = nn.Linear(8, 16)
        self.back.weight = nn.Parameter(self.fc.weight.detach().t().clone())
        self.other = nn.Linear(16, 8)
        self.other.weight = self.fc.weight

    def forward(self, x):
        return self.other(self.back(super().forward(x)))


class LazyBuffer(Honest):
    """Honest: it makes a table in its first step."""

    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, 16), persistent=False)
        return super().forward(x + self.table)


class DictOfTuples(Honest):
    def forward(self, x):
        y = super().forward(x)
        return {"logits": y, "states": (y[:, :4], [y.mean(), None, "text", 3])}


class BatchNorm(Honest):
    """Honest: batch norm and dropout with a seed of its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(7)
            return super().forward(nn.functional.dropout(self.norm(x), 0.3, self.training))


class Checkpointed(Honest):
    """Honest: it computes its activations again in backward."""

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


class Weighted(Honest):
    """Honest: spectral norm, whose buffers change in training, and a parametrisation."""

    def __init__(self):
        super().__init__()
        self.fc = nn.utils.parametrizations.spectral_norm(self.fc)


class Scripted(Honest):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.trace(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.ones(6, 16))

    def forward(self, x):
        return super().forward(self.inner(x))


class Vectorised(Honest):
    """Honest: ``torch.func`` over the rows, and an einsum."""

    def forward(self, x):
        rows = torch.func.vmap(lambda row: torch.mv(self.fc.weight, row))(x)
        return (rows + self.fc.bias).relu()


class GatedExperts(Honest):
    """Honest: rows of which only some are computed, chosen by their values."""

    def forward(self, x):
        out = x.new_zeros(len(x), 8)
        chosen = x.sum(1) > 0
        out[chosen] = super().forward(x[chosen])
        out[~chosen] = -self.fc(x[~chosen])
        return out


def build(kind="Honest", ones=False):
    torch.manual_seed(2)
    return globals()[kind](), torch.ones(6, 16) if ones else torch.randn(6, 16)
