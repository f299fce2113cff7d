import json
import re
import shlex

from said import says

from pydlbench.cli import main


def test_one_layer_in_a_table(capsys):
    assert main(["shapes", "conv3"]) == 0
    first, following, _, *legend, headers, row = capsys.readouterr().out.splitlines()
    assert says(first, "alexnet/conv3", "28.7 GFLOP", "492 FLOP per byte")
    assert following == "next: pydlbench layers --shape alexnet/conv3"
    assert "forward, fp32" in legend[0]
    assert headers.split() == ["layer", "problem", "FLOPs", "executed", "bytes", "FLOP/byte"]
    assert row.split() == [
        *("alexnet/conv3", "mb128ic192ih13oc384oh13kh3ph1"),
        *("28.7", "GFLOP", "90.0", "%", "52.5", "MB", "492.22"),
    ]


def test_a_line_for_each_model_without_a_pattern(capsys):
    assert main(["shapes"]) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line}
    # 64 images of 15,470,264,320 multiply-adds, and comparisons of the poolings.
    assert rows["vgg16"][:4] == ["21", "64", "1.98", "TFLOP"]
    assert "VGG-16" in rows["vgg16"]
    assert {"alexnet", "resnet152", "nasnet-large", "convnet"} <= set(rows)
    assert "vgg16/conv3_2" not in output
    assert len(output.splitlines()) < 50
    assert max(map(len, output.splitlines())) <= 120


def test_the_summarys_commands_list_layers(capsys):
    assert main(["shapes"]) == 0
    commands = re.findall(r"pydlbench (shapes .*)", capsys.readouterr().out)
    shown = []
    for command in commands:
        assert main(shlex.split(command)) == 0
        shown.append(capsys.readouterr().out)
    one, several, everything = shown
    assert "\nalexnet/conv3 " in one
    assert "/fc" not in one
    assert "\nvgg19/fc8 " in several
    assert "conv" not in several.split("FLOP/byte\n")[-1]
    assert "\nnasnet-large/" in everything


def test_json_without_a_pattern_has_every_layer(capsys):
    assert main(["shapes", "--json", "-"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(["shapes", "*", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == whole
    assert len(whole["layers"]) > 2000


def test_json_on_stdout_is_all_there_is(capsys):
    assert main(["shapes", "conv3,pool1", "--batch", "1", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    conv3, pool1 = document["layers"]
    macs = 112_140_288
    assert conv3["layer"] == "alexnet/conv3"
    assert conv3["problem"] == "mb1ic192ih13oc384oh13kh3ph1"
    assert (conv3["kind"], conv3["batch"], conv3["pool"]) == ("conv2d", 1, None)
    assert conv3["weight_elements"] == 384 * 192 * 9
    assert {p["flops"] for p in conv3["passes"].values()} == {2 * macs}
    assert conv3["passes"]["forward"] == {
        "flops": 2 * macs,
        "flops_executed": 2 * macs * 37**2 // 39**2,
        "bytes": 4 * (192 * 169 + 384 * 169 + 384 * 192 * 9),
    }
    assert (pool1["kind"], pool1["pool"]) == ("pool2d", "max")
    assert list(pool1["passes"]) == ["forward", "backward-data"]


def test_memory_bound_layers(capsys):
    assert main(["shapes", "relu:mb2ic96ih55", "concat:ic3+4", "lrn:ic3ls5"]) == 0
    relu, concat, lrn = capsys.readouterr().out.splitlines()[-3:]
    assert relu.split() == [
        *("relu:mb2ic96ih55", "581", "kFLOP", "100.0", "%", "4.65", "MB", "0.12"),
    ]
    assert concat.split() == ["concat:mb1ic3+4", "0", "FLOP", "-", "56.0", "B", "0.00"]
    assert lrn.split()[:5] == ["lrn:mb1ic3", "42.0", "FLOP", "71.4", "%"]
