"""Products and convolutions of integers, and fused operations, of oneDNN."""

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.fused import canonical_fusion
from pydlbench.records.measurement import KernelSpec

_cpu = pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
native = pytest.importorskip("pydlbench.backends.native.cpu")

SCALES = "src_scale+weights_scale+dst_scale"
POINTS = f"{SCALES}+src_zero_point+dst_zero_point"
VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"} & set(_cpu.isa())
BF16 = {"avx512_bf16", "amx_bf16"} & set(_cpu.isa())


@pytest.fixture(scope="module")
def backend():
    return native.create()


def prepared(backend, problem, precision, fuse="none", pool=None):
    layer = parse_problem(problem, pool=pool)
    spec = KernelSpec(layer=layer, precision=precision, fuse=canonical_fusion(fuse))
    return backend.prepare(spec, Preparation(brief=True, memory_bytes=1 << 30)).facts


@pytest.mark.skipif(not VNNI, reason="the CPU has no products of bytes")
@pytest.mark.parametrize(
    ("problem", "precision", "fuse", "pool"),
    [
        ("mb2ic32ih9oc48kh3ph1", "int8", "none", None),
        ("g4mb2ic32ih9oc48kh3ph1", "s8s8s8", SCALES, None),
        (
            "mb2ic32ih9oc48kh3ph1",
            "u8s8u8",
            f"{SCALES}+src_zero_point+dst_zero_point+bias+relu",
            None,
        ),
        ("mb2ic32ih9oc48kh3ph1sh2", "s8s8s8", f"{SCALES}+bias+sum:0.5+relu", None),
        ("mb2ic32ih9oc48kh3ph1", "u8s8f32", "src_scale+weights_scale+bias+gelu_erf", None),
        ("deconv:mb2ic32ih9oc48kh3ph1", "u8s8s32", "none", None),
        ("33x128:128x50", "int8", "none", None),
        ("3x33x128:3x128x50", "u8s8s32", "none", None),
        ("33x128:128x50", "u8s8u8", f"{SCALES}+bias+relu+add:per_oc", None),
        ("mb2ic32ih9kh3sh2", "int8", "none", "max"),
        ("mb2ic32ih9kh3sh2", "u8s8u8", "none", "avg_np"),
    ],
)
def test_integers(backend, problem, precision, fuse, pool):
    facts = prepared(backend, problem, precision, fuse, pool)
    assert facts.correct.status == "ok", facts.correct.detail
    assert facts.accumulate == "int32"
    assert any(word in facts.algorithm for word in ("vnni", "int8", "amx", "avx512_core"))


@pytest.mark.parametrize(
    ("problem", "fuse"),
    [
        ("mb2ic8ih9oc16kh3ph1", "bias+relu"),
        ("mb2ic8ih9oc16kh3ph1", "sum:0.5+add:per_oc+mul:per_tensor+tanh"),
        ("33x24:24x50", "bias+sum+hardswish+clip:-1:1+linear:2:1"),
        ("3x33x24:3x24x50", "bias+relu:0.1"),
    ],
)
def test_fused_floats(backend, problem, fuse):
    assert prepared(backend, problem, "fp32", fuse).correct.status == "ok"


@pytest.mark.skipif(not BF16, reason="the CPU has no bfloat16")
def test_bfloat16_with_results_in_float32(backend):
    facts = prepared(backend, "33x128:128x50", "bf16bf16f32")
    # Rounded to bfloat16, the error would be near 2**-9.
    assert facts.correct.status == "ok"
    assert facts.correct.rel_error < 1e-5


@pytest.mark.parametrize(
    ("problem", "precision", "fuse", "pass_"),
    [
        ("relu:mb2ic4ih5", "int8", "none", "forward"),
        ("relu:mb2ic4ih5", "fp32", "bias-relu", "forward"),
        ("33x24:24x50", "int8", "none", "backward-data"),
        ("33x24:24x50", "fp32", "bias-relu", "backward-data"),
        ("33x24:24x50", "fp32", "bias", "backward-weights"),
        ("mb2ic8ih9oc16kh3", "fp32", "bias", "backward-data"),
        ("relu:mb2ic4ih5", "fp32", "bias", "forward"),
    ],
)
def test_what_has_no_such_kernel(backend, problem, precision, fuse, pass_):
    spec = KernelSpec(layer=parse_problem(problem), precision=precision, fuse=fuse, pass_=pass_)
    with pytest.raises(UnsupportedError):
        backend.prepare(spec, Preparation(memory_bytes=1 << 30))


def test_unknown_operations_are_named():
    fields = {**parse_problem("33x24:24x50").problem_fields(), "fused": ["frobnicate"]}
    with pytest.raises(ValueError, match="frobnicate"):
        _cpu.candidates("gemm", _cpu.Pass.forward_inference, _cpu.Precision.fp32, fields)
