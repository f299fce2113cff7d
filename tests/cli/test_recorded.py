"""``layers --shape @LOG``."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pydlbench.cli.layer_request import read_request
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError

DATA = Path(__file__).parents[1] / "traces" / "data"


def request(*arguments):
    return read_request(read(["layers", *arguments, "--device", "cpu"])[0])


def test_layers_of_a_log_have_its_passes_and_precisions():
    found = request("--shape", f"@{DATA / 'tensorflow.log.gz'}")
    assert {(case.layer.problem, case.pass_, case.precision) for case in found.cases} == {
        ("8x2048:2048x10", "forward", "fp32"),
        ("8x10:10x2048", "forward", "fp32"),
        ("mb8ic3ih32oc16oh32kh3ph1", "forward", "fp32"),
        ("mb8ic16ih32oc32oh16kh3sh2", "backward-data", "fp32"),
    }
    assert any("take less than 5 % together are not timed" in note for note in found.notes)
    (backward,) = request(
        "--shape", f"@{DATA / 'tensorflow.log.gz'}", "--pass", "backward-data"
    ).cases
    assert backward.layer.problem == "mb8ic16ih32oc32oh16kh3sh2"
    (wanted,) = {
        case.precision
        for case in request(
            "--shape", f"@{DATA / 'tensorflow.log.gz'}", "--precision", "bf16"
        ).cases
    }
    assert wanted == "bf16"


def test_a_log_goes_alone(tmp_path):
    log = f"@{DATA / 'tensorflow.log.gz'}"
    for more in (["--shape", "conv3"], ["--model", "alexnet"], ["--batch", "4"], ["--pool", "max"]):
        with pytest.raises(UsageError, match="nearest"):
            request("--shape", log, *more)
    path = tmp_path / "reorders.log"
    path.write_text(
        "onednn_verbose,exec,cpu,reorder,jit,undef,src_f32::blocked:ab:f0 "
        "dst_f32::blocked:ba:f0,,,8x4,1\n"
    )
    with pytest.raises(UsageError, match="1 problems"):
        request("--shape", f"@{path}")


def row_of(layer, precision, median_s=3e-6):
    return SimpleNamespace(
        problem=layer.layer.problem,
        pass_=layer.pass_,
        precision=precision,
        status="ok",
        propagation=layer.propagation,
        backend="native",
        device="cpu",
        time=SimpleNamespace(median=median_s),
        roofline=SimpleNamespace(time_s=median_s / 3),
    )


def test_rows_stand_for_the_calls_of_all_modules():
    log = request("--shape", f"@{DATA / 'modules.json.gz'}").log
    rows = [row_of(*each) for each in log.layers]
    found = log.ledger(rows)
    gradient = next(one for one in found.calls if one.best_s == pytest.approx(6e-6))
    assert gradient.operator == "aten.convolution_backward"
    # Gradients of data and of weights.
    assert gradient.limit_s == pytest.approx(2e-6)


def test_a_problem_in_two_precisions_is_timed_in_both(tmp_path):
    shape = "mb8_ic32oc32_ih32oh32kh3sh1dh0ph1_iw32ow32kw3sw1dw0pw1"
    path = tmp_path / "mixed.log"
    path.write_text(
        "".join(
            f"onednn_verbose,exec,cpu,convolution,jit,forward_training,"
            f"src_{dtype}::blocked:abcd:f0 wei_{dtype}::blocked:abcd:f0 "
            f"dst_{dtype}::blocked:abcd:f0,,,{shape},{ms}\n"
            for dtype, ms in (("f32", 1), ("bf16", 0.5))
        )
    )
    wanted = request("--shape", f"@{path}")
    assert [case.precision for case in wanted.cases] == ["fp32", "bf16"]
    both = dict(zip(("fp32", "bf16"), (layer for layer, _ in wanted.log.layers), strict=True))
    rows = [row_of(both["fp32"], "fp32", 6e-6), row_of(both["fp32"], "fp32")]
    fp32, bf16 = wanted.log.ledger(rows).calls
    assert (fp32.best_s, fp32.limit_s) == (3e-6, 1e-6)
    assert (bf16.best_s, bf16.limit_s) == (None, None)
    rows.append(row_of(both["bf16"], "bf16-tc", 1e-6))
    assert wanted.log.ledger(rows).calls[1].best_s == 1e-6
