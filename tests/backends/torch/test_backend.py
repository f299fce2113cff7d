"""Settings, modes, and what goes wrong."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from pydlbench.backends.base import Preparation
from pydlbench.backends.host_clock import HostClock
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.layers.operator import compiled
from pydlbench.errors import PrimitiveError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.inputs import make_inputs

CONV = build_layer("conv", batch=2, in_channels=16, in_size=9, out_channels=16, kernel=3, padding=1)
GEMM = build_layer("gemm", m=64, k=64, n=64)


def built(backend, case, variant=0):
    found = backend.variants(case)[variant]
    inputs = make_inputs(case.layer, case.pass_, case.precision, 0)
    return found, found.build(inputs)


def test_the_description_records_the_settings(backend):
    torch.set_float32_matmul_precision("high")  # as others may leave them
    torch.backends.cudnn.benchmark = False
    settings.choose(len(backend.cpus))
    described = json.loads(json.dumps(backend.describe()))
    threads = len(os.sched_getaffinity(0))
    assert (
        described.items()
        >= {
            "name": "torch",
            "version": torch.__version__,
            "threads": threads,
        }.items()
    )
    assert described["modes"] == ["eager", "compiled", "frozen"]
    read = described["settings"]
    assert (
        read.items()
        >= {
            "num_threads": threads,
            "float32_matmul_precision": "highest",
            "cudnn.benchmark": True,
            "cudnn.deterministic": False,
            "deterministic_algorithms": False,
            "autocast": False,
        }.items()
    )
    assert read["cudnn.allow_tf32"].startswith("False")
    assert read["cuda.matmul.allow_tf32"].startswith("False")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_the_kernel_behind_an_operator_is_named(backend):
    facts = backend.prepare(KernelSpec(layer=CONV, layout="nhwc"), Preparation()).facts
    name, _, kernel = facts.algorithm.partition(" (")
    assert facts.evidence["kernel"] == kernel.removesuffix(")")
    assert facts.evidence["kernel_s"] > 0
    assert facts.evidence["reorder_s"] >= 0
    assert facts.evidence["call_s"] > 0  # of which they are shares
    assert name == "aten::convolution"
    assert kernel.endswith(")")
    assert ":" in kernel  # as in brg_conv_fwd:avx512_core


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch without MKL")
def test_a_product_in_float32_is_mkl(backend):
    facts = backend.prepare(KernelSpec(layer=GEMM), Preparation()).facts
    assert facts.algorithm.startswith("aten::")
    assert "(MKL SGEMM(" in facts.algorithm


def test_a_case_finds_the_grad_mode_of_its_users(backend):
    for words, expected in (
        ({}, (True, False)),
        ({"propagation": "training"}, (False, True)),
        ({"pass_": "backward-data"}, (False, False)),
    ):
        _, operator = built(backend, KernelSpec(layer=CONV, **words))
        seen = []
        operator.call = lambda seen=seen: seen.append(
            (torch.is_inference_mode_enabled(), torch.is_grad_enabled())
        )
        HostClock(operator, backend.cpus, operator.guard).sample(
            ChunkRequest(samples=2, inner=3, untimed=1)
        )
        assert seen[0] == seen[-1] == expected
        assert len(seen) == 7
        assert not torch.is_inference_mode_enabled()


def test_outputs_belong_to_the_call(backend):
    _, operator = built(backend, KernelSpec(layer=GEMM))
    with operator.guard():
        first, second = operator.call(), operator.call()
    assert first.data_ptr() != second.data_ptr()


def refused(monkeypatch, error):
    """Let a convolution of tensors that have memory raise an error."""
    real = torch.conv2d

    def refuse(source, *others):
        if isinstance(source, FakeTensor):
            return real(source, *others)
        raise error

    monkeypatch.setattr(torch, "conv2d", refuse)


def test_a_refusal_costs_the_variant_and_names_it(backend, monkeypatch):
    refused(monkeypatch, RuntimeError("could not create\na primitive"))
    with pytest.raises(PrimitiveError, match=r"aten::convolution: .*could not create a primitive"):
        backend.prepare(KernelSpec(layer=CONV), Preparation())


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_memory_that_is_not_there_has_an_error_of_its_own(backend, monkeypatch, error):
    refused(monkeypatch, error)
    with pytest.raises(PrimitiveError, match="aten::convolution: out of memory"):
        backend.prepare(KernelSpec(layer=CONV), Preparation())


@pytest.mark.deep
@pytest.mark.filterwarnings("default")
def test_compiled_functions_do_not_share_what_was_compiled():
    # Made by one def, they share a code object, of which the compiler takes so many at the most.
    def adder(number):
        def add(x):
            return x + number

        return add

    one = torch.ones(3)
    functions = [compiled(adder(number)) for number in range(4)]
    with torch._dynamo.config.patch(recompile_limit=2):
        assert [function(one)[0].item() for function in functions] == [1, 2, 3, 4]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", [None, "eager", "compiled"])
def test_an_empty_call(backend, mode):
    operator = backend.empty(mode)
    assert operator.outputs()["dst"].shape == (1,)
    found = backend.probe("empty_call", {"mode": mode})
    assert 0 < found["least_s"] <= found["seconds"]


def test_what_the_empty_call_calls_is_built_once(backend, monkeypatch):
    built, real = [], backend.empty

    def empty(mode):
        built.append(mode)
        return real(mode)

    monkeypatch.setattr(backend, "empty", empty)
    monkeypatch.setattr(backend, "_empty", {})
    for _ in range(2):
        few = {"mode": "eager", "samples": 3, "inner": 2}
        assert backend.probe("empty_call", few)["seconds"] > 0
    assert built == ["eager"]


def test_a_process_that_compiles_nothing_imports_no_compiler():
    text = (
        "import sys; from pydlbench.backends import capabilities; "
        "capabilities.load('torch', 'cpu'); print('torch._inductor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
