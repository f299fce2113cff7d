from __future__ import annotations

import pytest

from pydlbench.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet5"], "resnet5: no such model; nearest: resnet"),
        ([""], ": no such model"),
        (["mnist", "--batch", "0"], "--batch 0: too small; nearest: 1"),
        (["mnist", "--batch", "4.5"], "--batch 4.5: not a whole number; nearest: 4"),
        (["mnist", "--phase", "backward"], "--phase backward: not a valid choice"),
        (["mnist", "--precision", "tf32"], "--precision tf32: not a valid choice"),
        (["mnist", "--phase", "forward,training"], "one at a time; nearest: --phase forward"),
        (["mnist", "--precision", "fp32,bf16"], "one at a time; nearest: --precision fp32"),
        (["mnist", "--layout", "nhwc,nchw"], "one at a time; nearest: --layout nhwc"),
        (["mnist", "--feed", "host,resident"], "one at a time; nearest: --feed host"),
        (["mnist", "--framework", "pytorch"], "nearest: torch"),
        (["mnist", "--framework", "torch,"], "empty value in the list; nearest: torch"),
        (["mnist", "--mode", "compile"], "nearest: compiled"),
        (["mnist", "--framework", "torch", "--mode", "xla"], "torch has no such mode"),
        (["mnist", "--framework", "tensorflow", "--mode", "eager"], "nearest: graph"),
        (["mnist", "--layout", "nhcw"], "--layout nhcw: not a valid choice"),
        (
            ["mnist", "--layout", "nchw", "--framework", "tensorflow"],
            "TensorFlow's convolutions on CPUs take nhwc only; nearest: --layout nhwc",
        ),
        (["mnist", "--feed", "disk"], "--feed disk: not a valid choice"),
        (["alexnet", "--phase", "training"], "nearest: --phase forward-backward"),
        (["mnist", "--option", "lrn"], "--option lrn: not NAME=VALUE"),
        (["alexnet", "--option", "lrn=off", "--option", "lrn=on"], "lrn is given twice"),
        (["mnist", "--option", "colour=red"], "colour"),
        (["mnist", "--rounds", "3"], "--rounds 3: too small; nearest: 5"),
        (["mnist", "--rounds", "many"], "--rounds many: not a whole number"),
        (["mnist", "--time-limit", "0"], "--time-limit 0: must lie between 0 and 86400 s"),
        (["mnist", "--time-limit", "soon"], "--time-limit soon: not a number"),
        (["mnist", "--threads", "0"], "--threads 0: too small; nearest: 1"),
        (["mnist", "--seed", "-1"], "--seed -1: too small; nearest: 0"),
        (["mnist", "--budget", "nan"], "--budget nan: not a number"),
        (
            ["vgg11", "--batch", "1000000", "--framework", "torch"],
            "vgg11 at batch 1000000: needs about",
        ),
        (["mnist", "--json", "/no/such/folder/a.json"], "no such directory"),
        (["mnist", "--json", "-", "--md", "-"], "goes to standard output already"),
        (["mnist", "--frame", "torch"], "--frame: no such option of pydlbench check; nearest"),
        (["mnist", "alexnet"], "alexnet: pydlbench check takes no such argument"),
        ([], "required: MODEL"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, capsys):
    assert main(["check", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("pydlbench: ")
    assert message in err
