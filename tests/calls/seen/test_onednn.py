"""The meaning of executions logged by oneDNN and MKL, in the formats of all versions."""

import pytest

from pydlbench.backends.frameworks.verbose import parse_line
from pydlbench.calls.seen import meaning_of
from pydlbench.records.trace import RecordedCall
from pydlbench.steps.traced import precision_of
from pydlbench.words import TYPE_PRECISIONS

NEW = (
    "onednn_verbose,v1,primitive,exec,cpu,{},jit,{},src:{t}:a:blocked:ab::f0 "
    "dst:{t}::blocked:ab::f0,{},1"
)
OLD = "dnnl_verbose,exec,cpu,{},jit,{},src_{t}::blocked:ab:f0 dst_{t}::blocked:ab:f0,{},1"


def meaning(primitive, rest, propagation="forward_inference", dtype="f32", form=NEW):
    execution = parse_line(form.format(primitive, propagation, rest, t=dtype))
    return meaning_of(RecordedCall(signature=execution.signature, operator=primitive))


CONV = ",alg:convolution_direct,g2mb2_ic16oc32_ih14oh14kh3sh1dh0ph1_iw14ow14kw3sw1dw0pw1"


@pytest.mark.parametrize("form", [NEW, OLD, NEW.replace("v1,", "1693533460193.346924,")])
@pytest.mark.parametrize(("dtype", "name"), [("f32", "float32"), ("bf16", "bfloat16")])
def test_all_formats_say_the_same(form, dtype, name):
    found = meaning("convolution", CONV, "backward_weights", dtype, form)
    ((layer, pass_),) = [(one.layer, one.pass_) for one in found.layers]
    assert (layer.problem, pass_) == ("g2mb2ic16ih14oc32oh14kh3ph1", "backward-weights")
    assert found.dtypes == (name,)
    assert found.flops == found.product_flops == 2 * 2 * 32 * 8 * 9 * 14 * 14
    itemsize = 4 if dtype == "f32" else 2
    assert found.bytes == itemsize * (2 * 16 * 14 * 14 + 2 * 32 * 14 * 14 + 32 * 8 * 9)


@pytest.mark.parametrize(
    ("primitive", "rest", "propagation", "problem", "pass_"),
    [
        ("matmul", ",,3x4x8:3x8x2:3x4x2", "undef", "3x4x8:3x8x2", "forward"),
        ("matmul", ",,b3m4n2k8", "undef", "3x4x8:3x8x2", "forward"),
        ("inner_product", ",,mb4ic8ih2iw2oc3", "backward_data", "4x32:32x3", "backward-data"),
        (
            "pooling",
            ",alg:pooling_max,mb2ic4_ih8oh4kh2sh2dh0ph0_iw8ow4kw2sw2dw0pw0",
            "forward_training",
            "mb2ic4ih8oh4kh2sh2",
            "forward",
        ),
        (
            "eltwise",
            ",alg:eltwise_relu alpha:0 beta:0,2x4x8x8",
            "forward_training",
            "relu:mb2ic4ih8",
            "forward",
        ),
        (
            "eltwise",
            ",alg:eltwise_gelu_erf alpha:0 beta:0,2x4x8x8",
            "backward_data",
            "gelu:mb2ic4ih8",
            "backward-data",
        ),
        (
            "eltwise",
            ",alg:eltwise_clip_v2 alpha:-2 beta:1,2x4x8x8",
            "forward_inference",
            "hardtanh:mb2ic4ih8alpha-2",
            "forward",
        ),
        *(
            (primitive, rest, "forward_inference", problem, "forward")
            for primitive, rest, problem in (
                ("prelu", ",,2x4x8x8:1x4x1x1", "elementwise:leaky-relu:2x4x64:1x4x1"),
                ("group_normalization", ",flags:CH,g2mb2ic4ih8iw8", "groupnorm:mb2ic4ih8g2"),
                ("group_normalization", ",,g4mb2ic4iw8", "groupnorm:mb2ic4ih1iw8g4factors0"),
                (
                    "lrn",
                    ",alg:lrn_across_channels,mb2ic16ih8ls3beta0.5",
                    "lrn:mb2ic16ih8ls3beta0.5",
                ),
                ("concat", ",axis:1,2x4x8:2x3x8 2x7x8", "concat:mb2ic4+3ih1iw8"),
                ("shuffle", ",axis:1 group:2,2x4x8", "move:permute:2x2x2x8by0213"),
                (
                    "rnn",
                    ",alg:vanilla_rnn activation:eltwise_tanh,l1t4mb8sic6slc6dhc6dic6",
                    "rnn-tanh:l1t4mb8slc6dhc6",
                ),
            )
        ),
        (
            "batch_normalization",
            ",flags:CH,mb2ic4ih8iw8",
            "forward_training",
            "batchnorm:mb2ic4ih8",
            "forward",
        ),
        (
            "layer_normalization",
            ",flags:CH,4x16",
            "forward_inference",
            "layernorm:mb4ic1ih1iw16",
            "forward",
        ),
        (
            "softmax",
            ",alg:softmax_accurate axis:1,4x16",
            "forward_inference",
            "softmax:mb4ic1ih1iw16",
            "forward",
        ),
        ("binary", ",alg:binary_add,2x4x8x8:2x4x8x8", "undef", "add:mb2ic4ih8", "forward"),
        ("sum", ",,2x4x8x8", "undef", "add:mb2ic4ih8", "forward"),
        (
            "resampling",
            ",alg:resampling_nearest,mb2ic4_ih8oh16_iw8ow16",
            "forward_inference",
            "resize:nearest:mb2ic4ih8oh16",
            "forward",
        ),
        (
            "deconvolution",
            ",alg:deconvolution_direct,mb2_ic4oc8_ih4oh8kh2sh2dh0ph0_iw4ow8kw2sw2dw0pw0",
            "forward_training",
            "deconv:mb2ic4ih4oc8oh8kh2sh2",
            "forward",
        ),
    ],
)
def test_primitives_are_layers(primitive, rest, propagation, problem, pass_):
    found = meaning(primitive, rest, propagation)
    assert [(one.layer.problem, one.pass_) for one in found.layers] == [(problem, pass_)]
    assert found.flops is not None
    assert found.bytes > 0


def test_a_reduction_has_the_sum_of_its_source():
    found = meaning("reduction", ",alg:reduction_sum,4x16:4x1", "undef")
    assert (found.kind, found.flops, found.bytes) == ("reduction", 64, 4 * (64 + 4))


TYPED = (
    "onednn_verbose,v1,primitive,exec,cpu,matmul,brg,undef,src:{0}::blocked:ab::f0 "
    "wei:{1}::blocked:ab::f0 dst:{2}::blocked:ab::f0,{3},,8x64:64x32,1"
)


@pytest.mark.parametrize(
    ("types", "attributes", "arithmetic", "bits", "has_layer"),
    [
        (("f32", "f32", "f32"), "attr-fpmath:bf16:true", "bfloat16", (32, 32, 32), False),
        (("f32", "f32", "f32"), "attr-fpmath:strict", "float32", (32, 32, 32), True),
        (("f32", "s8", "f32"), "attr-scales:wei:0:f32", "float32", (32, 8, 32), False),
        (("bf16", "s4", "f32"), "attr-fpmath:bf16:true", "bfloat16", (16, 4, 32), False),
        (("f8_e4m3", "f8_e4m3", "f32"), "", "float8_e4m3fn", (8, 8, 32), True),
        (("u8", "s8", "s32"), "attr-scales:src0:0:f32+wei:1:f32", "u8s8s32", (8, 8, 32), True),
        (("s8", "s8", "s32"), "", "int8", (8, 8, 32), True),
        (("u8", "s4", "s32"), "", "uint8", (8, 4, 32), False),
        (("bf16", "bf16", "f32"), "", "bfloat16", (16, 16, 32), True),
    ],
)
def test_each_tensor_has_its_type(types, attributes, arithmetic, bits, has_layer):
    execution = parse_line(TYPED.format(*types, attributes))
    found = meaning_of(RecordedCall(signature=execution.signature, operator="matmul"))
    assert (found.dtypes, bool(found.layers)) == ((arithmetic,), has_layer)
    assert bool(found.layers_missing) != has_layer
    assert found.flops == 2 * 8 * 64 * 32
    elements = (8 * 64, 64 * 32, 8 * 32)
    assert 8 * found.bytes == sum(size * width for size, width in zip(elements, bits, strict=True))
    assert precision_of(found) == TYPE_PRECISIONS.get(arithmetic, arithmetic)


def test_a_conversion_has_bytes_and_no_layer():
    line = (
        "onednn_verbose,exec,cpu,reorder,jit,undef,src_f32::blocked:ab:f0 "
        "dst_bf16::blocked:ba:f0,,,8x4,1"
    )
    found = meaning_of(RecordedCall(signature=parse_line(line).signature, operator="reorder"))
    assert (found.kind, found.layers, found.bytes) == ("copy", (), 8 * 4 * (4 + 2))
    assert found.layers_missing


@pytest.mark.parametrize(
    ("primitive", "rest"),
    [
        ("rnn", ",alg:lstm,l1t5mb2sic32slc16dhc32dic32"),
        ("rnn", ",alg:vanilla_augru,l1t5mb2sic32slc16dhc32dic32"),
        ("rnn", ",alg:vanilla_lstm,l2t5mb2sic32slc32dhc32dic32"),
        ("matmul", ",,*x8:8x2"),
        ("eltwise", ",alg:eltwise_linear alpha:1 beta:0,2x4"),
        ("convolution", ",alg:convolution_direct,mb2_ic0oc8"),
        ("inner_product", ",,"),
    ],
)
def test_what_has_no_rule_says_why(primitive, rest):
    found = meaning(primitive, rest)
    assert (found.layers, found.flops) == ((), None)
    assert found.layers_missing


@pytest.mark.parametrize(
    ("cell", "gates", "layers"),
    [
        ("vanilla_lstm", 4, ["lstm:l1t5mb2slc16dhc32"]),
        ("vanilla_gru", 3, ["vanilla-gru:l1t5mb2slc16dhc32"]),
    ],
)
def test_a_recurrent_layer_has_products_of_all_weights(cell, gates, layers):
    rest = f",alg:{cell} direction:unidirectional_left2right,l1t5mb2sic32slc16dhc32dic32"
    found = meaning("rnn", rest, "forward_training")
    assert [one.layer.problem for one in found.layers] == layers
    assert found.product_flops == 2 * 5 * 2 * gates * 32 * (16 + 32)
    assert found.bytes == 4 * (gates * 32 * (16 + 32) + 5 * 2 * (16 + 32))
    backward = meaning("rnn", rest, "backward")
    assert backward.product_flops == 2 * found.product_flops


def test_a_projection_and_peepholes_are_among_the_tensors():
    tensors = " ".join(
        f"{role}_f32::blocked:abcd::f0"
        for role in ("src_layer", "src_iter", "wei_layer", "wei_iter", "wei_peephole", "wei_proj")
    )
    line = (
        f"onednn_verbose,exec,cpu,rnn,ref,forward_inference,{tensors} dst_layer_f32::blocked:abc"
        "::f0,attr-scratchpad:user ,alg:vanilla_lstm direction:bidirectional_concat "
        "activation:undef flags:,l1t4mb3sic8slc20dhc16dic8,243.7"
    )
    found = meaning_of(RecordedCall(signature=parse_line(line).signature, operator="rnn"))
    (one,) = found.layers
    assert one.layer.problem == "lstm:l1d2t4mb3slc20dhc16dic8peephole1"
    assert found.product_flops == one.layer.flops("forward")


def test_products_of_mkl_lie_in_columns():
    line = "MKL_VERBOSE SGEMM(T,N,48,64,32,0x7fff,0x556d,32,0x55,48) 1.76ms CNR:OFF NThr:2"
    execution = parse_line(line)
    assert execution.signature == "mkl:SGEMM(T,N,48,64,32)"
    found = meaning_of(RecordedCall(signature=execution.signature, operator="MKL SGEMM"))
    assert found.layers[0].layer.problem == "64x32:32x48"
    assert found.flops == 2 * 64 * 32 * 48
    batch = RecordedCall(signature="mkl:SGEMM_BATCH(N,N)", operator="MKL SGEMM_BATCH")
    assert "no sizes" in meaning_of(batch).layers_missing


@pytest.mark.parametrize(
    ("routine", "kind", "flops", "elements"),
    [
        ("SGEMM_PACK(A,N,48,64,32", "copy", 0, 2 * 48 * 32),
        ("cblas_sgemm_pack(B,N,48,64,32", "copy", 0, 2 * 64 * 32),
        ("SGEMM_COMPUTE(P,N,48,64,32", "product", 2 * 48 * 64 * 32, 48 * 32 + 32 * 64 + 48 * 64),
        ("SGEMV(N,48,64", "product", 2 * 48 * 64, 48 * 64 + 48 + 64),
        ("SGEMV(T,48,64", "product", 2 * 48 * 64, 48 * 64 + 48 + 64),
    ],
)
def test_packing_of_mkl_is_a_copy_and_a_matrix_times_a_vector_is_a_product(
    routine, kind, flops, elements
):
    found = meaning_of(RecordedCall(signature=f"mkl:{routine})", operator="MKL"))
    assert (found.kind, found.flops, found.bytes) == (kind, flops, 4 * elements)
