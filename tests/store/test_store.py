import math
import subprocess
import sys

import pytest
import raw_store

from pydlbench.errors import StoreError, UsageError
from pydlbench.store.entry import LAYER_COLUMNS, Entry
from pydlbench.store.store import Store


def columns_of(store, run):
    (row,) = store.columns(run.id)
    return dict(zip(LAYER_COLUMNS, row, strict=True))


@pytest.fixture
def begun(store, run_of):
    """A run that the store has just begun."""
    run = run_of(command=("pydlbench", "layers", "--shape", "conv3"))
    store.begin(run, "layers", request={"shape": ["conv3"]})
    return run


def test_a_run_comes_back_as_it_was(store, begun, entry):
    layer = entry(samples_s=(0.05, 0.051, 0.049), layer="alexnet/conv1")
    estimate = Entry("estimate", {"estimate": {"low": 0.1}})
    store.add(begun.id, layer)
    store.add(begun.id, estimate)
    store.finish(begun, "done")
    assert store.record(begun.id) == begun
    assert store.request(begun.id) == {"shape": ["conv3"]}
    assert store.entries(begun.id, samples=True) == [layer, estimate]
    assert layer.samples == (0.05, 0.051, 0.049)
    assert "samples_s" not in layer.document
    assert [item.samples for item in store.entries(begun.id)] == [None, None]
    assert [item.table for item in store.entries(begun.id, "estimate")] == ["estimate"]


def test_a_few_rows_are_read_by_their_lines_among_the_columns(store, run_of, begun, entry):
    other = run_of(1)
    store.begin(other, "layers")
    for number in range(6):
        store.add(other.id, entry(layer=f"other/{number}"))
        store.add(begun.id, Entry("estimate", {"number": number}))
        store.add(begun.id, entry(layer=f"net/{number}", samples_s=(float(number), 1.0)))
    columns = store.columns(begun.id)
    chosen = [4, 1, 4]
    rows = store.entries(begun.id, "layer", places=chosen, samples=True)
    assert [row.document["layer"] for row in rows] == [columns[place][0] for place in (1, 4)]
    assert [row.samples for row in rows] == [(1.0, 1.0), (4.0, 1.0)]
    assert [row.samples for row in store.entries(begun.id, "layer", places=chosen)] == [None, None]
    assert store.entries(begun.id, "layer", places=[]) == []
    estimate, layer = store.entries(begun.id, places=[0, 3])
    assert (estimate.document, layer.document["layer"]) == ({"number": 0}, "net/1")


def test_a_list_counts_what_was_measured(store, run_of, entry):
    run = run_of(device={"name": "AMD EPYC 9965 192-Core Processor"})
    store.begin(run, "estimate")
    store.add_all(run.id, [entry(), entry(), Entry("estimate", {})])
    (info,) = store.runs()
    assert (info.measurements, info.machine, info.kind) == (2, "AMD EPYC 9965", "estimate")
    assert (info.status, info.tags, info.command) == ("running", (), run.command)


@pytest.mark.parametrize("status", ["done", "interrupted", "failed"])
def test_the_end_of_a_run_is_kept_with_what_is_known_only_then(store, run_of, begun, status):
    after = run_of(
        device={"name": "Invented 9001", "peaks": [1]},
        environment={"python": "4"},
        command=begun.command,
    )
    store.finish(after, status)
    assert (store.info(begun.id).status, store.info(begun.id).machine) == (status, "Invented 9001")
    assert store.record(begun.id) == after


def test_newest_runs_come_first_and_as_many_as_asked_for(store, run_of):
    for number in (1, 3, 2):
        store.begin(run_of(number), "layers")
    ids = [info.id[-1] for info in store.runs()]
    assert ids == ["2", "3", "1"]  # as they were begun, whatever the clock said
    assert [info.id[-1] for info in store.runs(limit=2)] == ["2", "3"]


def test_columns_are_those_of_the_documents(store, begun, entry):
    store.add(begun.id, entry(contended=True))
    store.add(begun.id, Entry("breakdown", {"layer": "no layer"}))
    columns = columns_of(store, begun)
    document = store.entries(begun.id, "layer")[0].document
    times = {name: document["time_s"][name] for name in ("median", "ci_low", "ci_high", "n")}
    assert columns == {**{name: document.get(name) for name in columns}, **times, "contended": 1}
    assert columns["flops"] == 28_708_700_160
    pair = (columns["median"], columns["layer"])
    assert store.columns(begun.id, names=("median", "layer")) == [pair]


def test_a_row_without_a_time_has_columns_too(store, begun, without_time):
    row = without_time("skipped", "no bf16").to_dict()
    store.add(begun.id, Entry.from_document("layer", row))
    columns = columns_of(store, begun)
    assert (columns["status"], columns["median"], columns["algorithm"]) == ("skipped", None, None)


def test_numbers_that_json_and_sqlite_lack_survive(store, begun):
    document = {
        "layer": "name \udcff with a byte that is no text",
        "flops": 1 << 70,
        "clock_hz": math.inf,
        "time_s": {"median": math.nan},
    }
    samples = (math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -0.0)
    store.add(begun.id, Entry("layer", document, samples))
    (entry,) = store.entries(begun.id, samples=True)
    assert math.isnan(entry.document["time_s"].pop("median"))
    assert entry.document == {**document, "time_s": {}}
    assert [value.hex() for value in entry.samples] == [value.hex() for value in samples]
    columns = columns_of(store, begun)
    assert (columns["median"], columns["clock_hz"]) == (None, math.inf)
    assert columns["flops"] == float(1 << 70)


def test_steps_have_their_samples_in_the_document(store, begun):
    store.add(begun.id, Entry.from_document("step", {"status": "ok", "samples_s": [1.0, 2.0]}))
    (step,) = store.entries(begun.id)
    assert (step.document, step.samples) == ({"status": "ok", "samples_s": [1.0, 2.0]}, None)
    assert store.entries(begun.id, samples=True)[0].samples == (1.0, 2.0)


def test_a_later_entry_takes_the_place_of_one_with_the_same_key(store, run_of, begun, entry):
    for key, status in (("a", "failed"), ("b", "ok"), ("a", "ok"), (None, "ok"), (None, "ok")):
        store.add(begun.id, entry(key, status=status))
    other = run_of(1)
    store.begin(other, "layers")
    store.add(other.id, entry("a"))
    assert [item.key for item in store.entries(begun.id)] == ["b", "a", None, None]
    assert len(store.columns(begun.id)) == store.info(begun.id).measurements == 4


def test_rows_are_read_in_the_order_in_which_they_were_requested(store, run_of, begun, entry):
    other = run_of(1)
    store.begin(other, "layers")
    for number in (2, 0, 3, 1):
        store.add(other.id, entry(key=str(number), layer=f"other/{number}"))
        store.add(begun.id, entry(key=str(number), layer=f"net/{number}", samples_s=(number, 1.0)))
    store.add(begun.id, Entry("agreement", {"detail": "last"}))
    store.arrange(begun.id, [*map(str, range(4)), "missing"])
    rows = store.entries(begun.id, samples=True)
    assert [row.document.get("layer") for row in rows] == [*(f"net/{n}" for n in range(4)), None]
    assert [row.samples and row.samples[0] for row in rows] == [0, 1, 2, 3, None]
    assert [name for name, *_ in store.columns(begun.id)] == [f"net/{n}" for n in range(4)]
    assert [name for name, *_ in store.columns(other.id)] == [f"other/{n}" for n in (2, 0, 3, 1)]


def test_entries_that_are_added_together_are_all_there_or_none(store, begun, entry):
    with pytest.raises(UsageError, match="Rows"):
        store.add_all(begun.id, [entry(), entry(), Entry("Rows", {})])
    assert store.entries(begun.id) == store.columns(begun.id) == []


def test_tags(store, run_of):
    first, second, third = (run_of(number).id for number in range(3))
    for number in range(3):
        store.begin(run_of(number), "layers")
    for run, tag in ((first, "base"), (second, "base"), (second, "base"), (second, "a")):
        store.tag(run, tag)
    assert store.info(second).tags == ("a", "base")
    assert [info.id for info in store.runs(tag="base")] == [second, first]
    store.untag(second, "base")
    assert [info.id for info in store.runs(tag="base")] == [first]
    for run in (second, third):
        with pytest.raises(UsageError, match=rf"^base: run {run}"):
            store.untag(run, "base")


def test_deleting_a_run_leaves_nothing_of_it(store, store_path, run_of, entry):
    for number in (0, 1):
        store.begin(run_of(number), "layers")
        store.add(run_of(number).id, entry())
        store.tag(run_of(number).id, "base")
    store.delete(run_of(0).id)
    assert store.ids() == [run_of(1).id]
    for table in ("entries", "layers", "tags", "runs"):
        assert raw_store.execute(store_path, f"SELECT count(*) FROM {table}") == [(1,)], table


@pytest.mark.parametrize(
    "action",
    [
        lambda store, name: store.delete(name),
        lambda store, name: store.tag(name, "base"),
        lambda store, name: store.resume(name),
        lambda store, name: store.record(name),
        lambda store, name: store.add(name, Entry("layer", {})),
    ],
    ids=["delete", "tag", "resume", "record", "add"],
)
def test_a_run_that_is_not_there_is_named(store, action):
    with pytest.raises((UsageError, StoreError), match=r"nothing|run was deleted"):
        action(store, "20300102-nothing")


@pytest.mark.parametrize(
    ("action", "value"),
    [
        (lambda store, run: store.finish(run, "finished"), "finished"),
        (lambda store, run: store.columns(run.id, "step"), "step"),
        (lambda store, run: store.columns(run.id, names=("median; DROP TABLE runs",)), "tuple"),
        (lambda store, run: store.resume(run.id), "20300102-00000000"),
    ],
    ids=["status", "table", "column", "running"],
)
def test_what_cannot_be_is_refused(store, begun, action, value):
    with pytest.raises(ValueError, match=value):
        action(store, begun)


def test_readers_see_what_a_writer_has_committed(store, begun, entry, store_path):
    with Store.open(store_path, readonly=True) as reader:
        assert reader.info(begun.id).measurements == 0
        store.add(begun.id, entry())
        assert reader.info(begun.id).measurements == 1
        assert reader.find("last").status == "running"
        with pytest.raises(StoreError):
            reader.tag(begun.id, "base")


def test_a_resumed_run_goes_on(store, begun, entry):
    store.add(begun.id, entry("a"))
    store.finish(begun, "interrupted")
    store.resume(begun.id)
    store.add(begun.id, entry("b"))
    info = store.info(begun.id)
    assert (info.status, info.measurements) == ("running", 2)


def test_importing_the_store_is_quick():
    script = (
        "import sys, pydlbench.store.store, pydlbench.runner.recorder\n"
        "print({'platformdirs', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
