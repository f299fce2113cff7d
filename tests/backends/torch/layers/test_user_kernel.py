"""Kernels of the user's own: called by role, verified, and refused in words."""

import pytest

torch = pytest.importorskip("torch")

from pydlbench.backends.base import Preparation  # noqa: E402 - needs torch
from pydlbench.errors import PydlbenchError, UsageError  # noqa: E402 - needs torch
from pydlbench.ops.table import build_layer  # noqa: E402 - needs torch
from pydlbench.records.measurement import KernelSpec  # noqa: E402 - needs torch
from pydlbench.timing.chunk import ChunkRequest  # noqa: E402 - needs torch

CONV = build_layer("conv", batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3, padding=1)
PRODUCT = build_layer("gemm", m=5, k=7, n=3)
CODE = """
import torch

def conv(src, weights, dst):
    assert src.is_contiguous() and weights.is_contiguous()
    dst.copy_(torch.nn.functional.conv2d(src, weights, padding=1))

def product(src, weights, dst):
    torch.matmul(src, weights, out=dst)

def gradient(dst, weights, src):
    torch.matmul(dst, weights.transpose(-1, -2), out=src)

def half(src, weights, dst):
    torch.matmul(src[:, :2], weights, out=dst[:, :2])

def wrong(src, weights, dst):
    torch.matmul(src, weights, out=dst)
    dst += 1

def other(x, y):
    pass

class Kernel:
    def warmup(self): ...
    def __call__(self, **_): ...

jitted = Kernel()
number = 3
"""


@pytest.fixture
def prepared(backend, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE)

    def prepare(layer, name, **words):
        case = KernelSpec(layer=layer, mode=f"{path}:{name}", backend="torch", **words)
        return backend.prepare(case, Preparation())

    return prepare


@pytest.mark.parametrize(
    ("layer", "name", "pass_"),
    [
        (CONV, "conv", "forward"),
        (PRODUCT, "product", "forward"),
        (PRODUCT, "gradient", "backward-data"),
    ],
)
def test_a_kernel_is_verified_against_its_layer_and_timed(prepared, layer, name, pass_):
    kernel = prepared(layer, name, pass_=pass_)
    assert kernel.facts.correct.status == "ok"
    assert kernel.facts.algorithm.startswith(name)
    assert len(kernel.sample(ChunkRequest(samples=2)).seconds) == 2


@pytest.mark.parametrize("name", ["wrong", "half"])
def test_a_kernel_that_computes_something_else_fails(prepared, name):
    with pytest.raises(PydlbenchError) as caught:
        prepared(PRODUCT, name)
    assert not isinstance(caught.value, UsageError)


@pytest.mark.parametrize("name", ["other", "jitted", "number", "missing"])
def test_what_cannot_be_launched_is_one_line(prepared, name):
    with pytest.raises(UsageError, match=name):
        prepared(PRODUCT, name)


def test_a_kernel_has_an_empty_call_beside_it(backend):
    assert backend.empty("mine.py:launch").call() is not None
