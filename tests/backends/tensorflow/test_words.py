"""Padding, precisions, reasons and kernel names: what needs no computing."""

import pytest

from pydlbench.errors import InsufficientMemoryError, PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer

pytestmark = pytest.mark.usefixtures("tensorflow_backend")


def conv(size, kernel, stride, padding, dilation=1):
    return build_layer(
        "conv",
        batch=1,
        in_channels=1,
        in_size=size,
        out_channels=1,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
    )


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (conv(8, 3, 1, 0), "VALID"),
        (conv(8, 3, 2, 0), "VALID"),  # the last column is read by no window
        (conv(8, 1, 1, 0), "VALID"),
        (conv(8, 3, 1, 1), "SAME"),
        (conv(9, 3, 2, 1), "SAME"),
        (conv(8, 3, 2, 1), "EXPLICIT"),  # SAME pads at the end only
        (conv(8, 3, 2, (0, 1, 0, 1)), "SAME"),
        (conv(8, 3, 1, 2, dilation=2), "SAME"),
        (conv(8, 3, 1, 1, dilation=2), "EXPLICIT"),
        (conv(8, 3, 1, (1, 0)), "EXPLICIT"),  # SAME one way, VALID the other
        (conv(224, 7, 2, 3), "EXPLICIT"),
        (build_layer("pool", batch=1, channels=1, in_size=8, kernel=2, stride=2), "VALID"),
        (
            build_layer("pool", batch=1, channels=1, in_size=7, kernel=3, stride=2, padding=1),
            "SAME",
        ),
        (
            build_layer("pool", batch=1, channels=1, in_size=7, kernel=2, stride=2, padding=1),
            "EXPLICIT",
        ),
    ],
)
def test_padding_has_a_word_where_it_means_the_same(layer, word):
    from pydlbench.backends.tensorflow.layers.forward import padding_of

    assert padding_of(layer).word == word


def test_explicit_padding_follows_the_format():
    from pydlbench.backends.tensorflow.layers.forward import TensorFlowForwardOptions, padding_of

    nhwc = TensorFlowForwardOptions(layout="nhwc")
    padding = padding_of(conv(8, 4, 1, (1, 2, 3, 0)))
    assert padding.explicit(nhwc) == [0, 0, 1, 2, 3, 0, 0, 0]
    assert padding.explicit(TensorFlowForwardOptions(layout="nchw")) == [0, 0, 0, 0, 1, 2, 3, 0]
    assert padding.argument(nhwc) == [(0, 0), (1, 2), (3, 0), (0, 0)]
    same = padding_of(conv(8, 3, 1, 1))
    assert same.explicit(nhwc) == []
    assert same.argument(nhwc) == "SAME"
    assert same.pairs == ((1, 1), (1, 1))


def test_precisions_by_device():
    from pydlbench.backends.tensorflow.settings import arithmetic

    assert arithmetic("fp32", on_gpu=False, isa=()).tf32 is None
    assert arithmetic("bf16", on_gpu=False, isa={"amx_bf16"}).dtype == "bfloat16"
    assert arithmetic("fp16", on_gpu=False, isa={"avx512_fp16"}).dtype == "float16"
    assert arithmetic("fp32", on_gpu=True, isa=()).tf32 is False
    tf32 = arithmetic("tf32", on_gpu=True, isa=())
    assert (tf32.dtype, tf32.tf32, tf32.accumulate) == ("float32", True, "float32-tensor")
    assert tf32.accumulator("stored", "graph") == "float32"
    cpu = arithmetic("bf16", on_gpu=False, isa={"amx_bf16"})
    assert cpu.accumulator("stored", "xla") == "bfloat16"
    assert cpu.accumulator("BiasAddGrad", "graph") == "bfloat16"
    assert cpu.accumulator("BiasAddGrad", "xla") == "float32"
    bf16 = arithmetic("bf16-tc", on_gpu=True, isa=())
    assert (bf16.dtype, bf16.tf32, bf16.accumulate) == ("bfloat16", None, "float32-tensor")


@pytest.mark.parametrize(
    ("precision", "on_gpu", "reason"),
    [
        ("bf16", False, "this CPU has no bf16: it lacks avx512_bf16 and amx_bf16"),
        ("fp16", False, "this CPU has no fp16: it lacks avx512_fp16"),
        ("fp16-tc", False, "fp16-tc is a GPU mode"),
        ("bf16", True, "bf16 is a CPU mode"),
        ("fp16", True, "off the tensor cores"),
        ("fp8-tc", True, "8-bit"),
    ],
)
def test_precisions_that_are_not_there(precision, on_gpu, reason):
    from pydlbench.backends.tensorflow.settings import arithmetic

    with pytest.raises(UnsupportedError, match=reason):
        arithmetic(precision, on_gpu, isa=("avx2",))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "{{function_node __inference_f_195}} Only NHWC so far.\n\t [[{{node C}}]] [Op:__f_195]",
            "Only NHWC so far",
        ),
        (
            "Graph execution error:\n\nDetected at A:\n<none>\nOnly NHWC. Please ask.\n\t [[n]]",
            "Only NHWC",
        ),
        ("plain", "plain"),
    ],
)
def test_one_sentence_gives_the_reason(message, reason):
    from pydlbench.backends.tensorflow.settings import reason_of

    assert reason_of(message) == reason


def test_errors_are_told_apart():
    from pydlbench.backends.tensorflow.settings import tf, translate_error

    cases = {
        tf.errors.UnimplementedError: UnsupportedError,
        tf.errors.InvalidArgumentError: UnsupportedError,
        tf.errors.NotFoundError: UnsupportedError,
        tf.errors.ResourceExhaustedError: InsufficientMemoryError,
        tf.errors.InternalError: PrimitiveError,
    }
    for raised, ours in cases.items():
        error = translate_error(raised(None, None, "no. Really\n [[x]]"), "MatMul (xla)")
        assert type(error) is ours
        assert str(error).startswith("TensorFlow, MatMul (xla): ")
        assert str(error).endswith("no")


def test_kernels_are_named_without_plumbing():
    from pydlbench.backends.frameworks import hlo
    from pydlbench.backends.tensorflow.steps.trace import graph_kernels

    assert graph_kernels(["_Arg", "_MklNativeConv2D", "_Retval"]) == "_MklNativeConv2D"
    assert graph_kernels(["_Arg", "_Retval"]) is None
    program = """
      %c = f32[2,8]{1,0} convert(%a)
      ROOT %Conv2D.1 = f32[2,9,8,8]{3,2,1,0} convolution(%c, %w), window={size=3x3}
      %y = bf16[3]{0} custom-call(%c), custom_call_target="__onednn$matmul", api_version=1
    """
    assert hlo.kernels(program) == "convolution f32, __onednn$matmul bf16"
    assert hlo.kernels("ENTRY %f (x: f32[]) -> f32[]") is None
