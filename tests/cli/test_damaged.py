"""Damaged documents and stores: a line that says so, a row that has failed, never a traceback."""

import json
import math

import msgspec
import pytest
import raw_store
from said import says

from pydlbench.cli import main
from pydlbench.cli.output import reading_runs
from pydlbench.errors import StoreError, UsageError
from pydlbench.records.step import StepRecord, StepSpec
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


@pytest.fixture
def write(run_record, measurement, tmp_path):
    def to(name, **changes):
        path = tmp_path / name
        row = {**measurement().to_dict(), **changes}
        record = msgspec.structs.replace(run_record, id=name)
        document = {"schema_version": 1, "interrupted": False, "run": record.to_dict()}
        path.write_text(json.dumps({**document, "measurements": [row]}))
        return str(path)

    return to


COMMANDS = [
    ("compare", "GOOD", "BAD"),
    ("compare", "BAD", "BAD"),
    ("compare", "--published", "BAD"),
    ("export", "BAD", "--format", "long"),
    ("export", "BAD", "--format", "md"),
    ("runs", "show", "BAD"),
]


def run(write, words, **changes):
    files = {"GOOD": write("good.json"), "BAD": write("bad.json", **changes)}
    return main([files.get(one, one) for one in words])


@pytest.mark.parametrize("words", [COMMANDS[number] for number in (0, 1, 4, 5)])
def test_a_damaged_file_is_one_line(write, capsys, words):
    assert run(write, words, time_s={"median": "text"}) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert says(error, "bad.json", "nearest:")
    assert words[0] == "compare" or says(error, "Expected `float", "$.time_s.median")


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    "changes", [{"time_s": "text"}, {"batch": []}, {"status": 3}, {"clock_hz": "fast"}]
)
def test_no_damage_is_a_traceback(write, words, changes):
    assert run(write, words, **changes) in (0, 1, 2)


@pytest.mark.product
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e308, 1e-308, 10**400])
@pytest.mark.parametrize("name", ["median", "ci_low", "ci_high", "clock_hz", "flops", "bytes"])
def test_numbers_that_are_none_are_compared_without_a_warning(write, name, bad, measurement):
    time = measurement().to_dict()["time_s"]
    changes = {"time_s": {**time, name: bad}} if name in time else {name: bad}
    for one in ("GOOD", "BAD"):
        assert run(write, ("compare", one, "BAD"), **changes) in (0, 1, 2)


def test_a_row_without_a_usable_time_has_failed(write, capsys, measurement):
    time = {**measurement().to_dict()["time_s"], "median": math.inf}
    assert run(write, ("compare", "GOOD", "BAD"), time_s=time) == 1
    error = capsys.readouterr().err
    assert says(error, "alexnet/conv3", "inf s", "bad.json")


def test_the_same_damage_has_one_exit_code_and_a_long_value_is_cut(store_path, capsys):
    Store.open(store_path).close()
    store_path.write_bytes(store_path.read_bytes()[:4096])
    named = ["--store", str(store_path)]
    commands = (["runs", *named], ["runs"], ["runs", "show", "last", *named])
    assert {main([*words]) for words in commands} == {1}
    measuring = ["layers", "--shape", "conv3", "--batch", "1", "--budget", "0.1"]
    assert main([*measuring, *named]) == 1
    assert main(["layers", "--precision", "x" * 5000]) == 2
    assert max(map(len, capsys.readouterr().err.splitlines())) < 1000


STEP = StepRecord(spec=StepSpec(model="mnist", batch=4), status="ok")
STEERING = "\x1b[31m\x9b\x07"


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "show", "last"),
        ("runs", "show", "last~1"),
        ("compare", "last~1", "last~1"),
        ("compare", "last", "last~1"),
        *(("export", "last", "--format", one) for one in ("csv", "long", "md", "json")),
        ("report", "last", "-o", "-"),
    ],
    ids=" ".join,
)
def test_no_store_from_elsewhere_steers_a_terminal(words, run_record, measurement, capsys):
    record = msgspec.structs.replace(
        run_record,
        command=("pydlbench", STEERING),
        device={**run_record.device, "name": STEERING},
        environment={"os": STEERING, "packages": {STEERING: STEERING}},
    )
    names = dict.fromkeys(("layer", "problem", "algorithm", "library"), STEERING)
    ratio = {"to": STEERING, "median": 1.0, "ci_low": None, "ci_high": None, "rounds": 9}
    both = [
        measurement(backend=one, mode=STEERING, ratio=ratio, **names) for one in ("native", "torch")
    ]
    with Store.open() as store:
        for name, rows in (("a", both[:1]), ("b", both)):
            own = msgspec.structs.replace(record, id=f"20300101-{name}")
            store.begin(own, "layers")
            store.add_all(own.id, (Entry.from_document("layer", row.to_dict()) for row in rows))
            store.finish(own, "done")
            store.tag(own.id, "a")
    raw_store.execute(store.path, "UPDATE tags SET tag = ?", STEERING)
    assert main(list(words)) in (0, 2)
    assert not set("".join(capsys.readouterr())) & set(STEERING) - set("[31m")


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "show", "last"),
        ("export", "last"),
        ("export", "last", "--format", "md"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("layer", {"batch": "many"}),
        ("layer", {"time_s": {"median": []}}),
        ("step", {"layout": "zigzag"}),
        ("step", {"time_s": {"median": 0.1}}),
    ],
    ids=str,
)
def test_a_run_of_a_store_with_a_value_that_no_record_takes_is_one_line(
    words, table, changes, run_record, measurement, capsys
):
    rows = {"layer": measurement().to_dict(), "step": STEP.to_dict()}
    with Store.open() as store:
        store.begin(run_record, "sweep")
        store.add(run_record.id, Entry.from_document(table, rows[table] | changes))
        store.finish(run_record, "done")
    assert main(list(words)) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("pydlbench: run last: ")
    assert "export last --format json" in error
    assert main(["export", "last", "--format", "json"]) == 0
    assert next(iter(changes)) in capsys.readouterr().out


@pytest.mark.parametrize("change", ["device = NULL", "median = 'fast'", "kind = x'00'"])
def test_a_column_of_another_type_is_one_line_of_compare(change, run_record, measurement, capsys):
    with Store.open() as store:
        store.begin(run_record, "layers")
        store.add(run_record.id, Entry.from_document("layer", measurement().to_dict()))
        store.finish(run_record, "done")
    raw_store.execute(store.path, f"UPDATE layers SET {change}")
    assert main(["compare", "last", "last"]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert says(error, "run last", "Expected", "$[0]")


def test_errors_without_a_file_or_of_our_own_pass():
    with pytest.raises(KeyError), reading_runs(["last"]):
        raise KeyError("problem")
    with pytest.raises(StoreError, match="it is locked"), reading_runs([__file__]):
        raise StoreError("it is locked")
    wrong = pytest.raises(UsageError, match=r"test_damaged.py: not as .*KeyError")
    with wrong, reading_runs([__file__]):
        raise KeyError("problem")
