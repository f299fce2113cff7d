"""The meaning of calls of three frameworks: layers, FLOPs, bytes and types, in one table."""

import math
import re

import msgspec
import numpy as np
import pytest

from pydlbench.analysis.mapped import kind_of, map_calls
from pydlbench.calls.seen import meaning_of, onnx, tensorflow
from pydlbench.records.trace import RecordedCall

# -----------------------------------------------------------------------------
# Calls as they are recorded.


def aten(text, direction="forward", size=0):
    """Return a call of PyTorch's.

    Args:
        text: its signature without the namespace; ``T2x3`` is a dense tensor.
        direction: of the call.
        size: bytes of its results; 0 if unknown.
    """
    text = re.sub(r"\bT([0-9x]+)", lambda found: tensor(*map(int, found[1].split("x"))), text)
    operands = 4 * sum(_elements(part) for part in text.split("float32[")[1:])
    operands += 8 * sum(_elements(part) for part in text.split("int64[")[1:])
    return RecordedCall(
        signature=f"aten.{text}",
        operator=f"aten.{text.partition('.')[0]}",
        bytes=size + operands if size else 0,
        direction=direction,
    )


def _elements(text):
    sizes = text.partition("]")[0]
    return 1 if sizes == "()" else math.prod(map(int, sizes.split(",")))


def tensor(*shape, **more):
    """Return the text of a dense tensor."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    words = [*map(str, strides), *(f"{name}={value}" for name, value in more.items())]
    return f"float32[{', '.join(map(str, shape)) or '()'}]({', '.join(words)})"


def node(op, inputs, outputs, direction="forward", **attributes):
    """Return a node of TensorFlow's on tensors of shapes."""
    given = [one if isinstance(one, tensorflow.NodeTensor) else values_of(one) for one in inputs]
    made = tensorflow.TensorFlowNode(
        op=op, attributes=attributes, inputs=tuple(given), outputs=tuple(map(values_of, outputs))
    )
    return RecordedCall(signature=made.text, operator=op, direction=direction, bytes=made.bytes)


def values_of(shape):
    return tensorflow.NodeTensor(type="float32", shape=shape)


def sizes(*values):
    return tensorflow.NodeTensor(type="int32", shape=(len(values),), values=values)


def floats(*shape, **more):
    return onnx.Tensor(dtype="float32", shape=shape, **more)


def onnx_node(operator, *inputs, result=None, version=17, domain="", **attributes):
    """Return an ONNX node; its result is like the first input that is not a weight."""
    like = next((one for one in inputs if one is not None and not one.constant), inputs[0])
    made = onnx.OnnxNode(
        operator=operator,
        domain=domain,
        version=version,
        inputs=inputs,
        outputs=(result or like,),
        attributes={name: (0, value) for name, value in attributes.items()},
    )
    return RecordedCall(signature=made.signature, operator=made.name, bytes=made.bytes)


SLID = {
    "data_format": {"s": "NHWC"},
    "padding": {"s": "SAME"},
    "strides": {"list": {"i": ["1", "2", "2", "1"]}},
    "dilations": {"list": {"i": ["1", "1", "1", "1"]}},
    "ksize": {"list": {"i": ["1", "3", "3", "1"]}},
}
FUSED = {"fused_ops": {"list": {"s": ["BiasAdd", "Relu"]}}}
CENTRES = {"half_pixel_centers": {"b": True}}
IMAGES = floats(2, 16, 8, 8)
KERNEL = floats(16, 16, 3, 3, constant=True)
CHANNELS = floats(16, constant=True)
ROWS = floats(2, 4, 16)
SQUARE = floats(16, 16, constant=True)
HEADS = floats(2, 4, 8, 8)
PADS = {"pads": [1, 1, 1, 1]}
INDICES = onnx.Tensor(dtype="int64", shape=(4,))


# -----------------------------------------------------------------------------
# Calls, their layers (a descriptor and the pass, unless it is forward), FLOPs and product FLOPs.

PRODUCTS = [
    (aten("mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))"), "4x6:6x5", 240, 240),
    (
        aten("mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))", "backward"),
        "4x5:5x6 backward-data",
        240,
        240,
    ),
    (
        aten("mm.default(float32[4, 6](1, 4), float32[6, 5](5, 1))", "backward"),
        "6x5:5x4 backward-weights",
        240,
        240,
    ),
    (
        aten("mm.default(float32[1, 6](1, 1), float32[6, 5](5, 1))", "backward"),
        "6x5:5x1 backward-weights",
        60,
        60,
    ),
    # The expanded gradient of a sum, without a memory order.
    (
        aten("mm.default(float32[4, 6](0, 0), float32[6, 5](5, 1))", "backward"),
        "6x5:5x4 backward-weights",
        240,
        240,
    ),
    (
        aten("mm.default(float32[4, 6](0, 0), float32[6, 5](1, 6))", "backward"),
        "4x5:5x6 backward-data",
        240,
        240,
    ),
    (
        msgspec.structs.replace(
            aten("mm.default(float32[4, 6](0, 0), float32[6, 5](5, 1))", "backward"), trained=(1,)
        ),
        "4x5:5x6 backward-data",
        240,
        240,
    ),
    (
        aten("bmm.default(float32[3, 4, 6](24, 6, 1), float32[3, 6, 5](30, 1, 6))"),
        "3x4x6:3x6x5wtagnk",
        720,
        720,
    ),
    (
        aten("bmm.default(float32[3, 4, 6](24, 6, 1), float32[3, 6, 5](30, 5, 1))", "backward"),
        "3x4x5:3x5x6wtagnk backward-data",
        720,
        720,
    ),
    (
        aten("bmm.default(float32[3, 4, 6](24, 1, 4), float32[3, 6, 5](30, 5, 1))", "backward"),
        "3x6x4:3x4x5wtagkn backward-weights",
        720,
        720,
    ),
    (aten("addmm.default(T5, T4x6, T6x5)"), "4x6:6x5, bias:mb4ic5", 260, 240),
    (aten("addmm.default(T4x5, T4x6, T6x5)"), "4x6:6x5, add:mb4ic5", 260, 240),
    (aten("addmm.default(T4x5, T4x6, T6x5, beta=0)"), "4x6:6x5", 240, 240),
    (aten("addmm.default(T4x1, T4x6, T6x5)"), "4x6:6x5, elementwise:add:4x5:4x1", 260, 240),
    (aten("linear.default(T2x3x4, T5x4, T5)"), "6x4:4x5, bias:mb6ic5", 270, 240),
    (aten("mv.default(T6x4, T4)"), "6x4:4x1", 48, 48),
    (node("MatMul", [(6, 4), (4, 5)], [(6, 5)]), "6x4:4x5", 240, 240),
    (
        node("MatMul", [(6, 4), (6, 5)], [(4, 5)], "backward", transpose_a={"b": True}),
        "6x4:4x5 backward-weights",
        240,
        240,
    ),
    (
        node("_MklMatMul", [(6, 5), (4, 5)], [(6, 4)], "backward", transpose_b={"b": True}),
        "6x4:4x5 backward-data",
        240,
        240,
    ),
    (
        node(
            "Einsum",
            [(2, 7, 3, 4), (2, 9, 3, 4)],
            [(2, 3, 7, 9)],
            equation={"s": "bqhd,bkhd->bhqk"},
        ),
        "6x7x4:6x4x9wtagkn",
        3024,
        3024,
    ),
    (onnx_node("MatMul", ROWS, SQUARE), "8x16:16x16", 4096, 4096),
    (onnx_node("FusedMatMul", HEADS, HEADS, transB=1), "8x8x8:8x8x8wtagnk", 8192, 8192),
    (
        onnx_node("Gemm", SQUARE, SQUARE, CHANNELS, transB=1),
        "16x16:16x16, bias:mb16ic16",
        8448,
        8192,
    ),
]

LSTM = "T5x3x6, T32x6, T32x8, T32, T32, T3x8, T3x8"
GRU = "T5x3x6, T24x6, T24x8, T24, T24, T3x8, T3x8"
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
CHAINS = [
    (
        aten(f"mkldnn_rnn_layer.default({LSTM}, False, [], 2, 8, 1, True, True, False, True)"),
        "lstm:l1t5mb3slc6dhc8",
        13440,
        13440,
    ),
    (
        aten(
            f"mkldnn_rnn_layer_backward.default({GRU}, T5x3x8, T3x8, T3x8, T5x3x8, None, None, "
            "False, 3, 8, 1, True, True, True, [], False, uint8[64](1))",
            "backward",
        ),
        "gru:l1t5mb3slc6dhc8 backward-data",
        20160,
        20160,
    ),
    (
        aten(f"{FLASH}.default(T2x3x8x4, T2x3x8x4, T2x3x8x4)"),
        "6x8x4:6x4x8wtagnk, softmax:mb2ic3ih8, 6x8x8:6x8x4wtagkn",
        8064,
        6144,
    ),
    (
        aten(
            f"{FLASH}_backward.default(T1x1x4x2, T1x1x4x2, T1x1x4x2, T1x1x4x2, T1x1x4x2, T1x1x4)",
            "backward",
        ),
        (
            "4x2:2x4wtagnk, softmax:mb1ic1ih4, 4x4:4x2wtagkn backward-weights, "
            "4x4:4x2wtagkn backward-data, softmax:mb1ic1ih4 backward-data, "
            "4x2:2x4wtagnk backward-weights, 4x2:2x4wtagnk backward-data"
        ),
        416,
        320,
    ),
    (
        aten(
            "_native_multi_head_attention.default(T1x4x6, T1x4x6, T1x4x6, 6, 2, T18x6, T18, T6x6, "
            "T6)"
        ),
        (
            "4x6:6x6, 4x6:6x6, 4x6:6x6, 2x4x3:2x3x4wtagnk, softmax:mb1ic2ih4, "
            "2x4x4:2x4x3wtagkn, 4x6:6x6"
        ),
        1696,
        1536,
    ),
    (
        onnx_node("Attention", *(HEADS,) * 3),
        "8x8x8:8x8x8wtagnk, softmax:mb2ic4ih8, 8x8x8:8x8x8wtagkn",
        18944,
        16384,
    ),
    (
        onnx_node("MultiHeadAttention", ROWS, ROWS, ROWS, CHANNELS, num_heads=2),
        (
            "bias:mb8ic16, bias:mb8ic16, bias:mb8ic16, 4x4x8:4x8x4wtagnk, softmax:mb2ic2ih4, "
            "4x4x4:4x4x8wtagkn"
        ),
        2752,
        2048,
    ),
    (
        onnx_node(
            "LSTM",
            floats(5, 2, 4),
            floats(2, 12, 4, constant=True),
            floats(2, 12, 3, constant=True),
            result=floats(5, 2, 2, 3),
            direction="bidirectional",
        ),
        "lstm:l1d2t5mb2slc4dhc3",
        3360,
        3360,
    ),
    (
        onnx_node("Einsum", floats(2, 3, 4), floats(2, 5, 4), equation="bij,bkj->bik"),
        "2x3x4:2x4x5wtagkn",
        240,
        240,
    ),
    (
        onnx_node("Attention", ROWS, ROWS, ROWS, q_num_heads=2, kv_num_heads=2),
        "4x4x8:4x8x4wtagnk, softmax:mb2ic2ih4, 4x4x4:4x4x8wtagkn",
        2368,
        2048,
    ),
    (
        onnx_node(
            "Attention",
            ROWS,
            floats(16, 48, constant=True),
            floats(48, constant=True),
            domain="com.microsoft",
            version=1,
            num_heads=4,
        ),
        "8x16:16x48, bias:mb8ic48, 8x4x4:8x4x4wtagnk, softmax:mb2ic4ih4, 8x4x4:8x4x4wtagkn",
        15360,
        14336,
    ),
]

ND = {
    "data_format": {"s": "NDHWC"},
    "padding": {"s": "SAME"},
    "strides": {"list": {"i": ["1", "2", "2", "2", "1"]}},
    "ksize": {"list": {"i": ["1", "2", "2", "2", "1"]}},
}
GRADIENTS = (
    "convolution_backward.default(T2x6x6x6, T2x4x8x8, T6x4x3x3, [6], [1, 1], [0, 0], [1, 1], "
    "False, [0, 0], 1,"
)
WINDOWS = [
    # One side, and three.
    (
        aten("convolution.default(T2x4x20, T6x2x5, T6, [2], [1], [2], False, [0], 2)"),
        "g2mb2ic4iw20oc6ow7kw5sw2pw1dw1, bias:mb2ic6ih1iw7",
        1764,
        1680,
    ),
    (
        aten("convolution.default(T2x4x9, T4x3x2, None, [2], [0], [1], True, [1], 1)"),
        "deconv:mb2ic4iw9oc3ow19kw2sw2",
        864,
        864,
    ),
    (
        aten(
            "convolution.default(T2x4x5x6x7, T6x4x3x3x3, T6, [1, 2, 1], [0, 1, 1], [1, 1, 1], "
            "False, [0, 0, 0], 1)"
        ),
        "mb2ic4id5ih6iw7oc6od3oh3ow7kd3kh3kw3sd1sh2sw1pd0ph1pw1, bias:mb2ic6ih3iw21",
        164052,
        163296,
    ),
    (
        aten(
            "convolution_backward.default(T2x6x3x3x3, T2x4x5x5x5, T6x4x3x3x3, None, [1], [0], [1], "
            "False, [0], 1, [True, True, False])",
            "backward",
        ),
        "mb2ic4id5oc6od3kd3 backward-weights, mb2ic4id5oc6od3kd3 backward-data",
        139968,
        139968,
    ),
    (
        aten("convolution.default(T1x4x3x3x3, T4x2x2x2x2, None, [2], [0], [1], True, [0], 1)"),
        "deconv:mb1ic4id3oc2od6kd2sd2",
        3456,
        3456,
    ),
    (
        aten("max_pool3d_with_indices.default(T2x3x6x6x8, [2, 2, 2])"),
        "mb2ic3id6ih6iw8od3oh3ow4kd2kh2kw2sd2sh2sw2",
        1728,
    ),
    (
        aten("avg_pool3d_backward.default(T1x2x3x3x3, T1x2x6x6x6, [2], [], [0])", "backward"),
        "mb1ic2id6od3kd2sd2 backward-data",
        432,
    ),
    (aten("adaptive_max_pool3d.default(T2x4x4x4x4, [2, 2, 2])"), "mb2ic4id4od2kd2sd2", 512),
    (
        aten("max_pool2d_with_indices.default(T1x2x9x9, [3], [2], [1], [2])"),
        "mb1ic2ih9oh4kh3sh2ph1dh1",
        288,
    ),
    (
        node("Conv3D", [(2, 4, 6, 8, 3), (3, 3, 3, 3, 5)], [(2, 2, 3, 4, 5)], **ND),
        "mb2ic3id4ih6iw8oc5od2oh3ow4kd3kh3kw3sd2sh2sw2",
        38880,
        38880,
    ),
    (
        node(
            "Conv3DBackpropInputV2",
            [sizes(2, 4, 6, 8, 3), (3, 3, 3, 3, 5), (2, 2, 3, 4, 5)],
            [(2, 4, 6, 8, 3)],
            **ND,
        ),
        "deconv:mb2ic5id2ih3iw4oc3od4oh6ow8kd3kh3kw3sd2sh2sw2",
        38880,
        38880,
    ),
    (
        node(
            "Conv3DBackpropFilterV2",
            [(2, 4, 6, 8, 3), sizes(3, 3, 3, 3, 5), (2, 2, 3, 4, 5)],
            [(3, 3, 3, 3, 5)],
            "backward",
            **ND,
        ),
        "mb2ic3id4ih6iw8oc5od2oh3ow4kd3kh3kw3sd2sh2sw2 backward-weights",
        38880,
        38880,
    ),
    (
        node("AvgPool3D", [(2, 4, 6, 8, 3)], [(2, 2, 3, 4, 3)], **ND),
        "mb2ic3id4ih6iw8od2oh3ow4kd2kh2kw2sd2sh2sw2",
        1152,
    ),
    (
        node(
            "MaxPool3DGrad",
            [(2, 4, 6, 8, 3), (2, 2, 3, 4, 3), (2, 2, 3, 4, 3)],
            [(2, 4, 6, 8, 3)],
            "backward",
            **ND,
        ),
        "mb2ic3id4ih6iw8od2oh3ow4kd2kh2kw2sd2sh2sw2 backward-data",
        144,
    ),
    (
        onnx_node("Conv", floats(2, 4, 20), floats(6, 4, 5, constant=True), pads=[2, 1]),
        "mb2ic4iw20oc6ow19kw5pw2",
        9120,
        9120,
    ),
    (
        onnx_node(
            "ConvTranspose",
            floats(1, 4, 3, 3, 3),
            floats(4, 2, 2, 2, 2, constant=True),
            result=floats(1, 2, 6, 6, 6),
            strides=[2, 2, 2],
        ),
        "deconv:mb1ic4id3oc2od6kd2sd2",
        3456,
        3456,
    ),
    (
        onnx_node("AveragePool", floats(2, 4, 20), kernel_shape=[4], strides=[2]),
        "mb2ic4iw20ow9kw4sw2",
        288,
    ),
    (
        onnx_node("GlobalMaxPool", floats(2, 4, 5, 6, 7)),
        "mb2ic4id5ih6iw7od1oh1ow1kd5kh6kw7sd5sh6sw7",
        1680,
    ),
    (
        aten(
            "convolution.default(T2x4x9x20, T6x2x3x5, T6, [1, 2], [0, 1], [1, 2], False, [0, 0], 2)"
        ),
        "g2mb2ic4ih9iw20oc6oh7ow7kh3kw5sh1sw2ph0pw1dh0dw1, bias:mb2ic6ih7",
        35868,
        35280,
    ),
    (
        aten(
            "convolution.default(T2x6x5x7, T6x4x3x3, None, [2, 2], [1, 1], [1, 1], True, [1, 0], 2)"
        ),
        "deconv:g2mb2ic6ih5iw7oc8oh10ow13kh3kw3sh2sw2ph1pw1",
        30240,
        30240,
    ),
    (
        aten(f"{GRADIENTS} [True, True, True])", "backward"),
        (
            "bias:mb2ic6ih6 backward-weights, mb2ic4ih8oc6oh6kh3 backward-weights, "
            "mb2ic4ih8oc6oh6kh3 backward-data"
        ),
        62640,
        62208,
    ),
    (
        aten(f"{GRADIENTS} [False, True, False])", "backward"),
        "mb2ic4ih8oc6oh6kh3 backward-weights",
        31104,
        31104,
    ),
    (
        aten(f"{GRADIENTS} [True, False, False])", "backward"),
        "mb2ic4ih8oc6oh6kh3 backward-data",
        31104,
        31104,
    ),
    (
        aten(f"{GRADIENTS} [False, False, True])", "backward"),
        "bias:mb2ic6ih6 backward-weights",
        432,
    ),
    (
        aten("max_pool2d_with_indices.default(T2x3x7x7, [3, 3], [2, 2], [0, 0], [1, 1], True)"),
        "mb2ic3ih7oh3kh3sh2",
        486,
    ),
    (
        aten("avg_pool2d.default(T2x3x8x6, [3], [2], [1], True, False)"),
        "mb2ic3ih8iw6oh5ow4kh3kw3sh2sw2ph1pw1",
        1080,
    ),
    (aten("avg_pool2d.default(T2x3x8x6, [2, 2])"), "mb2ic3ih8iw6oh4ow3kh2kw2sh2sw2", 288),
    (aten("mean.dim(T2x3x8x6, [-1, -2], True)"), "mb2ic3ih8iw6oh1ow1kh8kw6", 288),
    (aten("_adaptive_avg_pool2d.default(T2x3x8x6, [4, 2])"), "mb2ic3ih8iw6oh4ow2kh2kw3sh2sw3", 288),
    (
        node("Conv2D", [(2, 8, 8, 3), (3, 3, 3, 5)], [(2, 4, 4, 5)], **SLID),
        "mb2ic3ih8oc5oh4kh3sh2",
        8640,
        8640,
    ),
    (
        node(
            "_MklNativeFusedConv2D",
            [(2, 8, 8, 3), (3, 3, 3, 5), (5,)],
            [(2, 4, 4, 5)],
            **SLID,
            **FUSED,
        ),
        "mb2ic3ih8oc5oh4kh3sh2, bias:mb2ic5ih4, relu:mb2ic5ih4",
        8960,
        8640,
    ),
    (
        node(
            "Conv2DBackpropInput",
            [sizes(2, 8, 8, 3), (3, 3, 3, 5), (2, 4, 4, 5)],
            [(2, 8, 8, 3)],
            "backward",
            **SLID,
        ),
        "mb2ic3ih8oc5oh4kh3sh2 backward-data",
        8640,
        8640,
    ),
    (
        node(
            "_MklNativeConv2DBackpropFilterWithBias",
            [(2, 8, 8, 3), sizes(3, 3, 3, 5), (2, 4, 4, 5)],
            [(3, 3, 3, 5), (5,)],
            "backward",
            **SLID,
        ),
        "bias:mb2ic5ih4 backward-weights, mb2ic3ih8oc5oh4kh3sh2 backward-weights",
        8800,
        8640,
    ),
    (node("MaxPool", [(2, 8, 8, 3)], [(2, 4, 4, 3)], **SLID), "mb2ic3ih8oh4kh3sh2", 864),
    (
        node(
            "MaxPoolGrad",
            [(2, 8, 8, 3), (2, 4, 4, 3), (2, 4, 4, 3)],
            [(2, 8, 8, 3)],
            "backward",
            **SLID,
        ),
        "mb2ic3ih8oh4kh3sh2 backward-data",
        96,
    ),
    (
        node(
            "_MklNativeMaxPoolGrad",
            [(2, 8, 8, 3), (2, 4, 4, 3), (2, 4, 4, 3), tensorflow.NodeTensor(type="uint8")],
            [(2, 8, 8, 3)],
            "backward",
            **SLID,
        ),
        "mb2ic3ih8oh4kh3sh2 backward-data",
        96,
    ),
    # In a forward pass it is a transposed convolution, of images of 4 to 8.
    (
        node(
            "Conv2DBackpropInput",
            [sizes(2, 8, 8, 3), (3, 3, 3, 5), (2, 4, 4, 5)],
            [(2, 8, 8, 3)],
            **SLID,
        ),
        "deconv:mb2ic5ih4oc3oh8kh3sh2",
        8640,
        8640,
    ),
    (
        node("DepthwiseConv2dNative", [(2, 8, 8, 3), (3, 3, 3, 2)], [(2, 4, 4, 6)], **SLID),
        "g3mb2ic3ih8oc6oh4kh3sh2",
        3456,
        3456,
    ),
    (onnx_node("Conv", IMAGES, KERNEL, **PADS), "mb2ic16ih8oc16oh8kh3ph1", 589824, 589824),
    (
        onnx_node("Conv", IMAGES, KERNEL, CHANNELS, IMAGES, **PADS, activation="Relu"),
        "mb2ic16ih8oc16oh8kh3ph1, bias:mb2ic16ih8, add:mb2ic16ih8, relu:mb2ic16ih8",
        595968,
        589824,
    ),
    (
        onnx_node("Conv", IMAGES, KERNEL, auto_pad="SAME_UPPER"),
        "mb2ic16ih8oc16oh8kh3ph1",
        589824,
        589824,
    ),
    (onnx_node("Conv", IMAGES, KERNEL, pads=[0, 0, 1, 1]), "mb2ic16ih8oc16oh7kh3", 451584, 451584),
    (
        onnx_node("ConvTranspose", IMAGES, KERNEL, **PADS),
        "deconv:mb2ic16ih8oc16oh8kh3ph1",
        589824,
        589824,
    ),
    (onnx_node("MaxPool", IMAGES, kernel_shape=[2, 2]), "mb2ic16ih8oh7kh2", 6272),
    (onnx_node("GlobalAveragePool", IMAGES), "mb2ic16ih8oh1kh8sh8", 2048),
    (
        onnx_node(
            "Conv",
            IMAGES,
            KERNEL,
            CHANNELS,
            activation="Clip",
            activation_params=[0.0, 6.0],
            **PADS,
        ),
        "mb2ic16ih8oc16oh8kh3ph1, bias:mb2ic16ih8, relu6:mb2ic16ih8",
        595968,
        589824,
    ),
    (
        onnx_node("Conv", IMAGES, KERNEL, strides=[2, 2], auto_pad="SAME_LOWER"),
        "mb2ic16ih8oc16oh4kh3sh2ph1",
        147456,
        147456,
    ),
]

RESIZES = [
    (
        aten("upsample_trilinear3d.default(T1x1x2x2x2, [4, 4, 4], False)"),
        "resize:linear:mb1ic1id2od4",
        960,
    ),
    (
        aten("upsample_nearest2d.default(T2x3x4x6, [8, 12], 2.0, 2.0)"),
        "resize:nearest:mb2ic3ih4oh8iw6ow12",
        0,
    ),
    (
        aten("upsample_nearest2d.default(T2x3x4x6, [8, 12])"),
        "resize:nearest:mb2ic3ih4oh8iw6ow12",
        0,
    ),
    (
        aten("_upsample_nearest_exact2d.default(T2x3x4x6, [7, 2])"),
        "resize:nearest:mb2ic3ih4oh7iw6ow2",
        0,
    ),
    (
        aten("upsample_bilinear2d.default(T2x3x4x6, [8, 12], False, 2.0, 2.0)"),
        "resize:linear:mb2ic3ih4oh8iw6ow12",
        4032,
    ),
    (
        aten("upsample_bilinear2d.default(T2x3x4x6, [7, 2], False)"),
        "resize:linear:mb2ic3ih4oh7iw6ow2",
        588,
    ),
    (
        aten("upsample_linear1d.default(T3x4x5, [8], False)"),
        "resize:linear:mb3ic4iw5ow8",
        288,
    ),
    (
        aten("upsample_nearest2d_backward.default(T2x3x8x12, [8, 12], [2, 3, 4, 6])", "backward"),
        "resize:nearest:mb2ic3ih4oh8iw6ow12 backward-data",
        576,
    ),
    (
        aten(
            "upsample_bilinear2d_backward.default(T2x3x8x12, [8, 12], [2, 3, 4, 6], False, 2.0, "
            "2.0)",
            "backward",
        ),
        "resize:linear:mb2ic3ih4oh8iw6ow12 backward-data",
        4608,
    ),
    (
        node("ResizeBilinear", [(2, 8, 8, 3), sizes(16, 16)], [(2, 16, 16, 3)], **CENTRES),
        "resize:linear:mb2ic3ih8oh16",
        10752,
    ),
    (
        node(
            "ResizeBilinearGrad",
            [(2, 16, 16, 3), (2, 8, 8, 3)],
            [(2, 8, 8, 3)],
            "backward",
            **CENTRES,
        ),
        "resize:linear:mb2ic3ih8oh16 backward-data",
        12288,
    ),
    (
        node("ResizeNearestNeighbor", [(2, 8, 8, 3), sizes(16, 24)], [(2, 16, 24, 3)]),
        "resize:nearest:mb2ic3ih8oh16iw8ow24",
        0,
    ),
]

ELEMENTS = [
    (aten("relu_.default(T2x3x4x4)"), "relu-in-place:mb2ic3ih4", 96),
    (aten("add_.Tensor(T2x3x4x4, T2x3x4x4)"), "add-in-place:mb2ic3ih4", 96),
    (aten("add_.Tensor(T7, 1e-08)"), "elementwise:add-in-place:7:1", 7),
    (aten("threshold_backward.default(T2x3, T2x3, 0)"), "relu:mb2ic3 backward-data", 6),
    (aten("hardtanh.default(T2x3, 0.0, 6.0)"), "relu6:mb2ic3", 12),
    (aten("hardtanh.default(T2x3)"), "hardtanh:mb2ic3", 12),
    (
        aten("hardtanh_backward.default(T2x3, T2x3, -2, 1.0)"),
        "hardtanh:mb2ic3alpha-2 backward-data",
        12,
    ),
    (aten("add.Tensor(T2x3x5, T2x3x5)"), "add:mb2ic3ih1iw5", 30),
    (aten("add.Tensor(T2x3x5, T5)"), "bias:mb6ic5", 30),
    (aten("add_.Tensor(T7, T7, alpha=-0.5)"), "sgd:ic7lr0.5", 14),
    (aten("add.Tensor(T7, T7, alpha=0.25)"), "elementwise:add:7:7by0.5", 14),
    (aten("add.Tensor(T2x3, 1)"), "elementwise:add:6:1", 6),
    (aten("rsub.Scalar(T2x3, 1)"), "elementwise:add:1:6by-1", 6),
    (aten("mul.Tensor(T2x1x3, T4x1)"), "elementwise:mul:2x1x3:1x4x1", 24),
    (aten(f"mul.Tensor(T8, {tensor(8, of=0)})"), "elementwise:square:8", 8),
    (aten("pow.Tensor_Scalar(T8, 3)"), "elementwise:power:8by3", 8),
    (aten("clamp.default(T8, None, 2)"), "elementwise:min:8:1", 8),
    (aten("clamp.default(T8, 0, 2)"), "elementwise:clamp:8:1:1", 16),
    (aten("lerp_.Scalar(T8, T8, 0.1)"), "elementwise:lerp-in-place:8:8:1", 24),
    (
        aten(f"addcmul_.default(T8, T8, {tensor(8, of=1)}, value=0.1)"),
        "elementwise:add-square-in-place:8:8by0.5",
        24,
    ),
    # The number is what is divided: nothing of it is overwritten.
    (aten("reciprocal_.default(T8)"), "elementwise:div:1:8", 8),
    (aten("addcdiv_.default(T8, T8, T8)"), "elementwise:addcdiv-in-place:8:8:8", 24),
    (aten("leaky_relu.default(T2x3, 0.1)"), "elementwise:leaky-relu:6:1", 12),
    (aten("leaky_relu.default(T2x3)"), "elementwise:leaky-relu:6:1", 12),
    (aten("mul.Tensor(T4x6, float32[4, 6](0, 1))"), "elementwise:mul:4x6:1x6", 24),
    (aten("add.Tensor(T4x6, float32[4, 6](0, 1))"), "elementwise:add:4x6:1x6", 24),
    (aten("mul.Tensor(T2x3x1x1, T2x3x4x4)"), "scale:mb2ic3ih4", 96),
    (aten("silu_.default(T2x3)"), "silu-in-place:mb2ic3", 30),
    (aten("elu.default(T2x3, 1.0)"), "elu:mb2ic3", 18),
    (aten("elu.default(T2x3, 0.5)"), "elu:mb2ic3alpha0.5", 18),
    (
        aten("elu_backward.default(T2x3, 2, 3, 1, False, T2x3)"),
        "elu:mb2ic3alpha2by3 backward-data",
        18,
    ),
    (node("Selu", [(2, 3)], [(2, 3)]), "elu:mb2ic3alpha1.6732632423543772by1.0507009873554805", 18),
    (node("Greater", [(2, 3), (3,)], [(2, 3)]), "elementwise:gt:2x3:1x3", 6),
    (node("Tile", [(2, 3), sizes(1, 2)], [(2, 6)]), "move:tile:2x3:2x6", 0),
    (node("Slice", [(2, 3), sizes(0, 0), sizes(2, 2)], [(2, 2)]), "move:copy:4", 0),
    (
        node("StridedSlice", [(2, 3), sizes(0, 0), sizes(0, 2), sizes(1, 1)], [(2, 2)]),
        "move:copy:4",
        0,
    ),
    (
        node(
            "StridedSliceGrad",
            [sizes(2, 3), sizes(0, 0), sizes(0, 2), sizes(1, 1), (2, 2)],
            [(2, 3)],
        ),
        "move:fill:6, move:copy:4",
        0,
    ),
    (node("Split", [sizes(1), (2, 6)], [(2, 3), (2, 3)]), "move:copy:6, move:copy:6", 0),
    (node("Unpack", [(2, 6)], [(6,), (6,)]), "move:copy:6, move:copy:6", 0),
    (node("ReverseV2", [(2, 3), sizes(1)], [(2, 3)]), "move:flip:2x3by1", 0),
    (node("Roll", [(2, 3), sizes(5), sizes(0)], [(2, 3)]), "move:roll:2x3by0", 0),
    (node("MatrixBandPart", [(4, 3), sizes(0), sizes(-1)], [(4, 3)]), "move:triu:4x3", 0),
    (node("Cumsum", [(2, 3), sizes(0)], [(2, 3)]), "cumsum:mb1ic2ih1iw3axis1", 6),
    (onnx_node("Elu", floats(2, 3)), "elu:mb2ic3", 18),
    (onnx_node("Expand", floats(1, 3), INDICES, result=floats(2, 3)), "move:tile:1x3:2x3", 0),
    (onnx_node("Trilu", floats(4, 3)), "move:triu:4x3", 0),
    (
        aten("gelu_backward.default(T2x3, T2x3, approximate='tanh')"),
        "gelu-tanh:mb2ic3 backward-data",
        108,
    ),
    # The vector that is added to all rows may come first.
    (aten("add.Tensor(T5, T2x3x5)"), "bias:mb6ic5", 30),
    (
        aten("_foreach_add_.List([T3, T2x2], [T3, T2x2], alpha=-0.5)"),
        "sgd:ic3lr0.5, sgd:ic4lr0.5",
        14,
    ),
    (
        aten("_foreach_mul_.Scalar([T3, T2x2], 0.9)"),
        "elementwise:mul-in-place:3:1, elementwise:mul-in-place:4:1",
        7,
    ),
    (
        node("SquaredDifference", [(2, 3, 8), (2, 3, 1)], [(2, 3, 8)]),
        "elementwise:add:6x8:6x1by-1, elementwise:square:48",
        96,
    ),
    (node("ReluGrad", [(6, 5), (6, 5)], [(6, 5)], "backward"), "relu:mb6ic5 backward-data", 30),
    (node("AddV2", [(6, 5), (6, 5)], [(6, 5)]), "add:mb6ic5", 30),
    (node("Sub", [(6, 5), (6, 1)], [(6, 5)]), "elementwise:add:6x5:6x1by-1", 30),
    (node("Mul", [(6, 5), ()], [(6, 5)]), "elementwise:mul:30:1", 30),
    (node("Rsqrt", [(5,)], [(5,)]), "elementwise:rsqrt:5", 10),
    (node("Mul", [(2, 4, 4, 5), (2, 1, 1, 5)], [(2, 4, 4, 5)]), "scale:mb2ic5ih4", 160),
    (node("LeakyRelu", [(6, 5)], [(6, 5)], alpha={"f": 0.1}), "elementwise:leaky-relu:30:1", 60),
    (node("AddN", [(6, 5), (6, 5), (6, 5)], [(6, 5)]), "add:mb6ic5, add:mb6ic5", 60),
    (node("AssignSubVariableOp", [(6,), (6,)], []), "sgd:ic6lr1", 6),
    (
        onnx_node("Conv", IMAGES, KERNEL, CHANNELS, IMAGES, **PADS, activation="Relu"),
        "mb2ic16ih8oc16oh8kh3ph1, bias:mb2ic16ih8, add:mb2ic16ih8, relu:mb2ic16ih8",
        595968,
        589824,
    ),
    (onnx_node("Add", CHANNELS, ROWS), "bias:mb8ic16", 128),
    (onnx_node("Sum", ROWS, ROWS, ROWS), "add:mb2ic4ih1iw16, add:mb2ic4ih1iw16", 256),
    (onnx_node("Relu", ROWS), "relu:mb2ic4ih1iw16", 128),
    (onnx_node("Gelu", ROWS, approximate="tanh"), "gelu-tanh:mb2ic4ih1iw16", 1152),
    (onnx_node("HardSigmoid", ROWS, alpha=1 / 6), "hardsigmoid:mb2ic4ih1iw16", 512),
    (
        onnx_node("HardSigmoid", ROWS),
        "elementwise:mul:128:1, elementwise:add:128:1, elementwise:clamp:128:1:1",
        512,
    ),
    (onnx_node("Clip", ROWS, floats(constant=True)), "elementwise:max:128:1", 128),
    (
        onnx_node("PRelu", floats(2, 4, 6), floats(1, 4, 1, constant=True)),
        "elementwise:leaky-relu:2x4x6:1x4x1",
        96,
    ),
]

NORM_GRADIENT = "T2x5x4x4, T2x5x4x4, T5, T5, T5, T5, T5"
SUMS = [
    (aten("_adaptive_avg_pool2d.default(T2x3x5x5, [3, 3])"), "resize:area:mb2ic3ih5oh3", 294),
    (
        aten("_adaptive_avg_pool2d_backward.default(T2x3x3x3, T2x3x5x5)"),
        "resize:area:mb2ic3ih5oh3 backward-data",
        294,
    ),
    (
        aten("upsample_bilinear2d.default(T2x3x4x6, [8, 12], True)"),
        "resize:linear-aligned:mb2ic3ih4oh8iw6ow12",
        4032,
    ),
    (
        aten("upsample_bicubic2d.default(T2x3x4x6, [8, 12], False)"),
        "resize:cubic:mb2ic3ih4oh8iw6ow12",
        17856,
    ),
    (
        aten("upsample_bicubic2d_backward.default(T2x3x8x12, [8, 12], [2, 3, 4, 6], True)"),
        "resize:cubic-aligned:mb2ic3ih4oh8iw6ow12 backward-data",
        18432,
    ),
    (aten("log2.default(T2x3)"), "elementwise:log2:6", 6),
    (aten("log10_.default(T2x3)"), "elementwise:log10-in-place:6", 6),
    (aten("zeros.default([4], dtype=torch.int64)"), "move:fill:8", 0),
    (aten("full.default([4], 0)"), "move:fill:8", 0),
    (aten("clone.default(complex64[2, 3](1, 2))"), "move:copy:12", 0),
    (aten("clone.default(int32[2, 3](3, 1))"), "move:copy:6", 0),
    (
        aten("clone.default(int64[2, 3](1, 2), memory_format=torch.contiguous_format)"),
        "move:permute:3x2x2by102",
        0,
    ),
    (aten("index.Tensor(T4x6, [None, int64[2](1)])"), "gather:rows:4x6x1:1x2", 0),
    (
        aten("index.Tensor(T4x6x5, [None, int64[2](1), int64[2](1)])"),
        "gather:rows:4x30x1:1x2",
        0,
    ),
    (aten("index_select.default(T4x6x5, 1, int64[3](1))"), "gather:rows:4x6x5:1x3", 0),
    (aten("gather.default(T4x6, 1, int64[4, 2](2, 1))"), "gather:rows:4x6x1:4x2", 0),
    (aten("gather.default(T4x6, 0, int64[3, 6](6, 1))"), "gather:rows:1x4x6:1x3x6", 0),
    (aten("gather.default(T4x6, 0, int64[3, 6](1, 0))"), "gather:rows:4x6:3", 0),
    (
        aten("index_add_.default(T9x4, 0, int64[5](1), T5x4)"),
        "gather:add-rows-in-place:9x4:5",
        20,
    ),
    (
        aten("scatter_add.default(T4x6, 1, int64[4, 9](9, 1), T4x9)"),
        "move:copy:24, gather:add-rows-in-place:4x6x1:4x9",
        36,
    ),
    (
        aten("scatter_.src(T4x6, 1, int64[4, 2](2, 1), T4x2)"),
        "gather:put-rows-in-place:4x6x1:4x2",
        0,
    ),
    (
        aten("index_put_.default(T9x4, [int64[5](1)], T5x4, True)"),
        "gather:add-rows-in-place:9x4:5",
        20,
    ),
    (
        aten("_embedding_bag.default(T9x4, int64[6](1), int64[2](1), False, 0, False, None)"),
        "gather:bags:9x4:2x3",
        24,
    ),
    (node("GatherV2", [(2, 3), sizes(0), sizes(1)], [(2, 1)]), "gather:rows:2x3x1:1x1", 0),
    (
        onnx_node("Gather", floats(8, 16), INDICES, result=floats(8, 4), axis=-1),
        "gather:rows:8x16x1:1x4",
        0,
    ),
    (aten("glu.default(T2x6x5, 1)"), "glu:mb1ic2ih1iw15", 150),
    (aten("glu_backward.default(T2x3, T2x6, -1)"), "glu:mb1ic2ih1iw3 backward-data", 54),
    (aten("sort.default(T2x8)"), "sort:mb2ic1ih1iw8", 48),
    (aten("topk.default(T2x8, 3, -1, False)"), "sort:mb2ic1ih1iw8k3", 32),
    (aten("cummax.default(T2x8x3, 1)"), "cummax:mb2ic8ih1iw3axis1", 48),
    (aten("im2col.default(T2x3x5x5, [3, 3], [1, 1], [0, 0], [1, 1])"), "unfold:mb2ic3ih5oh3kh3", 0),
    (
        aten("col2im.default(T2x27x9, [5, 5], [3, 3], [1, 1], [0, 0], [1, 1])"),
        "unfold:mb2ic3ih5oh3kh3 backward-data",
        486,
    ),
    (
        aten("grid_sampler_2d.default(T2x3x4x5, T2x6x7x2, 0, 1, True)"),
        "grid-sample:mb2ic3ih4oh6iw5ow7",
        1764,
    ),
    (aten("_fft_r2c.default(T2x8, [1], 0, True)"), "fft:real:2x8", 120),
    (
        aten("_fft_c2c.default(complex64[2, 4, 8](32, 8, 1), [1, 2], 0, True)"),
        "fft:complex:2x4x8by2",
        1600,
    ),
    (aten("_fft_c2r.default(complex64[2, 5](5, 1), [1], 2, 8)"), "fft:inverse-real:2x8", 120),
    (aten("_fft_r2c.default(T2x8x6, [1, 2], 0, True)"), "fft:real:2x8x6by2", 1341),
    # Profiles note keywords by their place, here the first of them, whether sorting is stable.
    (aten("sort.stable(T2x8, stable=True, dim=0)"), "sort:mb1ic2ih1iw8axis1", 16),
    (aten("sort.default(T2x8, True, 0, False)"), "sort:mb1ic2ih1iw8axis1", 16),
    (aten("argsort.default(T2x8, None, 0, False)"), "sort:mb1ic2ih1iw8axis1", 16),
    (aten("var.default(T4x8, True)"), "reduction:var:32:1", 128),
    # The last offset is the end of the second bag.
    (
        aten("_embedding_bag.default(T9x4, int64[6](1), int64[3](1), False, 0, False, None, True)"),
        "gather:bags:9x4:2x3",
        24,
    ),
    (
        aten("scatter_.reduce(T4x6, 1, int64[4, 2](2, 1), T4x2, reduce='add')"),
        "gather:add-rows-in-place:4x6x1:4x2",
        8,
    ),
    (
        aten("_euclidean_dist.default(T2x3x4, T2x5x4)"),
        "distance:euclidean:2x3x4:2x5x4",
        360,
    ),
    (
        aten("cudnn_batch_norm.default(T2x5x4x4, T5, T5, T5, T5, True, 0.1, 0.001)"),
        "batchnorm:mb2ic5ih4eps0.001",
        800,
    ),
    *(
        (
            aten(f"{name}_backward.default({arguments})"),
            "batchnorm:mb2ic5ih4eps0.001 backward-data",
            1280,
        )
        for name, arguments in (
            ("native_batch_norm", f"{NORM_GRADIENT}, True, 0.001, [True, True, True]"),
            ("cudnn_batch_norm", f"{NORM_GRADIENT}, 0.001, T0"),
        )
    ),
    (aten("_fused_rms_norm.default(T2x5x3, [3], T3, 1e-06)"), "rmsnorm:mb2ic5ih1iw3eps1e-06", 120),
    (
        aten(
            "_fused_rms_norm_backward.default(T2x5x3, T2x5x3, [3], T2x5x1, T3, [True, True])",
            "backward",
        ),
        "rmsnorm:mb2ic5ih1iw3 backward-data",
        330,
    ),
    (aten("mean.dim(T2x3x4x5x6, [2, 3, 4])"), "mb2ic3id4ih5iw6od1oh1ow1kd4kh5kw6", 720),
    (onnx_node("RMSNormalization", ROWS, CHANNELS, version=23), "rmsnorm:mb2ic4ih1iw16", 512),
    (
        onnx_node("SkipSimplifiedLayerNormalization", ROWS, ROWS, CHANNELS, domain="com.microsoft"),
        "add:mb2ic4ih1iw16, rmsnorm:mb2ic4ih1iw16",
        640,
    ),
    (aten("_softmax.default(T2x3, -1, False)"), "softmax:mb2ic1ih1iw3", 30),
    (aten("_softmax.default(T2x3x2x1, 1, False)"), "softmax:mb2ic3ih1iw2axis1", 60),
    (aten("cumsum.default(T2x3, -1)"), "cumsum:mb2ic1ih1iw3", 6),
    (aten("cumsum.default(T4x3x2, 1)"), "cumsum:mb4ic3ih1iw2axis1", 24),
    (
        aten("native_group_norm.default(T2x6x4, T6, T6, 2, 6, 4, 2, 1e-05)"),
        "groupnorm:mb2ic6ih1iw4g2",
        336,
    ),
    (
        aten(
            "native_group_norm_backward.default(T2x6x4, T2x6x4, T2x3, T2x3, T6, 2, 6, 4, 3, "
            "[True, True, True])"
        ),
        "groupnorm:mb2ic6ih1iw4g3 backward-data",
        672,
    ),
    # PyTorch's instance normalisation of two images of three channels, and one with a row each.
    (
        aten("native_batch_norm.default(T1x6x4x4, None, None, None, None, True, 0.1, 1e-05)"),
        "groupnorm:mb1ic6ih4g6factors0",
        480,
    ),
    (
        aten("native_layer_norm.default(T2x5x3, [3], None, None, 0.001)"),
        "groupnorm:mb10ic3g1factors0eps0.001",
        210,
    ),
    (
        onnx_node("InstanceNormalization", ROWS, CHANNELS, CHANNELS),
        "groupnorm:mb2ic4ih1iw16g4",
        896,
    ),
    (aten("max.dim(T2x5x3, 1)"), "reduction:max-indices:2x5x3:2x1x3", 30),
    (aten("argmin.default(T2x5x3, 2, True)"), "reduction:argmin:10x3:10x1", 30),
    (aten("argmax.default(T2x5x3)"), "reduction:argmax:30:1", 30),
    (aten("max.default(T2x5)"), "reduction:max:10:1", 10),
    (aten("logsumexp.default(T2x5x3, [1])"), "reduction:logsumexp:2x5x3:2x1x3", 120),
    (aten("std.correction(T2x5x3, [1], correction=1)"), "reduction:std:2x5x3:2x1x3", 120),
    (aten("var.correction(T2x5x3, [0, 2])"), "reduction:var:2x5x3:1x5x1", 120),
    (aten("linalg_vector_norm.default(T2x5x3, 1, [1])"), "reduction:norm1:2x5x3:2x1x3", 60),
    (aten("channel_shuffle.default(T2x6x4x5, 3)"), "move:permute:2x3x2x20by0213", 0),
    (aten("glu.default(T2x6, -1)"), "glu:mb1ic2ih1iw3", 30),
    (aten("sgn.default(T2x3)"), "elementwise:sign:6", 6),
    (aten("round.default(T2x3)"), "elementwise:rint:6", 6),
    (aten("expm1_.default(T2x3)"), "elementwise:expm1-in-place:6", 6),
    (node("Erf", [(2, 3)], [(2, 3)]), "elementwise:erf:6", 6),
    (
        node(
            "_MklNativePadWithConv2D",
            [
                (2, 8, 8, 3),
                (3, 3, 3, 5),
                tensorflow.NodeTensor(type="int32", shape=(4, 2), values=(0, 0, 1, 1, 1, 1, 0, 0)),
            ],
            [(2, 8, 8, 5)],
            padding={"s": "VALID"},
            data_format={"s": "NHWC"},
            strides={"list": {"i": ["1"] * 4}},
        ),
        "mb2ic3ih8oc5oh8kh3ph1",
        34560,
        34560,
    ),
    (
        node(
            "Pad",
            [
                (2, 5, 5, 3),
                tensorflow.NodeTensor(type="int32", shape=(4, 2), values=(0, 0, 0, 1, 0, 1, 0, 0)),
            ],
            [(2, 6, 6, 3)],
        ),
        "move:fill:216, move:copy:150",
        0,
    ),
    (
        node(
            "Cast",
            [tensorflow.NodeTensor(type="bfloat16", shape=(2, 3))],
            [(2, 3)],
        ),
        "elementwise:cast-to-fp32:6",
        0,
    ),
    (aten("_to_copy.default(T2x3, dtype=torch.bfloat16)"), "elementwise:cast-from-fp32:6", 0),
    (aten("_to_copy.default(T2x3, dtype=torch.int64)"), "elementwise:cast-to-int64:6", 0),
    (
        aten("_to_copy.default(bool[2, 3](3, 1), dtype=torch.bfloat16)"),
        "elementwise:cast-from-bool:6",
        0,
    ),
    (
        aten("copy_.default(T2x3, bfloat16[2, 3](3, 1))"),
        "elementwise:cast-to-fp32:6",
        0,
    ),
    (aten("mse_loss.default(T2x3, T2x3)"), "mse:ic6", 18),
    (aten("mse_loss_backward.default(T1, T2x3, T2x3, 1)"), "mse:ic6 backward-data", 18),
    (aten("l1_loss.default(T2x3, T2x3)"), "l1:ic6", 18),
    (aten("smooth_l1_loss.default(T2x3, T2x3, 2, 0.5)"), "smooth-l1:ic6beta0.5", 36),
    (
        aten("huber_loss_backward.default(T1, T2x3, T2x3, 1, 2.0)"),
        "smooth-l1:ic6beta2 backward-data",
        30,
    ),
    (aten("binary_cross_entropy_with_logits.default(T2x3, T2x3)"), "bce-logits:ic6", 48),
    (aten("nll_loss_forward.default(T2x3, int64[2](1), None, 1, -100)"), "nll:mb2ic3", 2),
    (
        aten("nll_loss_backward.default(T1, T2x3, int64[2](1), None, 1, -100, T1)"),
        "nll:mb2ic3 backward-data",
        0,
    ),
    (aten("xlogy.Tensor(T2x3, T2x3)"), "elementwise:xlogy:6:6", 12),
    # Inputs of a row are in [-1, 1), whatever the call compares with.
    (aten("hardshrink.default(T2x3, 0.25)"), "elementwise:hardshrink:6", 12),
    (aten("softshrink.default(T2x3, 1)"), "elementwise:softshrink:6", 18),
    (aten("threshold.default(T2x3, 1, 0)"), "elementwise:threshold:6:1", 6),
    # Strides of dimensions of one element say nothing.
    *(
        (
            aten(f"_to_copy.default({source}, dtype=torch.bfloat16)"),
            "elementwise:cast-from-fp32:4",
            0,
        )
        for source in ("float32[4, 1](1, 0)", "float32[1, 4](0, 1)", "float32[2, 2](1, 2)")
    ),
    (
        aten("copy_.default(float32[4, 1](1, 1), bfloat16[4, 1](1, 4))"),
        "elementwise:cast-to-fp32:4",
        0,
    ),
    (aten("celu.default(T2x3, 1.0)"), "elu:mb2ic3", 18),
    (aten("cumprod.default(T2x3, 1)"), "cumprod:mb2ic1ih1iw3", 6),
    (
        aten("_prelu_kernel_backward.default(T2x3, T2x3, T1x3)"),
        "elementwise:prelu-gradient:2x3:2x3:1x3",
        18,
    ),
    (
        aten("replication_pad2d.default(T2x3x4x5, [1, 1, 0, 2])"),
        "move:replicate:2x3x4x5:2x3x6x7",
        0,
    ),
    (
        aten("_log_softmax_backward_data.default(T2x3, T2x3, 1, torch.float32)"),
        "log-softmax:mb2ic1ih1iw3 backward-data",
        24,
    ),
    (
        aten("native_layer_norm.default(T2x5x3, [3], T3, T3, 0.001)"),
        "layernorm:mb2ic5ih1iw3eps0.001",
        210,
    ),
    (aten("sum.dim_IntList(T2x5x3, [0, 1], True)"), "bias:mb10ic3 backward-weights", 30),
    (aten("sum.default(T2x5)"), "reduction:sum:10:1", 10),
    (aten("mean.dim(T2x5, [-1], True)"), "reduction:mean:2x5:2x1", 10),
    (aten("amax.default(T2x5, [0])"), "reduction:max:2x5:1x5", 10),
    (aten("linalg_vector_norm.default(T2x5)"), "reduction:norm:10:1", 20),
    (
        node(
            "FusedBatchNormV3",
            [(2, 4, 4, 5), (5,), (5,), (5,), (5,)],
            [(2, 4, 4, 5), (5,), (5,)],
            is_training={"b": True},
            epsilon={"f": 0.001},
            data_format={"s": "NHWC"},
        ),
        "batchnorm:mb2ic5ih4eps0.001",
        800,
    ),
    (node("BiasAddGrad", [(2, 4, 4, 5)], [(5,)], "backward"), "bias:mb32ic5 backward-weights", 160),
    (node("Mean", [(2, 4, 4, 5), sizes(0, 1, 2)], [(5,)]), "reduction:mean:32x5:1x5", 160),
    (node("L2Loss", [(6, 5)], [()]), "l2:ic30", 60),
    (node("Softmax", [(6, 5)], [(6, 5)]), "softmax:mb6ic1ih1iw5", 150),
    (
        node("SoftmaxCrossEntropyWithLogits", [(6, 5), (6, 5)], [(6,), (6, 5)]),
        "softmax-xent:mb6ic5, softmax-xent:mb6ic5 backward-data",
        180,
    ),
    (
        onnx_node("BatchNormalization", IMAGES, CHANNELS, CHANNELS, CHANNELS, CHANNELS),
        "batchnorm:mb2ic16ih8",
        4096,
    ),
    (onnx_node("LayerNormalization", ROWS, CHANNELS, CHANNELS), "layernorm:mb2ic4ih1iw16", 896),
    (onnx_node("Softmax", HEADS), "softmax:mb2ic4ih8", 2560),
    (
        onnx_node("ReduceMean", ROWS, result=floats(2, 4, 1), axes=[-1]),
        "reduction:mean:8x16:8x1",
        128,
    ),
    (onnx_node("Softmax", ROWS, version=11), "softmax:mb2ic1ih1iw64", 640),
]

MOVES = [
    (aten("full.default([4], 0.0)"), "move:fill:4", 0),
    (aten("clone.default(T2x3x5, memory_format=torch.contiguous_format)"), "move:copy:30", 0),
    (
        aten("clone.default(float32[4, 6](1, 4), memory_format=torch.contiguous_format)"),
        "move:permute:6x4by10",
        0,
    ),
    (aten("clone.default(float32[4, 6](1, 4))"), "move:copy:24", 0),
    (aten("copy_.default(T4x6, float32[4, 6](1, 4))"), "move:permute:6x4by10", 0),
    (aten("zero_.default(T4x6)"), "move:fill:24", 0),
    (aten("zeros.default([4, 6], device=torch.device('cpu'))"), "move:fill:24", 0),
    (aten("stack.default([T4, T4], -1)"), "concat:mb4ic1+1", 0),
    (aten("cat.default([T4x2, T0], 1)"), "move:copy:8", 0),
    (aten("embedding.default(T9x4, int64[2, 3](3, 1))"), "gather:rows:9x4:6", 0),
    (
        aten("embedding_dense_backward.default(T6x4, int64[6](1), 9, -1, False)"),
        "gather:add-rows:9x4:6",
        24,
    ),
    (aten("cat.default([T2x3x4x4, T2x1x4x4], 1)"), "concat:mb2ic3+1ih4", 0),
    (aten("stack.default([T3x8])"), "move:copy:24", 0),
    (aten("constant_pad_nd.default(T2x3x4, [1, 2, 0, 1], 0.0)"), "move:fill:56, move:copy:24", 0),
    (aten("view.default(T8, [2, 4])"), "", 0),
    (aten("t.default(T2x4)"), "", 0),
    (aten("empty.x([8])"), "", 0),
    # A tensor without elements needs no kernel.
    (aten("zeros.default([0], device=torch.device('cpu'))"), "", 0),
    (node("Reshape", [(6, 5), sizes(30)], [(30,)]), "", 0),
    (node("ZerosLike", [(0, 5)], [(0, 5)]), "", 0),
    (node("ZerosLike", [(6, 5)], [(6, 5)]), "move:fill:30", 0),
    (node("Transpose", [(2, 3, 4), sizes(0, 2, 1)], [(2, 4, 3)]), "move:permute:2x3x4by021", 0),
    (node("ResourceGather", [(100, 8), sizes(3, 1)], [(2, 8)]), "gather:rows:100x8:2", 0),
    (onnx_node("Concat", ROWS, ROWS, axis=2), "concat:mb8ic16+16", 0),
    (onnx_node("Transpose", HEADS, perm=[0, 2, 1, 3]), "move:permute:2x4x8x8by0213", 0),
    (onnx_node("Reshape", ROWS), "", 0),
    (
        onnx_node("Gather", floats(8, 16), INDICES, result=floats(4, 16), axis=-2),
        "gather:rows:8x16:4",
        0,
    ),
]


@pytest.mark.parametrize("row", [*PRODUCTS, *CHAINS, *WINDOWS, *RESIZES, *ELEMENTS, *SUMS, *MOVES])
def test_a_call_is_layers_and_flops(row):
    call, layers, flops, *products = row
    found = meaning_of(call)
    assert told(found) == layers, found.layers_missing
    assert (found.flops, found.product_flops) == (flops, *(products or (0,)))
    ((key, mapped),) = map_calls([call], "forward", "fp32", "cpu", 1 << 20).items()
    assert key == (call.signature, call.direction)
    assert len(mapped.terms) == len(found.layers)
    if tensorflow.is_node(call.signature):
        library = found.kind in ("product", "convolution", "pooling")
        assert kind_of(call) == ("layer" if library else "pointwise")


def told(found):
    """Return the text of layers as in the tables above."""
    passes = ((one.layer.problem, one.pass_) for one in found.layers)
    return ", ".join(name if pass_ == "forward" else f"{name} {pass_}" for name, pass_ in passes)


# -----------------------------------------------------------------------------
# Calls without a layer: the FLOPs (None if unknown) and the reason.

LAYERLESS = [
    (
        aten("adaptive_max_pool2d.default(T2x3x5x5, [3, 3])"),
        294,
        "a maximum over windows that differ in size has no layer",
    ),
    (
        aten("avg_pool2d.default(T2x3x8x8, [3], [2], [1], True, True)"),
        1350,
        "an average over windows beyond the padding has no layer",
    ),
    (
        aten("avg_pool2d.default(T1x1x4x4, [2], [2], [0], False, True, 3)"),
        16,
        "an average with a divisor of its own has no layer",
    ),
    (
        aten("upsample_nearest2d.default(T2x3x4x6, [2, 3])"),
        0,
        "other nearest pixels than those of centres have no layer",
    ),
    (
        aten("upsample_bilinear2d.default(T2x3x4x6, [6, 10], False, 1.7, 1.7)"),
        2520,
        "resizing by a factor that is not that of its sizes has no layer",
    ),
    (
        aten("_to_copy.default(int64[2, 3](3, 1), dtype=torch.int32)"),
        0,
        "a conversion has no layer",
    ),
    *(
        (aten(f"{call}.default({operands})"), 0, "a conversion has no layer")
        for call, operands in (
            ("_to_copy", "float32[4, 6](12, 2), dtype=torch.bfloat16"),
            ("copy_", "float32[4, 6](12, 2), bfloat16[4, 6](12, 2)"),
        )
    ),
    *(
        (aten(f"replication_pad2d.default(T2x3x4x5, {pads})"), 0, "a copy of a part has no layer")
        for pads in ([1, 1, -1, 2], [-1, 1, 0, 0])
    ),
    (
        aten("reflection_pad2d.default(T2x3x4x5, [1, 1, -1, 2])"),
        0,
        "a copy of a part has no layer",
    ),
    (aten("mse_loss.default(T2x3, T2x3, 0)"), 18, "mse of each element has no layer"),
    (
        aten("mse_loss.default(bfloat16[2, 3](3, 1), bfloat16[2, 3](3, 1))"),
        18,
        "mse in bfloat16 has no layer",
    ),
    (
        aten("mse_loss_backward.default(T1, T2x3, float32[2, 3](0, 1), 1)"),
        18,
        "mse of elements that are repeated has no layer",
    ),
    (
        aten("nll_loss_forward.default(bfloat16[2, 3](3, 1), int64[2](1), None, 1, -100)"),
        2,
        "nll in bfloat16 has no layer",
    ),
    (
        aten("nll_loss_forward.default(T2x3, int64[2](0), None, 1, -100)"),
        2,
        "nll of elements that are repeated has no layer",
    ),
    (aten("nan_to_num.default(T2x3)"), 18, "nan_to_num has no layer"),
    *(
        (aten(f"{op}.default(T2x3, T2x3, 0.5)"), 12, f"{op} has no layer")
        for op in ("hardshrink_backward", "softshrink_backward")
    ),
    (
        aten("nll_loss_forward.default(T2x3, int64[2](1), T3, 1, -100)"),
        2,
        "a loss with weights, of each row or of images has no layer",
    ),
    (
        aten("binary_cross_entropy_with_logits.default(T2x3, T2x3, None, T3)"),
        48,
        "bce-logits with weights has no layer",
    ),
    (
        aten("clone.default(float32[4, 6](12, 2), memory_format=torch.contiguous_format)"),
        0,
        "a copy of repeated or of single elements has no layer",
    ),
    (
        aten("div.Scalar(float32[8, 512, 7, 7](512, 1, 0, 0), 49)"),
        200704,
        "div of elements that are repeated has no layer",
    ),
    (aten("zeros.default([4], dtype=torch.bool)"), 0, "whole numbers have no layer"),
    (
        aten("index.Tensor(T4x6x5, [int64[2](1), None, int64[2](1)])"),
        0,
        "gathering by a mask, or other than along adjacent dimensions has no layer",
    ),
    (
        aten("gather.default(T4x6, 1, int64[2, 6](6, 1))"),
        0,
        "gathering from a part of a table has no layer",
    ),
    (aten("gather.default(int64[4, 6](6, 1), 1, int64[4, 2](2, 1))"), 0, "whole numbers"),
    (
        aten("scatter.value(T4x6, 1, int64[4, 2](2, 1), 1.0)"),
        0,
        "scattering of these has no layer",
    ),
    (aten("scatter.src(T4x6, 1, int64[4, 9](9, 1), T4x9)"), 0, "more indices than rows"),
    (
        aten("scatter.reduce(T4x6, 1, int64[4, 2](2, 1), T4x2, reduce='multiply')"),
        8,
        "scattering of these has no layer",
    ),
    (
        onnx_node("ScatterND", floats(4, 6), INDICES, floats(64, 6), reduction="mul"),
        384,
        "scattering of these has no layer",
    ),
    (aten("scatter.default(T4x6, 1, int64[4, 2](2, 1), T4x2, None)"), None, "how it combines"),
    (
        aten("gather.default(T2x3x4x5, 2, int64[2, 3, 6, 5](90, 0, 5, 1))"),
        0,
        "an index repeated along some dimensions has no layer",
    ),
    (aten("topk.default(T2x8, 0)"), 0, "a choice of no elements has no layer"),
    # A detection without boxes.
    *(
        (aten(f"{text})"), 0, "=0: too small")
        for text in (
            *("glu.default(T0x6, -1", "glu_backward.default(T0x3, T0x6, -1"),
            *("sort.default(T0x8", "topk.default(T0x8, 3", "cummax.default(T0x8, 1"),
            "im2col.default(T0x3x5x5, [3, 3], [1, 1], [0, 0], [1, 1]",
            "col2im.default(T0x27x9, [5, 5], [3, 3], [1, 1], [0, 0], [1, 1]",
        )
    ),
    (
        aten("grid_sampler_3d.default(T2x3x4x5x6, T2x6x7x8x3, 0, 0, True)"),
        15 * 2016,
        "sampling other than that of four pixels has no layer",
    ),
    (
        aten("_fft_r2c.default(T2x8x6, [2, 1], 0, True)"),
        1341,
        "a half along another than the last dimension has no layer",
    ),
    (
        aten("_embedding_bag.default(T9x4, int64[6](1), int64[4](1), False, 0, False, None)"),
        24,
        "a sum over bags whose lengths differ has no layer",
    ),
    (
        aten("_embedding_bag.default(T9x4, int64[6](1), int64[2](1), False, 2, False, None)"),
        24,
        "a maximum or a weighted sum over bags has no layer",
    ),
    (
        aten("grid_sampler_2d.default(T2x3x4x5, T2x6x7x2, 1, 0, False)"),
        0,
        "sampling other than that of four pixels has no layer",
    ),
    (
        aten("_fft_r2c.default(T2x8x3, [1], 0, True)"),
        360,
        "a transform along other than the last dimensions has no layer",
    ),
    (
        aten("_fft_r2c.default(T2x8, [1], 0, False)"),
        120,
        "a transform to both halves has no layer",
    ),
    (
        aten("_cdist_forward.default(T2x3x4, T2x5x4, 1.0, None)"),
        360,
        "a distance other than the Euclidean, or of repeated rows has no layer",
    ),
    (aten("div.Tensor_mode(T2x3, 2, rounding_mode='floor')"), 6, "div that rounds has no layer"),
    (aten("add_.Tensor(int64[()](), 1)"), 0, "whole numbers have no layer"),
    (aten("elu.default(T2x3, 0.5, 1, 2)"), 18, "elu with 0.5, 1, 2 has no layer"),
    (
        node("ResizeBilinear", [(2, 8, 8, 3), sizes(16, 16)], [(2, 16, 16, 3)]),
        10752,
        "resizing by corners of pixels has no layer",
    ),
    (node("Frobnicate", [(2, 3)], [(2, 3)]), None, "Frobnicate: no rule for this operator"),
    (
        node("Mul", [(2, 3), tensorflow.NodeTensor(type="float32")], [(2, 3)]),
        None,
        "Mul: not all of its shapes are known",
    ),
    (
        node("Einsum", [(2, 3)], [(3, 2)], equation={"s": "ab->ba"}),
        None,
        "no rule for ab->ba",
    ),
    (node("Erfc", [(2, 3)], [(2, 3)]), 6, "erfc has no layer"),
    (
        node("StridedSlice", [(2, 4), sizes(0, 0), sizes(0, 0), sizes(1, 2)], [(2, 2)]),
        0,
        "StridedSlice has no layer",
    ),
    (node("All", [(2, 3), sizes(1)], [(2,)]), 6, "all has no layer"),
    (onnx_node("Max", ROWS), 0, "a copy has no layer"),
    (
        onnx_node("MultiHeadAttention", ROWS, HEADS, HEADS, num_heads=2),
        None,
        "onnx.MultiHeadAttention: no rule for keys that are split by heads",
    ),
    (onnx_node("QLinearSoftmax", IMAGES), None, "onnx.QLinearSoftmax: no rule for this operator"),
    (aten("_grouped_mm.default(T6x4, T3x4x5, int32[3](1))"), 240, "values"),
    (
        aten(f"mkldnn_rnn_layer.default({LSTM}, False, [], 1, 8, 1, True, False, False, False)"),
        13440,
        "gates",
    ),
    (
        aten("native_batch_norm.default(T2x5x4x4, None, None, None, None, True, 0.1, 0.001)"),
        800,
        "factors",
    ),
    (aten("native_group_norm.default(T2x6x4, T6, T6, 2, 6, 4, 4, 1e-05)"), 336, "divisor"),
    (aten("native_layer_norm.default(T3x0, [0], None, None, 0.001)"), 0, "too small"),
    (aten("constant_pad_nd.default(T8, [-3, -1], 0.0)"), 0, "part"),
    (aten("fft_fft.default(T3)"), None, "fft_fft"),
    (aten("mul.Tensor(complex64[3](1), 2)"), None, "complex"),
    (aten("relu.default(<sparse_coo tensor>)"), None, "sparse_coo"),
    (aten("relu.default(T3"), None, "aten.relu"),
    (aten("mm.default(T3, 7)"), None, "aten.mm"),
    (
        RecordedCall(signature="mine.twice.default(float32[3](1))", operator="mine.twice"),
        None,
        "mine.twice",
    ),
    (RecordedCall(signature='{"kind": "nodes"}', operator="conv"), None, "PyTorch"),
    (
        RecordedCall(
            signature=tensorflow.TensorFlowNode(
                op="MatMul", attributes={}, inputs=(values_of((2, 2)),) * 2, looped=True
            ).text,
            operator="MatMul",
        ),
        None,
        "in a loop",
    ),
]


@pytest.mark.parametrize(("call", "flops", "reason"), LAYERLESS)
def test_a_call_without_a_layer_says_why(call, flops, reason):
    found = meaning_of(call)
    assert found.layers == ()
    assert found.flops == flops
    assert reason in found.layers_missing
    if flops is None:
        assert (found.kind, found.product_flops, found.bytes) == ("other", None, None)
        assert found.flops_missing == found.layers_missing


@pytest.mark.parametrize(
    ("size", "scale", "attributes", "problem"),
    [
        (16, None, {}, "nearest:mb2ic16ih8oh16"),
        (16, None, {"how": "asymmetric", "nearest_mode": "floor"}, "nearest:mb2ic16ih8oh16"),
        (16, None, {"how": "asymmetric"}, None),
        # Centres on borders, where the pixel before and that behind are as near.
        (4, None, {}, None),
        (24, None, {"mode": "linear"}, "linear:mb2ic16ih8oh24"),
        (24, None, {"mode": "linear", "how": "pytorch_half_pixel"}, "linear:mb2ic16ih8oh24"),
        (16, None, {"mode": "linear", "how": "align_corners"}, "linear-aligned:mb2ic16ih8oh16"),
        (16, None, {"mode": "linear", "how": "asymmetric"}, None),
        (16, None, {"mode": "cubic"}, "cubic:mb2ic16ih8oh16"),
        # From a factor such as 1.4, which is not the quotient of the sizes.
        (11, None, {"mode": "linear"}, None),
        (16, 2.0, {"mode": "linear"}, "linear:mb2ic16ih8oh16"),
        (11, 1.375, {"mode": "linear"}, "linear:mb2ic16ih8oh11"),
        # Rounded down to a multiple, or to a size that is none.
        (16, 2.1, {"mode": "linear"}, None),
        (11, 1.4, {"mode": "linear"}, None),
        (11, "size", {"mode": "linear"}, "linear:mb2ic16ih8oh11"),
        (11, "size", {"mode": "linear", "keep_aspect_ratio_policy": "not_larger"}, None),
        (1, "size", {"mode": "linear"}, "linear:mb2ic16ih8oh1"),
        # The first pixel, and not those in the middle.
        (1, "size", {"mode": "linear", "how": "pytorch_half_pixel"}, None),
    ],
)
def test_images_resized_by_onnx_are_layers_where_pixels_are_found_alike(
    size, scale, attributes, problem
):
    words = {"how": "coordinate_transformation_mode"}
    factors = None if scale in (None, "size") else (1, 1, scale, scale)
    given = [None, floats(4, constant=True, values=factors)]
    if scale == "size":
        given = [None, None, onnx.Tensor(dtype="int64", shape=(4,), constant=True)]
    named = {words.get(name, name): text for name, text in attributes.items()}
    found = meaning_of(
        onnx_node("Resize", IMAGES, *given, result=floats(2, 16, size, size), version=18, **named)
    )
    assert told(found) == (f"resize:{problem}" if problem else "")
    assert bool(found.layers_missing) != bool(problem)


def test_training_normalises_with_more_work_and_moves_the_running_statistics():
    results = 4 * (160 + 10)
    trained, fixed = (
        meaning_of(
            aten(
                f"native_batch_norm.default(T2x5x4x4, T5, T5, T5, T5, {training}, 0.1, 0.001)",
                size=results,
            )
        )
        for training in (True, False)
    )
    assert told(trained) == told(fixed) == "batchnorm:mb2ic5ih4eps0.001"
    assert [one.layers[0].propagation for one in (trained, fixed)] == ["training", "inference"]
    assert (trained.flops, fixed.flops) == (5 * 160, 2 * 160)
    assert trained.bytes == 4 * (160 + 20) + results + 4 * 10
    assert fixed.bytes == 4 * (160 + 20) + results


def test_a_causal_attention_counts_the_pairs_that_are_seen():
    text = f"{FLASH}.default(T2x3x8x4, T2x3x8x4, T2x3x8x4"
    whole, causal = (meaning_of(aten(f"{text}{rest})")) for rest in ("", ", 0.0, True"))
    assert told(causal) == told(whole)
    assert causal.product_flops * 64 == whole.product_flops * 36
    assert whole.note is None
    assert "36 of 64" in causal.note
    # Fewer keys than queries are seen by all later queries.
    fewer = meaning_of(aten(f"{FLASH}.default(T1x1x5x4, T1x1x3x4, T1x1x3x4, 0.0, True)"))
    assert "12 of 15" in fewer.note


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["pixel_shuffle", "pixel_unshuffle"])
def test_shuffled_pixels_are_moves(name, last):
    few, many = (2, 3, 8, 10), (2, 12, 4, 5)
    source, result = (few, many) if name == "pixel_unshuffle" else (many, few)
    images = np.arange(math.prod(source)).reshape(source)
    expected = np.zeros(result, images.dtype)
    small, large = (expected, images) if name == "pixel_unshuffle" else (images, expected)
    for n, c, i, j, h, w in np.ndindex(2, 3, 2, 2, 4, 5):
        place, other = (n, 4 * c + 2 * i + j, h, w), (n, c, 2 * h + i, 2 * w + j)
        if name == "pixel_unshuffle":
            small[place] = large[other]
        else:
            large[other] = small[place]
    strides = np.ones(source, np.int32).strides
    if last:
        strides = np.ones([source[axis] for axis in (0, 2, 3, 1)], np.int32).strides
        strides = [strides[place] for place in (0, 3, 1, 2)]
        images, expected = (one.transpose(0, 2, 3, 1) for one in (images, expected))
    text = f"float32[{', '.join(map(str, source))}]({', '.join(str(one // 4) for one in strides)})"
    (move,) = meaning_of(aten(f"{name}.default({text}, 2)")).layers
    moved = images.reshape(move.layer.src).transpose(move.layer.order)
    assert np.array_equal(moved.ravel(), expected.ravel())


# -----------------------------------------------------------------------------
# Types.

_BF16 = "bfloat16[2, 3, 4, 4](48, 16, 4, 1)"


@pytest.mark.parametrize(
    ("call", "dtypes"),
    [
        # Factors and statistics in float32 beside images in bfloat16 are no mixture.
        (
            aten(f"native_batch_norm.default({_BF16}, T3, T3, T3, T3, True, 0.1, 0.001)"),
            ("bfloat16",),
        ),
        (aten(f"native_layer_norm.default({_BF16}, [4], T4, T4, 1e-5)"), ("bfloat16",)),
        # A number, whatever its type, is none either; what is added to all rows is.
        (aten(f"add.Tensor({_BF16}, float32[()]())"), ("bfloat16",)),
        (aten(f"add.Tensor({_BF16}, T4)"), ("bfloat16", "float32")),
        (aten(f"sum.dim_IntList({_BF16}, [0], dtype=torch.float32)"), ("bfloat16", "float32")),
        (aten(f"clone.default({_BF16}, memory_format=torch.contiguous_format)"), ("bfloat16",)),
        (aten("embedding.default(T9x4, int64[5](1))"), ("float32",)),
        (aten("add.Tensor(int64[5](1), int32[5](1))"), ("int32", "int64")),
        (aten("_fft_r2c.default(float64[2, 8](8, 1), [1], 0, True)"), ("float64",)),
        (aten("_fft_c2c.default(complex64[2, 8](8, 1), [1], 0, True)"), ("float32",)),
        (aten("_fft_c2r.default(complex128[2, 5](5, 1), [1], 2, 8)"), ("float64",)),
        (aten("zeros.default([4, 6])"), ("float32",)),
        (aten("zeros.default([4, 6], dtype=torch.int64)"), ("float32",)),
        (aten("zeros.default([4, 6], dtype=torch.bool)"), ("bool",)),
        (node("BiasAdd", [(6, 5), (5,)], [(6, 5)]), ("float32",)),
        # Factors of sizes in float32 are none of the type of images.
        (
            onnx_node(
                "Resize",
                onnx.Tensor(dtype="float16", shape=(2, 16, 8, 8)),
                None,
                floats(4, constant=True, values=(1, 1, 2, 2)),
                result=onnx.Tensor(dtype="float16", shape=(2, 16, 16, 16)),
            ),
            ("float16",),
        ),
    ],
)
def test_a_call_is_computed_in_the_type_of_its_operands(call, dtypes):
    assert meaning_of(call).dtypes == dtypes


# -----------------------------------------------------------------------------
# Bytes.


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (aten("relu.default(T8)", size=32), 64),
        # The same memory twice is read once, and so are elements of stride 0.
        (aten(f"mul.Tensor(T8, {tensor(8, of=0)})", size=32), 64),
        (aten("mul.Tensor(float32[4, 8](0, 1), T4x8)", size=128), 32 + 128 + 128),
        # Views that interleave, and views that overlap: at most the bytes between their ends.
        (aten("add.Tensor(float32[4](2), float32[4](2, at=4, of=0))", size=16), 32 + 16),
        (aten("add.Tensor(T8, float32[8](1, at=4, of=0))", size=32), 36 + 32),
        # Overwritten operands are not read.
        (aten("fill_.Scalar(T8, 1.0)", size=32), 32),
        (aten("copy_.default(T8, T8)", size=32), 64),
        # Operands that give a shape only are not read either.
        (aten("zeros_like.default(T8)", size=32), 32),
        (
            aten(
                "avg_pool2d_backward.default(T1x1x2x2, T1x1x4x4, [2], [2], [0], False, True, None)",
                size=64,
            ),
            16 + 64,
        ),
        # Two rows of a table of nine.
        (aten("embedding.default(T9x4, int64[2](1))", size=32), 32 + 16 + 32),
        # Ten rows are read more than once, of a table of two.
        (aten("embedding.default(T2x4, int64[10](1))", size=160), 32 + 80 + 160),
        # If the result's size is not recorded, all indexed rows are read and written.
        (aten("embedding.default(T9x4, int64[2](1))"), 32 + 16 + 32),
        (aten("index_select.default(T9x4, 0, int64[10](1))"), 144 + 80 + 160),
        (aten("index_select.default(T9x4, -1, int64[2](1))"), 72 + 16 + 72),
        (aten("gather.default(T9x4, 1, int64[9, 1](1, 1))"), 36 + 72 + 36),
        (aten("index.Tensor(T9x4x2, [None, int64[3](1)])"), 144 * 3 // 2 + 24 + 216),
        (aten("index.Tensor(T9x4, [bool[9](1)])"), None),
        # For 42 places in two grids, four pixels of three channels each; and at most all of them.
        (
            aten("grid_sampler_2d.default(T2x3x99x99, T2x6x7x2, 0, 0, True)", size=1008),
            4 * (2 * 3 * 4 * 42 + 2 * 2 * 42) + 1008,
        ),
        (
            aten("grid_sampler_2d.default(T2x3x4x5, T2x6x7x2, 0, 0, True)", size=1008),
            4 * (120 + 2 * 2 * 42) + 1008,
        ),
        # Two bags of six rows together; the last offset is the end.
        (
            aten("_embedding_bag.default(T9x4, int64[6](1), int64[3](1), 0, 0, 0, None, True)"),
            96 + 48 + 24 + 32,
        ),
        # Three bags of six rows together.
        (aten("_embedding_bag.default(T9x4, int64[6](1), int64[3](1))"), 96 + 48 + 24 + 48),
        (
            aten("_embedding_bag_dense_backward.default(T3x4, int64[6](1), None, None, None, 9)"),
            48 + 48 + 144,
        ),
        (aten("index_put_.default(T2x4, [int64[9](1)], T9x4, True)"), 72 + 144 + 32 + 32),
        # An operand for the result is not read; profiles do not name it.
        (aten("add.out(T8, T8, out=T8)", size=32), 3 * 32),
        (aten("mul.Tensor(T8, T8, T8)"), 3 * 32),
        (aten("sigmoid_backward.grad_input(T8, T8, grad_input=T8)"), 3 * 32),
        (aten("normal_.default(T8, <Scalar>, <Scalar>, <Generator>)"), 32),
        # Numbers whose values nobody noted do not matter.
        (aten("eq.Scalar(T8, <Scalar>)"), 32 + 8),
        (aten("_to_copy.default(T8, dtype=torch.float16)"), 32 + 16),
        (aten("clone.default(T8, memory_format=<Scalar>)"), 2 * 32),
        (aten("cat.default([T8, T8], <Scalar>)"), 4 * 32),
        # Two rows are read, added to, and written.
        (aten("index_add_.default(T9x4, 0, int64[2](1), T2x4)", size=144), 16 + 32 + 32 + 32),
        (aten("index_put_.default(T9x4, [int64[2](1)], T1)", size=144), 16 + 4 + 32),
        # A part is copied.
        (aten("constant_pad_nd.default(T8, [-3, -1], 0.0)", size=16), 32),
        # The gradients of data and weights read what the mask says.
        (aten(f"{GRADIENTS} [True, False, False])", "backward", 2048), 1728 + 864 + 2048),
        (aten(f"{GRADIENTS} [False, True, True])", "backward", 888), 1728 + 2048 + 888),
        # In-place operators on lists return no tensors.
        (aten("_foreach_add_.List([T3, T2x2], [T3, T2x2], alpha=-0.5)"), 4 * 7 * 3),
        (aten("view.default(T8, [2, 4])", size=32), 0),
        (node("AddV2", [(6, 5), (5,)], [(6, 5)]), 4 * (30 + 5 + 30)),
        (node("Reshape", [(6, 5), sizes(30)], [(30,)]), 0),
        (node("ZerosLike", [(6, 5)], [(6, 5)]), 4 * 30),
        (node("ResourceGather", [(100, 8), sizes(3, 1)], [(2, 8)]), 4 * (16 + 2 + 16)),
        (node("ScatterNd", [sizes(3, 1), (2, 8), sizes(9, 8)], [(9, 8)]), 4 * (2 + 16 + 2 + 72)),
        # A variable is read and overwritten.
        (
            node(
                "AssignSubVariableOp",
                [tensorflow.NodeTensor(type="float32", shape=(6,), variable=True), (6,)],
                [],
            ),
            4 * 3 * 6,
        ),
        (onnx_node("Relu", ROWS), 2 * 4 * 128),
        (onnx_node("Mul", ROWS, floats(2, 4, 16, same=0)), 2 * 4 * 128),
        (onnx_node("Gather", floats(8, 16), INDICES, result=floats(4, 16)), 4 * 64 + 32 + 4 * 64),
    ],
)
def test_least_bytes_are_what_is_read_and_written(call, expected):
    assert meaning_of(call).bytes == expected


def test_results_that_nobody_has_counted_leave_the_bytes_unknown():
    found = meaning_of(aten("relu.default(T8)"))
    assert found.bytes is None
    assert found.flops == 8


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("add.Tensor(T8, T8, <Scalar>)", 8),
        ("clamp.default(T8, <Scalar>, <Scalar>)", 16),
        ("addmm.default(T3, T2x5, T5x3, <Scalar>, <Scalar>)", 2 * 2 * 5 * 3 + 6),
        ("native_layer_norm.default(T4x8, None, T8, T8, <Scalar>)", 7 * 32),
        ("miopen_batch_norm.default(T2x3x4x4, T3, T3, T3, T3, True, 0.1, <Scalar>)", 5 * 96),
        ("sum.dim_IntList(T4x8, <ScalarList>, <Scalar>)", 32),
        ("_softmax.default(T4x8, <Scalar>, False)", 5 * 32),
    ],
)
def test_flops_do_not_depend_on_numbers_that_nobody_noted(text, flops):
    assert meaning_of(aten(text)).flops == flops


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("convolution.default(T1x1x4x4, T1x1x2x2, None, <ScalarList>, [0, 0])", "aten.convolution"),
        ("miopen_batch_norm.default(T2x3x4x4, T3, T3, T3, T3, <Scalar>, 0.1, 1e-5)", "Scalar"),
        ("zeros_like.default(int64[8](1), <Scalar>)", "type"),
        ("index_select.default(T9x4, <Scalar>, int64[2](1))", "aten.index_select"),
        ("cat.default([], 1)", "list"),
        ("cat.default(<TensorList>, 1)", "TensorList"),
        ("linear.default()", "arguments"),
        ("mm.default(float32[()](), float32[()]())", "shapes"),
    ],
)
def test_what_depends_on_an_unrecorded_argument_says_so(text, missing):
    found = meaning_of(aten(text))
    assert found.flops is None
    assert missing in found.flops_missing


@pytest.mark.parametrize(
    ("call", "kind", "moved"),
    [
        # 16 elements are 64 bytes, to whose multiples TensorFlow aligns tensors.
        (node("Slice", [(4, 16), sizes(1, 0), sizes(2, 16)], [(2, 16)]), "view", 0),
        (node("Slice", [(4, 15), sizes(1, 0), sizes(2, 15)], [(2, 15)]), "copy", 240),
        (node("Slice", [(4, 16), sizes(0, 0), sizes(4, 8)], [(4, 8)]), "copy", 256),
        (node("Unpack", [(2, 4, 4)], [(4, 4), (4, 4)]), "view", 0),
        (node("Unpack", [(2, 16, 16)], [(16, 16)] * 2, axis={"i": "-3"}), "view", 0),
        (node("Unpack", [(16, 2, 16)], [(16, 16)] * 2, axis={"i": "1"}), "copy", 4096),
        (node("Unpack", [(16, 16, 16)], [(16, 16)] * 16, axis={"i": "1"}), "copy", 32768),
        # x[0], x[:, 3], x[:, 0, :], x[np.newaxis, 0]
        *(
            (
                node("StridedSlice", [shape, *slices], [result], **masks),
                kind,
                moved,
            )
            for shape, result, masks, kind, moved in (
                ((16, 16), (16,), {"shrink_axis_mask": {"i": "1"}}, "view", 0),
                ((16, 16), (16,), {"shrink_axis_mask": {"i": "2"}}, "copy", 128),
                ((16, 16, 16), (16, 16), {"shrink_axis_mask": {"i": "2"}}, "copy", 2048),
                (
                    (16, 16),
                    (1, 16),
                    {"shrink_axis_mask": {"i": "2"}, "new_axis_mask": {"i": "1"}},
                    "view",
                    0,
                ),
            )
            for slices in [[sizes(0, 0), sizes(1, 1), sizes(1, 1)]]
        ),
        (node("Slice", [(4, 15), sizes(0, 0), sizes(4, 15)], [(4, 15)]), "view", 0),
        (node("Slice", [(0, 16), sizes(0, 0), sizes(0, 8)], [(0, 8)]), "view", 0),
    ],
)
def test_aligned_rows_of_a_tensor_are_views_in_tensorflow(call, kind, moved):
    found = meaning_of(call)
    assert (found.kind, found.bytes) == (kind, moved)
