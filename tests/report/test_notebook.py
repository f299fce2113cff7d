"""Records as tables of other libraries, and as notebooks show them."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import pydlbench
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.records.measurement import DevicePeaks, Measurement
from pydlbench.records.step import StepRecord
from pydlbench.records.trace import RecordedCall

RECORDED = Path(__file__).parents[1] / "end_to_end" / "recorded"


def documents(name, listed):
    return json.loads((RECORDED / name).read_text("utf-8"))[listed]


def record(kind, name, listed):
    return kind.from_dict(documents(name, listed)[0])


@pytest.mark.parametrize("name", ["pandas", "polars", "arrow"])
def test_a_missing_library_is_named(monkeypatch, name):
    package = {"arrow": "pyarrow"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        BackendMissingError, match=rf"^to_{name}: {package} .*pip install {package}$"
    ):
        getattr(pydlbench, f"to_{name}")([])


def table_of(rows, **_):
    return rows


@pytest.mark.parametrize(
    ("function", "package", "module"),
    [
        ("to_pandas", "pandas", SimpleNamespace(DataFrame=table_of)),
        ("to_polars", "polars", SimpleNamespace(DataFrame=table_of)),
        ("to_arrow", "pyarrow", SimpleNamespace(Table=SimpleNamespace(from_pylist=table_of))),
    ],
)
def test_tables_have_a_row_each_and_the_same_columns(monkeypatch, function, package, module):
    monkeypatch.setitem(sys.modules, package, module)
    measured = record(Measurement, "layers.json", "measurements")
    steps = documents("step.json", "steps")
    rows = getattr(pydlbench, function)([measured, *steps])
    assert len(rows) == 1 + len(steps)
    assert len({tuple(row) for row in rows}) == 1
    assert rows[0]["time_s.median"] == measured.time.median
    assert rows[0]["images_per_s"] is None
    assert rows[1]["images_per_s"] == steps[0]["images_per_s"]
    assert json.loads(rows[1]["calls"]) == steps[0]["calls"]
    assert not any(isinstance(value, dict) for row in rows for value in row.values())


def test_every_column_has_a_single_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=table_of))
    (step, *_) = documents("step.json", "steps")
    traced, untraced = pydlbench.to_polars([step, {**step, "calls": []}])
    assert (json.loads(traced["calls"]), untraced["calls"]) == (step["calls"], "[]")
    rows = pydlbench.to_polars(documents("layers.json", "measurements"))
    for column in rows[0]:
        lists = {isinstance(row[column], list) for row in rows if row[column] is not None}
        assert len(lists) <= 1, column


def test_notebooks_show_what_the_commands_print():
    assert callable(pydlbench.measure)  # whoever has a record has it from one of these
    text = record(Measurement, "layers.json", "measurements")._repr_markdown_()
    assert "mb4ic16ih16oc16oh16kh3ph1" in text
    assert "| backend | algorithm | median |" in text
    steps = record(StepRecord, "step.json", "steps")._repr_markdown_()
    assert "mnist" in steps
    assert "| torch eager |" in steps
    page = record(StepRecord, "step.json", "steps")._repr_html_()
    assert page.startswith("<div>")
    assert '<th scope="row">conv2</th>' in page
    call = RecordedCall(signature="", operator="")
    assert (call._repr_markdown_(), call._repr_html_()) == (None, None)


def test_nothing_that_a_record_holds_becomes_markup():
    assert callable(pydlbench.step)
    document = {**documents("step.json", "steps")[0], "notes": ["<script>alert(1)</script>"]}
    assert "<script" not in StepRecord.from_dict(document)._repr_html_()


def test_peaks_are_those_of_the_probe(monkeypatch):
    theory = SimpleNamespace(flops_per_s=2e11, derivation="64 FLOP/cycle x 1 core")
    peak = SimpleNamespace(nominal=None, clock_hz=3e9, theoretical=theory, kernel="vfmadd")
    device = SimpleNamespace(
        limits=lambda _: SimpleNamespace(measured=1.5e11, theoretical=2e11),
        peak=lambda _: peak,
        to_dict=lambda: {"name": "a machine"},
    )
    asked = []

    class Session:
        cpus = (0,)

        def __init__(self, options):
            asked.append(options.threads)
            self.devices = SimpleNamespace(cpu=lambda *what: asked.append(what) or device)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("pydlbench.runner.session.Session", Session)
    found = pydlbench.peaks("cpu", "bf16", threads=1)
    assert asked == [1, (("bf16",), (), ())]  # neither bandwidths nor other peaks are probed
    assert found == DevicePeaks(
        device="cpu",
        name="a machine",
        precision="bf16",
        threads=1,
        measured=1.5e11,
        theoretical=2e11,
        clock_hz=3e9,
        derivation="64 FLOP/cycle x 1 core",
        kernel="vfmadd",
    )
    assert found.tflops == 0.15
    assert "0.150 TFLOP/s at 3" in found._repr_markdown_()
    with pytest.raises(UsageError, match="fp32, bf16, fp16"):
        pydlbench.peaks("cpu", "fp64")
