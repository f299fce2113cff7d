"""Lists of layers as benchdnn's input files have them: options, drivers, included files."""

import pytest

from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_layers, find_listed
from pydlbench.ops.descriptor import parse_problem


def listed(tmp_path, text, *, driver="mine", **options):
    (tmp_path / driver).mkdir(exist_ok=True)
    file = tmp_path / driver / "shapes"
    file.write_text(text)
    return find_listed([f"@{file}"], **options)


@pytest.mark.parametrize(
    ("problem", "same"),
    [
        ("mb1ic768oc2304", "1x768:768x2304"),
        ("ip:mb2ic64id2ih3iw5oc10n", "2x1920:1920x10"),
        ("160x512:4x512x256", "4x40x512:4x512x256"),
        ("ic3ih8ih9oc4kh3", "ic3ih9oc4kh3"),
        ('ic3ih8oc4kh3n""', "ic3ih8oc4kh3"),
        ("batchnorm:mb2ic8id3ih4iw5", "batchnorm:mb2ic8ih12iw5"),
        ("batchnorm:mb2ic8id3", "batchnorm:mb2ic8ih9iw3"),
        ("lstm:t3mb2sic36", "lstm:t3mb2slc36dhc36"),
        ("lstm:t3sic36slc8dic36", "lstm:t3slc8dhc36"),
        ("relu:2x3x4x5x6", "relu:mb2ic3ih4iw30"),
        ("softmax:2x3x5", "softmax:mb1ic6ih1iw5"),
        ("concat:4x2x3:4x5x3", "concat:mb4ic2+5ih1iw3"),
        ("elementwise:mul-in-place:8x16x7:8x16", "elementwise:mul-in-place:8x16x7:8x16x1"),
    ],
)
def test_descriptors_as_benchdnn_writes_them(problem, same):
    assert parse_problem(problem) == parse_problem(same)


@pytest.mark.parametrize(
    ("problem", "choice"),
    [
        ("mb50ic256iw28oc512ow56kw1sw2pw0", "deconv:"),
        ("mb256oc3oh227ic96ih55kh11sh4ph0", "deconv:"),
        ("161x512:4x512x256", "multiple of 4"),
    ],
)
def test_shapes_of_another_op_are_refused(problem, choice):
    with pytest.raises(UsageError, match=choice):
        parse_problem(problem)


@pytest.mark.parametrize(
    ("driver", "text", "problems"),
    [
        ("deconv", "mb2ic3ih8oc4kh3n", ["deconv:mb2ic3ih8oc4kh3"]),
        ("ip", "--mb=3 ic8oc4", ["3x8:8x4"]),
        ("bnorm", "ic8id2ih3iw4", ["batchnorm:ic8ih6iw4"]),
        ("lnorm", "5x7", ["groupnorm:mb5ic7g1factors0"]),
        ("gnorm", "g2ic8ih3", ["groupnorm:ic8ih3g2factors0"]),
        ("prelu", "8x16:1x16", ["elementwise:leaky-relu:8x16:1x16"]),
        ("shuffle", "--axis=1 --group=4 8x16x5x7", ["move:permute:8x4x4x35by0213"]),
        ("softmax", "2x3x4", ["softmax:mb2ic3ih1iw4axis1"]),
        ("eltwise", "--alg=clip --alpha=-2,1 --beta=1 2x3", ["hardtanh:mb2ic3alpha-2"]),
        (
            "eltwise",
            "--alg=relu,tanh --alpha=0,0.25 2x3",
            ["relu:mb2ic3", "elementwise:leaky-relu:2x3:1", "tanh:mb2ic3"],
        ),
        ("eltwise", "--alg=pow --alpha=1 --beta=-2 2x3", ["elementwise:power:2x3by-2"]),
        ("eltwise", "--alg=elu --alpha=1,2 2x3", ["elu:mb2ic3", "elu:mb2ic3alpha2"]),
        ("gnorm", "--flags=,CH g2ic4ih3", ["groupnorm:ic4ih3g2factors0", "groupnorm:ic4ih3g2"]),
        ("lnorm", "2x3x4", ["groupnorm:mb6ic4g1factors0"]),
        ("lnorm", "--flags=C 2x3x4", ["layernorm:ic6iw4"]),
        ("softmax", "--alg=accurate_inf_as_zero 2x3", ["softmax:ic2iw3"]),
        ("concat", "2x3:2x0", ["move:copy:2x3x1"]),
        ("sum", "--sdt=f32:f32:f32 2", ["elementwise:sum3:2:2:2"]),
        ("rnn", "t3sic6", ["rnn-relu:t3slc6dhc6"]),
        ("rnn", "--alg=VANILLA_RNN --activation=TANH,LOGISTIC t3sic6", ["rnn-tanh:t3slc6dhc6"]),
        ("eltwise", "--alg=eltwise_relu,tanh_dst,round 2x3", ["relu:mb2ic3", "tanh:mb2ic3"]),
        ("binary", "--alg=ADD,SUB 2x3:2x1", ["elementwise:add:2x3:2x1"] * 2),
        ("reduction", "--alg=mean 2x3:2x1", ["reduction:mean:2x3:2x1"]),
        (
            "softmax",
            "2x3x1 --axis=2 --alg=LOGSOFTMAX 2x3x4",
            ["softmax:ic2iw3", "log-softmax:ic6iw4"],
        ),
        ("concat", "--axis=0 2x3:0x3:5x3", ["concat:ic2+5ih1iw3"]),
        ("sum", "2x3", ["elementwise:add:2x3:2x3"]),
        ("resampling", "--alg=linear mb1ic3ih4oh8", ["resize:linear:ic3ih4oh8"]),
        ("rnn", "--alg=LBR_GRU --l=2 --direction=concat t3sic6slc12", ["gru:l2d2t3slc12dhc6"]),
        ("pool", "--alg=pooling_avg_include_padding ic3ih8kh2sh2", ["ic3ih8kh2sh2"]),
        ("matmul", "--wtag=ab,ba 2x3:3x4", ["2x3:3x4wtagkn", "2x3:3x4wtagnk"]),
        ("matmul", "--wtag=any,a, 2x3:3x4", ["2x3:3x4"]),
        ("ip", "--wtag=ab,ba mb2ic3oc4", ["2x3:3x4wtagnk", "2x3:3x4wtagkn"]),
        ("ip", "--mb=2,3 ic3oc4", ["2x3:3x4", "3x3:3x4"]),
        ("concat", "--axis=0,1 2x3:2x3", ["concat:ic2+2ih1iw3", "concat:mb2ic3+3ih1iw1"]),
        ("softmax", "--mb=5 2x3 --axis=0 2x3", ["softmax:ic5iw3", "softmax:ic5iw3axis1"]),
        ("binary", "--alg=select 2x3:2x3:2x3", ["elementwise:select:2x3:2x3:2x3"]),
        ("reduction", "--alg=mul 2x3:2x1", ["reduction:prod:2x3:2x1"]),
        ("reduction", "--alg=norm_lp_sum --p=2 2x3:2x1", ["reduction:norm:2x3:2x1"]),
        ("lrn", "--alg=lrn_across_channels ic8ih3", ["lrn:ic8ih3"]),
        ("sum", "--sdt=f32:f32,f32:f32:f32 2", ["elementwise:add:2:2", "elementwise:sum3:2:2:2"]),
    ],
)
def test_the_folder_names_the_driver(tmp_path, driver, text, problems):
    pool = "avg_p" if driver == "pool" else None
    expected = [parse_problem(problem, pool=pool) for problem in problems]
    if "SUB" in text:
        expected[1] = expected[1].replace(number=-1)
    assert [row.layer for row in listed(tmp_path, text, driver=driver)] == expected


def test_a_list_of_activations_may_name_its_rows(tmp_path):
    found = listed(tmp_path, '--alg=relu --alpha=0,2 2x3n"a"', driver="eltwise")
    assert [row.layer.name for row in found] == ["a", "a"]


def test_variants_of_an_lstm(tmp_path):
    text = "--with-peephole=true,false --with-projection=true t3mb2sic4slc8dhc6dic4"
    found = listed(tmp_path, f"--alg=VANILLA_LSTM {text}", driver="rnn")
    problem = "lstm:l1t3mb2slc8dhc6dic4"
    assert [row.layer.problem for row in found] == [problem + "peephole1", problem]
    assert {row.changed for row in found} == {""}
    assert find_layers([f"{problem}peephole1"])[0].problem == f"{problem}peephole1"
    (gru,) = listed(tmp_path, "--alg=VANILLA_GRU t3sic6", driver="rnn")
    assert gru.layer.problem == "vanilla-gru:l1t3mb1slc6dhc6"
    # Without another size, benchdnn has a projection to as many elements.
    (same,) = listed(tmp_path, "--alg=VANILLA_LSTM --with-projection=true t3sic6", driver="rnn")
    assert (same.changed, same.layer.problem) == ("", "lstm:l1t3mb1slc6dhc6projected1")


@pytest.mark.parametrize(
    ("text", "problems", "omitted"),
    [
        (
            "--alg=VANILLA_GRU --with-peephole=true,false t3sic6",
            ["vanilla-gru:l1t3mb1slc6dhc6"],
            "vanilla-gru --with-peephole=true",
        ),
        (
            "--alg=VANILLA_LSTM --with-projection=true,false t3sic4slc8dhc6dic4",
            ["lstm:l1t3mb1slc8dhc6dic4"],
            "lstm --with-projection=false",
        ),
        ("--alg=VANILLA_LSTM --with-projection=false t3sic6", ["lstm:l1t3mb1slc6dhc6"], ""),
        ("--alg=LBR_GRU --with-projection=false t3sic6", ["gru:l1t3mb1slc6dhc6"], ""),
    ],
)
def test_parts_that_a_cell_cannot_have_are_omitted(tmp_path, text, problems, omitted):
    found = listed(tmp_path, text, driver="rnn")
    assert [row.layer.problem for row in found] == problems
    assert {row.omitted for row in found} == {omitted}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--alg=VANILLA_GRU --with-peephole=true t3sic6", "vanilla-gru has no such.*VANILLA_LSTM"),
        ("--alg=LBR_GRU --with-projection=true t3sic6", "gru has no such.*VANILLA_LSTM"),
        (
            "--alg=VANILLA_LSTM --with-projection=false t3sic4slc8dhc6dic4",
            "states of 4 are .*=true",
        ),
    ],
)
def test_a_cell_without_the_parts_that_a_list_asks_for_is_refused(tmp_path, text, reason):
    with pytest.raises(UsageError, match=reason):
        listed(tmp_path, text, driver="rnn")


def test_op_goes_before_the_folder(tmp_path):
    (row,) = listed(tmp_path, "t3sic6", driver="rnn", op="lstm")
    assert row.layer == parse_problem("lstm:t3sic6")
    with pytest.raises(UsageError, match="nearest: softmax"):
        find_layers(["2x3"], op="sofmax")


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        ("rnn", "--activation=LOGISTIC t3sic6"),
        ("rnn", "--alg=VANILLA_AUGRU t3sic6"),
        ("zeropad", "8x16"),
        ("shuffle", "--group=3 8x16"),
        ("softmax", "4x0x3"),
        ("softmax", "--axis=2 8x10"),
        ("concat", "--axis=2 8x10:8x3"),
        ("conv", "mb0ic3ih8oc4kh3"),
        ("matmul", "0x20:20x30"),
        ("graph", "--case=op/f32/matmul.json"),
        ("sdpa", "2x8x64x64:2x8x64x64:2x8x64x64"),
        ("reduction", "--alg=norm_lp_sum --p=1 2x3:2x1"),
        ("binary", "--alg=ge 2x3:2x3"),
        ("sum", "--sdt=f32:f32:f32:f32 2"),
        ("eltwise", "--alg=clip 2x3"),
        ("eltwise", "--alg=elu --alpha=-2 2x3"),
        ("eltwise", "--alg=pow --alpha=0.5 --beta=2 2x3"),
    ],
)
def test_without_an_op_the_file_is_refused_with_the_reason(tmp_path, driver, text):
    with pytest.raises(UsageError, match="1 of its problems are left out: "):
        listed(tmp_path, text, driver=driver)


def test_options_hold_until_they_are_given_again(tmp_path):
    (tmp_path / "matmul").mkdir()
    (tmp_path / "matmul" / "inner").write_text("1x2:2x3\n")
    text = """--dt=bf16:bf16,u8:s8:u8 --dir=FWD_D,BWD_W   # two passes
        --attr-post-ops=, \\
                        sum:0.5
        --batch=inner
        --attr-post-ops=relu
        1x2:2x4"more"  # not of this one
        --reset --sdt=f32 --ddt=bf16 1x2:2x5
        --reset --skip-impl=ref --stag=ba 1x2:2x6
        --reset --grouped=0:2:3,5 8x2:2x2x6""".replace('"more"', 'n"a b"')
    lines = []
    inner, relu, mixed, transposed, grouped = listed(
        tmp_path, text, driver="matmul", tell=lines.append
    )
    assert inner.layer == parse_problem("1x2:2x3")
    assert inner.passes == (("forward", "training"), ("backward-weights", "inference"))
    assert (inner.precisions, inner.changed) == (("bf16", "u8s8u8"), "")
    assert inner.fusions == ("none", "sum:0.5")
    assert (relu.layer.name, relu.fusions, relu.changed) == ("a b", ("relu",), "")
    assert mixed.changed == "--sdt=f32 --ddt=bf16"
    assert transposed.changed == "--stag=ba"
    assert grouped.changed == "--grouped=0:2:3,5"
    assert [line.partition(": ")[2] for line in lines] == ["ignored options: --skip-impl=ref"]


@pytest.mark.parametrize(
    ("options", "passes", "precisions", "changed"),
    [
        ("--dir=FWD_D,FWD_I --flags=CH", [("forward", "training")], (), ""),
        ("--dir=FWD_D,BWD_DW --flags=GCH --dt=bf16", ["inference"] * 2, ("bf16",), ""),
        ("--flags=CHR,CHA", [], (), "--flags=CHR,CHA"),
        ("--sdt=bf16", [], (), "--sdt=bf16 --ddt=f32"),
        ("--sdt=bf16,f32 --ddt=f32", [], ("fp32",), ""),
        ("--dt=f16 --attr-scales=src:common:2", [], ("fp16",), "--attr-scales=src:common:2"),
    ],
)
def test_passes_and_types_are_those_of_the_options(tmp_path, options, passes, precisions, changed):
    (row,) = listed(tmp_path, f"{options} ic8ih3", driver="bnorm")
    if "inference" in passes:
        passes = [("forward", "inference"), ("backward-data", "inference")]
    assert (list(row.passes), row.precisions, row.changed) == (passes, precisions, changed)


@pytest.mark.parametrize("driver", ["lnorm", "gnorm"])
def test_given_statistics_are_of_batch_normalisations_only(tmp_path, driver):
    (row,) = listed(
        tmp_path, "--flags=G 5x8" if driver == "lnorm" else "--flags=G ic8ih3", driver=driver
    )
    assert row.changed == "--flags=G"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("--batch=shapes", "includes itself"),
        ("--batch=../mine/shapes", "includes itself"),
        ("--batch=../other", "not in the folder of the list"),
        ("--batch=/dev/null", "not in the folder of the list"),
        ("--mb=3x mb2ic3ih8oc4kh3", "--mb=3x: not a number"),
        ("--alpha=x 2x3", "--alpha=x: not a finite number"),
    ],
)
def test_bad_lines_are_refused(tmp_path, text, reason):
    with pytest.raises(UsageError, match=reason):
        listed(tmp_path, text, driver="eltwise" if "alpha" in text else "mine")


@pytest.mark.parametrize(
    ("options", "precisions", "fusions", "changed"),
    [
        ("--cfg=u8s8s32", ("u8s8s32",), (), ""),
        ("--cfg=s8s8s32,bf16bf16bf16,bf16bf16f32", ("bf16", "int8", "bf16bf16f32"), (), ""),
        ("--dt=u8:s8:f32", ("u8s8f32",), (), ""),
        ("--dt=s8:s4:f32", (), (), "--dt=s8:s4:f32"),
        (
            "--attr-scales=src:common:2+wei:per_oc,wei:common:2 --attr-post-ops=relu+add:per_oc",
            (),
            (
                "src_scale-weights_scale-relu-add:per_oc",
                "weights_scale:common-relu-add:per_oc",
            ),
            "",
        ),
        (
            "--attr-zero-points=src:common:1+dst:common:2",
            (),
            ("src_zero_point-dst_zero_point",),
            "",
        ),
        ("--attr-zero-points=wei:common:1", (), (), "--attr-zero-points=wei:common:1"),
        ("--attr-post-ops=dw:k3s1p1", (), (), "--attr-post-ops=dw:k3s1p1"),
        ("--attr-post-ops=eltwise_relu:0.5+binary_add:f32", (), ("relu:0.5-add",), ""),
        ("--attr-post-ops='sum;relu'", (), ("sum-relu",), ""),
        ("--attr-scales=wei:per_oc:f32", (), ("weights_scale",), ""),
        ("--attr-acc-mode=f16", (), (), "--attr-acc-mode=f16"),
    ],
)
def test_types_and_fused_operations_of_convolutions(
    tmp_path, options, precisions, fusions, changed
):
    (row,) = listed(tmp_path, f"{options} ic8ih3oc4kh1", driver="conv")
    assert (row.precisions, row.fusions, row.changed) == (precisions, fusions, changed)


def test_a_bias_of_products_is_fused_and_other_strides_are_left_out(tmp_path):
    text = "--bia_dt=f32 --bia_mask=2 2x3:3x4 --bia_mask=1 2x3:3x4 --reset --strides=1x2:: 2x3:3x4"
    rows = listed(tmp_path, text, driver="matmul")
    assert [(row.fusions, row.changed) for row in rows] == [
        (("bias",), ""),
        (("bias",), "--bia-mask=1"),
        ((), "--strides=1x2::"),
    ]


def test_values_without_a_layer_are_told(tmp_path):
    notes = []
    listed(tmp_path, "--dt=f32,f64 ic8ih3oc4kh1", driver="conv", tell=notes.append)
    listed(tmp_path, "--alg=relu,round --alpha=0 2x3", driver="eltwise", tell=notes.append)
    listed(tmp_path, "--mb=3 ic8ih3oc4kh1", driver="conv", tell=notes.append)
    assert [note.rpartition(": ")[2].split(" ")[0] for note in notes] == [
        "--dt=f64",
        "--mb=2)",
        "--alg=round",
    ]


@pytest.mark.parametrize(
    ("driver", "text", "choice"),
    [
        ("conv", "--dir=FWD_X ic8ih3oc4kh1", "nearest: FWD_"),
        ("pool", "ic8ih8oc8oh4kh2sh2", "not of --op pool"),
        ("matmul", "ic8ih8oc8oh4kh2sh2", "not of --op matmul"),
    ],
)
def test_what_the_driver_has_not_is_refused(tmp_path, driver, text, choice):
    with pytest.raises(UsageError, match=choice):
        listed(tmp_path, text, driver=driver)


def test_directions_are_read_in_either_case(tmp_path):
    (row,) = listed(tmp_path, "--dir=bwd_d ic8ih3oc4kh1", driver="conv")
    assert row.passes == (("backward-data", "inference"),)


def test_integers_of_poolings_have_the_type_of_the_source(tmp_path):
    (row,) = listed(tmp_path, "--dt=u8 --alg=max ic8ih4kh2sh2", driver="pool")
    assert (row.precisions, row.changed) == (("u8s8u8",), "")


@pytest.mark.parametrize(
    ("driver", "text", "count"),
    [
        ("binary", "--alg=ADD,SELECT 8x16:8x16", 1),
        ("reduction", "--alg=norm_lp_sum,sum --p=1,2 4x5:4x1", 1),
        ("reduction", "--alg=norm_lp_sum --p=2.0 --eps=0.0 4x5:4x1", 1),
        ("binary", "--dir= 8x16:8x16", 1),
    ],
)
def test_what_has_no_layer_costs_none_of_the_others(tmp_path, driver, text, count):
    assert len(listed(tmp_path, text, driver=driver)) == count
