"""One run as JSON, CSV and Markdown."""

import csv
import io
import json

import msgspec
import pytest

from pydlbench.records.measurement import Correctness, Expected, Measurement
from pydlbench.report.csv import CSV_COLUMNS, to_csv
from pydlbench.report.json import dump, layers_document
from pydlbench.timing.chunk import GpuReadings


def test_json_document_and_its_rows_back(run_record, measurement, without_time):
    rows = [measurement(), without_time("failed", "worker killed by SIGKILL")]
    text = dump(layers_document(run_record, rows))
    document = json.loads(text)
    assert document["schema_version"] == 1
    assert document["interrupted"] is False
    assert document["run"]["id"] == run_record.id
    assert [Measurement.from_dict(row) for row in document["measurements"]] == rows


def test_json_has_no_nan(run_record, measurement):
    wrong = Correctness(status="failed", rel_error=float("nan"), tolerance=float("inf"))
    text = dump(layers_document(run_record, [measurement(correct=wrong)]))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["measurements"][0]["correct"]["rel_error"] is None


def test_csv_has_one_line_per_measurement(run_record, measurement, without_time):
    rows = [
        measurement(reorder_s={"src": 0.001, "weights": 0.002}, contended=True),
        without_time("skipped", 'no "fp16", sorry', precision="fp16"),
    ]
    first, second = csv.DictReader(io.StringIO(to_csv(run_record, rows)))
    texts = {"run_id": run_record.id, "time_s_median": "0.05", "time_s_n": "24"}
    texts |= {"roofline_bound": "compute", "contended": "true"}
    assert texts.items() <= first.items()
    assert float(first["reorder_s"]) == pytest.approx(0.003)
    texts = {"time_s_median": "", "reason": 'no "fp16", sorry', "pass": "forward"}
    assert texts.items() <= second.items()


def test_csv_columns_cover_the_record(measurement):
    launch_s = dict.fromkeys(("event", "graph", "host", "enqueue"), 1e-5)
    gpu = msgspec.to_builtins(GpuReadings(readings=1))
    data = measurement(
        reorder_s={"src": 1.0},
        launch_s=launch_s,
        gpu=gpu,
        ratio={"to": "native", "median": 1.0, "ci_low": None, "ci_high": None, "rounds": 9},
        faults={"default": 1.0, "warm": 0.0},
        expected_s=Expected(low=1e-3, high=2e-3, occasions=3),
    ).to_dict()
    for name, value in data.items():
        names = [f"{name}_{key}" for key in value] if name in _NESTED else [name]
        assert set(names) - _LISTS <= set(CSV_COLUMNS)


# Of any length: in JSON only.
_LISTS = {"time_s_visit_s"}
_NESTED = (
    *("time_s", "peak_tflops", "roofline", "correct", "launch_s", "gpu", "ratio", "faults"),
    "expected_s",
)
