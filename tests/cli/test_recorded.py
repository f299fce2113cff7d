"""``step --trace`` and ``layers --shape @LOG``, with invented limits."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pydlbench.cli import step
from pydlbench.cli.layer_request import read_request
from pydlbench.cli.parser import read
from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord

DATA = Path(__file__).parents[1] / "traces" / "data"
FLOPS, BYTES = 1e12, 1e10


class Machine:
    """A session on a machine of invented peaks, which runs nothing."""

    cpus = (0, 1)
    facts = SimpleNamespace(name="a machine")
    run = RunRecord(id="20261126-00000000", created_utc="2026-11-26T00:00:00+00:00")

    def __init__(self, **_):
        level = MemoryLevel(name="memory", capacity=float("inf"), bytes_per_s=BYTES)
        known = SimpleNamespace(
            levels=lambda _: [level], limits=lambda _: SimpleNamespace(measured=FLOPS)
        )
        self.devices = SimpleNamespace(cpu=lambda *_, **__: known)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def traced(capsys, name, *more):
    args = read(["step", "--trace", str(DATA / name), *more])[0]
    assert step.run(args, Machine) == 0
    return capsys.readouterr().out


def test_a_trace_is_held_against_limits(capsys):
    found = json.loads(traced(capsys, "eager.json.gz", "--json", "-"))["recorded"]
    (first, *_) = found["problems"]
    assert (first["operator"], first["count"]) == ("aten.convolution_backward", 1)
    assert first["passes"] == ["backward-weights", "backward-data"]
    # Memory: what it reads, and both gradients.
    source, weights, result = 8 * 16 * 32 * 32, 32 * 16 * 9, 8 * 32 * 16 * 16
    moved = 4 * (2 * source + 2 * weights + result)
    assert first["limit_s"] == pytest.approx(moved / BYTES)
    assert first["share"] == pytest.approx(first["seconds"] / found["step_s"])
    assert found["limits_of"] == "a machine, 2 threads"


def test_the_report_names_what_dominates_and_what_has_no_layer(capsys):
    text = traced(capsys, "compiled.json.gz")
    assert "dominated by aten.convolution_backward" in text
    assert "generated kernels x 2" in text
    text = traced(capsys, "modules.json.gz")
    assert "dominated by Conv2d_1" in text


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["alexnet-owt"], "--model alexnet-owt: has no meaning with --trace"),
        (["--batch", "4"], "--batch"),
        (["--csv", "x.csv"], "--csv x.csv: has no meaning with --trace"),
    ],
)
def test_options_that_a_trace_ignores_are_refused(capsys, arguments, part):
    with pytest.raises(UsageError) as caught:
        traced(capsys, "eager.json.gz", *arguments)
    assert part in str(caught.value)


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
        time=SimpleNamespace(median=median_s),
        roofline=SimpleNamespace(time_s=median_s / 3),
    )


def test_rows_stand_for_the_calls_of_all_modules():
    log = request("--shape", f"@{DATA / 'modules.json.gz'}").log
    rows = [row_of(*each) for each in log.layers]
    found = log.described(rows)
    timed = {one.operator: one for one in found.problems if one.native_s is not None}
    gradient = timed["aten.convolution_backward"]
    assert (gradient.limit_s, gradient.native_s) == (2e-6, 6e-6)  # of data and of weights
    (module,) = (one for one in found.modules if one.module == "Conv2d_1")
    assert module.limit_s == pytest.approx(3e-6)


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
    fp32, bf16 = wanted.log.described(rows).problems
    assert (fp32.precision, fp32.native_s, fp32.limit_s) == ("fp32", 3e-6, 1e-6)
    assert (bf16.precision, bf16.native_s, bf16.limit_s) == ("bf16", None, None)
    rows.append(row_of(both["bf16"], "bf16-tc", 1e-6))
    assert wanted.log.described(rows).problems[1].native_s == 1e-6
