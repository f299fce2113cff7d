import msgspec
import pytest
from said import says

from pydlbench.report.layers import evidence, explanations, layers_report
from pydlbench.report.text import as_text

RATIO = {"to": "native", "median": 2.0, "ci_low": 1.99, "ci_high": 2.01, "rounds": 9}


def render_layers(run_record, rows):
    return as_text(layers_report(run_record, rows))


def cause(name, share, how="measured so"):
    return {"cause": name, "seconds": 0.05 * share, "share": share, "how": how}


@pytest.fixture
def slow(measurement):
    def build(*causes, **changes):
        words = {"backend": "torch", "mode": "eager", "ratio": RATIO, "causes": causes}
        return measurement(median=0.1, **{**words, **changes})

    return build


@pytest.fixture
def fast(measurement):
    return measurement(ratio={**RATIO, "median": 1.0, "ci_low": 1.0, "ci_high": 1.0})


def name(row):
    return f"{row.backend} {row.mode}"


def test_a_line_for_each_slow_row(fast, slow):
    row = slow(cause("allocation", 0.5), cause("reorders", 0.3), cause("unexplained", 0.2))
    (line,) = explanations([fast, row], name)
    causes = ("allocation 25.0 ms (50 %", "reorders 15.0 ms (30 %", "unexplained 20 %")
    assert says(line, "torch eager", "2.00x", "native", *causes)


def test_without_a_cause_that_is_said(slow):
    (line,) = explanations([slow(cause("unexplained", 1.0))], name)
    assert says(line, "torch eager", "2.00x", "native", "no cause")


@pytest.mark.parametrize(
    ("share", "values"),
    [(-0.2, ("20 %", "more")), (-0.02, ("unexplained", "0.0 %")), (0.0, ("unexplained", "0.0 %"))],
)
def test_causes_may_be_more_than_the_gap(slow, share, values):
    (line,) = explanations([slow(cause("reorders", 1 - share), cause("unexplained", share))], name)
    assert says(line.partition("reorders")[2], *values)


def test_evidence_is_every_measurement(fast, slow):
    row = slow(
        cause("allocation", 0.9, "30.0 ms with kept pages"),
        cause("unexplained", 0.1, "the gap less the causes above"),
        empty_call_s=2e-6,
        faults={"default": 700.0, "warm": 3.0},
        notes=("oneDNN converts layouts in each call",),
    )
    who, allocation, unexplained, call, faults, note = evidence([fast, row], name)
    assert who == "torch eager:"
    assert says(allocation, "allocation", "45.0 ms", "90 %", "30.0 ms with kept pages")
    assert says(unexplained, "unexplained", "5.00 ms", "10 %", "the gap less the causes above")
    assert says(call, "2.00 us")
    assert says(faults, "page faults", "700", "3")
    assert note.strip() == row.notes[0]


def interleaved(fast, slow):
    return [
        fast,
        slow(
            cause("generic kernel", 0.9),
            cause("unexplained", 0.1),
            algorithm="aten::convolution (brg_conv_fwd:avx512_core_bf16)",
            library="torch 2.13.0+cpu",
            layout="src nchw, weights oihw, dst nchw",
            warm_s=0.09,
        ),
        slow(mode="compiled", library="torch 2.13.0+cpu", contended=True),
    ]


@pytest.mark.parametrize("who", [0, 1])
def test_nothing_is_explained_where_one_of_the_two_was_disturbed(run_record, fast, slow, who):
    rows = interleaved(fast, slow)
    rows[who] = msgspec.structs.replace(rows[who], contended=True)
    assert "generic kernel" not in render_layers(run_record, rows)


def test_table_of_one_layer_has_no_column_for_it_and_fits_150_columns(run_record, fast, slow):
    text = render_layers(run_record, interleaved(fast, slow))
    table = text.split("\n\n")[1].splitlines()
    assert table[0].split()[:2] == ["backend", "algorithm"]
    assert "to best" in table[0]
    assert "  kept  " in table[0]
    assert max(map(len, table)) <= 150
    assert "2.00x +-0.5 %" in table[2]
    assert " 90.0 ms" in table[2]
    assert " brg_conv_fwd:avx512_core_bf16 " in table[2]
    assert says(text, "generic kernel", "45.0 ms", "90 %", "unexplained", "10 %")
    assert says(text.splitlines()[1], "oneDNN 3.2.0", "torch 2.13.0+cpu")
