import math
import subprocess
import sys

import pytest
import raw_store

from pydlbench.errors import StoreError, UsageError
from pydlbench.records.measurement import Measurement
from pydlbench.store.entry import LAYER_COLUMNS, Entry
from pydlbench.store.store import Store


def test_a_run_comes_back_as_it_was(store, run_of, entry):
    run = run_of(command=("pydlbench", "layers", "--shape", "conv3"))
    store.begin(run, "layers")
    first = entry(samples_s=(0.05, 0.051, 0.049), layer="alexnet/conv1")
    store.add(run.id, first)
    store.add(run.id, Entry("estimate", {"estimate": {"low": 0.1}}))
    store.finish(run, "done")
    assert store.record(run.id) == run
    layer, estimate = store.entries(run.id, samples=True)
    assert layer == first
    assert layer.samples == (0.05, 0.051, 0.049)
    assert "samples_s" not in layer.document
    assert estimate == Entry("estimate", {"estimate": {"low": 0.1}})
    assert [one.samples for one in store.entries(run.id)] == [None, None]
    assert [one.table for one in store.entries(run.id, "estimate")] == ["estimate"]
    assert Measurement.from_dict(layer.document).layer == "alexnet/conv1"


def test_a_few_rows_are_read_by_their_lines_among_the_columns(store, run_of, entry):
    other, run = run_of(1), run_of(2)
    for one in (other, run):
        store.begin(one, "layers")
    for number in range(6):
        store.add(other.id, entry(layer=f"other/{number}"))
        store.add(run.id, Entry("estimate", {"number": number}))
        store.add(run.id, entry(layer=f"net/{number}", samples_s=(float(number), 1.0)))
    columns = store.columns(run.id)
    chosen = [4, 1, 4]
    found = store.entries(run.id, "layer", places=chosen, samples=True)
    assert [one.document["layer"] for one in found] == [columns[place][0] for place in (1, 4)]
    assert [one.samples for one in found] == [(1.0, 1.0), (4.0, 1.0)]
    assert [one.samples for one in store.entries(run.id, "layer", places=chosen)] == [None, None]
    assert store.entries(run.id, "layer", places=[]) == []
    assert store.entries(run.id, places=[0, 3])[0].document == {"number": 0}
    assert store.entries(run.id, places=[0, 3])[1].document["layer"] == "net/1"


def test_a_damaged_document_is_in_nobodys_way_who_does_not_ask_for_it(
    store, store_path, run_of, entry
):
    run = run_of()
    store.begin(run, "layers")
    store.add_all(run.id, [entry(layer=f"net/{number}") for number in range(3)])
    raw_store.execute(store_path, "UPDATE entries SET document = x'00' WHERE number = 2")
    assert len(store.entries(run.id, "layer", places=[0, 2])) == 2
    with pytest.raises(StoreError, match="a document is damaged"):
        store.entries(run.id, "layer", places=[1])


def test_a_list_counts_what_was_measured(store, run_of, entry):
    run = run_of(device={"name": "AMD EPYC 9965 192-Core Processor"})
    store.begin(run, "estimate")
    store.add_all(run.id, [entry(), entry(), Entry("estimate", {})])
    (info,) = store.runs()
    assert (info.measurements, info.machine, info.kind) == (2, "AMD EPYC 9965", "estimate")
    assert (info.status, info.tags, info.command) == ("running", (), run.command)


@pytest.mark.parametrize("status", ["done", "interrupted", "failed"])
def test_the_end_of_a_run_is_kept_with_what_is_known_only_then(store, run_of, status):
    run = run_of()
    store.begin(run, "layers")
    after = run_of(device={"name": "Invented 9001", "peaks": [1]}, environment={"python": "4"})
    store.finish(after, status)
    assert store.info(run.id).status == status
    assert store.info(run.id).machine == "Invented 9001"
    assert store.record(run.id) == after


def test_a_status_that_is_none_is_refused(store, run_of):
    store.begin(run_of(), "layers")
    with pytest.raises(UsageError, match="status finished: not one of done"):
        store.finish(run_of(), "finished")


def test_newest_runs_come_first_and_as_many_as_asked_for(store, run_of):
    for number in (1, 3, 2):
        store.begin(run_of(number), "layers")
    ids = [info.id[-1] for info in store.runs()]
    assert ids == ["2", "3", "1"]  # as they were begun, whatever the clock said
    assert [info.id[-1] for info in store.runs(limit=2)] == ["2", "3"]


def test_columns_are_those_of_the_documents(store, run_of, entry):
    run = run_of()
    store.begin(run, "layers")
    store.add(run.id, entry(contended=True))
    store.add(run.id, Entry("breakdown", {"layer": "no layer"}))
    (row,) = store.columns(run.id)
    found = dict(zip(LAYER_COLUMNS, row, strict=True))
    document = store.entries(run.id, "layer")[0].document
    times = {name: document["time_s"][name] for name in ("median", "ci_low", "ci_high", "n")}
    assert found == {**{name: document.get(name) for name in found}, **times, "contended": 1}
    assert found["flops"] == 28_708_700_160
    assert store.columns(run.id, names=("median", "layer")) == [(found["median"], found["layer"])]
    with pytest.raises(ValueError, match=r"tuple\.index"):
        store.columns(run.id, names=("median; DROP TABLE runs",))
    with pytest.raises(UsageError, match="columns of step: there are none; nearest: layer"):
        store.columns(run.id, "step")


def test_a_row_without_a_time_has_columns_too(store, run_of, without_time):
    store.begin(run_of(), "layers")
    store.add(
        run_of().id, Entry.from_document("layer", without_time("skipped", "no bf16").to_dict())
    )
    (row,) = store.columns(run_of().id)
    found = dict(zip(LAYER_COLUMNS, row, strict=True))
    assert (found["status"], found["median"], found["algorithm"]) == ("skipped", None, None)


def test_numbers_that_json_and_sqlite_lack_survive(store, run_of):
    document = {
        "layer": "name \udcff with a byte that is no text",
        "flops": 1 << 70,
        "clock_hz": math.inf,
        "time_s": {"median": math.nan},
    }
    samples = (math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -0.0)
    store.begin(run_of(), "layers")
    store.add(run_of().id, Entry("layer", document, samples))
    (found,) = store.entries(run_of().id, samples=True)
    assert math.isnan(found.document["time_s"].pop("median"))
    assert found.document == {**document, "time_s": {}}
    assert [value.hex() for value in found.samples] == [value.hex() for value in samples]
    (row,) = store.columns(run_of().id)
    columns = dict(zip(LAYER_COLUMNS, row, strict=True))
    assert columns["median"] is None
    assert columns["clock_hz"] == math.inf
    assert columns["flops"] == float(1 << 70)


def test_steps_have_their_samples_in_the_document(store, run_of):
    store.begin(run_of(), "step")
    store.add(run_of().id, Entry.from_document("step", {"status": "ok", "samples_s": [1.0, 2.0]}))
    (step,) = store.entries(run_of().id)
    assert step.document == {"status": "ok", "samples_s": [1.0, 2.0]}
    assert step.samples is None
    assert store.entries(run_of().id, samples=True)[0].samples == (1.0, 2.0)


def test_a_later_entry_takes_the_place_of_one_with_the_same_key(store, run_of, entry):
    run = run_of()
    store.begin(run, "layers")
    for key, status in (("a", "failed"), ("b", "ok"), ("a", "ok"), (None, "ok"), (None, "ok")):
        store.add(run.id, entry(key, status=status))
    assert [one.key for one in store.entries(run.id)] == ["b", "a", None, None]
    assert len(store.columns(run.id)) == 4
    other = run_of(1)
    store.begin(other, "layers")
    store.add(other.id, entry("a"))
    assert store.info(run.id).measurements == 4


def test_entries_that_are_added_together_are_all_there_or_none(store, run_of, entry):
    store.begin(run_of(), "layers")
    with pytest.raises(UsageError, match="table Rows: not a name"):
        store.add_all(run_of().id, [entry(), entry(), Entry("Rows", {})])
    assert store.entries(run_of().id) == []
    assert store.columns(run_of().id) == []


def test_an_entry_of_no_run_is_refused(store, entry):
    with pytest.raises(StoreError, match="its run is not in it any more"):
        store.add("20300102-nothing", entry())


def test_tags(store, run_of):
    for number in range(3):
        store.begin(run_of(number), "layers")
    one, two, three = (run_of(number).id for number in range(3))
    for run, tag in ((one, "base"), (two, "base"), (two, "base"), (two, "a")):
        store.tag(run, tag)
    assert store.info(two).tags == ("a", "base")
    assert [info.id for info in store.runs(tag="base")] == [two, one]
    store.untag(two, "base")
    assert [info.id for info in store.runs(tag="base")] == [one]
    with pytest.raises(UsageError, match=r"base: run .* has no such tag; its tags: a"):
        store.untag(two, "base")
    with pytest.raises(UsageError, match="it has none"):
        store.untag(three, "base")
    with pytest.raises(UsageError, match="no such run"):
        store.tag("20300102-zzz", "base")


def test_deleting_a_run_leaves_nothing_of_it(store, store_path, run_of, entry):
    for number in (0, 1):
        store.begin(run_of(number), "layers")
        store.add(run_of(number).id, entry())
        store.tag(run_of(number).id, "base")
    store.delete(run_of(0).id)
    assert [info.id for info in store.runs()] == [run_of(1).id]
    for table in ("entries", "layers", "tags", "runs"):
        assert raw_store.execute(store_path, f"SELECT count(*) FROM {table}") == [(1,)], table
    with pytest.raises(UsageError, match="no such run"):
        store.delete(run_of(0).id)


def test_the_room_of_deleted_runs_is_given_back(store, run_of, store_path):
    store.begin(run_of(0), "layers")
    store.add(run_of(0).id, Entry("layer", {}, tuple(map(float, range(100_000)))))
    store.delete(run_of(0).id)
    store.vacuum()
    assert store_path.stat().st_size < 200_000


def test_readers_see_what_a_writer_has_committed(store, run_of, entry, store_path):
    store.begin(run_of(), "layers")
    with Store.open(store_path, readonly=True) as reader:
        assert reader.info(run_of().id).measurements == 0
        store.add(run_of().id, entry())
        assert reader.info(run_of().id).measurements == 1
        assert reader.find("last").status == "running"
        with pytest.raises(StoreError, match="is read-only; make it writable, or name another"):
            reader.tag(run_of().id, "base")


def test_a_resumed_run_goes_on(store, run_of, entry):
    run = run_of()
    store.begin(run, "layers", request={"shape": ["conv3"]})
    with pytest.raises(UsageError, match="is being written; wait for its end"):
        store.resume(run.id)
    store.add(run.id, entry("a"))
    store.finish(run, "interrupted")
    store.resume(run.id)
    assert store.info(run.id).status == "running"
    store.add(run.id, entry("b"))
    assert store.info(run.id).measurements == 2
    assert store.request(run.id) == {"shape": ["conv3"]}


def test_only_the_newest_entry_is_held(store, run_of, entry):
    store.begin(run_of(), "layers")
    one, two = entry(layer="one"), entry(layer="two", samples_s=(1.0,))
    assert not store.holds(run_of().id, one)
    store.add(run_of().id, one)
    store.add(run_of().id, two)
    assert store.holds(run_of().id, two)
    assert not store.holds(run_of().id, one)


def test_importing_the_store_imports_no_database():
    script = (
        "import sys, pydlbench.store.store, pydlbench.runner.recorder\n"
        "print({'sqlite3', 'platformdirs', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
