import itertools

import msgspec
import pytest
from said import says

from pydlbench.records.measurement import Roofline
from pydlbench.report.columns import by_problem
from pydlbench.report.layers import interleaved_table, layers_report
from pydlbench.report.text import Style, as_text

ALGORITHMS = {
    "native": "brgconv_strided:avx512_core_bf16+brgconv:avx512_core",
    "torch eager": "aten::convolution_backward (brgconv_strided:avx512_core)",
    "torch compiled": "aten::convolution_backward (brgconv_strided:avx512_core)",
    "tensorflow graph": "Pad, Conv2DBackpropFilter: _MklNativePadWithFusedConv2D",
    "tensorflow xla": "Pad, Conv2DBackpropFilter: convolution f32, then a transpose",
    "numba": "numba prange: direct convolution",
}


def render_layers(run_record, rows):
    return as_text(layers_report(run_record, rows))


@pytest.fixture
def interleaved(measurement):
    """The rows of every backend on one problem; native is the fastest."""

    def build(ratio=2.0, half=0.02, **changes):
        rows = []
        for name, algorithm in ALGORITHMS.items():
            backend, _, mode = name.partition(" ")
            times = 1.0 if name == "native" else ratio
            width = 0.0 if name == "native" else half
            found = {"to": "native", "median": times, "rounds": 9}
            found |= {"ci_low": times * (1 - width), "ci_high": times * (1 + width)}
            words = {"backend": backend, "mode": mode or None, "algorithm": algorithm}
            words["layout"] = "src nchw, dst nChw16c" if name == "native" else "src nhwc, dst nhwc"
            words["warm_s"] = None if name == "native" else 1.05e-4
            words["contended"] = name == "numba"
            rows.append(measurement(median=times * 1.2e-4, ratio=found, **{**words, **changes}))
        return rows

    return build


def lines_of(rows):
    return as_text([interleaved_table(rows)], Style(terminal=True)).splitlines()


def test_everything_at_once_fits_150_columns(interleaved):
    roof = Roofline(bound="memory", time_s=0.03, efficiency=0.6)
    rows = []
    for layer, pass_, precision in itertools.product(
        ("alexnet/conv3", "mb128ic96ih227iw227oc384oh55ow55kh11kw11sh4sw4ph2pw2"),
        ("forward", "backward-weights"),
        ("fp32", "bf16"),
    ):
        words = {"layer": layer, "problem": layer, "pass_": pass_, "precision": precision}
        rows += interleaved(12.3, 0.23, roofline=roof, **words)
    lines = lines_of(rows)
    assert max(map(len, lines)) <= 150
    assert sum(line.startswith("tensorflow graph") for line in lines) == 8
    assert {"theory", "measured", "note"} <= set(lines[0].split())


def test_what_a_problem_s_rows_share_stands_above_them(interleaved):
    rows = interleaved() + interleaved(pass_="backward-data")
    lines = lines_of(rows)
    assert lines[1:3] == [
        "",
        "alexnet/conv3 forward  mb128ic192ih13oc384oh13kh3ph1  28.7 GFLOP  52.6 MB  compute bound",
    ]
    assert lines[9:11] == ["", lines[2].replace("forward", "backward-data")]
    assert [line.split()[0] for line in lines[3:9]] == [row.backend for row in rows[:6]]
    assert len(lines) == 17


def test_marks_have_their_legend(run_record, interleaved):
    lines = lines_of(interleaved())
    assert [line.split()[-1] for line in lines[1:]] == [*["2e-7"] * 5, "!"]
    text = render_layers(run_record, interleaved())
    assert "\n!: contended" in text
    assert "\n~: " not in text
    text = render_layers(run_record, interleaved(half=0.2, contended=False))
    assert says(text.partition("\n~: ")[2].partition("\n")[0], "5 %", "1.1x")
    assert "\n!: " not in text
    lines = lines_of(interleaved(half=0.2))
    assert [line.split()[-1] for line in lines[1:]] == ["2e-7", *["~"] * 4, "~!"]
    assert "note" not in lines_of(interleaved(contended=False))[0]
    assert "\ni: " not in text
    early = interleaved(contended=False, stop_rule="interrupted")
    assert [line.split()[-1] for line in lines_of(early)[1:]] == ["i"] * 6
    assert "\ni: interrupted" in render_layers(run_record, early)
    assert "\nkept: " in text


def test_what_differs_between_backends_of_one_problem_is_a_column(interleaved):
    rows = interleaved(device="cuda:0", threads=None)
    timings = ["cuda-graph", "host-sync"]
    rows = [
        type(row).from_dict({**row.to_dict(), "timing": timings[row.backend == "tensorflow"]})
        for row in rows
    ]
    title, *lines = lines_of(rows)
    assert title.split()[:3] == ["backend", "timing", "algorithm"]
    assert "host-sync" in lines[3]


def test_an_algorithm_is_cut_to_what_is_left(interleaved):
    lines = lines_of(interleaved())
    assert "brgconv_strided:avx512_core " in lines[2]
    assert "_MklNativePadWithFusedConv2D" in lines[4]
    assert "  nchw>nChw16c" in lines[1]


def test_the_same_once_more_was_interleaved_with_others(interleaved):
    first, second = interleaved(), interleaved()
    assert by_problem([*first, *second]) == [first, second]
    other = interleaved(threads=1)
    mixed = [row for pair in zip(first, other, strict=True) for row in pair]
    assert by_problem(mixed) == [first, other]


def test_who_sums_in_another_format_is_marked(run_record, interleaved):
    rows = [
        type(row).from_dict({**row.to_dict(), "accumulate": "bfloat16"})
        if row.backend == "torch"
        else row
        for row in interleaved(precision="bf16", accumulate="float32", contended=False)
    ]
    title, *lines = lines_of(rows)
    assert "accumulate" not in title
    assert [line.split()[-1] for line in lines] == ["2e-7", "a", "a", *["2e-7"] * 3]
    text = render_layers(run_record, rows)
    assert says(text.partition("\na: ")[2].partition("\n")[0], "bfloat16")
    # The same everywhere needs no mark, whatever other problems do.
    assert not [line for line in lines_of(interleaved(accumulate="bfloat16")) if line.endswith("a")]


def test_rows_are_not_named_after_their_accumulator(run_record, interleaved):
    causes = ({"cause": "unexplained", "seconds": 1e-4, "share": 1.0, "how": "so"},)
    first, second, *rest = interleaved(precision="bf16", accumulate="float32", contended=False)
    second = type(second).from_dict(
        {**second.to_dict(), "accumulate": "bfloat16", "causes": causes}
    )
    text = render_layers(run_record, [first, second, *rest])
    assert says(text, "alexnet/conv3 torch eager", "2.00x", "native", "no cause")


def test_medians_in_another_order_than_the_ratios_are_explained(run_record, interleaved):
    rows = interleaved(contended=False)
    assert "\nto best: " not in render_layers(run_record, rows)
    first, second, *rest = rows
    # Half as long in the rounds that all were in, and yet the longest over all its samples.
    time = msgspec.structs.replace(second.time, median=9e-4)
    assert first.ratio["to"] == "native"
    ratio = {"to": "native", "median": 1.5, "ci_low": 1.4, "ci_high": 1.6, "rounds": 9}
    text = render_layers(
        run_record, [first, msgspec.structs.replace(second, time=time, ratio=ratio), *rest]
    )
    assert "\nto best: " in text


def test_the_row_that_others_are_compared_with_has_no_mark_of_its_sums(interleaved):
    rows = [
        msgspec.structs.replace(
            row, accumulate="float32" if row.backend == "native" else "bfloat16"
        )
        for row in interleaved(precision="bf16", contended=False)
    ]
    _, *lines = lines_of(rows)
    marked = [line.endswith(" a") for line in lines]
    assert marked == [row.backend != "native" for row in rows]
