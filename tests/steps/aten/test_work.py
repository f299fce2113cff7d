"""What recorded calls compute: layers, passes, FLOPs and least bytes of invented signatures."""

import math

import numpy as np
import pytest

from pydlbench.ops.table import build_layer
from pydlbench.records.operator import RecordedCall
from pydlbench.steps.aten.work import work_of


def call(text, size=0, direction="forward", count=1):
    """Return a call of ``aten``; ``size``: bytes of its results, all operands beside them."""
    operands = 4 * sum(_elements(one) for one in text.split("float32[")[1:])
    operands += 8 * sum(_elements(one) for one in text.split("int64[")[1:])
    return RecordedCall(
        signature=f"aten.{text}",
        operator=f"aten.{text.partition('.')[0]}",
        bytes=size + operands if size else 0,
        direction=direction,
        count=count,
    )


def _elements(text):
    found = 1
    for one in text.partition("]")[0].split(","):
        found *= 1 if one == "()" else int(one)
    return found


def layers(found):
    return [(one.layer.problem, one.pass_) for one in found.layers]


def tensor(*shape, **more):
    """Return the text of a dense tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    words = [*map(str, strides), *(f"{name}={value}" for name, value in more.items())]
    return f"float32[{', '.join(map(str, shape))}]({', '.join(words)})"


# -----------------------------------------------------------------------------
# Products.


@pytest.mark.parametrize(
    ("text", "direction", "expected"),
    [
        ("mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))", "forward", ("4x6:6x5", "forward")),
        (
            "mm.default(float32[4, 6](6, 1), float32[6, 5](5, 1))",
            "backward",
            ("4x5:5x6", "backward-data"),
        ),
        # The outer gradient (6 x 4), transposed, times the source (6 x 5).
        (
            "mm.default(float32[4, 6](1, 4), float32[6, 5](5, 1))",
            "backward",
            ("6x5:5x4", "backward-weights"),
        ),
        # The same with one class: what is transposed is a column.
        (
            "mm.default(float32[1, 6](1, 1), float32[6, 5](5, 1))",
            "backward",
            ("6x5:5x1", "backward-weights"),
        ),
        (
            "bmm.default(float32[3, 4, 6](24, 6, 1), float32[3, 6, 5](30, 1, 6))",
            "forward",
            ("3x4x6:3x6x5wtagnk", "forward"),
        ),
        # The outer gradient (4 x 6) times keys, which lie as 6 x 5.
        (
            "bmm.default(float32[3, 4, 6](24, 6, 1), float32[3, 6, 5](30, 5, 1))",
            "backward",
            ("3x4x5:3x5x6wtagnk", "backward-data"),
        ),
        # The sources (6 x 4), transposed, times the outer gradients (6 x 5).
        (
            "bmm.default(float32[3, 4, 6](24, 1, 4), float32[3, 6, 5](30, 5, 1))",
            "backward",
            ("3x6x4:3x4x5wtagkn", "backward-weights"),
        ),
    ],
)
def test_the_pass_of_a_product_follows_from_how_its_operands_lie(text, direction, expected):
    found = work_of(call(text, direction=direction))
    assert layers(found) == [expected]
    assert found.flops == found.product_flops == found.layers[0].layer.flops(expected[1])


def test_products_of_groups_have_a_formula_only():
    found = work_of(call(f"_grouped_mm.default({tensor(6, 4)}, {tensor(3, 4, 5)}, int32[3](1))"))
    assert found.layers == ()
    assert found.flops == found.product_flops == 2 * 6 * 4 * 5


def test_what_is_added_to_a_product_is_a_layer_of_its_own():
    operands = f"{tensor(4, 6)}, {tensor(6, 5)}"
    biased = work_of(call(f"addmm.default({tensor(5)}, {operands})"))
    assert layers(biased) == [("4x6:6x5", "forward"), ("bias:mb4ic5", "forward")]
    assert (biased.product_flops, biased.flops) == (240, 260)
    whole = work_of(call(f"addmm.default({tensor(4, 5)}, {operands})"))
    assert layers(whole)[1] == ("add:mb4ic5", "forward")
    none = work_of(call(f"addmm.default({tensor(4, 5)}, {operands}, beta=0)"))
    assert layers(none) == [("4x6:6x5", "forward")]
    odd = work_of(call(f"addmm.default({tensor(4, 1)}, {operands})"))
    assert layers(odd)[1] == ("elementwise:add:4x5:4x1", "forward")
    assert odd.flops == 260


# -----------------------------------------------------------------------------
# Recurrent layers.


@pytest.mark.parametrize(("number", "cell", "gates"), [(2, "lstm", 4), (3, "gru", 3)])
def test_recurrent_layers_are_layers(number, cell, gates):
    source, state = tensor(5, 3, 6), tensor(3, 8)
    matrices = ", ".join(tensor(8 * gates, *rest) for rest in ((6,), (8,), (), ()))
    given = f"{source}, {matrices}, {state}, {state}"
    found = work_of(
        call(
            f"mkldnn_rnn_layer.default({given}, False, [], {number}, 8, 2, True, True, False, True)"
        )
    )
    problem = f"{cell}:l1t5mb3slc6dhc8"
    assert layers(found) == [(problem, "forward")]
    assert found.layers[0].propagation == "training"
    assert found.flops == found.product_flops == 2 * 5 * 3 * gates * 8 * (6 + 8)
    assert found.flops == found.layers[0].layer.flops("forward")
    back = work_of(
        call(
            f"mkldnn_rnn_layer_backward.default({given}, {source}, {state}, {state}, {source}, "
            f"None, None, False, {number}, 8, 2, True, True, True, [], False, uint8[64](1))",
            direction="backward",
        )
    )
    assert layers(back) == [(problem, "backward-data")]
    assert back.flops == 2 * found.flops == back.layers[0].layer.flops("backward-data")


def test_a_recurrent_layer_without_gates_has_a_formula_only():
    matrices = ", ".join(tensor(8, *rest) for rest in ((6,), (8,), (), ()))
    found = work_of(
        call(
            f"mkldnn_rnn_layer.default({tensor(5, 3, 6)}, {matrices}, {tensor(3, 8)}, "
            f"{tensor(3, 8)}, False, [], 1, 8, 1, True, False, False, False)"
        )
    )
    assert found.layers == ()
    assert "gates" in found.layers_missing
    assert found.flops == 2 * 5 * 3 * 8 * (6 + 8)


# -----------------------------------------------------------------------------
# Convolutions and poolings.


def test_convolutions_of_one_side_of_groups_and_transposed_ones_are_layers():
    line = work_of(
        call(
            f"convolution.default({tensor(2, 4, 20)}, {tensor(6, 2, 5)}, {tensor(6)}, [2], [1], "
            "[2], False, [0], 2)"
        )
    )
    conv = build_layer(
        "conv",
        batch=2,
        in_channels=4,
        in_size=(1, 20),
        out_channels=6,
        kernel=(1, 5),
        stride=(1, 2),
        padding=(0, 1),
        dilation=(1, 2),
        groups=2,
    )
    assert line.layers[0].layer == conv
    assert layers(line)[1] == ("bias:mb2ic6ih1iw7", "forward")
    assert line.product_flops == conv.flops("forward") == 2 * 2 * 6 * 7 * 2 * 5
    turned = work_of(
        call(
            f"convolution.default({tensor(2, 6, 5, 7)}, {tensor(6, 4, 3, 3)}, None, [2, 2], "
            "[1, 1], [1, 1], True, [1, 0], 2)"
        )
    )
    (only,) = turned.layers
    assert only.layer.op == "deconv"
    assert only.layer.shapes()["dst"] == (2, 8, 10, 13)
    assert turned.flops == only.layer.flops("forward")


@pytest.mark.parametrize(
    ("mask", "passes"),
    [
        ("[True, True, True]", ["backward-weights", "backward-weights", "backward-data"]),
        ("[False, True, False]", ["backward-weights"]),
        ("[True, False, False]", ["backward-data"]),
    ],
)
def test_the_mask_says_which_gradients_of_a_convolution_are_wanted(mask, passes):
    outer, source, weights = tensor(2, 6, 6, 6), tensor(2, 4, 8, 8), tensor(6, 4, 3, 3)
    found = work_of(
        call(
            f"convolution_backward.default({outer}, {source}, {weights}, [6], [1, 1], [0, 0], "
            f"[1, 1], False, [0, 0], 1, {mask})",
            size=1000,
        )
    )
    assert [one.pass_ for one in found.layers] == passes
    each = 2 * 2 * 6 * 6 * 6 * 4 * 9
    wanted = mask.count("True") - ("True]" in mask)
    assert found.product_flops == wanted * each
    assert found.flops == wanted * each + (2 * 6 * 6 * 6 if "True]" in mask else 0)
    read = 2 * 6 * 36 + (2 * 4 * 64) * ("True" in mask.split(",")[1]) + 216 * ("[True" in mask)
    assert found.bytes == 4 * read + 1000


def test_a_convolution_of_three_sides_has_a_formula_and_no_layer():
    found = work_of(
        call(
            f"convolution.default({tensor(2, 4, 5, 5, 5)}, {tensor(6, 4, 3, 3, 3)}, None, "
            "[1, 1, 1], [0, 0, 0], [1, 1, 1], False, [0, 0, 0], 1)"
        )
    )
    assert found.layers == ()
    assert "3 sides" in found.layers_missing
    assert found.flops == 2 * 2 * 27 * 6 * 4 * 27


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                f"max_pool2d_with_indices.default({tensor(2, 3, 7, 7)}, [3, 3], [2, 2], [0, 0], "
                "[1, 1], True)"
            ),
            build_layer("pool", batch=2, channels=3, in_size=7, kernel=3, stride=2),
        ),
        (
            f"avg_pool2d.default({tensor(2, 3, 8, 6)}, [3], [2], [1], True, False)",
            build_layer(
                "pool",
                batch=2,
                channels=3,
                in_size=(8, 6),
                kernel=3,
                stride=2,
                padding=(1, 2, 1, 2),
                mode="avg",
            ),
        ),
        (
            f"avg_pool2d.default({tensor(2, 3, 8, 6)}, [2, 2])",
            build_layer(
                "pool", batch=2, channels=3, in_size=(8, 6), kernel=2, stride=2, mode="avg"
            ),
        ),
        (
            f"mean.dim({tensor(2, 3, 8, 6)}, [-1, -2], True)",
            build_layer("pool", batch=2, channels=3, in_size=(8, 6), kernel=(8, 6), mode="avg"),
        ),
        (
            f"_adaptive_avg_pool2d.default({tensor(2, 3, 8, 6)}, [4, 2])",
            build_layer(
                "pool",
                batch=2,
                channels=3,
                in_size=(8, 6),
                kernel=(2, 3),
                stride=(2, 3),
                mode="avg",
            ),
        ),
    ],
)
def test_poolings_are_layers(text, expected):
    found = work_of(call(text))
    assert [one.layer for one in found.layers] == [expected]
    assert found.flops == expected.flops("forward")
    assert found.product_flops == 0


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        # Windows of 2, 2 and 2 of 5 elements overlap: 2 + 3 + 2 taps on each side.
        (f"_adaptive_avg_pool2d.default({tensor(2, 3, 5, 5)}, [3, 3])", 6 * 7 * 7),
        # The last window begins within the image and is divided by fewer elements than it spans.
        (f"avg_pool2d.default({tensor(2, 3, 8, 8)}, [3], [2], [1], True, True)", 6 * 25 * 9),
        (f"avg_pool2d.default({tensor(1, 1, 4, 4)}, [2], [2], [0], False, True, 3)", 4 * 4),
    ],
)
def test_poolings_that_no_layer_computes_have_a_formula(text, flops):
    found = work_of(call(text))
    assert found.layers == ()
    assert found.layers_missing
    assert found.flops == flops


IMAGES = tensor(2, 3, 4, 6)
DOUBLE = "mb2ic3ih4oh8iw6ow12"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"upsample_nearest2d.default({IMAGES}, [8, 12], 2.0, 2.0)", f"nearest:{DOUBLE}"),
        (f"upsample_nearest2d.default({IMAGES}, [8, 12])", f"nearest:{DOUBLE}"),
        (f"_upsample_nearest_exact2d.default({IMAGES}, [7, 2])", "nearest:mb2ic3ih4oh7iw6ow2"),
        (f"upsample_bilinear2d.default({IMAGES}, [8, 12], False, 2.0, 2.0)", f"linear:{DOUBLE}"),
        (f"upsample_bilinear2d.default({IMAGES}, [7, 2], False)", "linear:mb2ic3ih4oh7iw6ow2"),
        (
            f"upsample_linear1d.default({tensor(3, 4, 5)}, [8], False)",
            "linear:mb3ic4ih1oh1iw5ow8",
        ),
        (
            f"upsample_nearest2d_backward.default({tensor(2, 3, 8, 12)}, [8, 12], [2, 3, 4, 6])",
            f"nearest:{DOUBLE}",
        ),
        (
            (
                f"upsample_bilinear2d_backward.default({tensor(2, 3, 8, 12)}, [8, 12], "
                "[2, 3, 4, 6], False, 2.0, 2.0)"
            ),
            f"linear:{DOUBLE}",
        ),
    ],
)
def test_resized_images_are_layers(text, expected):
    found = work_of(call(text, direction="backward" if "backward" in text else "forward"))
    pass_ = "backward-data" if "backward" in text else "forward"
    assert layers(found) == [(f"resize:{expected}", pass_)]
    assert found.flops == found.layers[0].layer.flops(pass_)
    assert found.kind == "resize"


@pytest.mark.parametrize(
    ("text", "flops", "reason"),
    [
        # Pixels 0 and 2 of four are picked, not 1 and 3.
        (f"upsample_nearest2d.default({IMAGES}, [2, 3])", 0, "pixels"),
        (f"upsample_bilinear2d.default({IMAGES}, [8, 12], True)", 7 * 6 * 96, "aligned"),
        # 1.7 times four are six: six steps of 1 / 1.7.
        (f"upsample_bilinear2d.default({IMAGES}, [6, 10], False, 1.7, 1.7)", 7 * 6 * 60, "factor"),
        (f"upsample_bicubic2d.default({IMAGES}, [8, 12], False)", 31 * 6 * 96, "no layer"),
        (
            f"upsample_trilinear3d.default({tensor(1, 1, 2, 2, 2)}, [4, 4, 4], False)",
            15 * 64,
            "no layer",
        ),
    ],
)
def test_resized_images_that_no_layer_makes_have_a_formula(text, flops, reason):
    found = work_of(call(text))
    assert found.layers == ()
    assert reason in found.layers_missing
    assert found.flops == flops


# -----------------------------------------------------------------------------
# Elements.


@pytest.mark.parametrize(
    ("text", "expected", "flops"),
    [
        (f"relu_.default({tensor(2, 3, 4, 4)})", ("relu:mb2ic3ih4", "forward"), 96),
        (
            f"threshold_backward.default({tensor(2, 3)}, {tensor(2, 3)}, 0)",
            ("relu:mb2ic3", "backward-data"),
            6,
        ),
        (f"hardtanh.default({tensor(2, 3)}, 0.0, 6.0)", ("relu6:mb2ic3", "forward"), 12),
        (f"add.Tensor({tensor(2, 3, 5)}, {tensor(2, 3, 5)})", ("add:mb2ic3ih1iw5", "forward"), 30),
        (f"add.Tensor({tensor(2, 3, 5)}, {tensor(5)})", ("bias:mb6ic5", "forward"), 30),
        (f"add_.Tensor({tensor(7)}, {tensor(7)}, alpha=-0.5)", ("sgd:ic7lr0.5", "forward"), 14),
        # A factor that is not 1 makes no difference to the time, whichever it is.
        (
            f"add.Tensor({tensor(7)}, {tensor(7)}, alpha=0.25)",
            ("elementwise:add:7:7by0.5", "forward"),
            14,
        ),
        # Numbers are operands of one element.
        (f"add.Tensor({tensor(2, 3)}, 1)", ("elementwise:add:6:1", "forward"), 6),
        (f"rsub.Scalar({tensor(2, 3)}, 1)", ("elementwise:add:1:6by-1", "forward"), 6),
        (
            f"mul.Tensor({tensor(2, 1, 3)}, {tensor(4, 1)})",
            ("elementwise:mul:2x1x3:1x4x1", "forward"),
            24,
        ),
        (f"mul.Tensor({tensor(8)}, {tensor(8, of=0)})", ("elementwise:square:8", "forward"), 8),
        (f"pow.Tensor_Scalar({tensor(8)}, 3)", ("elementwise:power:8by3", "forward"), 8),
        (f"clamp.default({tensor(8)}, None, 2)", ("elementwise:min:8:1", "forward"), 8),
        (f"clamp.default({tensor(8)}, 0, 2)", ("elementwise:clamp:8:1:1", "forward"), 16),
        (f"lerp_.Scalar({tensor(8)}, {tensor(8)}, 0.1)", ("elementwise:lerp:8:8:1", "forward"), 24),
        (
            f"addcmul_.default({tensor(8)}, {tensor(8)}, {tensor(8, of=1)}, value=0.1)",
            ("elementwise:add-square:8:8by0.5", "forward"),
            24,
        ),
        (
            f"addcdiv_.default({tensor(8)}, {tensor(8)}, {tensor(8)})",
            ("elementwise:addcdiv:8:8:8", "forward"),
            24,
        ),
        (f"leaky_relu.default({tensor(2, 3)}, 0.1)", ("elementwise:leaky-relu:6:1", "forward"), 12),
        (f"leaky_relu.default({tensor(2, 3)})", ("elementwise:leaky-relu:6:1", "forward"), 12),
        # A row that is repeated is one row in memory.
        (
            f"mul.Tensor({tensor(4, 6)}, float32[4, 6](0, 1))",
            ("elementwise:mul:4x6:1x6", "forward"),
            24,
        ),
        (
            f"add.Tensor({tensor(4, 6)}, float32[4, 6](0, 1))",
            ("elementwise:add:4x6:1x6", "forward"),
            24,
        ),
        ("full.default([4], 0.0)", ("move:fill:4", "forward"), 0),
        (
            f"mul.Tensor({tensor(2, 3, 1, 1)}, {tensor(2, 3, 4, 4)})",
            ("scale:mb2ic3ih4", "forward"),
            96,
        ),
        (f"silu_.default({tensor(2, 3)})", ("silu:mb2ic3", "forward"), 30),
        (f"elu.default({tensor(2, 3)}, 1.0)", ("elu:mb2ic3", "forward"), 18),
        (
            f"gelu_backward.default({tensor(2, 3)}, {tensor(2, 3)}, approximate='tanh')",
            ("gelu-tanh:mb2ic3", "backward-data"),
            108,
        ),
        # Rows are the width, whatever is in front of them.
        (f"_softmax.default({tensor(2, 3)}, -1, False)", ("softmax:mb2ic1ih1iw3", "forward"), 30),
        (
            f"_log_softmax_backward_data.default({tensor(2, 3)}, {tensor(2, 3)}, 1, torch.float32)",
            ("log-softmax:mb2ic1ih1iw3", "backward-data"),
            24,
        ),
        (
            f"native_layer_norm.default({tensor(2, 5, 3)}, [3], {tensor(3)}, {tensor(3)}, 0.001)",
            ("layernorm:mb2ic5ih1iw3eps0.001", "forward"),
            210,
        ),
        (
            f"sum.dim_IntList({tensor(2, 5, 3)}, [0, 1], True)",
            ("bias:mb10ic3", "backward-weights"),
            30,
        ),
        (f"sum.default({tensor(2, 5)})", ("reduction:sum:10:1", "forward"), 10),
        (f"mean.dim({tensor(2, 5)}, [-1], True)", ("reduction:mean:2x5:2x1", "forward"), 10),
        (f"amax.default({tensor(2, 5)}, [0])", ("reduction:max:2x5:1x5", "forward"), 10),
        (f"linalg_vector_norm.default({tensor(2, 5)})", ("reduction:norm:10:1", "forward"), 20),
        (
            f"clone.default({tensor(2, 3, 5)}, memory_format=torch.contiguous_format)",
            ("move:copy:30", "forward"),
            0,
        ),
        (
            "clone.default(float32[4, 6](1, 4), memory_format=torch.contiguous_format)",
            ("move:permute:6x4by10", "forward"),
            0,
        ),
        ("clone.default(float32[4, 6](1, 4))", ("move:copy:24", "forward"), 0),
        (
            f"copy_.default({tensor(4, 6)}, float32[4, 6](1, 4))",
            ("move:permute:6x4by10", "forward"),
            0,
        ),
        (f"zero_.default({tensor(4, 6)})", ("move:fill:24", "forward"), 0),
        ("zeros.default([4, 6], device=torch.device('cpu'))", ("move:fill:24", "forward"), 0),
        (f"stack.default([{tensor(4)}, {tensor(4)}], -1)", ("concat:mb4ic1+1", "forward"), 0),
        (f"cat.default([{tensor(4, 2)}, {tensor(0)}], 1)", ("move:copy:8", "forward"), 0),
        (
            f"embedding.default({tensor(9, 4)}, int64[2, 3](3, 1))",
            ("gather:rows:9x4:6", "forward"),
            0,
        ),
        (
            f"embedding_dense_backward.default({tensor(6, 4)}, int64[6](1), 9, -1, False)",
            ("gather:add-rows:9x4:6", "forward"),
            24,
        ),
        (
            f"cat.default([{tensor(2, 3, 4, 4)}, {tensor(2, 1, 4, 4)}], 1)",
            ("concat:mb2ic3+1ih4", "forward"),
            0,
        ),
    ],
)
def test_operators_on_elements_are_layers(text, expected, flops):
    found = work_of(call(text))
    assert layers(found) == [expected]
    assert found.flops == flops


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        (f"cos.default({tensor(2, 3)})", 6),
        (f"_to_copy.default({tensor(2, 3)}, dtype=torch.bfloat16)", 0),
        ("clone.default(float32[4, 6](0, 1), memory_format=torch.contiguous_format)", 0),
        ("zeros.default([4], dtype=torch.int64)", 0),
        ("full.default([4], 0)", 0),
        ("div.Scalar(float32[8, 512, 7, 7](512, 1, 0, 0), 49)", 8 * 512 * 49),
        (f"index.Tensor({tensor(4, 6)}, [None, int64[2](1)])", 0),
        (f"div.Tensor_mode({tensor(2, 3)}, 2, rounding_mode='floor')", 6),
        (f"hardtanh.default({tensor(2, 3)}, -1.0, 1.0)", 12),
        ("add_.Tensor(int64[()](), 1)", 0),
        (f"elu.default({tensor(2, 3)}, 0.5)", 18),
        # Along the channels of images.
        (f"_softmax.default({tensor(2, 3, 2, 1)}, 1, False)", 60),
    ],
)
def test_operators_on_elements_without_a_layer_have_a_formula(text, flops):
    found = work_of(call(text))
    assert found.layers == ()
    assert found.layers_missing
    assert found.flops == flops


def test_a_list_of_tensors_is_a_layer_for_each_of_them_and_overwrites_them():
    weights, gradients = [tensor(3), tensor(2, 2)], [tensor(3), tensor(2, 2)]
    found = work_of(
        call(
            f"_foreach_add_.List([{', '.join(weights)}], [{', '.join(gradients)}], alpha=-0.5)",
        )
    )
    assert layers(found) == [("sgd:ic3lr0.5", "forward"), ("sgd:ic4lr0.5", "forward")]
    assert found.flops == 14
    assert found.bytes == 4 * 7 * 3
    scaled = work_of(call(f"_foreach_mul_.Scalar([{', '.join(weights)}], 0.9)"))
    assert [one for one, _ in layers(scaled)] == ["elementwise:mul:3:1", "elementwise:mul:4:1"]


def test_a_tensor_without_elements_is_made_of_nothing():
    found = work_of(call("zeros.default([0], device=torch.device('cpu'))"))
    assert (found.kind, found.layers, found.flops, found.bytes) == ("view", (), 0, 0)
    assert found.layers_missing is None


def test_zeros_of_no_named_type_are_of_the_default_one():
    assert work_of(call("zeros.default([4, 6])")).dtypes == ("float32",)


def test_training_normalises_with_more_work_and_moves_the_running_statistics():
    images, five = tensor(2, 5, 4, 4), ", ".join([tensor(5)] * 4)
    results = 4 * (160 + 10)
    trained = work_of(
        call(f"native_batch_norm.default({images}, {five}, True, 0.1, 0.001)", results)
    )
    assert [one.propagation for one in trained.layers] == ["training"]
    assert layers(trained) == [("batchnorm:mb2ic5ih4eps0.001", "forward")]
    assert trained.flops == 5 * 160
    assert trained.bytes == 4 * (160 + 20) + results + 4 * 10
    fixed = work_of(
        call(f"native_batch_norm.default({images}, {five}, False, 0.1, 0.001)", results)
    )
    assert [one.propagation for one in fixed.layers] == ["inference"]
    assert fixed.bytes == 4 * (160 + 20) + results
    bare = f"native_batch_norm.default({images}, None, None, None, None, True, 0.1, 0.001)"
    assert "factors" in work_of(call(bare)).layers_missing


# -----------------------------------------------------------------------------
# Types.

_BF16 = "bfloat16[2, 3, 4, 4](48, 16, 4, 1)"


@pytest.mark.parametrize(
    ("text", "dtypes"),
    [
        # Factors and statistics in float32 beside images in bfloat16 are no mixture.
        (
            f"native_batch_norm.default({_BF16}, {', '.join([tensor(3)] * 4)}, True, 0.1, 0.001)",
            ("bfloat16",),
        ),
        (f"native_layer_norm.default({_BF16}, [4], {tensor(4)}, {tensor(4)}, 1e-5)", ("bfloat16",)),
        # A number, whatever its type, is none either; what is added to all rows is.
        (f"add.Tensor({_BF16}, float32[()]())", ("bfloat16",)),
        (f"add.Tensor({_BF16}, {tensor(4)})", ("bfloat16", "float32")),
        (f"sum.dim_IntList({_BF16}, [0], dtype=torch.float32)", ("bfloat16", "float32")),
        (f"clone.default({_BF16}, memory_format=torch.contiguous_format)", ("bfloat16",)),
        (f"embedding.default({tensor(9, 4)}, int64[5](1))", ("float32",)),
        ("add.Tensor(int64[5](1), int32[5](1))", ("int32", "int64")),
    ],
)
def test_a_call_is_computed_in_the_type_of_its_operands(text, dtypes):
    assert work_of(call(text)).dtypes == dtypes


# -----------------------------------------------------------------------------
# Attention.


def test_an_attention_is_its_products_and_a_causal_one_counts_the_pairs_that_are_seen():
    heads = ", ".join([tensor(2, 3, 8, 4)] * 3)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    whole = work_of(call(f"{name}.default({heads})"))
    assert layers(whole) == [
        ("6x8x4:6x4x8wtagnk", "forward"),
        ("softmax:mb2ic3ih8", "forward"),
        ("6x8x8:6x8x4wtagkn", "forward"),
    ]
    assert whole.product_flops == 2 * 2 * 6 * 64 * 4
    assert whole.flops == sum(one.layer.flops("forward") for one in whole.layers)
    assert whole.note is None
    causal = work_of(call(f"{name}.default({heads}, 0.0, True)"))
    assert layers(causal) == layers(whole)
    assert causal.product_flops * 64 == whole.product_flops * 36
    assert "36 of 64" in causal.note


def test_fewer_keys_than_queries_are_seen_by_all_later_queries():
    operands = f"{tensor(1, 1, 5, 4)}, {tensor(1, 1, 3, 4)}, {tensor(1, 1, 3, 4)}"
    text = f"_scaled_dot_product_flash_attention_for_cpu.default({operands}, 0.0, True)"
    assert "12 of 15" in work_of(call(text)).note


# -----------------------------------------------------------------------------
# Bytes.


@pytest.mark.parametrize(
    ("text", "results", "expected"),
    [
        (f"relu.default({tensor(8)})", 32, 64),
        # The same memory twice is read once, and so are elements of stride 0.
        (f"mul.Tensor({tensor(8)}, {tensor(8, of=0)})", 32, 64),
        ("mul.Tensor(float32[4, 8](0, 1), float32[4, 8](8, 1))", 128, 32 + 128 + 128),
        # Views that interleave, and views that overlap: at most what lies between their ends.
        ("add.Tensor(float32[4](2), float32[4](2, at=4, of=0))", 16, 32 + 16),
        ("add.Tensor(float32[8](1), float32[8](1, at=4, of=0))", 32, 36 + 32),
        # What is only overwritten is not read.
        (f"fill_.Scalar({tensor(8)}, 1.0)", 32, 32),
        (f"copy_.default({tensor(8)}, {tensor(8)})", 32, 64),
        # What says a shape only is not read either.
        (f"zeros_like.default({tensor(8)})", 32, 32),
        (
            (
                f"avg_pool2d_backward.default({tensor(1, 1, 2, 2)}, {tensor(1, 1, 4, 4)}, [2], "
                "[2], [0], False, True, None)"
            ),
            64,
            16 + 64,
        ),
        # Two rows of a table of nine.
        (f"embedding.default({tensor(9, 4)}, int64[2](1))", 32, 32 + 16 + 32),
        # Ten rows are read more than once, of a table of two.
        (f"embedding.default({tensor(2, 4)}, int64[10](1))", 160, 32 + 80 + 160),
        # Two rows are read, added to, and written.
        (
            f"index_add_.default({tensor(9, 4)}, 0, int64[2](1), {tensor(2, 4)})",
            144,
            16 + 32 + 32 + 32,
        ),
        (
            f"index_put_.default({tensor(9, 4)}, [int64[2](1)], {tensor(1)})",
            144,
            16 + 4 + 32,
        ),
        # A part is copied.
        (f"constant_pad_nd.default({tensor(8)}, [-3, -1], 0.0)", 16, 32),
    ],
)
def test_least_bytes_are_what_is_read_and_written(text, results, expected):
    assert work_of(call(text, results)).bytes == expected


def test_a_stack_of_one_is_a_copy():
    assert layers(work_of(call(f"stack.default([{tensor(3, 8)}])"))) == [
        ("move:copy:24", "forward")
    ]


def test_what_is_padded_is_filled_and_copied():
    found = work_of(call(f"constant_pad_nd.default({tensor(2, 3, 4)}, [1, 2, 0, 1], 0.0)"))
    assert layers(found) == [("move:fill:56", "forward"), ("move:copy:24", "forward")]
    assert found.flops == 0
    part = work_of(call(f"constant_pad_nd.default({tensor(8)}, [-3, -1], 0.0)"))
    assert "part" in part.layers_missing


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
    (move,) = work_of(call(f"{name}.default({text}, 2)")).layers
    moved = images.reshape(move.layer.src).transpose(move.layer.order)
    assert np.array_equal(moved.ravel(), expected.ravel())


@pytest.mark.parametrize(
    "text", [f"view.default({tensor(8)}, [2, 4])", f"t.default({tensor(2, 4)})", "empty.x([8])"]
)
def test_a_view_runs_no_kernel(text):
    found = work_of(call(text))
    assert (found.kind, found.layers, found.flops, found.bytes) == ("view", (), 0, 0)
    assert found.layers_missing is None


# -----------------------------------------------------------------------------
# What is not known.


@pytest.mark.parametrize(
    ("signature", "named"),
    [
        ("mine.twice.default(float32[3](1))", "mine.twice"),
        ("aten.fft_fft.default(float32[3](1))", "fft_fft"),
        ("aten.mul.Tensor(complex64[3](1), 2)", "complex"),
        ("aten.relu.default(<sparse_coo tensor>)", "sparse_coo"),
        ("aten.relu.default(float32[3](1)", "aten.relu"),
        ("aten.mm.default(float32[3](1), 7)", "aten.mm"),
        ('{"kind": "nodes", "phase": "forward"}', "PyTorch"),
    ],
)
def test_what_no_rule_knows_is_none_with_its_reason(signature, named):
    one = RecordedCall(signature=signature, operator=signature.partition("(")[0], bytes=24)
    found = work_of(one)
    assert (found.kind, found.layers) == ("other", ())
    assert found.flops is found.product_flops is found.bytes is None
    assert named in found.layers_missing
    assert found.flops_missing == found.bytes_missing == found.layers_missing


def test_results_that_nobody_has_counted_leave_the_bytes_unknown():
    found = work_of(call(f"relu.default({tensor(8)})"))
    assert found.bytes is None
    assert found.bytes_missing
    assert found.flops == 8
