"""Numba on the CPU, through the backend: every kind and pass, verified against the reference."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from pydlbench.backends.base import Preparation
from pydlbench.backends.numba.backend import create
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import verify

CONV = build_layer("conv", batch=1, in_channels=2, in_size=3, out_channels=2, kernel=2)


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


def test_every_pass_is_right(backend, problem):
    layer, pass_ = problem
    kernel = backend.prepare(KernelSpec(layer=layer, pass_=pass_), Preparation(seed=3))
    correct = kernel.facts.correct
    assert (correct.status, correct.unwritten) == ("ok", 0)
    assert len(kernel.facts.candidates) == 1
    assert kernel.facts.library.startswith("Numba ")
    seen = kernel.facts.evidence  # of the machine code, which is timed alone
    assert seen["kernel"] == kernel.facts.algorithm
    assert min(seen["alone_s"], seen["call_s"]) > 0
    assert seen["variant"]
    assert "multiply-adds" in seen["detail"] or layer.op == "pool"


def test_pooling_for_training_keeps_places(backend):
    layer = build_layer("pool", batch=2, channels=3, in_size=(5, 6), kernel=3, stride=2, padding=1)
    case = KernelSpec(layer=layer, propagation="training")
    inputs = make_inputs(layer, "forward", "fp32", 1)
    (variant,) = backend.variants(case)
    operator: Any = variant.build(inputs)
    result, places = operator.call()
    assert places.dtype == np.int32
    assert places.shape == result.shape
    (written,) = operator.outputs().values()
    assert verify(layer, "forward", "fp32", inputs, written, seed=1).status == "ok"


@pytest.mark.deep
def test_each_call_allocates_its_result(backend):
    inputs = make_inputs(CONV, "forward", "fp32", 0)
    operator: Any = backend.variants(KernelSpec(layer=CONV))[0].build(inputs)
    (first,), (second,) = operator.call(), operator.call()
    assert first is not second
    np.testing.assert_array_equal(first, second)


MAXIMA = build_layer("pool", batch=1, channels=2, in_size=4, kernel=2)
MEANS = build_layer("pool", batch=1, channels=2, in_size=4, kernel=2, mode="avg")
PRODUCT = build_layer("gemm", m=2, k=3, n=4)
DEEP = pytest.mark.deep


@pytest.mark.parametrize(
    ("layer", "pass_", "name"),
    [
        (CONV, "forward", "convolve"),
        (CONV, "backward-weights", "convolve_for_weights"),
        (PRODUCT, "forward", "product_of_rows"),
        (PRODUCT, "backward-weights", "product"),
        (MAXIMA, "forward", "maximum"),
        (MAXIMA, "backward-data", "maximum_backward"),
        (MEANS, "forward", "average"),
    ],
)
def test_a_result_that_is_wrong_or_unwritten_is_a_failure(backend, monkeypatch, layer, pass_, name):
    kernels = importlib.import_module("pydlbench.backends.numba.kernels")
    right = getattr(kernels, name)

    def wrong(result, *arguments):
        right(result, *arguments)
        result[(-1,) * result.ndim] += 0.25

    case = KernelSpec(layer=layer, pass_=pass_)
    monkeypatch.setattr(kernels, name, wrong)
    with pytest.raises(PrimitiveError, match="expected"):
        backend.prepare(case, Preparation())
    monkeypatch.setattr(kernels, name, lambda *_: None)
    with pytest.raises(PrimitiveError, match="never written"):
        backend.prepare(case, Preparation())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "bf16"}, "Numba has no bf16 on the CPU"),
        ({"precision": "fp16"}, "Numba has no fp16"),
        ({"precision": "tf32"}, "GPU mode"),
        ({"mode": "eager"}, "no mode eager"),
        ({"timing": "events"}, "for GPUs"),
        ({"fuse": "bias-relu"}, "no kernel for --fuse"),
        ({"cache": "all-cold"}, "there is: hot"),
        ({"layout": "blocked"}, "no operator with --layout blocked"),
        ({"layout": "nchw"}, "no operator with --layout nchw"),
        ({"layer": build_layer("relu", batch=1, channels=2, height=2, width=2)}, "no relu layers"),
        ({"layer": parse_problem("1x4x3x5:2x1x5x6")}, "two batches of as many matrices"),
        ({"layer": parse_problem("deconv:ic2ih3oc2kh2sh2")}, "numba: no deconv2d layers here"),
    ],
)
def test_what_it_lacks_is_one_sentence(backend, changes, sentence):
    case = msgspec.structs.replace(KernelSpec(layer=CONV), **changes)
    with pytest.raises(UnsupportedError, match=sentence) as caught:
        backend.prepare(case, Preparation())
    assert "\n" not in str(caught.value)


def test_it_has_no_kernels_for_gpus():
    with pytest.raises(UnsupportedError, match="cuda:0"):
        create("cuda:0")


def test_weights_lie_as_the_pass_reads_them_fastest(backend):
    cases = [KernelSpec(layer=PRODUCT, pass_=pass_) for pass_ in PRODUCT.passes]
    found = [variant.layout for case in cases for variant in backend.variants(case)]
    assert found == [f"src mk, weights {order}, dst mn" for order in ("nk", "kn", "kn")]
    (plain,) = backend.variants(KernelSpec(layer=PRODUCT, layout="nhwc"))
    assert plain.layout == "src mk, weights kn, dst mn"


# Numba compiles a kernel for each, for seconds: one of each order stands for the others.
@pytest.mark.parametrize(
    ("order", "pass_"),
    [
        pytest.param(
            *each,
            marks=() if each in (("nk", "forward"), ("kn", "backward-weights")) else DEEP,
        )
        for each in itertools.product(("kn", "nk"), PRODUCT.passes)
    ],
)
def test_weights_lie_as_the_product_says(backend, order, pass_):
    layer = build_layer("gemm", m=5, k=7, n=9, batch_count=2, weights_tag=order)
    facts = backend.prepare(KernelSpec(layer=layer, pass_=pass_), Preparation()).facts
    assert facts.correct.status == "ok"
    assert facts.layout == f"src mk, weights {order}, dst mn"


def test_it_says_what_it_runs_on(backend):
    told = backend.describe()
    assert told["name"] == "Numba"
    assert told["threads"] == len(backend.cpus)
    assert told["threading_layer"] in ("omp", "tbb", "workqueue")
    assert told["isa"]


def test_the_empty_call_runs_on_all_threads(backend):
    operator = backend.empty(None)
    (written,) = operator.outputs().values()
    np.testing.assert_array_equal(written, np.zeros(len(backend.cpus)))
    assert backend.probe("empty_call", {})["seconds"] > 0


def test_fewer_threads_than_cpus_are_refused(monkeypatch):
    numba = importlib.import_module("numba")
    module = importlib.import_module("pydlbench.backends.numba.backend")
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    with pytest.raises(UnsupportedError, match=r"NUMBA_NUM_THREADS=1 .*2 CPUs"):
        module.NumbaBackend((0, 1))
