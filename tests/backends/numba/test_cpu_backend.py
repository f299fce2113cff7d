"""Numba on the CPU, through the backend: every kind and pass, verified against the reference."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.numba.backend import create
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import verify
from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.records.specs import Case
from pydlbench.timing.chunk import Request

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.layers.layer import Layer

CONV = Conv2d.of(batch=1, in_channels=2, in_size=3, out_channels=2, kernel=2)


@pytest.fixture(scope="module")
def backend() -> FrameworkBackend:
    return create("cpu")


def test_every_variant_of_every_pass_is_right(
    backend: FrameworkBackend, problem: tuple[Layer, str]
) -> None:
    layer, pass_ = problem
    kernel = backend.prepare(
        Case(layer=layer, pass_=pass_), Preparation(seed=3, all_candidates=True)
    )
    found = kernel.facts.candidates
    assert [one["status"] for one in found] == ["ok", "ok"]
    assert all(one["correct"]["unwritten"] == 0 for one in found)
    assert len({one["layout"] for one in found}) == 2
    assert kernel.facts.correct["status"] == "ok"
    assert kernel.facts.library.startswith("Numba ")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_pooling_for_training_keeps_places(backend: FrameworkBackend, layout: str) -> None:
    layer = Pool2d.of(batch=2, channels=3, in_size=(5, 6), kernel=3, stride=2, padding=1)
    case = Case(layer=layer, propagation="training", layout=layout)
    inputs = make_inputs(layer, "forward", "fp32", 1)
    (variant,) = [one for one in backend.variants(case) if one.variant == layout]
    operator: Any = variant.build(inputs)
    result, places = operator.call()
    assert places.dtype == np.int32
    assert places.shape == result.shape
    (written,) = operator.outputs().values()
    assert verify(layer, "forward", "fp32", inputs, written, seed=1).status == "ok"


def test_each_call_allocates_its_result(backend: FrameworkBackend) -> None:
    inputs = make_inputs(CONV, "forward", "fp32", 0)
    operator: Any = backend.variants(Case(layer=CONV))[0].build(inputs)
    (first,), (second,) = operator.call(), operator.call()
    assert first is not second
    np.testing.assert_array_equal(first, second)


def test_samples_are_counted(backend: FrameworkBackend) -> None:
    kernel = backend.prepare(Case(layer=CONV), Preparation())
    chunk = kernel.sample(Request(samples=3, inner=2, untimed=1))
    assert len(chunk.seconds) == 3
    assert chunk.threads == len(backend.cpus)
    assert kernel.facts.timing == "steady"


def test_a_wrong_kernel_does_not_win(
    backend: FrameworkBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the NHWC kernel leaves unwritten is seen; the other layout becomes the row."""
    build = importlib.import_module("pydlbench.backends.numba.build")
    monkeypatch.setattr(build.conv_nhwc, "forward", lambda *_: None)
    case = Case(layer=CONV)
    kernel = backend.prepare(case, Preparation(all_candidates=True))
    status = {one["layout"][:8]: one["status"] for one in kernel.facts.candidates}
    assert status == {"src nchw": "ok", "src nhwc": "failed"}
    assert kernel.facts.layout.startswith("src nchw")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "bf16"}, "Numba has no bf16 on the CPU"),
        ({"precision": "fp16"}, "Numba has no fp16"),
        ({"precision": "tf32"}, "GPU mode"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "events"}, "for GPUs"),
        ({"fuse": "bias-relu"}, "no kernel for --fuse"),
        ({"cache": "all-cold"}, "hot caches only"),
        ({"layout": "blocked"}, "no operator with --layout blocked"),
        ({"layer": Pointwise(op="relu", batch=1, channels=2, height=2, width=2)}, "memory-bound"),
    ],
)
def test_what_it_lacks_is_one_sentence(
    backend: FrameworkBackend, changes: dict[str, Any], sentence: str
) -> None:
    case = msgspec.structs.replace(Case(layer=CONV), **changes)
    with pytest.raises(UnsupportedError, match=sentence) as caught:
        backend.prepare(case, Preparation())
    assert "\n" not in str(caught.value)


def test_weights_of_products_lie_either_way(backend: FrameworkBackend) -> None:
    found = backend.variants(Case(layer=Gemm(m=2, k=3, n=4)))
    assert [one.variant for one in found] == ["plain", "transposed"]


def test_it_says_what_it_runs_on(backend: FrameworkBackend) -> None:
    told = backend.describe()
    assert told["name"] == "Numba"
    assert told["threads"] == len(backend.cpus)
    assert told["threading_layer"] in ("omp", "tbb", "workqueue")
    assert told["isa"]


def test_the_empty_call_runs_on_all_threads(backend: FrameworkBackend) -> None:
    operator = backend.empty(None)
    (written,) = operator.outputs().values()
    np.testing.assert_array_equal(written, np.zeros(len(backend.cpus)))
    assert backend.probe("empty_call", {})["seconds"] > 0


def test_fewer_threads_than_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = importlib.import_module("numba")
    module = importlib.import_module("pydlbench.backends.numba.backend")
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    with pytest.raises(UnsupportedError, match="NUMBA_NUM_THREADS=1 is fewer than the 2 CPUs"):
        module.NumbaBackend((0, 1))
