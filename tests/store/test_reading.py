"""A run from the store and one from a file are read alike."""

import json

import pytest

from pydlbench.errors import UsageError
from pydlbench.report.json import dump, layers_document
from pydlbench.store.documents import load
from pydlbench.store.entry import LAYER_COLUMNS, Entry


@pytest.fixture
def document(tmp_path, run_record):
    """Write a document of a run; return its path."""

    def write(**values):
        path = tmp_path / "results.json"
        path.write_text(dump({"run": run_record.to_dict(), **values}))
        return str(path)

    return write


def test_a_file_of_layers_is_like_the_run_in_the_store(store, run_record, measurement, tmp_path):
    row = measurement(samples_s=(0.05, 0.06))
    store.begin(run_record, "layers")
    store.add(run_record.id, Entry.from_document("layer", row.to_dict()))
    store.finish(run_record, "done")
    path = tmp_path / "a.json"
    path.write_text(dump(layers_document(run_record, [row])))
    kept, read = load(run_record.id, store), load(str(path), None)
    assert kept.info == read.info
    assert kept.record == read.record == run_record
    assert kept.entries == read.entries
    assert kept.columns() == read.columns()
    assert read.entries[0].samples == (0.05, 0.06)
    assert kept.table("layer")[0].samples is None
    assert len(kept.columns()[0]) == len(LAYER_COLUMNS)
    assert kept.table("step") == read.table("step") == []


@pytest.mark.parametrize(
    ("values", "kind", "tables", "measurements"),
    [
        ({"measurements": []}, "layers", [], 0),
        ({"estimate": {"low": 1}, "measurements": [{}]}, "estimate", ["layer", "estimate"], 1),
        ({"steps": [{"samples_s": [1.0]}], "agreements": [{}]}, "step", ["step", "agreement"], 1),
        ({"protocol": "mnist-tutorial", "framework": "torch"}, "step", ["protocol"], 1),
        ({"framework": "torch", "levels": {}}, "breakdown", ["breakdown"], 1),
        ({"breakdowns": [{"levels": {}}] * 2}, "breakdown", ["breakdown", "breakdown"], 2),
        ({"findings": [], "framework": "torch", "terms": []}, "diagnose", ["findings"], 1),
    ],
)
def test_every_commands_document_is_known(document, values, kind, tables, measurements):
    loaded = load(document(**values), None)
    assert [entry.table for entry in loaded.entries] == tables
    assert (loaded.info.kind, loaded.info.measurements) == (kind, measurements)


def test_a_single_breakdowns_document_is_its_object(document):
    breakdown = {"framework": "torch", "mode": "eager", "error": 0.1}
    loaded = load(document(interrupted=True, measurements=[], **breakdown), None)
    assert loaded.info.status == "interrupted"
    assert [entry.document for entry in loaded.entries] == [breakdown]


def test_a_run_goes_before_a_file_of_the_same_name(
    store, run_of, tmp_path, monkeypatch, run_record
):
    monkeypatch.chdir(tmp_path)
    for name in ("last", "results"):
        (tmp_path / name).write_text(dump(layers_document(run_record, [])))
    store.begin(run_of(), "layers")
    assert load("last", store).info.id == run_of().id
    assert load("./last", store).info.id == run_record.id
    assert load("results", store).info.id == run_record.id
    assert load("results", None).info.id == run_record.id


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("nothing", "pydlbench layers"),
        ("result.json", "nearest: results.json"),
        ("/nowhere/a.json", "No such file"),
        ("a/b", "No such file"),
    ],
)
def test_what_is_not_there_is_named(monkeypatch, tmp_path, text, value):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results.json").touch()
    with pytest.raises(UsageError, match=f"{text}: .*{value}"):
        load(text, None)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("not JSON", "JSON"),
        ("[]", "object"),
        ("{}", "schema_version"),
        (json.dumps({"schema_version": 1}), "run"),
        (json.dumps({"schema_version": 1, "run": {}}), "run"),
        (json.dumps({"schema_version": 99}), "99"),
        (json.dumps({"schema_version": "a"}), "schema_version|TypeError|results"),
    ],
)
def test_files_of_something_else_are_one_line(tmp_path, content, value):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=rf"^{path}: [^\n]*({value})[^\n]*$"):
        load(str(path), None)
