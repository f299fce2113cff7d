"""What nodes of TensorFlow's graphs compute: layers, passes, FLOPs and bytes of invented ones."""

import pytest

from pydlbench.ladder.mapped import map_calls
from pydlbench.ladder.operators import kind_of
from pydlbench.ops.table import build_layer
from pydlbench.records.operator import RecordedCall
from pydlbench.steps.nodes.text import Node, NodeTensor
from pydlbench.steps.nodes.work import work_of_graph_node

SLID = {
    "data_format": {"s": "NHWC"},
    "padding": {"s": "SAME"},
    "strides": {"list": {"i": ["1", "2", "2", "1"]}},
    "dilations": {"list": {"i": ["1", "1", "1", "1"]}},
    "ksize": {"list": {"i": ["1", "3", "3", "1"]}},
}


def tensors(*shapes, **more):
    return tuple(NodeTensor(type="float32", shape=one, **more) for one in shapes)


def call(op, inputs, outputs, direction="forward", **attributes):
    made = tuple(one if isinstance(one, NodeTensor) else tensors(one)[0] for one in inputs)
    node = Node(op=op, attributes=attributes, inputs=made, outputs=tensors(*outputs))
    return RecordedCall(
        signature=node.text, operator=op, direction=direction, names=("own",), bytes=node.bytes
    )


def sizes(*values):
    return NodeTensor(type="int32", shape=(len(values),), values=values)


def layers(found):
    return [(one.layer.problem, one.pass_) for one in found.layers]


CONV = build_layer(
    "conv",
    batch=2,
    in_channels=3,
    in_size=8,
    out_channels=5,
    kernel=3,
    stride=2,
    padding=(0, 1, 0, 1),
).problem
TAPS = 2 * 2 * 4 * 4 * 5 * 27  # two for a multiply-add, of each element of (2, 4, 4, 5)
FUSED = {"fused_ops": {"list": {"s": ["BiasAdd", "Relu"]}}}
CENTRES = {"half_pixel_centers": {"b": True}}
POOL = build_layer("pool", batch=2, channels=3, in_size=8, kernel=3, stride=2, padding=(0, 1, 0, 1))


@pytest.mark.parametrize(
    ("recorded", "expected", "flops", "product"),
    [
        (
            call("Conv2D", [(2, 8, 8, 3), (3, 3, 3, 5)], [(2, 4, 4, 5)], **SLID),
            [(CONV, "forward")],
            TAPS,
            TAPS,
        ),
        (
            call(
                "_MklNativeFusedConv2D",
                [(2, 8, 8, 3), (3, 3, 3, 5), (5,)],
                [(2, 4, 4, 5)],
                **SLID,
                **FUSED,
            ),
            [(CONV, "forward"), ("bias:mb2ic5ih4", "forward"), ("relu:mb2ic5ih4", "forward")],
            TAPS + 2 * 160,
            TAPS,
        ),
        (
            call(
                "Conv2DBackpropInput",
                [sizes(2, 8, 8, 3), (3, 3, 3, 5), (2, 4, 4, 5)],
                [(2, 8, 8, 3)],
                "backward",
                **SLID,
            ),
            [(CONV, "backward-data")],
            TAPS,
            TAPS,
        ),
        (
            call(
                "_MklNativeConv2DBackpropFilterWithBias",
                [(2, 8, 8, 3), sizes(3, 3, 3, 5), (2, 4, 4, 5)],
                [(3, 3, 3, 5), (5,)],
                "backward",
                **SLID,
            ),
            [("bias:mb2ic5ih4", "backward-weights"), (CONV, "backward-weights")],
            TAPS + 160,
            TAPS,
        ),
        (
            call("MaxPool", [(2, 8, 8, 3)], [(2, 4, 4, 3)], **SLID),
            [(POOL.problem, "forward")],
            96 * 9,
            0,
        ),
        (
            call(
                "MaxPoolGrad",
                [(2, 8, 8, 3), (2, 4, 4, 3), (2, 4, 4, 3)],
                [(2, 8, 8, 3)],
                "backward",
                **SLID,
            ),
            [(POOL.problem, "backward-data")],
            96,
            0,
        ),
        (
            call(
                "_MklNativeMaxPoolGrad",
                [(2, 8, 8, 3), (2, 4, 4, 3), (2, 4, 4, 3), NodeTensor(type="uint8")],
                [(2, 8, 8, 3)],
                "backward",
                **SLID,
            ),
            [(POOL.problem, "backward-data")],
            96,
            0,
        ),
        (
            call("SquaredDifference", [(2, 3, 8), (2, 3, 1)], [(2, 3, 8)]),
            [("elementwise:add:6x8:6x1by-1", "forward"), ("elementwise:square:48", "forward")],
            96,
            0,
        ),
        (
            call("ResizeBilinear", [(2, 8, 8, 3), sizes(16, 16)], [(2, 16, 16, 3)], **CENTRES),
            [("resize:linear:mb2ic3ih8oh16", "forward")],
            2 * 16 * 16 * 3 * 7,
            0,
        ),
        (
            call(
                "ResizeBilinearGrad",
                [(2, 16, 16, 3), (2, 8, 8, 3)],
                [(2, 8, 8, 3)],
                "backward",
                **CENTRES,
            ),
            [("resize:linear:mb2ic3ih8oh16", "backward-data")],
            2 * 16 * 16 * 3 * 8,
            0,
        ),
        (
            # From whole positions it is the same pixels, twice as many of them.
            call("ResizeNearestNeighbor", [(2, 8, 8, 3), sizes(16, 24)], [(2, 16, 24, 3)]),
            [("resize:nearest:mb2ic3ih8oh16iw8ow24", "forward")],
            0,
            0,
        ),
        (
            call("ResizeBilinear", [(2, 8, 8, 3), sizes(16, 16)], [(2, 16, 16, 3)]),
            [],
            2 * 16 * 16 * 3 * 7,
            0,
        ),
        (
            call("MatMul", [(6, 4), (4, 5)], [(6, 5)]),
            [("6x4:4x5", "forward")],
            240,
            240,
        ),
        # The gradient of weights (4, 5): a minibatch of 6, transposed, times its gradient.
        (
            call("MatMul", [(6, 4), (6, 5)], [(4, 5)], "backward", transpose_a={"b": True}),
            [("6x4:4x5", "backward-weights")],
            240,
            240,
        ),
        (
            call("_MklMatMul", [(6, 5), (4, 5)], [(6, 4)], "backward", transpose_b={"b": True}),
            [("6x4:4x5", "backward-data")],
            240,
            240,
        ),
        (
            call(
                "Einsum",
                [(2, 7, 3, 4), (2, 9, 3, 4)],
                [(2, 3, 7, 9)],
                equation={"s": "bqhd,bkhd->bhqk"},
            ),
            [("6x7x4:6x4x9wtagkn", "forward")],
            2 * 6 * 7 * 9 * 4,
            2 * 6 * 7 * 9 * 4,
        ),
        (
            call(
                "FusedBatchNormV3",
                [(2, 4, 4, 5), (5,), (5,), (5,), (5,)],
                [(2, 4, 4, 5), (5,), (5,)],
                is_training={"b": True},
                epsilon={"f": 0.001},
                data_format={"s": "NHWC"},
            ),
            [("batchnorm:mb2ic5ih4eps0.001", "forward")],
            5 * 160,
            0,
        ),
        (
            call("BiasAddGrad", [(2, 4, 4, 5)], [(5,)], "backward"),
            [("bias:mb32ic5", "backward-weights")],
            160,
            0,
        ),
        (call("ReluGrad", [(6, 5), (6, 5)], [(6, 5)], "backward"), None, 30, 0),
        (call("AddV2", [(6, 5), (6, 5)], [(6, 5)]), [("add:mb6ic5", "forward")], 30, 0),
        (call("Reshape", [(6, 5), sizes(30)], [(30,)]), [], 0, 0),
        (
            call("Sub", [(6, 5), (6, 1)], [(6, 5)]),
            [("elementwise:add:6x5:6x1by-1", "forward")],
            30,
            0,
        ),
        (call("Mul", [(6, 5), ()], [(6, 5)]), [("elementwise:mul:30:1", "forward")], 30, 0),
        (call("Rsqrt", [(5,)], [(5,)]), [("elementwise:rsqrt:5", "forward")], 10, 0),
        (
            call("Mean", [(2, 4, 4, 5), sizes(0, 1, 2)], [(5,)]),
            [("reduction:mean:32x5:1x5", "forward")],
            160,
            0,
        ),
        (call("ZerosLike", [(0, 5)], [(0, 5)]), [], 0, 0),
        (call("ZerosLike", [(6, 5)], [(6, 5)]), [("move:fill:30", "forward")], 0, 0),
        (
            call("Transpose", [(2, 3, 4), sizes(0, 2, 1)], [(2, 4, 3)]),
            [("move:permute:2x3x4by021", "forward")],
            0,
            0,
        ),
        (
            call("ResourceGather", [(100, 8), sizes(3, 1)], [(2, 8)]),
            [("gather:rows:100x8:2", "forward")],
            0,
            0,
        ),
    ],
)
def test_a_node_is_layers_and_flops(recorded, expected, flops, product):
    found = work_of_graph_node(recorded)
    assert (found.flops, found.product_flops) == (flops, product)
    if expected is not None:
        assert [(problem, pass_) for problem, pass_ in layers(found)] == expected
    assert found.bytes == (0 if found.kind == "view" else recorded.bytes)
    assert found.dtypes == ("float32",)
    assert kind_of(recorded) == ("layer" if product or "Pool" in recorded.operator else "pointwise")
    ((key, mapped),) = map_calls([recorded], "forward", "fp32", "cpu", 1 << 20).items()
    assert key == (recorded.signature, recorded.direction)
    assert len(mapped.terms) == len(found.layers)


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (call("Frobnicate", [(2, 3)], [(2, 3)]), "no rule for this operator"),
        (call("Mul", [(2, 3), NodeTensor(type="float32")], [(2, 3)]), "shapes are known"),
        (call("Einsum", [(2, 3)], [(3, 2)], equation={"s": "ab->ba"}), "no rule for ab->ba"),
    ],
)
def test_what_no_rule_knows_says_why(recorded, why):
    found = work_of_graph_node(recorded)
    assert (found.flops, found.bytes, found.layers) == (None, None, ())
    assert why in found.layers_missing


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        (call("Erfc", [(2, 3)], [(2, 3)]), "Erfc has no layer"),
        (call("Tile", [(2, 3), sizes(1, 2)], [(2, 6)]), "Tile has no layer"),
        (call("GatherV2", [(2, 3), sizes(0), sizes(1)], [(2, 1)]), "of these has no layer"),
        (call("Prod", [(2, 3), sizes(1)], [(2,)]), "Prod has no layer"),
    ],
)
def test_what_has_no_layer_has_flops_all_the_same(recorded, why):
    found = work_of_graph_node(recorded)
    assert found.flops is not None
    assert found.layers == ()
    assert why in str(found.layers_missing)


def test_a_node_in_a_loop_has_no_number():
    node = Node(op="MatMul", attributes={}, inputs=tensors((2, 2), (2, 2)), looped=True)
    assert Node.read(node.text) == node
    found = work_of_graph_node(RecordedCall(signature=node.text, operator="MatMul"))
    assert found.flops is None
    assert "in a loop" in found.flops_missing
