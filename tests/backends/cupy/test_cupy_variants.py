"""CuPy's operators on NumPy's arrays, with the CUDA kernels compiled for the CPU."""

import importlib
from types import SimpleNamespace
from typing import Any

import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.cupy.backend import CupyBackend, create
from pydlbench.backends.host_clock import HostClock
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec

LAYERS = problems.LAYERS
# What it has: NumPy stands for cuBLAS, so that nothing takes long.
NAMES = [name for name, one in LAYERS.items() if one.kind != "pool2d"]
POOL = build_layer("pool", batch=1, channels=2, in_size=4, kernel=2)


class OnTheCpu(CupyBackend):
    """The backend without a GPU under it."""

    def __init__(self) -> None:
        self.device, self.cpus, self.library = "cuda:0", (0,), "CuPy"
        self._capability = 90

    def clock(self, operator: Any) -> HostClock:
        return HostClock(operator, self.cpus)


@pytest.fixture
def backend(cupy):  # noqa: ARG001 - the stand-in must be in place
    return OnTheCpu()


@pytest.mark.parametrize(("name", "pass_"), problems.each_pass(NAMES, NAMES))
def test_every_variant_of_every_pass_is_right(backend, name, pass_):
    case = KernelSpec(layer=LAYERS[name], pass_=pass_)
    kernel = backend.prepare(case, Preparation(seed=3, all_candidates=True))
    assert {one["status"] for one in kernel.facts.candidates} == {"ok"}
    assert kernel.facts.correct.unwritten == 0
    assert kernel.facts.timing == "events"


def test_the_historical_baseline_is_called_so(backend):
    one, many = backend.variants(KernelSpec(layer=LAYERS["groups, dilation"]))
    assert one.algorithm == "im2col + cuBLAS, image by image"
    assert many.algorithm == "im2col + cuBLAS, all images at once"
    assert "historical" in one.notes[0]


def test_columns_that_are_too_large_are_not_held_at_once(backend):
    large = build_layer(
        "conv", batch=256, in_channels=64, in_size=224, out_channels=64, kernel=3, padding=1
    )
    (only,) = backend.variants(KernelSpec(layer=large))
    assert only.algorithm.endswith("image by image")


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("fp32", [("float32", "fp32"), ("handle", 0)]),
        ("tf32", [("float32", "tf32"), ("handle", 3)]),
        ("fp16-tc", [("float32", "fp32"), ("handle", 0)]),
    ],
)
def test_tf32_is_off_unless_asked_for(cupy, precision, wanted):
    module = importlib.import_module("pydlbench.backends.cupy.operators")
    module.settle(precision)
    assert cupy.settings == wanted


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp16"}, "kept off tensor cores"),
        ({"precision": "bf16-tc"}, "no products in bf16-tc; there is: fp32, tf32, fp16-tc"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "cuda-graph"}, "refuses to capture cuBLAS"),
        ({"fuse": "bias-relu"}, "no kernel for --fuse"),
        ({"layout": "nhwc"}, "no operator with --layout nhwc"),
        ({"layer": POOL}, "cupy: no pool2d layers here; there is: conv2d, gemm"),
    ],
)
def test_what_it_lacks_is_one_sentence(backend, changes, sentence):
    fields = {"layer": LAYERS["1x1, stride leaves gaps"], "device": "cuda:0", **changes}
    case = KernelSpec(**fields)
    with pytest.raises(UnsupportedError, match=sentence):
        backend.prepare(case, Preparation())


def test_old_gpus_have_no_tf32(backend):
    backend._capability = 75
    case = KernelSpec(layer=LAYERS["product"], precision="tf32")
    with pytest.raises(UnsupportedError, match=r"capability 8\.0"):
        backend.variants(case)


def test_on_a_cpu_it_asks_for_a_gpu():
    with pytest.raises(UnsupportedError, match="cupy needs an NVIDIA GPU; ask for"):
        create("cpu")


def test_without_a_driver_it_says_so_in_one_line(cupy):
    def fail() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver:\nCUDA driver version is insufficient")

    cupy.cuda.runtime = SimpleNamespace(getDeviceCount=fail)
    with pytest.raises(UnsupportedError) as caught:
        create("cuda:0")
    assert str(caught.value) == (
        "cupy needs an NVIDIA GPU; it says: "
        "cudaErrorInsufficientDriver: CUDA driver version is insufficient"
    )


def test_a_gpu_that_is_not_there(cupy):
    cupy.cuda.runtime = SimpleNamespace(getDeviceCount=lambda: 2)
    with pytest.raises(UnsupportedError, match="sees 2 GPUs, and cuda:2 is not among them"):
        create("cuda:2")
