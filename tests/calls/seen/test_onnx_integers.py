"""Nodes of quantized ONNX files: their layers, with the types of source, weights and result."""

import pytest

from pydlbench.calls.seen.onnx import OnnxNode, Tensor, meaning_of
from pydlbench.records.trace import RecordedCall


def tensor(dtype, *shape):
    return Tensor(dtype=dtype, shape=shape)


def meaning(operator, inputs, result, **attributes):
    node = OnnxNode(
        operator=operator,
        version=21,
        inputs=inputs,
        outputs=(result,),
        attributes={name: (7, value) for name, value in attributes.items()},
    )
    return meaning_of(RecordedCall(signature=node.signature, operator=operator))


SCALE, POINT = tensor("float32"), tensor("uint8")


@pytest.mark.parametrize("bias", [(), (tensor("int32", 4),)])
def test_a_convolution(bias):
    source, weights = tensor("uint8", 2, 3, 8, 8), tensor("int8", 4, 3, 3, 3)
    result = tensor("uint8", 2, 4, 8, 8)
    numbers = (SCALE, POINT)
    found = meaning(
        "QLinearConv",
        (source, *numbers, weights, *numbers, *numbers, *bias),
        result,
        pads=[1, 1, 1, 1],
    )
    assert found.dtypes == ("u8s8u8",)
    # Kernels add a bias of bytes themselves.
    assert [step.layer.problem for step in found.layers] == ["mb2ic3ih8oc4oh8kh3ph1"]
    assert found.product_flops == 2 * 2 * 4 * 64 * 27
    assert found.writes == 2 * 4 * 64


def test_channels_are_last_in_nodes_of_onnxruntime():
    numbers = (SCALE, POINT)
    source, weights = tensor("uint8", 2, 10, 8, 3), tensor("int8", 4, 3, 3, 3)
    found = meaning(
        "QLinearConv",
        (source, *numbers, weights, *numbers, *numbers),
        tensor("uint8", 2, 8, 6, 4),
        channels_last=1,
    )
    assert found.layers[0].layer.problem == "mb2ic3ih10iw8oc4oh8ow6kh3kw3"
    found = meaning(
        "NhwcMaxPool",
        (source,),
        tensor("uint8", 2, 5, 4, 3),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
    assert found.dtypes == ("u8s8u8",)
    assert found.layers[0].layer.problem == "mb2ic3ih10iw8oh5ow4kh2kw2sh2sw2"


@pytest.mark.parametrize(
    ("operator", "right", "attributes", "result", "dtypes"),
    [
        ("QLinearMatMul", ("int8", 7, 6), {}, "uint8", ("u8s8u8",)),
        ("QGemm", ("int8", 6, 7), {"transB": 1}, "float32", ("u8s8f32",)),
        ("MatMulInteger", ("int8", 7, 6), {}, "int32", ("u8s8s32",)),
        ("MatMulIntegerToFloat", ("int8", 7, 6), {}, "float32", ("u8s8f32",)),
        ("QLinearMatMul", ("uint8", 7, 6), {}, "uint8", ("uint8",)),
    ],
)
def test_products(operator, right, attributes, result, dtypes):
    between = () if operator.startswith("MatMulInteger") else (SCALE, POINT)
    inputs = (tensor("uint8", 5, 7), *between, tensor(*right), *between, *between)
    found = meaning(operator, inputs, tensor(result, 5, 6), **attributes)
    assert found.dtypes == dtypes
    assert found.product_flops == 2 * 5 * 6 * 7
    problems = [each.layer.problem for each in found.layers]
    assert problems == ([] if dtypes == ("uint8",) else ["5x7:7x6"])
    assert bool(found.layers_missing) == (not problems)


def test_conversions_move_bytes():
    found = meaning(
        "QuantizeLinear", (tensor("float32", 4, 8), SCALE, POINT), tensor("uint8", 4, 8)
    )
    assert (found.flops, found.writes) == (0, 32)


def test_a_product_whose_source_is_rounded_by_its_node():
    inputs = (tensor("float32", 5, 7), tensor("int8", 7, 6), SCALE, POINT)
    found = meaning("DynamicQuantizeMatMul", inputs, tensor("float32", 5, 6))
    assert (found.dtypes, found.product_flops) == (("u8s8f32",), 2 * 5 * 6 * 7)
    assert found.reads == 4 * 5 * 7 + 7 * 6 + 4 + 1


def test_poolings_and_sums_of_bytes():
    numbers, maps = (SCALE, POINT), tensor("uint8", 2, 8, 8, 3)
    pooled = meaning(
        "QLinearGlobalAveragePool",
        (maps, *numbers, *numbers),
        tensor("uint8", 2, 1, 1, 3),
        channels_last=1,
    )
    assert pooled.dtypes == ("u8s8u8",)
    assert pooled.layers[0].layer.problem == "mb2ic3ih8oh1kh8sh8"
    added = meaning("QLinearAdd", (maps, *numbers, maps, *numbers, *numbers), maps)
    assert (added.kind, added.writes) == ("elementwise", 2 * 64 * 3)
    assert added.layers_missing
