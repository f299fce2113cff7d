"""CuPy's operators on NumPy's arrays."""

import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import problems
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.cupy.backend import CupyBackend, create
from pydlbench.backends.host_clock import HostClock
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.inputs import make_inputs
from pydlbench.words import PASSES

LAYERS = problems.LAYERS
# What it has: NumPy stands for cuBLAS, so that nothing takes long.
NAMES = [name for name, one in LAYERS.items() if one.kind != "pool2d"]
POOL = build_layer("pool", batch=1, channels=2, in_size=4, kernel=2)


class OnTheCpu(CupyBackend):
    """The backend without a GPU under it."""

    def __init__(self) -> None:
        self.device, self.cpus, self.library = "cuda:0", (0,), "CuPy"
        self._capability = 90

    def check_clock(self) -> None:
        """It has one."""

    def clock(self, operator: Any, cache: str = "hot") -> HostClock:
        assert cache == "hot"
        return HostClock(operator, self.cpus)


@pytest.fixture
def backend(cupy):  # noqa: ARG001 - the stand-in must be in place
    return OnTheCpu()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("name", "pass_"), problems.each_pass(NAMES, NAMES))
def test_every_pass_is_right(backend, monkeypatch, name, pass_, together):
    if not together:  # the columns of one image are too many already
        monkeypatch.setattr("pydlbench.backends.cupy.backend.DEFAULT_WORKSPACE", 1)
    case = KernelSpec(layer=LAYERS[name], pass_=pass_)
    facts = backend.prepare(case, Preparation(seed=3)).facts
    assert (facts.correct.status, facts.correct.unwritten) == ("ok", 0)
    assert len(facts.candidates) == 1
    assert facts.timing == "events"


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("order", ["kn", "nk"])
def test_weights_lie_as_the_product_says(backend, order, count, pass_):
    layer = build_layer("gemm", m=5, k=7, n=3, batch_count=count, weights_tag=order)
    facts = backend.prepare(KernelSpec(layer=layer, pass_=pass_), Preparation()).facts
    assert facts.correct.status == "ok"
    assert facts.layout == f"src mk, weights {order}, dst mn"


@pytest.mark.parametrize("name", ["groups, dilation", "product"])
@pytest.mark.parametrize("pass_", PASSES)
def test_a_product_that_is_wrong_or_unwritten_is_a_failure(backend, cupy, monkeypatch, name, pass_):
    def wrong(*factors, **words):
        result = np.matmul(*factors, **words)
        result += 1
        return result

    def unwritten(*factors, **_):
        return np.full_like(np.matmul(*factors), np.nan)

    case = KernelSpec(layer=LAYERS[name], pass_=pass_)
    monkeypatch.setattr(cupy, "matmul", wrong)
    with pytest.raises(PrimitiveError, match="expected"):
        backend.prepare(case, Preparation())
    monkeypatch.setattr(cupy, "matmul", unwritten)
    with pytest.raises(PrimitiveError, match="never written"):
        backend.prepare(case, Preparation())


def test_columns_take_no_more_memory_than_there_is_for_them(backend, cupy, monkeypatch):
    layer = LAYERS["groups, dilation"]  # of two images
    (variant,) = backend.variants(KernelSpec(layer=layer))
    assert variant.algorithm == "im2col + cuBLAS"
    assert "historical" in variant.notes[0]
    columns = layer.in_channels * 6 * np.prod(layer.out_size) * 4
    sizes = []

    def matmul(weights, gathered, out):
        sizes.append(gathered.nbytes)
        return np.matmul(weights, gathered, out=out)

    monkeypatch.setattr(cupy, "matmul", matmul)
    for workspace, expected in ((columns * 2, [columns * 2]), (columns * 2 - 1, [columns] * 2)):
        monkeypatch.setattr("pydlbench.backends.cupy.backend.DEFAULT_WORKSPACE", workspace)
        (variant,) = backend.variants(KernelSpec(layer=layer))
        variant.build(make_inputs(layer, "forward", "fp32", 1))
        assert sizes == expected
        sizes.clear()


@pytest.mark.parametrize(("workspace", "expected"), [(1, "float16"), (1 << 30, "float32-tensor")])
def test_parts_of_a_gradient_are_rounded_to_float16(backend, monkeypatch, workspace, expected):
    monkeypatch.setattr("pydlbench.backends.cupy.backend.DEFAULT_WORKSPACE", workspace)
    case = KernelSpec(
        layer=LAYERS["even padding"],
        pass_="backward-weights",
        precision="fp16-tc",
        device="cuda:0",
    )
    (variant,) = backend.variants(case)
    assert variant.accumulate == expected
    assert backend.prepare(case, Preparation()).facts.correct.status == "ok"


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
    module.set_precision(precision)
    assert cupy.settings == wanted


def test_the_arithmetic_is_settled_before_each_chunk(backend, cupy):
    backend.watcher = None

    def sample(samples, *_):
        times = np.full(samples, 1e-3)
        nothing = {"clock_hz": times[:0], "enqueue_s": times[:0], "wall_s": 0.0, "gate_timeouts": 0}
        return {"seconds": times, **nothing}

    backend._runtime = SimpleNamespace(
        call_work=lambda _call, _cache: SimpleNamespace(sample=sample)
    )
    case = KernelSpec(layer=LAYERS["product"], precision="tf32", device="cuda:0")
    (variant,) = backend.variants(case)
    operator = variant.build(make_inputs(case.layer, case.pass_, case.precision, 1))
    clock = CupyBackend.clock(backend, operator)
    cupy.settings.clear()
    for _ in range(3):
        assert clock.sample(ChunkRequest(samples=2)).seconds == (1e-3, 1e-3)
    assert cupy.settings == [("float32", "tf32"), ("handle", 3)] * 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "fp16"}, "kept off tensor cores"),
        ({"precision": "bf16-tc"}, "no products in bf16-tc; there is: fp32, tf32, fp16-tc"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "cuda-graph"}, "refuses to capture cuBLAS"),
        ({"fuse": "bias-relu"}, "no kernel for --fuse"),
        ({"layout": "nhwc"}, "no operator with --layout nhwc"),
        ({"layer": POOL}, "cupy: no pool2d layers here"),
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
    with pytest.raises(UnsupportedError, match=r"2 GPUs, .*cuda:2"):
        create("cuda:2")
