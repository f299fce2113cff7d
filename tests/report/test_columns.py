"""Which columns a table has: what its rows differ in."""

import msgspec
import pytest
from said import says

from pydlbench.records.measurement import Correctness, Roofline, TimeSummary
from pydlbench.report.columns import columns, device_name, heading, varying

OTHER = {"layer": "alexnet/conv4"}


def cells(rows, index=0):
    return {column.title: column.cell(rows[index]) for column in columns(rows)}


def test_single_row_has_the_designed_columns(measurement):
    assert cells([measurement(median=0.0512)]) == {
        "backend": "native",
        "algorithm": "brgconv:avx512_core",
        "median": "51.2 ms",
        "95 % CI": "1.0 %",
        "n": "24",
        "TFLOP/s": "0.561",
        "theoretical": "85 %",
        "measured": "87 %",
        "bound": "compute",
        "checked": "ok 2e-7",
    }


def test_what_differs_becomes_a_column(measurement):
    rows = [measurement(), measurement(precision="bf16", pass_="backward-data")]
    assert varying(rows) == ["pass", "precision"]
    assert cells(rows, 1)["precision"] == "bf16"
    assert "layer" not in cells(rows)


def test_backward_passes_do_not_make_propagation_differ(measurement):
    rows = [measurement(propagation="training"), measurement(pass_="backward-data")]
    assert varying(rows) == ["pass"]
    assert varying([measurement(propagation="training"), measurement()]) == ["propagation"]


def test_model_that_all_share_is_in_the_heading_only(run_record, measurement):
    rows = [measurement(), measurement(layer="alexnet/conv4")]
    assert [cells(rows, index)["layer"] for index in (0, 1)] == ["conv3", "conv4"]
    assert heading(run_record, rows)[0].startswith("alexnet  2 layers")
    rows.append(measurement(layer="vgg16/conv1_1"))
    assert cells(rows)["layer"] == "alexnet/conv3"


MEMORY = Roofline(bound="memory", time_s=0.03, efficiency=0.6)
WRONG = Correctness(status="failed", rel_error=0.03, tolerance=1e-5)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"roofline": MEMORY}], [{"GB/s": "1.05", "of roof": "60 %"}]),
        ([{"contended": True}, OTHER], [{"note": "contended"}, {"note": ""}]),
        (
            [{"median": 0.0005}, {"median": 0.5, **OTHER}],
            [{"median": "0.500 ms"}, {"median": "500 ms"}],
        ),
        ([{"correct": WRONG}], [{"checked": "failed 3e-2"}]),
        ([{"correct": Correctness()}], [{"checked": "unchecked"}]),
    ],
    ids=["bandwidth and roof", "contended", "one unit of time", "wrong", "unchecked"],
)
def test_cells_of_rows(measurement, rows, expected):
    rows = [measurement(**row) for row in rows]
    for index, texts in enumerate(expected):
        assert texts.items() <= cells(rows, index).items()


@pytest.mark.parametrize(
    ("low", "high", "n", "text"),
    [(0.99, 1.01, 20, "1.0 %"), (None, None, 4, "IQR 10 %"), (None, None, 1, "no spread")],
)
def test_a_time_always_has_its_spread(low, high, n, text):
    time = TimeSummary(median=1.0, ci_low=low, ci_high=high, q1=0.95, q3=1.05, min=0.9, n=n)
    assert time.spread == text


def test_heading_says_what_and_where(run_record, measurement):
    row = measurement()
    what, where, layout = heading(run_record, [row])
    assert says(what, row.layer, row.problem, "forward", "fp32", "28.7 GFLOP", "25.8", "52.6 MB")
    assert says(where, "Invented 9000", "4.31 GHz", "2 threads", "hot", "oneDNN 3.2.0")
    assert says(layout, "nhwc")


def test_heading_leaves_out_what_differs(run_record, measurement):
    rows = [measurement(), measurement(layer="alexnet/conv4", problem="mb128", cache="all-cold")]
    what, where, *_ = heading(run_record, rows)
    assert says(what, "alexnet", "2 layers", "batch 128", "forward", "fp32")
    assert "conv" not in what
    assert "cache" not in where


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"threads": 8}, ("4 cores", "4.31 GHz", "8 threads")),
        ({"threads": 1}, ("1 core", "4.31 GHz", "1 thread")),
        ({"threads": 8, "clock_hz": None}, ("4 cores", "8 threads")),
        ({"threads": 1, "cache": "weights-cold"}, ("4.31 GHz", "1 thread", "weights cold")),
    ],
)
def test_heading_tells_cores_from_threads(run_record, measurement, row, values):
    device = {"name": "Invented 9000", "cores": 4, "by_threads": {"1": {"cores": 1}}}
    run = msgspec.structs.replace(run_record, device=device)
    what, where, _ = heading(run, [measurement(propagation="training", **row)])
    assert "forward (training)" in what
    assert says(where, "Invented 9000", *values)
    assert ("GHz" in where) == ("clock_hz" not in row)


@pytest.mark.parametrize(
    ("kind", "layout", "text"),
    [
        ("conv2d", "src nhwc, weights Ohwi48o, dst nhwc", "nhwc"),
        ("conv2d", "src nchw, weights OIhw16i16o, dst nChw16c", "nchw>nChw16c"),
        ("pool2d", "src nChw16c, dst nChw16c", "nChw16c"),
        ("gemm", "src mk, weights kn, dst mn", "plain"),
        ("gemm", "src gmk, weights gNK16k64n, dst gmn", "packed"),
        ("gemm", "src mk, weights nk, dst mn", "nk"),
        ("conv2d", "channels-last", "channels-last"),
        ("conv2d", None, None),
    ],
)
def test_layout_in_short(measurement, kind, layout, text):
    assert measurement(kind=kind, layout=layout).short_layout == text


def test_layout_is_a_column_unless_all_share_it(measurement):
    first, other = measurement(layout="src nhwc, dst nhwc"), {"layer": "alexnet/conv4"}
    assert "layout" not in cells([first, measurement(layout=first.layout, **other)])
    rows = [first, measurement(layout="src nchw, dst nchw", layout_request="nchw", **other)]
    assert [cells(rows, index)["layout"] for index in (0, 1)] == ["nhwc", "nchw"]
    assert [cells(rows, index)["asked for"] for index in (0, 1)] == ["best", "nchw"]


def test_device_name_wherever_it_stands():
    assert device_name({"facts": {"brand": "AMD  EPYC"}}) == "AMD EPYC"
    assert device_name({}) == "unknown processor"


def test_a_memory_bound_row_has_its_share_of_the_bandwidth(measurement):
    roof = Roofline(bound="memory", time_s=0.02, efficiency=0.4, bandwidth_gbps=2.104)
    row = measurement(median=0.05, roofline=roof)
    assert row.to_dict()["of_bandwidth"] == pytest.approx(0.5)
    assert cells([row])["of bandwidth"] == "50 %"
    compute = measurement(roofline=msgspec.structs.replace(roof, bound="compute"))
    assert "of bandwidth" in cells([row, compute], 1)
    assert "of bandwidth" not in cells([compute])
    unknown = measurement(roofline=msgspec.structs.replace(roof, bandwidth_gbps=None))
    assert unknown.to_dict()["of_bandwidth"] is None
    assert "of bandwidth" not in cells([unknown])


@pytest.mark.parametrize(
    ("name", "notes", "found"),
    [
        ("jit_wino_4x3:avx512_core", (), "Winograd"),
        ("maxwell_scudnn_winograd_128x128", (), "Winograd"),
        ("engine 4", ("WINOGRAD_TILE_4x4",), "Winograd"),
        ("FFT_TILING", (), "FFT"),
        ("rfft2d", (), None),
        ("brgconv:avx512_core", ("found by the short search of an estimate",), None),
    ],
)
def test_an_algorithm_of_fewer_flops_is_marked(measurement, name, notes, found):
    row = measurement(algorithm=name, notes=notes)
    assert row.fewer_flops == found
    marked = cells([row, measurement(layer="alexnet/conv4")], 0).get("note")
    assert marked == (f"{found}: % of direct FLOPs" if found else None)
