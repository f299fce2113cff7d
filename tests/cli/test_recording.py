"""What commands keep while they measure: at once, and whatever becomes of the store."""

import argparse
import sqlite3

import msgspec
import pytest
from said import says

from pydlbench.cli.machine import reading_store
from pydlbench.cli.measuring import recorder_of
from pydlbench.errors import StoreError, UsageError
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store


def options(**values):
    return argparse.Namespace(**{"store": None, "quiet": False, **values})


def layer(recorder, row, samples=None):
    document = row.to_dict()
    whole = document if samples is None else {**document, "samples_s": samples}
    recorder.add("layer", whole, key=row.layer)


def layers(path, run_id):
    with Store.open(path, readonly=True) as store:
        return [one.document["layer"] for one in store.entries(run_id)]


def status(path):
    with Store.open(path, readonly=True) as store:
        return store.find("last").status


def test_rows_are_there_as_soon_as_they_are_finished(store_path, run_record, measurement, capsys):
    with recorder_of(options(), "layers") as recorder:
        recorder.start(run_record)
        for number in range(3):
            layer(recorder, measurement(layer=str(number)), (0.1, 0.2))
            assert layers(store_path, run_record.id) == list(map(str, range(number + 1)))
        assert status(store_path) == "running"
        recorder.finish(run_record, "done")
        recorder.finish(run_record, "failed")  # the first word counts
    assert status(store_path) == "done"
    kept = "kept as run 20300102-030405-abcd (pydlbench runs show abcd)\n"
    assert capsys.readouterr() == ("", kept)
    with Store.open(store_path) as store:
        assert store.entries(run_record.id, samples=True)[0].samples == (0.1, 0.2)


def record(run, row, **values):
    with recorder_of(options(**values), "layers") as recorder:
        recorder.start(run)
        layer(recorder, row)
        recorder.finish(run, "done")


def test_quiet_runs_are_kept_and_not_spoken_of(store_path, run_record, measurement, capsys):
    record(run_record, measurement(), quiet=True)
    assert capsys.readouterr() == ("", "")
    assert len(layers(store_path, run_record.id)) == 1


def test_a_named_store_is_named_in_the_hint(tmp_path, run_record, measurement, capsys):
    path = tmp_path / "mine.sqlite"
    record(run_record, measurement(), store=str(path))
    assert f"(pydlbench runs show abcd --store {path})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "said"),
    [("nowhere/a.sqlite", "1 result"), (".", "warning: results are not kept: store")],
)
def test_a_store_that_cannot_be_opened_costs_a_warning(
    monkeypatch, tmp_path, run_record, measurement, capsys, place, said
):
    monkeypatch.setenv("PYDLBENCH_STORE", str(tmp_path / place))
    record(run_record, measurement())
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert str(tmp_path) in err


def test_nothing_is_kept_without_a_store(store_path, run_record, measurement, capsys):
    with recorder_of(options(store="none"), "layers") as recorder:
        recorder.start(run_record)
        layer(recorder, measurement())
        recorder.add("estimate", {})
        recorder.finish(run_record, "done")
        assert recorder.given == 2
    assert capsys.readouterr() == ("", "")
    assert not store_path.exists()


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")]
)
def test_what_ends_a_run_early_is_kept(store_path, run_record, measurement, error, expected):
    def command():
        with recorder_of(options(), "breakdown") as recorder:
            recorder.start(run_record)
            layer(recorder, measurement())
            raise error

    with pytest.raises(error):
        command()
    assert status(store_path) == expected
    assert len(layers(store_path, run_record.id)) == 1


def test_a_run_that_fails_before_its_first_row_leaves_nothing(store_path, run_record, capsys):
    def command():
        with recorder_of(options(), "layers") as recorder:
            recorder.start(run_record)
            raise UsageError("not enough memory")

    with pytest.raises(UsageError):
        command()
    with Store.open(store_path) as store:
        assert store.runs() == []
    assert capsys.readouterr().err == ""


def test_a_run_that_never_begins_makes_no_file(store_path, tmp_path):
    for path, how in (
        (store_path, {}),
        (tmp_path / "a.sqlite", {"store": str(tmp_path / "a.sqlite")}),
    ):
        with recorder_of(options(**how), "layers"):
            pass
        assert not path.exists()


def test_a_named_file_that_cannot_be_written_is_a_usage_error(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "a.sqlite"):
        with pytest.raises(UsageError, match=f"store {path}: "):
            recorder_of(options(store=str(path)), "layers")


def limit(recorder, pages):
    connection = recorder.store._connection
    if pages is None:
        pages = 1_000_000
    else:
        pages += connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_disk_that_fills_up_costs_one_warning_and_is_tried_again(
    store_path, run_record, measurement, capsys
):
    with recorder_of(options(), "layers") as recorder:
        recorder.start(run_record)
        layer(recorder, measurement(layer="0"))
        limit(recorder, 0)
        for number in range(1, 4):
            layer(recorder, measurement(layer=str(number)), (0.1,) * 2000)
        err = capsys.readouterr().err
        assert says(err, "warning", "disk is full")
        assert err.count("\n") == 1
        limit(recorder, None)
        layer(recorder, measurement(layer="4"))
        assert layers(store_path, run_record.id) == ["0", "1", "2", "3", "4"]
        recorder.finish(run_record, "done")
    assert "kept as run" in capsys.readouterr().err


def test_what_never_fitted_is_counted_at_the_end(store_path, run_record, measurement, capsys):
    with recorder_of(options(), "layers") as recorder:
        recorder.start(run_record)
        layer(recorder, measurement(layer="0"))
        limit(recorder, 0)
        for number in range(1, 4):
            layer(recorder, measurement(layer=str(number)), (0.1,) * 2000)
        recorder.finish(run_record, "done")
    assert says(capsys.readouterr().err, "3 results")
    assert layers(store_path, run_record.id) == ["0"]


@pytest.fixture
def large_run(run_record):
    """A run whose record does not fit into the rest of a page."""
    variables = {str(i): str(i) * 50 for i in range(3000)}
    return msgspec.structs.replace(run_record, environment={"variables": variables})


@pytest.mark.parametrize("again", [True, False])
def test_a_disk_that_is_full_from_the_start(store_path, large_run, measurement, capsys, again):
    Store.open(store_path).close()
    with recorder_of(options(), "layers") as recorder:
        limit(recorder, 0)
        recorder.start(large_run)
        assert "warning: not kept for now" in capsys.readouterr().err
        if again:
            limit(recorder, None)
        layer(recorder, measurement())
        recorder.finish(large_run, "done")
    err = capsys.readouterr().err
    assert ("kept as run" in err, "1 result" in err) == (again, not again)
    assert len(layers(store_path, large_run.id)) == again


def test_a_named_store_on_a_full_disk_is_found_before_anything_is_measured(tmp_path, large_run):
    path = tmp_path / "a.sqlite"
    Store.open(path).close()
    with recorder_of(options(store=str(path)), "layers") as recorder:
        limit(recorder, 0)
        with pytest.raises(UsageError, match="disk"):
            recorder.start(large_run)


@pytest.mark.parametrize("after", [True, False], ids=["committed", "not committed"])
def test_ctrl_c_while_a_row_is_written_neither_loses_nor_doubles_it(
    monkeypatch, store_path, run_record, measurement, after
):
    real = Store.add
    calls = []

    def interrupted(self, run_id, entry):
        calls.append(entry)
        if len(calls) != 2:
            real(self, run_id, entry)
            return
        if after:
            real(self, run_id, entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "add", interrupted)
    with recorder_of(options(), "layers") as recorder:
        recorder.start(run_record)
        layer(recorder, measurement(layer="0"))
        with pytest.raises(KeyboardInterrupt):
            layer(recorder, measurement(layer="1"))
        recorder.finish(run_record, "interrupted")
    assert layers(store_path, run_record.id) == ["0", "1"]


def test_a_transaction_that_is_interrupted_is_rolled_back(store_path, run_record, measurement):
    def rows():
        yield Entry.from_document("layer", measurement().to_dict())
        raise KeyboardInterrupt

    with Store.open(store_path) as store:
        store.begin(run_record, "layers")
        with pytest.raises(KeyboardInterrupt):
            store.add_all(run_record.id, rows())
        assert store.entries(run_record.id) == store.columns(run_record.id) == []
        store.add(run_record.id, Entry.from_document("layer", measurement().to_dict()))


def test_readers_open_what_is_there(store_path, tmp_path):
    for name in (None, "none"):
        with reading_store(name) as store:
            assert store is None
    with (
        pytest.raises(UsageError, match=r"nearest: leave it out"),
        reading_store(str(tmp_path / "a.sqlite")),
    ):
        pass
    Store.open(store_path).close()
    with reading_store(None) as store:
        assert store.runs() == []
    sqlite3.connect(store_path).execute("PRAGMA user_version = 99").connection.close()
    with pytest.raises(StoreError, match="version 99"), reading_store(None):
        pass
