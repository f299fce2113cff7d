"""What a table of GPU rows says of clocks, launches and units."""

import pytest
from said import says

from pydlbench.report.columns import heading
from pydlbench.report.layers import disagreement, gpu_notes, layers_report
from pydlbench.report.text import as_text

TIMES = {"event": 4.4e-6, "graph": 3.4e-6, "host": 6.2e-6, "enqueue": 4.8e-6}
SAME = dict.fromkeys(("event", "graph", "host"), 1e-3)


def render_layers(run_record, rows):
    return as_text(layers_report(run_record, rows))


@pytest.fixture
def gpu_row(measurement):
    def build(**changes):
        about = {"device": "cuda:0", "threads": None, "timing": "cuda-graph", "tensor_cores": True}
        return measurement(**{**about, "precision": "bf16-tc", "launch_s": SAME, **changes})

    return build


def notes(*rows):
    return list(gpu_notes(rows, lambda row: row.layer))


def test_clocks_that_agree_say_nothing(gpu_row):
    assert notes(gpu_row()) == []
    assert disagreement(gpu_row(launch_s={**SAME, "host": 1.1e-3})) is None
    assert disagreement(gpu_row(launch_s=None)) is None


def test_three_clocks_are_shown_from_ten_per_cent_on(gpu_row):
    (line,) = notes(gpu_row(launch_s=TIMES))
    assert says(line, "alexnet/conv3", "4.40 us", "3.40 us", "6.20 us", "4.80 us")
    assert disagreement(gpu_row(launch_s={**SAME, "host": 1.11e-3})) is not None


def test_of_many_rows_each_has_its_three_times(run_record, gpu_row):
    rows = [gpu_row(layer=f"net/fc{i}", launch_s=TIMES) for i in range(7)]
    (note,) = notes(*rows, gpu_row())
    assert says(note, "7", "10 %")
    columns, *lines = render_layers(run_record, [*rows, gpu_row()]).split("\n\n")[-1].splitlines()
    assert columns.split("  ")[-1] == "launching it"
    assert [line.split()[0] for line in lines] == [row.layer for row in rows]
    assert all(line.endswith("4.40 us     3.40 us       6.20 us       4.80 us") for line in lines)


def test_what_held_the_clock_down_is_told_once(gpu_row):
    capped = {"reasons": ["power cap", "idle"]}
    rows = [gpu_row(layer=f"net/conv{i}", gpu=capped) for i in range(8)]
    (line,) = notes(*rows)
    assert says(line, "power cap", "8")
    assert "net/" not in line
    (line,) = notes(*rows, gpu_row())
    assert says(line, "power cap", *(f"net/conv{i}" for i in range(4)), "4")
    (line,) = notes(rows[0])
    assert says(line, "power cap", "net/conv0")


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"precision": "fp16", "accumulate": "float32"}, ("fp16", "float32", "fp32 peak")),
        ({}, ("no tensor cores",)),
        ({"precision": "fp16", "accumulate": "float16"}, ()),
        ({"precision": "fp32"}, ()),
        ({"kind": "pool2d"}, ()),
        ({"tensor_cores": None}, ()),
    ],
)
def test_units_that_the_precision_does_not_suggest(gpu_row, changes, values):
    lines = notes(gpu_row(**{"tensor_cores": False, **changes}))
    assert len(lines) == bool(values)
    assert all(says(line, *values, "alexnet/conv3") for line in lines)


def test_a_cpu_row_has_no_notes(measurement):
    assert notes(measurement()) == []


def test_the_heading_says_how_samples_were_taken(run_record, gpu_row, measurement):
    hot, cold = gpu_row(), gpu_row(cache="all-cold", timing="events")
    assert "  hot cache  CUDA graph  " in heading(run_record, [hot])[1]
    assert "  all cold  CUDA events  " in heading(run_record, [cold])[1]
    assert "  hot: CUDA graph, all-cold: CUDA events  " in heading(run_record, [hot, cold])[1]
    assert "CUDA" not in heading(run_record, [measurement()])[1]
    # Here a column says it.
    assert "CUDA" not in heading(run_record, [hot, gpu_row(timing="events")])[1]


def test_long_names_of_algorithms_are_cut_where_they_share_a_table(run_record, gpu_row):
    long = "engine 70 {tile 12, idx_mode 1, split_k 4, stages 3, warp_spec 2}"
    rows = [gpu_row(algorithm=long), gpu_row(algorithm=long, layer="alexnet/conv4")]
    text = render_layers(run_record, rows)
    assert long not in text
    assert "  engine 70 {tile 12" in text


def test_the_heading_says_what_is_fused(run_record, gpu_row):
    fused = gpu_row(fuse="bias-relu")
    assert "  forward  with bias-relu  bf16-tc  " in heading(run_record, [fused])[0]
    assert "bias-relu" not in heading(run_record, [fused, gpu_row()])[0]  # a column says it


def test_what_is_sustained_stands_beside_the_burst(run_record, gpu_row):
    row = gpu_row(
        clock_hz=1.8e9, sustained_s=2e-3, sustained_hz=1.41e9, energy_j=1.4, power_w=700.0
    )
    (note,) = notes(row)
    assert says(note, "--lock-gpu-clocks=1410", "--reset-gpu-clocks")
    *_, columns, line = render_layers(run_record, [row]).splitlines()
    assert columns.split()[-2:] == ["W", "pJ/FLOP"]
    rate, hertz, watts, picojoules = line.split()[-4:]
    assert float(rate) == pytest.approx(row.flops / 2e-3 / 1e12, rel=0.01)
    assert (hertz, watts) == ("1410", "700")
    assert float(picojoules) == pytest.approx(1.4e12 / row.flops, rel=0.01)
    # A reading that is a little lower is none of power's doing.
    assert notes(gpu_row(clock_hz=1.42e9, sustained_hz=1.41e9)) == []
