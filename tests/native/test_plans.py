"""What the plans offer, and what they say of a problem that cannot be planned."""

import pytest
from this_cpu import HAS_AVX512

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates, native_pass
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

DENSE = build_layer(
    "conv", batch=1, in_channels=8, in_size=6, out_channels=8, kernel=3, padding=1
).problem_fields()
POOL = build_layer("pool", batch=1, channels=4, in_size=6, kernel=3, padding=1).problem_fields()
PRODUCT = build_layer("gemm", m=3, k=2, n=2).problem_fields()
FORWARD = _cpu.Pass.forward_inference
FP32 = _cpu.Precision.fp32
PASSES = list(_cpu.Pass)


@pytest.mark.parametrize(
    ("pass_", "propagation", "native"),
    [
        ("forward", "inference", "forward_inference"),
        ("forward", "training", "forward_training"),
        ("backward-data", "inference", "backward_data"),
        ("backward-weights", "inference", "backward_weights"),
    ],
)
def test_passes_are_translated(conv, pass_, propagation, native):
    case = KernelSpec(layer=conv, pass_=pass_, propagation=propagation)
    assert native_pass(case) is _cpu.Pass[native]


def test_a_convolution_comes_in_all_layouts(conv):
    found = candidates(KernelSpec(layer=conv))
    assert {"any", "nhwc", "nchw", "blocked"} <= {candidate.variant for candidate in found}
    assert len({(candidate.implementation, candidate.layout) for candidate in found}) == len(found)
    assert {candidate.primitive for candidate in found} == {"convolution forward"}


def test_a_matrix_product_comes_packed_and_plain_from_two_primitives(gemm):
    found = candidates(KernelSpec(layer=gemm))
    assert {candidate.primitive for candidate in found} == {"inner_product", "matmul"}
    # Without AVX-512, oneDNN packs no weights of a single column.
    packs = HAS_AVX512 or gemm.n > 1
    assert {candidate.variant for candidate in found} == ({"any", "plain"} if packs else {"any"})
    assert all(candidate.implementation.startswith(candidate.primitive) for candidate in found)


def test_max_pooling_keeps_its_maxima_for_training_only(max_pool):
    for propagation, keeps in (("inference", False), ("training", True)):
        found = candidates(KernelSpec(layer=max_pool, propagation=propagation))
        assert {candidate.workspace_bytes > 0 for candidate in found} == {keeps}
    found = candidates(KernelSpec(layer=max_pool, pass_="backward-data"))
    assert all(candidate.workspace_bytes > 0 for candidate in found)


def test_the_unoptimised_fallback_is_marked(conv):
    found = candidates(KernelSpec(layer=conv))
    assert {c.is_reference for c in found if c.implementation.startswith("ref")} == {True}
    assert {c.is_reference for c in found if "ref" not in c.implementation} == {False}


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
@pytest.mark.parametrize(
    "change",
    [
        {"out_size": [9, 6]},
        {"stride": [0, 1]},
        {"kernel": [9, 3]},
        {"batch": -1},
        {"in_channels": 9, "groups": 2},
    ],
    ids=str,
)
def test_an_invalid_convolution_names_primitive_and_reason(pass_, change):
    name = "backward-" if pass_.name.startswith("backward") else "forward"
    with pytest.raises(PrimitiveError, match=rf"convolution {name}"):
        _cpu.candidates("conv2d", pass_, FP32, DENSE | change)


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
def test_a_precision_that_the_cpu_lacks_is_unsupported(pass_):
    if "avx512_fp16" in _cpu.isa():
        pytest.skip("this CPU has fp16")
    with pytest.raises(UnsupportedError, match="oneDNN convolution"):
        _cpu.candidates("conv2d", pass_, _cpu.Precision.fp16, DENSE)
    with pytest.raises(UnsupportedError, match="oneDNN matrix product"):
        _cpu.candidates("gemm", pass_, _cpu.Precision.fp16, PRODUCT)


REFUSED = [
    ("pool2d", POOL | {"batch": -1}, PrimitiveError, "oneDNN pooling forward: invalid arguments"),
    (
        "pool2d",
        POOL | {"out_size": [9, 6]},
        (PrimitiveError, UnsupportedError),
        "oneDNN pooling forward: ",
    ),
    ("fft2d", DENSE, UnsupportedError, "fft2d: there is no native kernel for CPUs"),
    ("gemm", PRODUCT | {"rows": 1}, ValueError, "gemm: no such field: rows"),
    ("pool2d", POOL | {"mode": "min"}, ValueError, "pool2d: no such mode: min"),
    *(
        (
            "conv2d",
            {name: value for name, value in DENSE.items() if name != field},
            ValueError,
            f"conv2d: the field {field} is missing",
        )
        for field in ("batch", "dilation", "groups")
    ),
    *(
        ("conv2d", DENSE | {field: value}, ValueError, f"conv2d: the field {field} is ")
        for field in ("batch", "in_size")
        for value in (1.5, "3", None, True)
    ),
]


@pytest.mark.parametrize(("kind", "fields", "error", "reason"), REFUSED)
def test_what_cannot_be_planned_is_named(kind, fields, error, reason):
    with pytest.raises(error, match=reason):
        _cpu.candidates(kind, FORWARD, FP32, fields)


@pytest.mark.parametrize("pass_", PASSES, ids=lambda pass_: pass_.name)
def test_an_invalid_matrix_product_names_primitive_and_reason(pass_):
    with pytest.raises(PrimitiveError, match="oneDNN matrix product: invalid arguments"):
        _cpu.candidates("gemm", pass_, FP32, PRODUCT | {"m": -3})


def test_pooling_has_no_weights():
    with pytest.raises(UnsupportedError, match="weights"):
        _cpu.candidates("pool2d", _cpu.Pass.backward_weights, FP32, POOL)


def test_fields_go_by_name_whatever_their_order():
    fields = {**DENSE, "in_channels": 3, "stride": [2, 1], "out_size": [3, 5], "pad_before": [1, 0]}
    found = _cpu.candidates("conv2d", FORWARD, FP32, fields)
    again = _cpu.candidates("conv2d", FORWARD, FP32, dict(reversed(fields.items())))
    assert [(one.implementation, one.layout) for one in found] == [
        (one.implementation, one.layout) for one in again
    ]
