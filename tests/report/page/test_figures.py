"""Figures of the page: their marks are the numbers of the rows, and their words say so."""

import re

import invented_runs as invented
import msgspec
import pytest
from invented_rows import time_of
from page_reading import by_id, parse
from said import says

from pydlbench.ops.table import KINDS, without_sides
from pydlbench.records.measurement import Peaks
from pydlbench.report.page.page import build_page


def test_every_figure_says_in_words_what_it_shows(page, root):
    figures = list(root.all("svg"))
    assert len(figures) == len(page.charts) == 12
    for node, chart in zip(figures, page.charts, strict=True):
        assert node.attributes["role"] == "img"
        children = [child for child in node.children if not isinstance(child, str)]
        title, description = children[:2]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text() == " ".join(chart.title.split())
        assert re.search(r"\d", description.text())
        assert len(description.text()) > 60


def test_marks_of_the_roofline_are_the_rows(everything, root):
    marks = by_id(root, "roofline-1").marks()
    rows = [row for row in everything[0].rows if row.flops_executed]
    # Runs on one machine share a plot: the model's and the check's rows are native ones again.
    more = [row for run in everything[1:] for row in run.representative if row.flops_executed]
    assert len(marks) == len(rows) + len(more)
    found = {(mark["layer"], mark["who"], mark["time-s"]): mark for mark in marks}
    for row in rows:
        mark = found[row.layer, row.who, repr(row.time.median)]
        assert float(mark["flops-per-s"]) == row.tflops_executed * 1e12
        assert float(mark["flop-per-byte"]) == row.flops_executed / row.bytes


def test_both_roofs_are_labelled(root):
    text = by_id(root, "roofline-1").text()
    for name in (
        "theoretical fp32 peak 0.590 TFLOP/s",
        "measured fp32 peak 0.580 TFLOP/s",
        "measured memory 48.0 GB/s",
        "measured last-level cache 150 GB/s",
    ):
        assert name in text


def test_marks_against_the_peaks_are_the_rows(everything, root):
    marks = by_id(root, "peaks-1").marks()
    rows = {(row.layer, row.who): row for row in everything[0].rows if row.kind != "pointwise"}
    assert len(marks) == len(rows)
    for mark in marks:
        row = rows[mark["layer"], mark["who"]]
        assert float(mark["of-theoretical"]) == row.fraction_of_peak("theoretical")


def test_the_ladder_has_every_rung_and_its_sums(everything, root):
    figure = by_id(root, "step-1")
    sums: dict[str, float] = {}
    for mark in figure.marks():
        sums[mark["rung"]] = sums.get(mark["rung"], 0.0) + float(mark["time-s"])
    record = everything[2].checks[0].record
    native = {(row.problem, row.pass_): row for row in everything[1].rows}
    estimate = everything[1].estimates[0]
    assert list(sums) == [
        *("theoretical", "measured roof", "native layers"),
        *("operators, torch eager", "step, torch eager"),
        *("step, torch eager, step", "step, tensorflow graph, step"),
    ]
    assert sums["native layers"] == pytest.approx(estimate.estimate.time_s)
    assert sums["step, torch eager"] == record.measured.median
    assert sums["operators, torch eager"] == pytest.approx(0.108)
    assert sums["theoretical"] > 0.9 * sum(row.flops / 0.59e12 for row in native.values())
    # A measured step is one piece: it is not spread over layers.
    assert [m["kind"] for m in figure.marks() if m["rung"] == "step, torch eager"] == ["whole"]


def test_a_check_alone_divides_its_rungs_by_the_models_graph(tmp_path, native):
    cold = [
        msgspec.structs.replace(row, cache="all-cold", time=time_of(2 * row.time.median))
        for row in native
    ]
    page = build_page(invented.read(tmp_path, invented.check_document(native + cold)))
    marks = [m for m in by_id(parse(page.html), "step-1").marks() if m["rung"] == "native layers"]
    conv2, conv3 = (
        next(float(mark["time-s"]) for mark in marks if mark["layer"] == name)
        for name in ("conv2", "conv3")
    )
    rows = {row.layer.removeprefix("alexnet-owt/"): row.time.median for row in native}
    ratio = (rows["conv2"] + rows["conv2/bias"]) / (rows["conv3"] + rows["conv3/bias"])
    assert conv2 / conv3 == pytest.approx(ratio)
    # As long as the rung that was visited in the laps.
    assert sum(float(one["time-s"]) for one in marks) == pytest.approx(0.0909)


def test_bars_of_frameworks_are_images_per_second(root):
    marks = by_id(root, "frameworks-1").marks()
    training = [m for m in marks if m["phase"] == "training" and m["who"] == "tensorflow graph"]
    assert {(m["batch"], float(m["images-per-s"])) for m in training} == {
        ("4", 4 / (0.1 * 1.4)),
        ("8", 8 / (0.1 * 1.4)),
    }


def test_the_batch_sweep_has_a_point_per_batch(root):
    marks = by_id(root, "batches-2").marks()
    assert [(m["batch"], float(m["tflops"])) for m in marks] == [
        ("1", 0.1),
        ("2", 0.2),
        ("4", pytest.approx(0.4)),
    ]


def test_samples_are_thinned_and_the_caption_says_so(root):
    figure = by_id(root, "samples-2")
    assert {(m["samples"], m["drawn"]) for m in figure.marks()} == {("300", "100")}
    assert "100 samples are drawn" in figure.text()
    assert "stand at the edge" in figure.text()


def test_figures_have_no_colour_of_their_own(page, root):
    """What is drawn in the light theme's colours must become variables, or dark mode hides it."""
    for node in root.all("svg"):
        for child in node.all():
            style = child.attributes.get("style", "")
            assert not re.search(r"#[0-9a-f]{6}", style), style
            for name in ("fill", "stroke"):
                assert not child.attributes.get(name, "none").startswith("#")
    used = set(re.findall(r"var\(--([a-z-]+)\)", page.html))
    light, dark = page.html.split("prefers-color-scheme", 1)
    for name in used - {"font", "mono"}:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark


def test_series_differ_in_more_than_colour():
    from pydlbench.report.page.palette import looks

    names = [*invented.ALL, "tensorflow xla", "numba", "cupy", "one", "two", "three"]
    found = looks(names)
    assert len({look.marker for look in found.values()}) == len(names)
    assert len({look.hatch for look in found.values()}) == len(names)


def test_every_kind_of_layer_has_a_look_of_its_own():
    from pydlbench.report.page.palette import kind_look

    looks = {kind: (kind_look(kind).hue, kind_look(kind).hatch) for kind in KINDS}
    families = {kind: without_sides(kind) for kind in KINDS}
    assert len(set(looks.values())) == len(set(families.values()))
    for kind, family in families.items():
        assert looks[kind] == (kind_look(family).hue, kind_look(family).hatch)


def test_many_runs_have_a_few_figures_of_a_kind_and_say_so(tmp_path, measurement):
    documents = [invented.layers_document([measurement()]) for _ in range(8)]
    page = build_page(invented.read(tmp_path, *documents))
    names = [chart.name for chart in page.charts]
    assert sum(name.startswith("peaks") for name in names) == 6
    assert says(parse(page.html).text(), "6", "figures")
    assert [name for name in names if name.startswith("roofline")] == ["roofline-1"]


def test_contended_rows_are_marked(tmp_path, measurement):
    rows = [
        measurement(
            layer=f"net/conv{i}",
            problem=f"mb{batch}ic{i}",
            batch=batch,
            contended=i == 2,
            samples_s=(1.0,),
        )
        for i in (1, 2)
        for batch in (1, 2)
    ]
    page = build_page(invented.read(tmp_path, invented.layers_document(rows)))
    for chart in page.charts:
        told = [text.get_text() for axes in chart.figure.axes for text in axes.texts]
        stars = [text for text in told if "*" in text]
        labels = [value["label"] for value in chart.values if "contended" in value["label"]]
        assert stars or labels, chart.name
        assert "other work disturbed" in chart.caption


def test_lines_of_a_batch_sweep_differ_in_colour_or_dashes_and_in_marker():
    from pydlbench.report.page.palette import LINES, line_looks

    found = line_looks([str(i) for i in range(LINES)]).values()
    assert len({(look.hue, look.line) for look in found}) == LINES
    assert len({look.marker for look in found}) == LINES


@pytest.mark.parametrize(
    ("name", "short"),
    [("conv1", "conv1"), ("fc6..fc6/relu", "fc6+"), ("block2/unit1/conv1", "conv1")],
)
def test_names_in_narrow_segments_are_short(tmp_path, native, name, short):
    document = invented.check_document(native)
    first, *others = document["operators"]
    document["operators"] = [{**first, "names": [name], "seconds": 0.1}, *others]
    root = parse(build_page(invented.read(tmp_path, document)).html)
    labels = [node.text() for node in by_id(root, "step-1").all("text")]
    assert short in labels
    assert name == short or name not in labels


def test_variants_of_a_model_have_ladders_of_their_own(tmp_path, native):
    plain = invented.model_document(native)
    variant = {**invented.model_document(native), "options": {"lrn": "off"}}
    page = build_page(invented.read(tmp_path, plain, variant))
    titles = [chart.title for chart in page.charts if chart.name.startswith("step")]
    assert len(titles) == 2
    assert ["lrn=off" in title for title in titles] == [False, True]


def test_steps_of_two_machines_and_of_other_settings_are_told_apart(tmp_path):
    here = invented.steps_document([invented.step_record(), invented.step_record(feed="host")])
    there = invented.steps_document([invented.step_record()])
    there["run"] = {**there["run"], "device": {**invented.DEVICE, "name": "Other 1"}}
    root = parse(build_page(invented.read(tmp_path, here, there)).html)
    figure = by_id(root, "frameworks-1")
    assert {mark["who"] for mark in figure.marks()} == {"torch eager", "torch eager host"}
    assert "Other 1" in figure.text()
    assert "Invented 9000" in figure.text()


def test_a_share_of_a_measured_peak_is_not_called_one_of_the_theoretical(tmp_path, measurement):
    row = measurement(peak=Peaks(theoretical=None, measured=0.58))
    root = parse(build_page(invented.read(tmp_path, invented.layers_document([row]))).html)
    text = by_id(root, "peaks-1").text()
    assert "of the measured peak" in text
