"""``pydlbench export``: runs of the store and files, in every format."""

import csv
import io
import json
import os
import stat
import sys

import pytest
from breakdown_records import document_of, make_record
from said import says

from pydlbench.cli import main
from pydlbench.records.measurement import TimeSummary
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.report.csv import DLB_COLUMNS, LONG_COLUMNS
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def step(phase="forward", framework="torch", mode=None, batch=16, seconds=0.0393, status="ok"):
    case = StepSpec(model="vgg16", framework=framework, mode=mode, phase=phase, batch=batch)
    time = TimeSummary(
        median=seconds, ci_low=seconds, ci_high=seconds, q1=seconds, q3=seconds, min=seconds, n=9
    )
    return StepRecord(
        spec=case,
        status=status,
        reason=None if status == "ok" else "it died",
        time=time if status == "ok" else None,
        images_per_s=batch / seconds,
        samples_s=(seconds, 1.01 * seconds),
    ).to_dict()


def breakdown():
    return document_of(make_record(model="mnist", batch=8, forecast_s=0.112))


@pytest.fixture
def keep(run_record):
    def build(kind, *entries):
        with Store.open() as store:
            store.begin(run_record, kind)
            store.add_all(run_record.id, entries)
            store.finish(run_record, "done")
        return run_record.id

    return build


@pytest.fixture
def layers(keep, measurement, without_time):
    ok = Entry.from_document("layer", measurement(samples_s=(0.05, 0.051, 0.049)).to_dict())
    return keep(
        "layers",
        ok,
        Entry.from_document("layer", without_time("skipped", "no AMX", precision="bf16").to_dict()),
    )


@pytest.fixture
def mixed(keep, measurement):
    return keep(
        "sweep",
        Entry.from_document("layer", measurement(samples_s=(0.05, 0.051)).to_dict()),
        Entry.from_document("step", step()),
        Entry.from_document("step", step("training", "tensorflow", status="failed")),
        Entry.from_document("breakdown", breakdown()),
    )


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.usefixtures("layers")
def test_csv_is_that_of_layers(capsys, run_record):
    from pydlbench.records.measurement import Measurement
    from pydlbench.report.csv import to_csv

    assert main(["export", "last"]) == 0
    out, err = capsys.readouterr()
    with Store.open(readonly=True) as store:
        rows = [Measurement.from_dict(one.document) for one in store.entries(run_record.id)]
    assert out == to_csv(run_record, rows)
    assert err == ""


@pytest.mark.usefixtures("layers")
def test_several_runs_share_one_heading(capsys):
    main(["export", "last", "last"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert sum(line.startswith("run_id,") for line in lines) == 1


def test_csv_of_steps_and_what_it_leaves_out(keep, capsys):
    keep("step", Entry.from_document("step", step()), Entry.from_document("breakdown", breakdown()))
    assert main(["export", "last", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    (row,) = table(out)
    assert (row["model"], row["time_s_median"], row["batch"]) == ("vgg16", "0.0393", "16")
    assert says(err, "1 entry")


@pytest.mark.usefixtures("mixed")
def test_long_has_a_line_for_each_measurement_and_sample(capsys):
    assert main(["export", "last", "--format", "long"]) == 0
    rows = table(capsys.readouterr().out)
    assert list(rows[0]) == list(LONG_COLUMNS)
    found = [(row["table"], row["sample"]) for row in rows]
    assert found[:4] == [("layer", ""), ("layer", "0"), ("layer", "1"), ("step", "")]
    assert [row["sample_s"] for row in rows[:3]] == ["", "0.05", "0.051"]
    layer, sample, one = rows[0], rows[1], rows[3]
    assert layer["correct_status"] == "ok"
    assert float(layer["peak_tflops_measured"]) == 0.58
    # A sample's line says whose it is, and repeats nothing else.
    assert (sample["layer"], sample["precision"]) == ("alexnet/conv3", "fp32")
    assert sample["correct_status"] == sample["time_s_median"] == ""
    assert (one["model"], one["framework"]) == ("vgg16", "torch")
    assert float(one["time_s_median"]) == 0.0393
    assert [row["status"] for row in rows if row["table"] == "step"] == [
        "ok",
        "",
        "",
        *["failed", "", ""],
    ]
    (one,) = [row for row in rows if row["table"] == "breakdown"]
    assert float(one["additivity_error"]) == pytest.approx(make_record().additivity_error)
    assert float(one["alone_s"]) == pytest.approx(0.108)
    assert float(one["time_s_median"]) == pytest.approx(make_record().measured.median)
    assert float(one["forecast_error"]) == pytest.approx(0.112 / 0.1168 - 1)


@pytest.mark.usefixtures("layers")
def test_json_is_what_the_command_wrote(capsys):
    main(["export", "last", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"schema_version", "kind", "interrupted", "run", "measurements"}
    assert len(document["measurements"]) == 2
    assert "samples_s" not in document["measurements"][0]
    main(["export", "last", "--format", "json", "--samples"])
    document = json.loads(capsys.readouterr().out)
    assert document["measurements"][0]["samples_s"] == [0.05, 0.051, 0.049]


@pytest.mark.parametrize(
    ("kind", "table_", "document", "schema"),
    [("step", "step", step(), "step"), ("breakdown", "breakdown", breakdown(), "breakdown")],
)
def test_json_of_other_commands_fits_their_schemas(kind, table_, document, schema, keep, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.records.schema import load_schema

    keep(kind, Entry.from_document(table_, document))
    assert main(["export", "last", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(load_schema(schema)).validate(found)


@pytest.mark.usefixtures("layers")
def test_a_file_is_a_run_too(capsys, tmp_path):
    target = tmp_path / "run.json"
    assert main(["export", "last", "-o", str(target), "--samples"]) == 0
    capsys.readouterr()
    assert main(["export", str(target)]) == 0
    from_file = capsys.readouterr().out
    main(["export", "last"])
    assert capsys.readouterr().out == from_file
    assert main(["export", str(target), "--format", "long"]) == 0
    assert len(table(capsys.readouterr().out)) == 5


@pytest.mark.usefixtures("mixed")
def test_the_file_of_a_sweep_holds_everything(capsys, tmp_path):
    target = tmp_path / "sweep.json"
    assert main(["export", "last", "-o", str(target), "--samples"]) == 0
    main(["export", "last", "--format", "long"])
    lines = sorted(capsys.readouterr().out.splitlines())
    assert main(["export", str(target), "--format", "long"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == lines


def test_dlb_has_the_six_columns_in_milliseconds(keep, capsys, run_record):
    keep(
        "step",
        Entry.from_document("step", step()),
        Entry.from_document("step", step("forward-backward", seconds=0.1318)),
        Entry.from_document("step", step("training", "tensorflow", seconds=1.5)),
        Entry.from_document("step", step(mode="compiled", seconds=0.03)),
        Entry.from_document("step", step("training", status="failed")),
        Entry.from_document("breakdown", breakdown()),
    )
    assert main(["export", "last", "--format", "dlb"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split(",") for line in out.splitlines()]
    assert tuple(lines[0]) == DLB_COLUMNS
    began = run_record.created_utc
    assert lines[1] == [began, "pytorch", "vgg16", "eval", "fp32", "39.3"]
    assert lines[2][2:] == ["vgg16", "train", "fp32", "131.8"]
    assert lines[3][1:] == ["tensorflow", "vgg16", "training", "fp32", "1500"]
    assert lines[4][1] == "pytorch-compiled"
    assert lines[5][1:4] == ["pytorch", "mnist", "eval"]
    assert len(lines) == 6
    assert "batches 8, 16" in err


def test_dlb_has_no_exponents(keep, capsys):
    keep(
        "step",
        *(Entry.from_document("step", step(seconds=seconds)) for seconds in (9.99949, 61.2346)),
    )
    main(["export", "last", "--format", "dlb"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(",")[2] for line in lines[1:]] == ["9999", "61235"]


@pytest.mark.parametrize(
    "other", [{"layout": "nchw"}, {"threads": 1}, {"options": {"classes": 10}}]
)
def test_steps_of_other_settings_have_no_common_heading(keep, capsys, other):
    documents = [{**step(), "threads": 2}, {**step(seconds=0.08), "threads": 2, **other}]
    keep("sweep", *(Entry.from_document("step", one) for one in documents))
    assert main(["export", "last", "--format", "md"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| framework |") for line in lines) == 2
    assert not any("times as long" in line for line in lines)


def protocol():
    numbers = [
        {
            "name": "vgg16 eval",
            "value": 39.34,
            "unit": "ms",
            "spread": None,
            "times": [0.039, 0.04],
        },
        {"name": "vgg16 train", "value": 131.8, "unit": "ms", "spread": None, "times": [0.1318]},
    ]
    return {
        "protocol": "deep-learning-benchmark",
        "model": "vgg16",
        "framework": "torch",
        "mode": "eager",
        "precision": "fp32",
        "batch": None,
        "library": "torch 2",
        "data": None,
        "numbers": numbers,
        "environment": {},
    }


def test_a_played_protocol_is_exported_in_every_format(keep, capsys):
    keep("step", Entry.from_document("protocol", protocol()))
    main(["export", "last", "--format", "dlb"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[3:] for line in lines[1:]] == [
        ["eval", "fp32", "39.34"],
        ["train", "fp32", "131.8"],
    ]
    main(["export", "last", "--format", "long"])
    rows = table(capsys.readouterr().out)
    assert [(row["number"], row["value"], row["sample_s"]) for row in rows] == [
        ("vgg16 eval", "39.34", ""),
        ("vgg16 eval", "", "0.039"),
        ("vgg16 eval", "", "0.04"),
        ("vgg16 train", "131.8", ""),
        ("vgg16 train", "", "0.1318"),
    ]
    main(["export", "last", "--format", "md"])
    assert says(capsys.readouterr().out, "vgg16 eval", "39.3 ms", "vgg16 train", "132 ms")
    main(["export", "last", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["protocol"] == "deep-learning-benchmark"
    jsonschema = pytest.importorskip("jsonschema")
    from pydlbench.records.schema import load_schema

    jsonschema.Draft202012Validator(load_schema("step-protocol")).validate(document)


@pytest.mark.usefixtures("mixed")
def test_parquet_is_typed(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "run.parquet"
    assert main(["export", "last", "-o", str(target)]) == 0
    found = parquet.read_table(target)
    assert found.column_names == list(LONG_COLUMNS)
    assert str(found.schema.field("sample_s").type) == "double"
    assert str(found.schema.field("batch").type) == "int64"
    assert str(found.schema.field("contended").type) == "bool"
    main(["export", "last", "--format", "long"])
    rows = table(capsys.readouterr().out)
    assert found.column("sample_s").to_pylist() == [
        float(row["sample_s"]) if row["sample_s"] else None for row in rows
    ]


@pytest.mark.usefixtures("layers")
def test_without_its_package_parquet_names_the_install_command(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["export", "last", "--format", "parquet"]) == 1
    assert says(capsys.readouterr().err, "pip install 'pydlbench[parquet]'", "--format long")


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(
    ("name", "expected"), [("a.json", "{"), ("a.md", "**conv3 "), ("a", "run_")]
)
def test_the_format_follows_the_files_name(tmp_path, name, expected):
    target = tmp_path / name
    assert main(["export", "last", "--output", str(target)]) == 0
    assert target.read_text(encoding="utf-8").startswith(expected)


@pytest.mark.parametrize("chosen", ["csv", "long", "json", "md", "dlb"])
def test_a_run_without_anything_finished_has_nothing_to_export(
    chosen, store_path, run_record, tmp_path, capsys
):
    with Store.open(store_path) as store:
        store.begin(run_record, "layers")
        store.finish(run_record, "interrupted")
    target = tmp_path / "out"
    assert main(["export", "last", "--format", chosen, "-o", str(target)]) == 2
    err = capsys.readouterr().err
    assert says(err, run_record.id, "pydlbench runs")
    assert err.count("\n") == 1
    assert not target.exists()


@pytest.mark.usefixtures("layers")
def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["export", "last", "-o", str(pipe)]) == 0
    assert os.read(reader, 100).startswith(b"run_id,")
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("status", "interrupted"), [("done", False), ("failed", True), ("interrupted", True)]
)
def test_only_a_run_that_ended_early_is_exported_as_interrupted(
    status, interrupted, run_record, without_time, capsys
):
    with Store.open() as store:
        store.begin(run_record, "layers")
        store.add(
            run_record.id, Entry.from_document("layer", without_time("skipped", "no AMX").to_dict())
        )
        store.finish(run_record, status)
    assert main(["export", "last", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["interrupted"] is interrupted
