import numpy as np
import pytest

from pydlbench.errors import UsageError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.fused import (
    canonical_fusion,
    fused_bytes,
    fused_flops,
    fused_ops,
    fused_shapes,
    operand_roles,
)
from pydlbench.ops.op import Functions
from pydlbench.ops.table import item_bytes, tensor_types

CONV = parse_problem("mb2ic3ih8oc4kh3ph1")
PRODUCT = parse_problem("5x6x7:5x7x8")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("none", "none"),
        ("bias+relu", "bias-relu"),
        ("relu+bias", "bias-relu"),  # a bias comes before post-ops
        ("relu-sum", "relu-sum"),
        ("sum:1+relu:0.1", "sum-relu:0.1"),
        ("add:f32:per_oc+mul:common", "add:per_oc-mul"),
        ("weights_scale:common+src_scale", "src_scale-weights_scale:common"),
        ("clip:-1:6", "clip:-1:6"),
        ("relu:0:0+elu:1+swish:1", "relu-elu-swish"),  # the usual numbers
    ],
)
def test_texts_have_one_form(text, canonical):
    assert canonical_fusion(text) == canonical
    assert canonical_fusion(canonical) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "rleu",
        "relu:x",
        "relu:nan",
        "sum:1:2",
        "relu:0.1:3",
        "elu:0.5",
        "clip:6:-1",
        "src_scale:per_oc",
        "bias+bias",
        "add:per_row",
        "tanh:1",
        "",
        "bias:common",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError):
        canonical_fusion(text)


def test_operands():
    text = "bias+relu+add:per_oc+sum+mul:per_tensor+weights_scale+dst_zero_point"
    assert fused_shapes(CONV, text) == {
        "weights_scale": (4,),
        "dst_zero_point": (1,),
        "bias": (4,),
        "operand1": (1, 4, 1, 1),
        "operand3": (2, 4, 8, 8),
    }
    assert operand_roles(text)[-1] == "dst"
    assert fused_shapes(PRODUCT, "bias+add:per_oc+add") == {
        "bias": (8,),
        "operand0": (1, 1, 8),
        "operand1": (1, 1, 1),
    }


def test_counts():
    elements = 2 * 4 * 8 * 8
    assert fused_flops(CONV, "none") == fused_bytes(CONV, "none", 4) == 0
    # An addition, a comparison, a product with an addition, a product.
    assert fused_flops(CONV, "bias+relu+sum:0.5+mul") == (1 + 1 + 2 + 1) * elements
    assert fused_bytes(CONV, "bias+sum", 1) == 4 * 4 + elements
    assert fused_bytes(CONV, "add:per_tensor", 1) == 4 * elements


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu", [0, 0, 3]),
        ("relu:0.5", [-1, 0, 3]),
        ("linear:2:1", [-3, 1, 7]),
        ("clip:-1:2", [-1, 0, 2]),
        ("sum:0.5", [3, 5, 8]),
        ("add", [8, 10, 13]),
        ("max", [10, 10, 10]),
        ("logistic", [0.11920292, 0.5, 0.95257413]),
    ],
)
def test_values(text, expected):
    (op,) = fused_ops(text)
    tensors = {"dst": np.full(3, 10.0), "operand0": np.full(3, 10.0)}
    np.testing.assert_allclose(op.apply(Functions(), np.array([-2.0, 0, 3]), tensors), expected)


def test_types_of_tensors():
    assert tensor_types(CONV, "fp32") == {}
    assert tensor_types(CONV, "int8") == {"src": "s8", "weights": "s8", "dst": "s32"}
    assert item_bytes(CONV, "u8s8f32") == {"src": 1, "weights": 1, "dst": 4}
    pool = parse_problem("ic3ih8kh2sh2", pool="max")
    assert tensor_types(pool, "u8s8s32") == {"src": "u8", "dst": "u8"}
