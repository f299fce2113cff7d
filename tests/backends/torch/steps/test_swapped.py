"""User's kernels in the place of operators and modules: how often, with gradients, and judged."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.steps import requests  # noqa: E402 - below importorskip
from pydlbench.backends.steps.timed_calls import OperatorsKernel  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.user_model import UserTorchModel  # noqa: E402 - below importorskip
from pydlbench.errors import RefusedKernelError, UnsupportedError, UsageError  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.trace import OperatorsFacts  # noqa: E402 - below importorskip
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - below importorskip

MODEL = """
import time

import numpy as np
import torch
from torch import nn

CALLS = []

def build():
    torch.manual_seed(0)
    layers = nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Dropout(0.1), Shift()
    return nn.Sequential(*layers), torch.randn(4, 6)

def clamp(x):
    CALLS.append(len(CALLS))
    return torch.relu(x)  # the original, not itself

def fill(src, dst):
    np.maximum(src.numpy(), 0, out=dst.numpy())

def product(src, weights, dst):
    assert src.ndim == 3
    dst.copy_(src @ weights)

def same(x):
    return x

def kept(x, known={}):
    return known.setdefault(x.shape, x.clamp_min(0))

def negates(x):
    result = x.clamp_min(0)
    x.neg_()
    return result

def add(x, other):
    return torch.add(x, other)

class Shift(nn.Module):
    def forward(self, x):
        return x + 1

class Clamp(nn.Module):
    def forward(self, x):
        return x.clamp_min(0)

class Lost(nn.Module):
    def forward(self, x):
        return x.detach().clamp_min(0)

class Linear(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.weight, self.bias = other.weight, other.bias

    def forward(self, x):
        return x @ self.weight.T + self.bias

def dropout(other):
    return nn.Dropout(0.1)

class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.05)
        return x.clone()

def slow(other):
    return Slow()

class Cast(nn.Module):
    def forward(self, x):
        assert torch.is_autocast_enabled("cpu")
        return x.clamp_min(0)

def cast(other):
    return Cast()

def module(other):
    return Clamp()

def lost(other):
    return Lost()

def copied(other):
    return nn.Linear(6, 5)
"""


@pytest.fixture
def swapped(tmp_path, monkeypatch):
    """Return a step with a swap of the file's functions."""
    number = len(list(tmp_path.parent.parent.rglob("swaps_*.py")))
    (tmp_path / f"swaps_{number}.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)

    def step(target, name="", phase="training"):
        swap = f"{target}=swaps_{number}.py:{name}" if name else target
        return StepSpec(model=f"swaps_{number}.py:build", phase=phase, swaps=(swap,))

    yield step
    from pydlbench.backends.torch.steps.swapped import install

    install(StepSpec(model="mnist"), torch.nn.Identity())


@pytest.mark.parametrize(
    ("target", "name", "phase", "counts"),
    [
        ("aten.relu", "clamp", "training", [2]),
        ("aten.relu", "fill", "forward", [2]),
        ("aten.mm", "product", "training", [1, 1, 1]),
        ("aten.add.Tensor", "add", "forward", [1]),
        ("module:ReLU", "module", "training", [1, 1]),
        ("module:1", "module", "forward", [1]),
        ("module:Dropout", "dropout", "training", [1]),
        ("module:Linear", "Linear", "training", [1, 1]),
    ],
)
def test_swapped_calls_are_counted_timed_and_right(backend, swapped, target, name, phase, counts):
    spec = swapped(target, name, phase)
    kernel = requests.request_swaps(backend, spec.to_dict())
    assert [call.count for call in kernel.facts.calls] == counts
    chunk = kernel.sample(ChunkRequest(samples=12))
    assert len(chunk.seconds) == 12 * 2 * len(counts)  # the original and the other kernel
    with UserTorchModel(backend, StepSpec(model=spec.model, phase=phase)) as plain:
        torch.manual_seed(1)
        expected = plain.results(plain.run())
    with UserTorchModel(backend, spec) as model:
        torch.manual_seed(1)
        taken = model.swapped_calls()
        results = model.results(model.run())
    # What the gradients of a module take is not known.
    assert (taken is None) is (target.startswith("module:") and phase == "training")
    if taken is not None:
        seconds, faults = taken()
        assert seconds > 0
        assert faults == int(faults)
        assert taken() == [0, 0]
    assert results.keys() == expected.keys()
    for group, tensors in expected.items():
        assert tensors
        for key, tensor in tensors.items():
            torch.testing.assert_close(results[group][key], tensor)


def test_swapped_calls_are_timed_at_their_places(backend, swapped):
    spec = swapped("module:Shift", "slow", "forward")
    kernel = requests.request_step(backend, spec.to_dict(), {"checks": False})
    chunk = kernel.sample(ChunkRequest(samples=2, inner=2))
    assert len(chunk.parts) == 2
    for (seconds, _), whole in zip(chunk.parts, chunk.seconds, strict=True):
        assert 0.05 <= seconds <= whole
    plain = StepSpec(model=spec.model, phase="training")
    assert (
        not requests.request_step(backend, plain.to_dict(), {})
        .sample(ChunkRequest(samples=1))
        .parts
    )


@pytest.mark.parametrize(
    ("target", "name", "words"),
    [
        ("aten.relu", "same", "wrong result"),
        ("aten.relu", "kept", "wrong result"),
        ("aten.relu", "negates", "leave them as they are"),
        ("module:ReLU", "lost", "lost gradient"),
    ],
)
def test_a_wrong_kernel_is_refused_in_the_samples(backend, swapped, target, name, words):
    kernel = requests.request_swaps(backend, swapped(target, name).to_dict())
    with pytest.raises(RefusedKernelError, match=words):
        kernel.sample(ChunkRequest(samples=30))


@pytest.mark.parametrize(
    ("target", "name", "kind", "words"),
    [
        ("aten.rellu", "same", UsageError, "nearest: aten.relu"),
        ("aten.add", "same", UsageError, "aten.add.Tensor"),
        ("prims.abs", "same", UsageError, "nearest: aten.NAME"),
        ("aten.linear", "same", UsageError, "gradient would be lost"),
        ("aten.gelu", "same", UsageError, "does not call it"),
        ("aten.mm", "same", UsageError, "self, mat2"),
        ("aten.bernoulli", "same", UnsupportedError, "random"),
        ("module:Relu", "module", UsageError, "nearest: ReLU"),
        ("module:0", "copied", UsageError, "self.weight"),
    ],
)
def test_a_bad_swap_is_refused_with_the_nearest_choice(backend, swapped, target, name, kind, words):
    with pytest.raises(kind, match=words):
        requests.request_swaps(backend, swapped(target, name).to_dict())


def test_modules_alone_run_under_autocast_as_in_the_step(backend, swapped):
    spec = swapped("module:ReLU", "cast")
    spec = StepSpec.from_dict({**spec.to_dict(), "precision": "bf16"})
    kernel = requests.request_swaps(backend, spec.to_dict())
    assert len(kernel.sample(ChunkRequest(samples=4)).seconds) == 4 * 2 * 2


def test_operands_of_one_row_change_too():
    from pydlbench.backends.torch.steps.swapped import JudgedCall, Swap

    known = []

    def kept(x):
        known[:] = known or [x.clone()]
        return known[0]

    swap = Swap("aten.clone", torch.clone, kept)
    spec = StepSpec(model="mnist")
    operands = (torch.arange(8.0)[None],), {}
    call = JudgedCall(swap, kept, operands, lambda: None, spec, contextlib.nullcontext)
    kernel = OperatorsKernel([call], OperatorsFacts(names=("aten.clone",)), [])
    with pytest.raises(RefusedKernelError, match="wrong result"):
        kernel.sample(ChunkRequest(samples=40))


def test_overlapping_swaps_are_refused(backend, swapped):
    swaps = swapped("aten.relu", "clamp").swaps + swapped("module:ReLU", "module").swaps
    spec = StepSpec.from_dict({**swapped("aten.relu").to_dict(), "swaps": swaps})
    with pytest.raises(UsageError, match=r"aten\.relu: called inside the swapped module:ReLU"):
        requests.request_swaps(backend, spec.to_dict())
    twice = {**spec.to_dict(), "swaps": [swaps[1], swaps[1].replace("ReLU", "1")]}
    with pytest.raises(UsageError, match="module 1 overlaps"):
        requests.request_swaps(backend, twice)


def test_infinite_values_of_a_mask_must_be_the_same():
    from pydlbench.backends.torch.steps.swapped import _error

    expected = torch.tensor([-torch.inf, torch.nan, 2.0])
    assert _error(expected.clone(), expected) == 0
    assert _error(torch.tensor([-torch.inf, torch.nan, 3.0]), expected) == 0.5
    assert _error(torch.tensor([0.0, torch.nan, 2.0]), expected) == torch.inf


def test_the_control_calls_the_original_and_swaps_end_with_their_model(backend, swapped):
    with UserTorchModel(backend, swapped("aten.relu")) as model:
        (swap,) = model.swaps
        model.run()
        assert swap.launch is None
        assert float(torch.relu(torch.tensor([-1.0, 2.0])).sum()) == 2
    plain = StepSpec(model=model.spec.model)
    with UserTorchModel(backend, plain) as other:
        assert other.swaps == []


@pytest.mark.parametrize("mode", [("torch", "compiled"), ("tensorflow", "graph")])
def test_only_calls_of_the_dispatcher_are_swapped(mode):
    framework, word = mode
    with pytest.raises(UsageError, match="nearest: --framework torch --mode eager"):
        StepSpec(model="mnist", swaps=("aten.relu",), framework=framework, mode=word)
