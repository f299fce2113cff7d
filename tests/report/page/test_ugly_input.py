"""Pages of documents with hostile strings, missing values and far too many rows."""

import math
import re

import invented_runs as invented
import msgspec
import pytest
from page_reading import by_id, parse
from said import says

from pydlbench.report.page.page import build_page

EVIL = "<script>alert(1)</script>\"'&$x^2$\x07"


@pytest.mark.parametrize("title", [None, EVIL])
def test_strings_of_documents_are_escaped(tmp_path, measurement, without_time, title):
    rows = [
        measurement(layer=f"{EVIL}/conv3", algorithm=EVIL, library=EVIL, backend=EVIL),
        measurement(layer=f"{EVIL}/conv4", mode=EVIL, samples_s=invented.samples(0.05)),
        without_time("failed", EVIL, layer=EVIL),
    ]
    record = msgspec.structs.replace(
        invented.RUN,
        id=EVIL,
        command=("pydlbench", EVIL),
        device={**invented.DEVICE, "name": EVIL, "warnings": [{"symptom": EVIL, "remedy": EVIL}]},
        environment={"os": EVIL, "packages": {EVIL: EVIL}},
    )
    runs = invented.read(tmp_path, invented.layers_document(rows, record))
    page = build_page(runs, title)
    scripts = list(parse(page.html).all("script"))
    assert len(scripts) == 1
    assert "alert(1)" not in scripts[0].text()
    assert "<script>alert" not in page.html
    assert "\x07" not in page.html
    for chart in page.charts:  # as files they must be well-formed XML too
        assert b"<script>" not in page.figure(chart, "svg")
        assert page.figure(chart, "png").startswith(b"\x89PNG")


def test_a_run_without_ok_rows_says_why(tmp_path, without_time):
    rows = [without_time("failed", "it broke"), without_time("skipped", "it cannot")]
    page = build_page(invented.read(tmp_path, invented.layers_document(rows)))
    root = parse(page.html)
    assert page.charts == []
    assert says(by_id(root, "conclusion").text(), "1 of 2", "failed", "1", "skipped")
    assert "it broke" in by_id(root, "layers").text()
    absent = [node.text() for node in by_id(root, "missing").all("dd")]
    assert len(absent) == 5  # layers have their rows without a time
    assert all("pydlbench " in text for text in absent)


def test_an_empty_run_is_a_page(tmp_path):
    page = build_page(invented.read(tmp_path, invented.layers_document([])))
    assert "nothing was measured in this run." in parse(page.html).text()


def test_one_row_is_enough(tmp_path, measurement):
    page = build_page(invented.read(tmp_path, invented.layers_document([measurement()])))
    names = [chart.name for chart in page.charts]
    assert names == ["peaks-1", "roofline-1"]
    assert "only fewer FLOPs or lower precision" in parse(page.html).text()


def test_thousands_of_rows_are_capped_and_the_page_says_so(tmp_path, measurement, without_time):
    rows = [
        measurement(layer=f"model/layer{i}", problem=f"mb1ic{i}", median=1e-3 * (1 + i % 97))
        for i in range(2000)
    ]
    rows += [without_time("failed", f"reason {i}") for i in range(300)]
    (run,) = invented.read(tmp_path, invented.layers_document(rows))
    page = build_page([run])
    root = parse(page.html)
    for ident in ("roofline-1", "peaks-1", "layers-1-caption", "conclusion"):
        assert says(by_id(root, ident).text(), "2000", "800")
    assert says(by_id(root, "roofline-1").text(), "800")
    assert len(by_id(root, "peaks-1").marks()) == 40
    table = by_id(root, "layers-1-caption").parent
    assert len(list(next(table.all("tbody")).all("tr"))) == 800
    # No conclusion and no sum is drawn from a part.
    conclusion = by_id(root, "conclusion").text()
    assert "2000 of 2300 rows have a time" in conclusion
    assert "dominates" not in conclusion
    assert not [chart.name for chart in page.charts if chart.name.startswith("step")]
    assert ": 200 of 300" in by_id(root, "untimed-1-caption").text()
    assert (
        min(row.time.median for row in run.timed)
        >= sorted(row.time.median for row in rows if row.ok)[1200]
    )
    assert len(page.html) < 2_000_000


def test_a_model_of_which_rows_are_missing_is_not_summed_up(tmp_path, native, measurement):
    document = invented.model_document(native)
    more = [
        measurement(layer=f"net/layer{i}", problem=f"mb1ic{i}", median=10.0).to_dict()
        for i in range(900)
    ]
    document["measurements"] += more
    (run,) = invented.read(tmp_path, document)
    assert not run.whole
    root = parse(build_page([run]).html)
    rungs = list(dict.fromkeys(mark["rung"] for mark in by_id(root, "step-1").marks()))
    # Of the estimate's own record; the theoretical rung would take all rows.
    assert rungs == ["measured roof", "native layers"]


NOTHING = (math.nan, None, math.inf, "text", {}, [])


@pytest.mark.parametrize("bad", NOTHING, ids=str)
def test_fields_of_no_use_cost_their_row_and_it_is_told(tmp_path, measurement, bad):
    ratio = {"to": "torch eager", "median": 1.0, "ci_low": 0.9, "ci_high": 1.1, "rounds": 9}
    cause = {"cause": "dispatch", "seconds": 1e-3, "share": 0.5, "how": "an empty call"}
    good = measurement(samples_s=(0.05, 0.051), ratio=ratio, causes=(cause,)).to_dict()
    rows = [good]
    rows += [{**good, name: bad} for name in good if name != "samples_s"]
    rows += [{**good, "causes": [{**cause, name: bad}]} for name in ("cause", "seconds", "share")]
    for part in ("time_s", "peak_tflops", "roofline", "correct", "ratio"):
        rows += [{**good, part: {**good[part], name: bad}} for name in good[part]]
    document = {**invented.layers_document([]), "measurements": rows}
    (run,) = invented.read(tmp_path, document)
    told = [re.match(r"(\d+) entries cannot be read: layer ", line) for line in run.troubles]
    assert len(run.rows) + sum(int(line[1]) for line in told) == len(rows)
    assert run.timed
    for row in run.timed:
        assert 0 < row.time.median < math.inf
        assert row.batch > 0
    page = build_page([run])
    parse(page.html)
    assert "cannot be shown" not in page.html


@pytest.mark.parametrize("bad", [math.nan, "text", {}], ids=str)
def test_devices_checks_estimates_and_steps_of_no_use_are_told(tmp_path, native, bad):
    documents = [
        {**invented.check_document(native), "measured_s": bad},
        {**invented.check_document(native), "operators": bad},
        {**invented.model_document(native), "layers": bad, "estimate": bad},
        {**invented.model_document(native), "batch": bad},
    ]
    steps = invented.steps_document([invented.step_record()])
    documents.append({**steps, "steps": [{**steps["steps"][0], "time_s": bad}]})
    for name in invented.DEVICE:
        run = msgspec.structs.replace(invented.RUN, device={**invented.DEVICE, name: bad})
        documents.append(invented.layers_document(native[:3], run))
    page = build_page(invented.read(tmp_path, *documents))
    root = parse(page.html)
    assert "cannot be read" in by_id(root, "conclusion").text()
    assert "cannot be shown" not in page.html


def test_an_interrupted_run_says_so(tmp_path, measurement):
    document = invented.layers_document([measurement()], interrupted=True)
    page = build_page(invented.read(tmp_path, document))
    assert says(by_id(parse(page.html), "conclusion").text(), "interrupted")


def test_a_refused_check_is_told(tmp_path, native):
    document = invented.check_document(native)
    refused = {name: document[name] for name in ("run", "model", "batch", "phase", "precision")} | {
        "framework": "torch",
        "mode": "eager",
        "status": "failed",
        "reason": "no such operator",
    }
    page = build_page(invented.read(tmp_path, {**refused, "measurements": []}))
    assert says(parse(page.html).text(), "torch eager", "failed", "no such operator")
