"""PyTorch's quantized operators and chains of operators compute what fused kernels do."""

import numpy as np
import pytest

from pydlbench.backends.base import INSTRUCTION_SETS, Preparation
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.fused import canonical_fusion
from pydlbench.records.measurement import KernelSpec

pytest.importorskip("torch")
import torch

from pydlbench.backends.torch.backend import create
from pydlbench.backends.torch.layers.operator import TensorPlace, TorchOperands

SCALES = "src_scale+weights_scale+dst_scale"
POINTS = f"{SCALES}+src_zero_point+dst_zero_point"
CONV = "mb2ic32ih9oc48kh3ph1"
PRODUCT = "33x128:128x48"
VNNI = set(INSTRUCTION_SETS["int8"]) & set(read_cpu_facts().isa)


@pytest.fixture(scope="module")
def backend():
    return create("cpu")


def prepared(backend, problem, precision, fuse="none", pool=None, mode="eager"):
    layer = parse_problem(problem, pool=pool)
    spec = KernelSpec(
        layer=layer,
        precision=precision,
        fuse=canonical_fusion(fuse),
        backend="torch",
        mode=mode,
    )
    return backend.prepare(spec, Preparation(brief=True, memory_bytes=1 << 30)).facts


@pytest.mark.skipif(not VNNI, reason="the CPU has no products of bytes")
@pytest.mark.parametrize(
    ("problem", "precision", "fuse", "algorithm"),
    [
        (PRODUCT, "int8", "none", "_int_mm"),
        (PRODUCT, "u8s8u8", f"{POINTS}+bias+relu", "qlinear_pointwise"),
        (PRODUCT, "s8s8f32", "weights_scale", "qlinear_pointwise"),
        (CONV, "u8s8u8", f"{POINTS}+bias+relu", "qconv2d_pointwise"),
        (f"g4{CONV}", "u8s8f32", "src_scale+weights_scale+bias", "qconv2d_pointwise"),
    ],
)
def test_quantized_operators(backend, problem, precision, fuse, algorithm):
    facts = prepared(backend, problem, precision, fuse)
    assert algorithm in facts.algorithm
    assert facts.correct.status == "ok", facts.correct.detail


@pytest.mark.deep
@pytest.mark.skipif(not VNNI, reason="the CPU has no products of bytes")
@pytest.mark.parametrize("problem", [PRODUCT, CONV])
def test_quantized_operators_are_compiled_with_constant_weights(backend, problem):
    arguments = (backend, problem, "u8s8u8", f"{POINTS}+bias+relu")
    facts = prepared(*arguments, mode="frozen")
    assert facts.correct.status == "ok", facts.correct.detail
    with pytest.raises(UnsupportedError, match="--mode frozen"):
        prepared(*arguments, mode="compiled")


@pytest.mark.skipif(not VNNI, reason="the CPU has no products of bytes")
@pytest.mark.parametrize(
    ("problem", "precision", "fuse", "pool", "nearest"),
    [
        (CONV, "int8", "none", None, "u8s8f32"),
        (PRODUCT, "u8s8s32", "none", None, "u8s8f32"),
        (CONV, "s8s8s8", SCALES, None, "u8s8f32"),
        (CONV, "u8s8f32", "tanh", None, "bias-relu"),
        ("3x4x5:3x5x6", "int8", "none", None, "batched"),
        ("mb2ic8ih9kh3", "u8s8u8", "none", "avg_np", "max"),
        (PRODUCT, "fp32", SCALES, None, "u8s8f32"),
    ],
)
def test_what_pytorch_lacks_is_named(backend, problem, precision, fuse, pool, nearest):
    with pytest.raises(UnsupportedError, match=nearest):
        prepared(backend, problem, precision, fuse, pool)


@pytest.mark.parametrize(
    ("problem", "fuse", "operators"),
    [
        (CONV, "bias+relu", ("convolution", "relu")),
        (CONV, "sum:0.5+add:per_oc+mul:per_tensor+tanh", ("add", "mul", "tanh")),
        (PRODUCT, "bias+sum+hardswish+clip:-1:1+linear:2:1", ("addmm", "hardswish", "clamp")),
        ("3x8x9:3x9x10", "bias+relu:0.1+max:per_oc", ("baddbmm", "leaky_relu", "maximum")),
    ],
)
def test_chains_of_operators(backend, problem, fuse, operators):
    facts = prepared(backend, problem, "fp32", fuse)
    assert facts.correct.status == "ok", facts.correct.detail
    assert all(f"aten::{name}" in facts.algorithm for name in operators)


def test_operands_keep_the_type_of_the_result():
    place = TensorPlace("cpu", torch.bfloat16)
    inputs = {"operand0": np.ones((1, 48, 1, 1), np.float32)}
    operands = TorchOperands(parse_problem(CONV), inputs, place, "plain")
    assert operands.tensor("operand0").dtype == torch.bfloat16
