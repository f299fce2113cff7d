"""FLOPs and least bytes of each pass of each op, counted by hand; invalid layers."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import INTEGERS, Layer
from pydlbench.ops.table import OPS, build_layer
from pydlbench.ops.tensors import merged_elementwise, merged_move, merged_reduction
from pydlbench.ops.windows import RESIZE_MODES, positions_read
from pydlbench.words import PASSES

from .conftest import every

# Problem, pass, FLOPs, executed FLOPs if fewer, and bytes at two bytes per element. Images of
# 2 * 3 * 4 * 5 have 120 elements.
COUNTS = [
    # Each side has 13 * 3 - 2 of its 13 * 3 taps on elements.
    *(
        (
            "mb128ic192ih13oc384oh13kh3ph1",
            pass_,
            2 * 128 * 112_140_288,
            2 * 128 * 112_140_288 * 37**2 // 39**2,
            2 * (128 * 192 * 169 + 384 * 192 * 9 + 128 * 384 * 169),
        )
        for pass_ in PASSES
    ),
    # A strided 1x1 kernel reads a quarter, and its gradient is written whole.
    ("ic8ih56oc8kh1sh2", "forward", 100352, None, 2 * (8 * 28 * 28 + 64 + 8 * 28 * 28)),
    ("ic8ih56oc8kh1sh2", "backward-data", 100352, None, 2 * (8 * 56 * 56 + 64 + 8 * 28 * 28)),
    # Depthwise.
    ("g32mb2ic32ih7oc32kh3", "forward", 2 * 2 * 32 * 25 * 9, None, 2 * 2 * 32 * (49 + 25) + 576),
    ("mb2ic4iw8oc6kw3pw1", "forward", 2 * 2 * 6 * 4 * 24, 2 * 2 * 6 * 4 * 22, 2 * (64 + 72 + 96)),
    ("mb1ic2id4oc3kd2", "forward", 2 * 2 * 3 * 27 * 8, None, 2 * (128 + 48 + 81)),
    # Along one side three windows lose one tap, none and one.
    *(("deconv:ic1ih3oc1oh3kh3ph1", pass_, 2 * 81, 2 * 49, 2 * 27) for pass_ in PASSES),
    ("deconv:ic2id2oc3kd2sd2", "forward", 2 * 6 * 64, None, 2 * (16 + 48 + 192)),
    ("mb128ic64ih56kh3sh2", "forward", 53747712, None, 2 * 128 * 64 * (55**2 + 27**2)),
    ("mb128ic64ih56kh3sh2", "backward-data", 53747712, None, 2 * 128 * 64 * (56**2 + 27**2)),
    # Two taps, three apart: of three windows the middle one has both on elements.
    ("ic1iw4kw2dw2pw2sw2", "forward", 6, 4, 2 * (4 + 3)),
    *(
        ("128x9216:9216x4096", pass_, 256 * 37_748_736, None, 2 * (1703936 + 37_748_736))
        for pass_ in PASSES
    ),
    ("3x128x64:3x64x32", "forward", 6 * 128 * 64 * 32, None, 6 * (8192 + 2048 + 4096)),
    ("2x1x5x16:1x4x16x8", "forward", 16 * 5 * 16 * 8, None, 2 * (160 + 512 + 320)),
    # 2 sequences, 4 heads of queries, 2 of keys; 6 queries and 8 keys of 16, values of 10.
    ("attention:mb2h4kvh2q6k8d16dv10", "forward", 2 * 8 * 48 * 26, None, 2 * (768 + 832 + 480)),
    (
        "attention:mb2h4kvh2q6k8d16dv10",
        "backward-data",
        2 * 8 * 48 * 68,
        None,
        2 * (2 * (768 + 832) + 960),
    ),
    # Of four queries and keys, 1 + 2 + 3 + 4 pairs are attended to.
    ("attention:mb1h1q4d2causal1", "forward", 2 * 10 * 4, None, 2 * 32),
    ("attention:mb1h1q4d2causal1", "backward-data", 2 * 10 * 10, None, 2 * 64),
    # Two queries of five keys see 1 + 2, five of two 1 + 2 + 2 + 2 + 2.
    ("attention:mb1h1q2k5d2causal1", "forward", 2 * 3 * 4, None, 2 * 28),
    ("attention:mb1h1q5k2d2causal1", "forward", 2 * 9 * 4, None, 2 * 28),
    # Layers, steps, batch, gates, matrices.
    ("lstm:l2t5mb3slc8dhc8", "forward", 2 * 2 * 5 * 3 * 4 * 128, None, 2 * (1304 + 120)),
    ("lstm:l2t5mb3slc8dhc8", "backward-data", 4 * 2 * 5 * 3 * 4 * 128, None, 2 * (2608 + 120)),
    # A projection of 8 elements to 4 in each step, and 3 factors for each of 8 elements.
    (
        "lstm:t5mb3slc7dhc8dic4peephole1",
        "forward",
        2 * 5 * 3 * (4 * 8 * 11 + 8 * 4),
        None,
        2 * (105 + 12 + 24 + 224 + 128 + 32 + 32 + 24 + 60),
    ),
    *(
        row
        for cell in ("rnn-tanh", "rnn-relu")
        for row in (
            (f"{cell}:t5mb3slc7dhc4", "forward", 2 * 5 * 3 * 4 * 11, None, 2 * 225),
            (f"{cell}:t5mb3slc7dhc4", "backward-data", 4 * 5 * 3 * 4 * 11, None, 2 * 390),
        )
    ),
    ("gru:t5mb3slc7dhc4", "forward", 2 * 5 * 3 * 3 * 4 * 11, None, 2 * (105 + 12 + 148 + 60)),
    ("gru:t5mb3slc7dhc4", "backward-data", 3960 * 2, None, 2 * (2 * 265 + 60)),
    ("vanilla-gru:t5mb3slc7dhc4", "forward", 3960, None, 2 * (105 + 12 + 144 + 60)),
    ("vanilla-gru:t5mb3slc7dhc4", "backward-data", 3960 * 2, None, 2 * (2 * 261 + 60)),
    ("bias:mb2ic3ih4iw5", "forward", 120, None, 2 * (120 + 3 + 120)),
    ("bias:mb2ic3ih4iw5", "backward-weights", 120, None, 2 * (120 + 3)),
    *(
        (f"{op}:mb2ic3ih4iw5", pass_, flops * 120, None, 2 * size)
        for op, forward, backward in (
            *(("relu", 1, 1), ("relu6", 2, 2), ("hardswish", 5, 5), ("hardsigmoid", 4, 3)),
            *(
                ("sigmoid", 4, 3),
                ("tanh", 1, 3),
                ("softplus", 3, 5),
                ("elu", 3, 3),
                ("logsigmoid", 3, 5),
            ),
            *(("silu", 5, 9), ("mish", 5, 11), ("gelu", 5, 11), ("gelu-tanh", 9, 18)),
            *(("softmax", 5, 4), ("log-softmax", 5, 4), ("hardtanh", 2, 2)),
        )
        for pass_, flops, size in (("forward", forward, 240), ("backward-data", backward, 360))
    ),
    # 24 rows of five elements.
    ("layernorm:mb2ic3ih4iw5", "forward", 840, None, 2 * 240 + 4 * 10),
    ("layernorm:mb2ic3ih4iw5", "backward-data", 1680, None, 2 * 360 + 4 * (5 + 48 + 10)),
    ("rmsnorm:mb2ic3ih4iw5", "forward", 480, None, 2 * (240 + 5)),
    ("rmsnorm:mb2ic3ih4iw5", "backward-data", 1320, None, 2 * (360 + 10)),
    # Six groups.
    ("groupnorm:mb2ic3ih4iw5g3", "forward", 840, None, 2 * 240 + 4 * 6),
    ("groupnorm:mb2ic3ih4iw5g3", "backward-data", 1680, None, 2 * 360 + 4 * (9 + 12)),
    ("prelu:mb2ic3ih4iw5", "forward", 240, None, 2 * (240 + 3)),
    ("prelu:mb2ic3ih4iw5", "backward-data", 480, None, 2 * (360 + 6)),
    ("cumsum:mb2ic3ih4iw5axis1", "forward", 120, None, 2 * 240),
    ("cumsum:mb2ic3ih4iw5axis1", "backward-data", 120, None, 2 * 240),
    ("swiglu:mb2ic3ih4iw5", "forward", 720, None, 2 * 360),
    ("swiglu:mb2ic3ih4iw5", "backward-data", 1440, None, 2 * 600),
    ("rope:mb2ic3ih4iw6", "forward", 432, None, 2 * (288 + 48)),
    ("rope:mb2ic3ih4iw6", "backward-data", 432, None, 2 * (288 + 48)),
    ("add-rmsnorm:mb2ic3ih4iw5", "forward", 600, None, 2 * (480 + 5)),
    # Six factors, one for each channel of each image.
    ("scale:mb2ic3ih4iw5", "forward", 120, None, 2 * (240 + 6)),
    ("scale:mb2ic3ih4iw5", "backward-data", 360, None, 2 * (360 + 6 + 6)),
    # Of five neighbours the three channels have 3 + 3 + 3, of three 2 + 3 + 2.
    ("lrn:mb2ic3ih4iw5", "forward", 120 * 14, 40 * (12 + 18), 2 * 240),
    ("lrn:mb2ic3ih4iw5ls3", "backward-data", 120 * 18, 40 * (27 + 21), 2 * 360),
    ("batchnorm:mb2ic3ih4iw5", "forward", 240, None, 2 * 240 + 4 * 12),
    ("batchnorm:mb2ic3ih4iw5", "backward-data", 960, None, 2 * 360 + 4 * 15),
    ("add:mb2ic3ih4iw5", "forward", 120, None, 2 * 360),
    ("concat:mb2ic1+2ih4iw5", "forward", 0, None, 2 * 240),
    ("concat:mb2ic1+2ih4iw5", "backward-data", 0, None, 2 * 240),
    ("softmax-xent:mb8ic15", "forward", 600, None, 2 * 240 + 4 * 8 + 4),
    ("softmax-xent:mb8ic15", "backward-data", 120, None, 2 * 240 + 4 * 8),
    # One number is the result.
    *(
        (f"{op}:ic120", pass_, flops * 120, None, 2 * 240 + size)
        for op, forward, backward in (
            *(("mse", 3, 3), ("l1", 3, 3), ("smooth-l1", 6, 5), ("bce-logits", 8, 6)),
        )
        for pass_, flops, size in (("forward", forward, 4), ("backward-data", backward, 240))
    ),
    # Of each row, one score is read, and a label of four bytes; the gradient is written as a whole.
    ("nll:mb8ic15", "forward", 8, None, 2 * 8 + 4 * 8 + 4),
    ("nll:mb8ic15", "backward-data", 0, None, 4 * 8 + 2 * 120),
    ("cumprod:mb2ic3ih4iw5axis1", "forward", 120, None, 2 * 240),
    ("dropout:mb2ic3ih4iw5", "forward", 120, None, 2 * 240),
    ("dropout:mb2ic3ih4iw5", "backward-data", 120, None, 2 * 240),
    ("l2:ic120", "forward", 240, None, 2 * 120 + 4),
    ("l2:ic120", "backward-weights", 240, None, 2 * 360),
    ("sgd:ic120", "forward", 240, None, 2 * 360),
    ("momentum:ic120", "forward", 480, None, 2 * 600),
    # The overwritten source is written, too.
    *(
        (f"{op}-in-place:mb2ic3ih4iw5", "forward", 120 * flops, None, 2 * 240)
        for op, flops in (
            *(("relu", 1), ("relu6", 2), ("hardswish", 5), ("hardsigmoid", 4), ("silu", 5)),
        )
    ),
    ("add-in-place:mb2ic3ih4iw5", "forward", 120, None, 2 * 360),
    *(
        (f"elementwise:{op}{end}:4x6{':4x1' * (operands - 1)}", "forward", flops * 24, None, size)
        for operands, size, each in (
            (1, 96, {"abs": 1, "neg": 1, "square": 1, "sqrt": 1, "rsqrt": 2, "exp": 1, "log": 1}),
            (1, 96, {"power": 1, "log1p": 1, "expm1": 1, "erf": 1, "sin": 1, "cos": 1, "sign": 1}),
            (1, 96, {"floor": 1, "ceil": 1, "rint": 1, "hardshrink": 2, "softshrink": 3}),
            (1, 96, {"xlogx": 2, "log2": 1, "log10": 1}),
            (2, 104, {"add": 1, "mul": 1, "div": 1, "max": 1, "min": 1, "threshold": 1}),
            (2, 104, {"xlogy": 2}),
            (2, 104, {"leaky-relu": 2, "add-square": 3}),
            (3, 112, {"lerp": 3, "addcmul": 3, "addcdiv": 3, "clamp": 2, "leaky-relu-gradient": 2}),
        )
        for op, flops in each.items()
        for end in ("", "-in-place")
    ),
    ("elementwise:add:9:9by-1", "forward", 9, None, 54),
    # Two results, and one number for all.
    ("elementwise:prelu-gradient:9:9:1", "forward", 27, None, 2 * (9 + 9 + 1 + 9 + 9)),
    # One of the tensors is in float32.
    ("elementwise:cast-from-fp32:9", "forward", 0, None, 4 * 9 + 2 * 9),
    ("elementwise:cast-to-fp32:9", "forward", 0, None, 2 * 9 + 4 * 9),
    *(
        (f"elementwise:cast-{way}-{kind}:9", "forward", 0, None, size * 9 + 2 * 9)
        for kind, size in (("bool", 1), ("uint8", 1), ("int32", 4), ("int64", 8))
        for way in ("from", "to")
    ),
    ("elementwise:sum3:9:9:1", "forward", 18, None, 56),
    ("elementwise:sum3-in-place:9:9:1", "forward", 18, None, 56),
    ("elementwise:add:9:9by2", "forward", 18, None, 54),
    *((f"reduction:{op}:6x2:1x2", "forward", 12, None, 28) for op in ("sum", "mean", "max", "min")),
    *((f"reduction:{op}:6x2:1x2", "forward", 24, None, 28) for op in ("norm", "norm1")),
    *((f"reduction:{op}:6x2:1x2", "forward", 48, None, 28) for op in ("logsumexp", "var", "std")),
    # Indices have four bytes.
    *((f"reduction:arg{op}:6x2:1x2", "forward", 12, None, 32) for op in ("max", "min")),
    *((f"reduction:{op}-indices:6x2:1x2", "forward", 12, None, 36) for op in ("max", "min")),
    # A mask has a byte for each element.
    *(
        (f"elementwise:{op}:6x2:6x1", "forward", 12, None, 36 + 12)
        for op in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    ("elementwise:select:6x2:1:6x2", "forward", 12, None, 50 + 12),
    ("elementwise:select-in-place:6x2:1:6x2", "forward", 12, None, 50 + 12),
    ("reduction:prod:6x2:1x2", "forward", 12, None, 28),
    ("move:flip:6x2by0", "forward", 0, None, 48),
    ("move:roll:6x2by01", "forward", 0, None, 48),
    ("move:tile:1x2:6x2", "forward", 0, None, 28),
    ("move:reflect:3x2:5x2", "forward", 0, None, 32),
    ("move:replicate:3x2:9x2", "forward", 0, None, 48),
    # Six elements are not above, three not below the diagonal.
    ("move:tril:3x3", "forward", 0, None, 30),
    ("move:triu:4x3", "forward", 0, None, 36),
    ("move:tril:2x4x3", "forward", 0, None, 84),
    ("move:copy:8", "forward", 0, None, 32),
    ("move:permute:4x2by10", "forward", 0, None, 32),
    ("move:fill:8", "forward", 0, None, 16),
    ("gather:rows:9x4:2", "forward", 0, None, 2 * 4 * (2 + 2) + 4 * 2),
    ("gather:rows:2x4:9", "forward", 0, None, 2 * 4 * (2 + 9) + 4 * 9),
    ("gather:add-rows:9x4:2", "forward", 8, None, 2 * 4 * (2 + 9) + 4 * 2),
    ("resize:linear:mb2ic3ih4oh8", "forward", 7 * 384, None, 2 * (96 + 384)),
    ("resize:linear:mb2ic3ih4oh8", "backward-data", 8 * 384, None, 2 * (96 + 384)),
    ("resize:linear:mb2ic3ih1oh1iw4ow8", "forward", 3 * 48, None, 2 * (24 + 48)),
    # Every other pixel is read, and all gradients are written.
    ("resize:nearest:mb2ic3ih8oh4", "forward", 0, None, 2 * 192),
    ("resize:nearest:mb2ic3ih8oh4", "backward-data", 96, None, 2 * (384 + 96)),
    *(
        (f"resize:{mode}:mb2ic3ih4oh8", pass_, flops * 384, None, 2 * (96 + 384))
        for mode, terms in (("linear-aligned", 4), ("cubic", 16), ("cubic-aligned", 16))
        for pass_, flops in (("forward", 2 * terms - 1), ("backward-data", 2 * terms))
    ),
    # Windows of two, three and two elements along each side.
    ("resize:area:mb2ic3ih5oh3", "forward", 6 * 49, None, 2 * (150 + 54)),
    ("resize:area:mb2ic3ih5oh3", "backward-data", 6 * 49, None, 2 * (150 + 54)),
    # Nine windows of nine elements.
    ("unfold:mb2ic3ih5kh3", "forward", 0, None, 2 * (150 + 486)),
    ("unfold:mb2ic3ih5kh3", "backward-data", 486, None, 2 * (150 + 486)),
    ("grid-sample:mb2ic3ih4oh5", "forward", 7 * 150, None, 2 * (96 + 2 * 50 + 150)),
    # Four pixels for each of nine places, in three channels.
    ("grid-sample:mb2ic3ih9oh3", "forward", 7 * 54, None, 2 * (2 * 3 * 36 + 2 * 18 + 54)),
    # Half of a spectrum of eight numbers are five pairs.
    ("fft:real:4x8", "forward", 240, None, 2 * (32 + 40)),
    ("fft:inverse-real:4x8by2", "forward", 400, None, 2 * (32 + 40)),
    ("fft:complex:4x8", "forward", 480, None, 2 * (64 + 64)),
    ("distance:euclidean:2x3x4:2x5x4", "forward", 360, None, 2 * (24 + 40 + 30)),
    ("glu:mb2ic3ih4iw5", "forward", 5 * 120, None, 2 * (240 + 120)),
    ("glu:mb2ic3ih4iw5", "backward-data", 9 * 120, None, 2 * (240 + 120 + 240)),
    # Indices have four bytes.
    ("sort:mb2ic3ih4iw5", "forward", 3 * 120, None, 2 * 240 + 4 * 120),
    ("sort:mb2ic3ih4iw5axis1k2", "forward", 120, None, 2 * (120 + 80) + 4 * 80),
    ("cummax:mb2ic3ih4iw5", "forward", 120, None, 2 * 240 + 4 * 120),
    ("cummin:mb2ic3ih4iw5axis2", "forward", 120, None, 2 * 240 + 4 * 120),
    ("gather:bags:9x4:2x3", "forward", 24, None, 2 * 4 * (6 + 2) + 4 * 6),
    ("gather:rows:3x9x4:1x5", "forward", 0, None, 2 * 12 * (5 + 5) + 4 * 5),
    # Of a table that is overwritten, only the rows with an index are.
    ("gather:add-rows-in-place:9x4:2", "forward", 8, None, 2 * 4 * (2 + 2 + 2) + 4 * 2),
    ("gather:put-rows-in-place:9x4:2", "forward", 0, None, 2 * 4 * (2 + 2) + 4 * 2),
]


def problem(text: str) -> Layer:
    pools = text.startswith(("mb", "ic")) and "oc" not in text
    return parse_problem(text, pool="max" if pools else None)


@pytest.mark.parametrize(("text", "pass_", "flops", "executed", "size"), COUNTS)
def test_counts_by_hand(text, pass_, flops, executed, size):
    layer = problem(text)
    assert layer.flops(pass_) == flops
    assert layer.flops_executed(pass_) == (flops if executed is None else executed)
    assert layer.bytes(pass_, 2) == size


def test_every_pass_of_every_op_is_counted_above():
    shown = {(problem(text).entry.key, pass_) for text, pass_, *_ in COUNTS}
    assert shown == {(key, pass_) for key, op in OPS.items() for pass_ in op.passes}


@given(every, st.sampled_from([1, 2, 4]))
def test_bytes_are_at_most_those_of_what_is_read_and_written(layer, itemsize):
    for pass_ in layer.passes:
        whole = layer.operands(pass_)
        roles = [*layer.reads(pass_), *layer.writes(pass_)]
        assert set(whole) == set(roles)
        sizes = {
            role: 4 if role in INTEGERS or layer.in_float32(role) else itemsize for role in roles
        }
        assert layer.bytes(pass_, itemsize) <= sum(whole[role] * sizes[role] for role in roles)
        assert layer.flops_executed(pass_) <= layer.flops(pass_)


@pytest.mark.parametrize("mode", RESIZE_MODES)
def test_pixels_that_nothing_is_made_of_are_not_read(mode):
    for size, out in itertools.product(range(1, 25), repeat=2):
        layer = parse_problem(f"resize:{mode}:mb1ic1iw{size}ow{out}")
        read = itertools.chain(*positions_read(mode, size, out))
        touched = {at for at, weight in read if weight}
        assert layer.bytes("forward", 1) == len(touched) + out, (size, out)


def test_what_is_trained():
    counts = {"bias": 7, "batchnorm": 14, "l2": 7, "sgd": 7, "momentum": 7, "prelu": 7}
    counts |= {"layernorm": 2, "rmsnorm": 1, "add-rmsnorm": 1, "groupnorm": 14}
    for key, op in OPS.items():
        if op.kind == "pointwise":
            sizes = {"concat": {"sources": (3, 4)}, "rope": {"channels": 7, "width": 2}}
            assert build_layer(
                key, **sizes.get(key, {"channels": 7})
            ).weight_elements == counts.get(key, 0)
    assert parse_problem("gru:t5mb3slc7dhc4").weight_elements == 7 * 12 + 4 * 12 + 16
    assert parse_problem("g2ic4iw5oc6kw3").weight_elements == 6 * 2 * 3
    assert parse_problem("3x128x64:3x64x32").weight_elements == 3 * 64 * 32


def test_shapes_of_gates_and_statistics():
    assert parse_problem("lstm:l2d2t5mb3slc8dhc4").shapes() == {
        "src": (5, 3, 8),
        "src_iter": (2, 2, 3, 4),
        "src_iter_c": (2, 2, 3, 4),
        "weights": (2, 2, 8, 4, 4),
        "weights_iter": (2, 2, 4, 4, 4),
        "bias": (2, 2, 4, 4),
        "dst": (5, 3, 8),
    }
    projected = parse_problem("lstm:d2t5mb3slc8dhc4dic3peephole1")
    assert projected.shapes() == {
        "src": (5, 3, 8),
        "src_iter": (1, 2, 3, 3),
        "src_iter_c": (1, 2, 3, 4),
        "weights": (1, 2, 8, 4, 4),
        "weights_iter": (1, 2, 3, 4, 4),
        "bias": (1, 2, 4, 4),
        "weights_projection": (1, 2, 4, 3),
        "weights_peephole": (1, 2, 3, 4),
        "dst": (5, 3, 6),
    }
    assert projected.weight_elements == 2 * (128 + 48 + 16 + 12 + 12)
    gru = parse_problem("gru:t5mb3slc7dhc4").shapes()
    # The operand of the reset gate has its own bias.
    assert (gru["weights"], gru["bias"]) == ((1, 1, 7, 3, 4), (1, 1, 4, 4))
    assert "src_iter_c" not in gru
    norm = parse_problem("layernorm:mb2ic3ih4iw5").shapes()
    assert (norm["weights"], norm["mean"], norm["dst"]) == ((5,), (24,), (2, 3, 4, 5))
    joined = parse_problem("concat:mb1ic1+2+3")
    assert joined.reads("forward") == joined.writes("backward-data") == ("src", "src2", "src3")
    assert [joined.shapes()[role][1] for role in joined.reads("forward")] == [1, 2, 3]
    norm = parse_problem("batchnorm:mb2ic3")
    assert norm.writes("forward", "training")[:3] == ("dst", "mean", "variance")
    assert norm.reads("backward-data", "training") == norm.reads("backward-data")


# -----------------------------------------------------------------------------
# Another batch.


def test_the_batch_is_the_rows_or_the_samples():
    layer = build_layer("gemm", m=128, k=9216, n=4096, name="fc6")
    assert layer.batch == 128
    assert layer.with_batch(1) == build_layer("gemm", m=1, k=9216, n=4096, name="fc6")
    rows = build_layer("gemm", m=256, k=8, n=4, samples=2)
    products = build_layer("gemm", m=7, k=8, n=9, batch_count=24, samples=2)
    assert (rows.batch, products.batch) == (2, 2)
    assert rows.with_batch(3).m == 384
    assert products.with_batch(3) == build_layer("gemm", m=7, k=8, n=9, batch_count=36, samples=3)
    spread = build_layer("gemm", m=7, k=8, n=9, src_batch=(2, 4), weights_batch=(1, 4), samples=2)
    larger = spread.with_batch(6)
    assert (larger.src_batch, larger.weights_batch) == ((6, 4), (1, 4))


def test_what_has_no_batch_stays():
    weights = build_layer("momentum", channels=37_748_736)
    assert weights.with_batch(32) == weights
    found = find_layers(["relu:mb2ic5", "l2:ic5", "move:copy:8"], batch=7)
    assert [layer.batch for layer in found] == [7, 1, 1]


# -----------------------------------------------------------------------------
# Layers with as few dimensions as possible.


def test_dimensions_that_lie_behind_one_another_are_one():
    def operands(*shapes: tuple[int, ...]) -> Any:
        layer = merged_elementwise("mul", *shapes)
        return layer.src, layer.src2

    assert operands((2, 3, 5), (2, 3, 5)) == ((30,), (30,))
    assert operands((2, 3, 5, 5), (2, 1, 1, 5)) == ((2, 15, 5), (2, 1, 5))
    assert operands((2, 3), ()) == ((6,), (1,))
    assert operands((3,), (4, 1)) == ((1, 3), (4, 1))
    assert operands((), ()) == ((1,), (1,))


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3, 5), (15, 5, 1), "move:copy:30"),
        # From heads within rows to rows within heads, and a matrix turned over.
        ((2, 3, 7, 5), (105, 5, 15, 1), "move:permute:2x7x3x5by0213"),
        ((2, 3, 5), (15, 1, 3), "move:permute:2x5x3by021"),
        # NCHW from NHWC; rows of a larger tensor; one element.
        ((2, 3, 4, 5), (60, 1, 15, 3), "move:permute:2x20x3by021"),
        ((4, 5), (50, 1), "move:copy:20"),
        ((1, 1), (7, 7), "move:copy:1"),
    ],
)
def test_a_move_is_told_from_strides(shape, strides, expected):
    layer = merged_move(shape, strides)
    assert layer.problem == expected
    assert math.prod(layer.shapes()["dst"]) == math.prod(shape)


def test_dimensions_that_are_reduced_together_are_one():
    assert merged_reduction("sum", (2, 3, 5), {1, 2}).problem == "reduction:sum:2x15:2x1"
    last = merged_reduction("mean", (2, 3, 5, 7), {0, 2})
    assert last.problem == "reduction:mean:2x3x5x7:1x3x1x7"
    assert merged_reduction("max", (2, 1, 5), {0, 1, 2}).problem == "reduction:max:10:1"
    with pytest.raises(UsageError):
        merged_reduction("max", (1, 5), {0})


# -----------------------------------------------------------------------------
# Invalid layers.

_CONV: dict[str, Any] = {"batch": 2, "in_channels": 4, "in_size": (6, 5), "out_channels": 6}
_CONV |= {"kernel": (3, 2)}
_POOL: dict[str, Any] = {"batch": 1, "channels": 2, "in_size": 8, "kernel": 3}
_GEMM: dict[str, Any] = {"m": 2, "k": 3, "n": 4}


@pytest.mark.parametrize(
    ("op", "fields", "parts"),
    [
        ("cnov", {}, ("op='cnov'", "nearest: conv")),
        ("conv", {**_CONV, "batch": 0}, ("batch=0", "at least 1")),
        ("conv", {**_CONV, "in_channels": -3}, ("in_channels=-3", "at least 1")),
        ("conv", {**_CONV, "stride": (1, 0)}, ("stride=0", "at least 1")),
        ("conv", {**_CONV, "padding": -1}, ("pad_before=-1", "at least 0")),
        ("conv", {**_CONV, "in_size": 6.0}, ("in_size",)),
        ("conv", {**_CONV, "in_size": (True, 5)}, ("in_size=True", "not a whole number")),
        ("conv", {**_CONV, "kernel": (1, 2, 3)}, ("kernel=(1, 2, 3)", "2")),
        ("conv", {**_CONV, "padding": (1, 2, 3)}, ("pad_before=(1, 2, 3)", "2")),
        ("conv", {**_CONV, "in_size": 5, "kernel": 2, "sides": 4}, ("sides=4", "nearest: 2")),
        ("conv", {**_CONV, "groups": 3}, ("groups=3", "in_channels=4", "nearest: 2")),
        ("conv", {**_CONV, "groups": 4}, ("groups=4", "out_channels=6", "nearest: 2")),
        ("conv", {**_CONV, "kernel": (7, 2)}, ("kh7", "at most 6")),
        ("conv", {**_CONV, "dilation": (1, 6), "padding": (0, 0, 1, 0)}, ("kw2", "at most 6")),
        ("conv", {**_CONV, "batch": 2**60}, ("overflow", "src")),
        ("conv", {**_CONV, "out_size": (3, 3)}, ("oh3", "nearest: oh4")),
        ("conv", {**_CONV, "dilatoin": 2}, ("dilatoin=2", "dilation")),
        ("conv", {"batch": 2}, ("in_channels", "conv needs it")),
        ("deconv", {**_CONV, "out_size": (30, 30)}, ("oh30", "nearest: oh8")),
        ("pool", {**_POOL, "mode": "mean"}, ("mode='mean'", "nearest: max")),
        ("pool", {**_POOL, "count_include_pad": True}, ("count_include_pad",)),
        ("pool", {**_POOL, "in_size": 2}, ("kh3", "at most 2")),
        ("gemm", {**_GEMM, "m": 0}, ("m=0", "at least 1")),
        ("gemm", {**_GEMM, "batch_count": 0}, ("each at least 1",)),
        ("gemm", {**_GEMM, "weights_tag": "ba"}, ("weights_tag='ba'", "any")),
        ("gemm", {**_GEMM, "src_batch": (2, 3), "weights_batch": (3, 3)}, ("weights_batch",)),
        ("gemm", {**_GEMM, "batch_count": 24, "samples": 5}, ("samples=5", "24")),
        ("gemm", {"m": 1, "k": 2**31, "n": 2**31}, ("overflow", "weights")),
        ("attention", {"heads": 6, "kv_heads": 4, "queries": 1, "size": 1}, ("nearest: 2",)),
        ("relu", {"channels": 2, "alpha": 0.5}, ("alpha=0.5", "relu has no such field")),
        ("dropout", {"channels": 2, "keep": "half"}, ("keep='half'", "not a number")),
        ("dropout", {"channels": 2, "keep": 0}, ("keep=0", "above 0")),
        ("dropout", {"channels": 2, "keep": 1.5}, ("keep=1.5", "at most 1")),
        ("sgd", {"channels": 2, "rate": float("nan")}, ("rate=nan", "not finite")),
        ("sgd", {"channels": 2, "batch": 2}, ("batch=2", "at most 1")),
        ("lrn", {"channels": 2, "local_size": 4}, ("local_size=4", "nearest: 5")),
        ("lrn", {"channels": 2, "k": 0}, ("k=0", "above 0")),
        ("concat", {"sources": (2,)}, ("at least two",)),
        ("concat", {"sources": (2, 3), "channels": 2}, ("channels=2", "nearest: 5")),
        ("elementwise:add", {"src": (8,)}, ("1 operands", "nearest: 2")),
        ("elementwise:add-in-place", {"src": (1, 4), "src2": (8, 4)}, ("src", "nearest: 8x4")),
        ("elementwise:exp", {"src": (8,), "src2": (8,)}, ("2 operands", "nearest: 1")),
        *(
            (
                f"elementwise:{op}",
                {"src": (8,), "number": number},
                ("number", "nearest: 0.1 to 0.9"),
            )
            for op in ("hardshrink", "softshrink", "hardshrink-in-place")
            for number in (1.0, -1.0, 0.0)
        ),
        *(
            (
                "elementwise:threshold",
                {"src": (8,), "src2": (1,), "number": number},
                ("number", "nearest: -0.9 to 0.9"),
            )
            for number in (1.0, -1.0)
        ),
        ("elementwise:mul", {"src": (8,), "src2": (8,), "number": 2}, ("mul has none",)),
        ("elementwise:add", {"src": (8, 4), "src2": (8, 3)}, ("src2", "nearest: 8x4")),
        ("elementwise:exp", {"src": (1,) * 7}, ("at most 6",)),
        ("reduction:sum", {"src": (8, 4), "dst": (1, 2)}, ("nearest: 1x1",)),
        ("reduction:argmax", {"src": (8, 4), "dst": (1, 1)}, ("one dimension", "nearest: 1x4")),
        ("groupnorm", {"channels": 6, "groups": 4}, ("groups=4", "nearest: 2")),
        ("hardtanh", {"channels": 6, "low": 2.0, "high": 1.0}, ("low=2", "nearest: 0")),
        ("softmax", {"channels": 6, "axis": 0}, ("axis=0", "at least 1")),
        ("move:permute", {"src": (8, 4)}, ("nearest: 10",)),
        ("move:copy", {"src": (8, 4), "order": (1, 0)}, ("nearest: none",)),
        ("move:flip", {"src": (8, 4), "order": (2,)}, ("nearest: 1",)),
        ("move:tril", {"src": (8,)}, ("src=(8,)", "nearest: 1x8")),
        ("move:flip", {"src": (8, 4)}, ("nearest: 1",)),
        ("move:tile", {"src": (8, 4), "dst": (8, 6)}, ("dst=(8, 6)", "nearest: 8x4")),
        ("move:reflect", {"src": (8, 4), "dst": (8, 11)}, ("nearest: 8x4",)),
        ("move:copy", {"src": (8, 4), "dst": (8, 4)}, ("dst=(8, 4)", "nearest: none")),
        ("gather:rows", {"rows": 2 * 10**7, "width": 8, "count": 3}, ("at most 16777216",)),
        ("gru", {"steps": 1, "in_size": 2, "hidden": 2, "directions": 3}, ("directions=3",)),
        ("gru", {"steps": 1, "in_size": 5, "hidden": 2, "layers": 2}, ("nearest: 2, or layers=1",)),
        ("lstm", {"steps": 1, "in_size": 2, "hidden": 2, "projection": 0}, ("projection=0",)),
    ],
)
def test_impossible_layers_are_refused(op, fields, parts):
    with pytest.raises(UsageError) as caught:
        build_layer(op, **fields)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_the_limit_of_size_is_exact():
    layer = build_layer("conv", batch=2**60 - 1, in_channels=1, in_size=1, out_channels=1, kernel=1)
    assert layer.bytes("forward", 4) == 4 * (2 * (2**60 - 1) + 1) == 2**63 - 4
    with pytest.raises(UsageError, match="sizes overflow"):
        layer.with_batch(2**60)


def test_sizes_of_other_integer_types_become_ints():
    numpy = pytest.importorskip("numpy")
    layer = build_layer("conv", **{**_CONV, "batch": numpy.int32(2)})
    assert type(layer.batch) is int
    assert layer == build_layer("conv", **_CONV)


@pytest.mark.parametrize("method", ["flops", "flops_executed", "operands"])
def test_passes_that_do_not_exist_are_refused(method):
    with pytest.raises(UsageError, match=r"^bakward-data: .*nearest: backward-data"):
        getattr(build_layer("conv", **_CONV), method)("bakward-data")
    with pytest.raises(UnsupportedError, match="backward-weights: pool2d"):
        getattr(build_layer("pool", **_POOL), method)("backward-weights")
    with pytest.raises(UnsupportedError, match="backward-data: add"):
        getattr(build_layer("add", channels=2), method)("backward-data")


@pytest.mark.parametrize(
    ("problem", "sizes"),
    [
        ("add:16x8x5x7:1x8x1x1", {"src": (16, 8, 35), "src2": (1, 8, 1), "src3": ()}),
        ("add-in-place:4x5x7:1", {"src": (140,), "src2": (1,), "src3": ()}),
        ("lerp:4x1:1x3:1x1", {"src": (4, 1), "src2": (1, 3), "src3": (1, 1)}),
        ("exp:1x1", {"src": (1,), "src2": (), "src3": ()}),
    ],
)
def test_native_elementwise_problems_have_merged_dimensions(problem, sizes):
    fields = parse_problem(f"elementwise:{problem}").problem_fields()
    assert fields == {"op": problem.partition(":")[0], "number": 1.0, **sizes}
