"""The published schemas: valid, described throughout, and true of what the commands write."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from breakdown_records import document_of, make_record

from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.records.documents import DOCUMENTS
from pydlbench.records.measurement import Measurement
from pydlbench.records.schema import load_schema, schema_text

if TYPE_CHECKING:
    from collections.abc import Iterator

jsonschema = pytest.importorskip("jsonschema")


def errors(name: str, document: Any) -> list[str]:
    found = jsonschema.Draft202012Validator(load_schema(name)).iter_errors(document)
    return [f"{one.json_path}: {one.message}" for one in found]


def undescribed(schema: Any, path: str) -> Iterator[str]:
    """Yield properties without a sentence of their own or of what they refer to."""
    if isinstance(schema, list):
        for one in schema:
            yield from undescribed(one, path)
    if not isinstance(schema, dict):
        return
    for name, one in schema.get("properties", {}).items():
        if name != "status" and not one.get("description") and "$ref" not in one:
            yield f"{path}.{name}"
    for name, one in schema.items():
        if name not in ("if", "then"):
            yield from undescribed(one, f"{path}.{name}")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_valid_stands_alone_and_is_described(name):
    schema = load_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    text = schema_text(name)
    for target in {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]}:
        assert target in schema["$defs"]
    assert list(undescribed(schema, name)) == []
    # Fields are added without notice.
    assert '"additionalProperties": false' not in text


def test_every_field_of_a_measurement_is_in_the_schema(measurement):
    described = load_schema("layers")["$defs"]["Measurement"]["properties"]
    present = {"candidates": ({"algorithm": "jit"},), "samples_s": (1.0, 2.0)}
    full = measurement(**present, sustained_s=1e-3, sustained_hz=1e9).to_dict()
    assert set(full) <= set(described)
    assert len(full) == len(Measurement.__struct_fields__) + len(Measurement.derived)
    for part in ("time_s", "roofline", "correct", "peak_tflops"):
        names = {
            "time_s": "TimeSummary",
            "peak_tflops": "Peaks",
            "correct": "Correctness",
            "roofline": "Roofline",
        }
        inner = load_schema("layers")["$defs"][names.get(part, part)]["properties"]
        omitted = {"laps"} if part == "time_s" else set()  # written only after a loss
        assert set(full[part]) == set(inner) - omitted


def test_rows_of_every_status_are_valid(run_record, measurement, without_time):
    from pydlbench.report.json import dump, layers_document

    rows = [measurement(), without_time("skipped", "no AMX"), without_time("failed", "wrong")]
    document = json.loads(dump(layers_document(run_record, rows)))
    assert errors("layers", document) == []
    document["measurements"][0]["flops"] = "many"
    del document["run"]["id"]
    assert len(errors("layers", document)) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shapes", ["shapes", "conv3", "pool1", "relu:mb1ic3"]),
        ("estimate-summary", ["estimate", "mnist", "--summary"]),
        ("backends", ["backends", "--device", "cpu"]),
        ("compare-published", ["compare", "--published"]),
    ],
)
def test_what_commands_write_is_valid(name, words, capsys, monkeypatch):
    from pydlbench.cli import backends

    monkeypatch.setattr(backends, "_start", lambda *_: {"name": "x", "version": "1"})
    assert main([*words, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert errors(name, document) == []
    assert errors(name, {**document, "schema_version": 2})


def test_a_device_is_valid(capsys):
    from pydlbench.cli import device as command
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.devices.cpu.record import start_record

    facts = read_cpu_facts()
    words = ["--device", "cpu", "--json", "-", "--quiet"]
    args = read(["device", *words])[0]
    record = start_record(facts, choose_cpus(facts, None))
    assert command.run(args, lambda **_: record) == 0
    assert errors("device", json.loads(capsys.readouterr().out)) == []


def test_a_breakdown_is_one_object_or_several(run_record):
    words = {"model": "mnist", "batch": 1, "phase": "forward", "precision": "fp32"}
    who = {"framework": "torch", "mode": "eager"}
    failed = {**words, **who, "status": "failed", "reason": "it died"}
    head = {"schema_version": 1, "interrupted": False, "run": run_record.to_dict()}
    assert errors("breakdown", {**head, **failed}) == []
    assert errors("breakdown", {**head, "breakdowns": [failed, failed]}) == []
    assert errors("breakdown", {**head, **document_of(make_record())}) == []
    assert errors("breakdown", {**head, **failed, "status": "ok"})  # without its figures


@pytest.mark.parametrize("name", ["diagnose", "estimate"])
def test_a_document_without_an_answer_says_that_it_is_unfinished(run_record, name):
    head = {"schema_version": 1, "interrupted": True, "run": run_record.to_dict()}
    assert errors(name, {**head, "unfinished": ["mnist torch eager"]}) == []
    assert errors(name, head)


def test_a_list_of_runs_is_valid(run_record, measurement):
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

    with Store.open() as store:
        store.begin(run_record, "layers")
        store.add(run_record.id, Entry.from_document("layer", measurement().to_dict()))
        runs = [info.to_dict() for info in store.runs()]
    assert runs[0]["measurements"] == 1
    assert errors("runs", {"schema_version": 1, "runs": runs}) == []
    assert errors("runs", {"schema_version": 1, "runs": [{**runs[0], "status": "lost"}]})


def test_a_comparison_is_valid(run_record, measurement, capsys):
    from pydlbench.store.entry import Entry
    from pydlbench.store.store import Store

    with Store.open() as store:
        for name, median in (("before", 0.05), ("after", 0.06)):
            record = msgspec.structs.replace(run_record, id=name)
            store.begin(record, "layers")
            rows = [measurement(median=median, pass_=one) for one in ("forward", "backward-data")]
            store.add_all(name, (Entry.from_document("layer", row.to_dict()) for row in rows))
            store.finish(record, "done")
    assert main(["compare", "before", "after", "--quiet", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["ratio"] for row in document["rows"]] == pytest.approx([1.2, 1.2])
    assert errors("compare", document) == []
    document["rows"][0]["verdict"] = "MAYBE"
    assert errors("compare", document)


def test_a_diagnosis_is_valid(run_record, capsys, monkeypatch):
    from pydlbench.cli import diagnose as command
    from pydlbench.diagnose import run as package
    from pydlbench.records.diagnosis import Cause, Diagnosis, Finding, Saving
    from pydlbench.records.step import StepRecord

    def found(case, *_: Any, **__: Any) -> Iterator[Diagnosis]:
        saving = Saving(
            seconds=0.03, low=0.02, high=0.04, step_s=0.1, subject="step", how="in turn", rounds=9
        )
        one = Finding(
            problem="first touch",
            where=(),
            symptom="page faults",
            evidence=("in turn",),
            causes=(Cause(name="allocator", meaning="it gives pages back"),),
            saving=saving,
            next="pydlbench breakdown mnist",
            parts=frozenset({"allocation"}),
        )
        yield Diagnosis(step=StepRecord(spec=case, status="failed", reason="x"), findings=(one,))

    class Session:
        run = run_record

    @contextmanager
    def session(**_: Any) -> Any:
        yield Session()

    monkeypatch.setattr(package, "diagnoses", found)
    args = read(["diagnose", "mnist", "--json", "-", "--quiet"])[0]
    assert command.run(args, session) == 0
    assert errors("diagnose", json.loads(capsys.readouterr().out)) == []


def test_an_unknown_document_names_the_nearest():
    with pytest.raises(UsageError, match="nearest: layers; choices: backends, breakdown"):
        load_schema("layer")
    with pytest.raises(UsageError, match="no such document"):
        load_schema("definitions")
