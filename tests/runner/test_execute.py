"""The loop under every command: what is kept, in which order, and what ends it."""

import contextlib
import os
import signal
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest

from pydlbench.backends import capabilities
from pydlbench.errors import (
    PrimitiveError,
    PydlbenchError,
    StoreError,
    UnsupportedError,
    UsageError,
    WorkerError,
)
from pydlbench.models.catalog import find_layers
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.run import RunRecord
from pydlbench.runner.execute import execute, kernel_of, kernels, row_key
from pydlbench.runner.recorder import RowRecorder
from pydlbench.runner.tasks import KernelTask, Result, Task, TaskRow
from pydlbench.store.store import Store


class Quiet:
    """Notes progress and shows nothing."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, label: str) -> None:
        self.seen.append((done, total, label))

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Numbers(Task):
    """Rows whose document is their name; ``before`` is called ahead of each."""

    kind: ClassVar[str] = "numbers"
    before: Any = field(default=lambda _: None)

    def measure(self, session, view):
        for number, row in enumerate(self.rows):
            view.advance(number, len(self.rows), row.label)
            self.before(row.label)
            session.measured.append(row.label)
            yield Result("step", {"name": row.label, "status": session.status}, row)


class Machine:
    """A session that counts how often it was opened."""

    def __init__(self) -> None:
        self.run = RunRecord(
            id="run-1", created_utc="2030-01-01T00:00:00Z", command=("pydlbench",), device={}
        )
        self.opened: list[Task] = []
        self.measured: list[str] = []
        self.status = "ok"

    @contextlib.contextmanager
    def open(self, task):
        self.opened.append(task)
        yield self


def task(*names, before=lambda _: None, **options):
    rows = tuple(TaskRow(fields={"name": name}, label=name, spec=name) for name in names)
    return Numbers(rows=rows, options=options, before=before)


def run(store_path, machine, tasks, *, resumed=None, kind="numbers", **how):
    store = Store.open(store_path)
    again = None if resumed is None else store.find(resumed)
    with RowRecorder(store, kind, resumed=again) as recorder:
        return execute(tasks, machine.open, recorder, progress=how.pop("progress", Quiet()), **how)


def kept(store_path):
    with Store.open(store_path, readonly=True) as store:
        (info,) = store.runs()
        return info.status, [one.document["name"] for one in store.entries(info.id)]


def stop_at(name, error=KeyboardInterrupt):
    def before(label):
        if label == name:
            raise error

    return before


def test_tasks_with_the_same_options_share_a_session(store_path):
    machine, progress = Machine(), Quiet()
    tasks = [task("a", "b"), task("c"), task("d", threads=2)]
    results = run(store_path, machine, tasks, progress=progress)
    assert [one.document["name"] for one in results.outcomes] == ["a", "b", "c", "d"]
    assert len(machine.opened) == 2
    assert [seen[:2] for seen in progress.seen] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert kept(store_path) == ("done", ["a", "b", "c", "d"])


def test_what_is_finished_survives_an_interrupt(store_path):
    machine = Machine()
    results = run(store_path, machine, [task("a", "b", "c", before=stop_at("b"))], request={"a": 1})
    assert (results.interrupted, results.ok, results.early) == (True, True, True)
    assert kept(store_path) == ("interrupted", ["a"])
    again, progress = Machine(), Quiet()
    tasks = [task("a", "b", "c"), task("d")]
    run(store_path, again, tasks, resumed="last", request={"a": 1}, progress=progress)
    # Rows of one task are measured together.
    assert again.measured == ["a", "b", "c", "d"]
    assert [(int(seen[0]), seen[1]) for seen in progress.seen] == [(1, 4), (1, 4), (2, 4), (3, 4)]
    assert kept(store_path) == ("done", ["a", "b", "c", "d"])
    run(store_path, last := Machine(), [task("a"), task("d")], resumed="last", request={"a": 1})
    assert last.opened == []


def test_sigterm_is_an_interrupt(store_path):
    def terminated(label):
        if label == "b":
            os.kill(os.getpid(), signal.SIGTERM)

    results = run(store_path, Machine(), [task("a", "b", before=terminated)])
    assert results.interrupted
    assert kept(store_path)[0] == "interrupted"


def test_an_error_ends_the_run_or_costs_its_task(store_path):
    def tasks(error):
        return [task("a"), task("b", before=stop_at("b", error)), task("c")]

    results = run(store_path, Machine(), tasks(PrimitiveError("broken")))
    assert (str(results.trouble), len(results.outcomes)) == ("broken", 1)
    assert kept(store_path) == ("failed", ["a"])
    with Store.open(store_path) as store:
        store.delete("run-1")
    results = run(store_path, Machine(), tasks(UnsupportedError("no such thing")), tolerant=True)
    assert [(one.status, one.reason) for one in results.outcomes] == [
        ("ok", None),
        ("skipped", "no such thing"),
        ("ok", None),
    ]
    assert kept(store_path) == ("done", ["a", "c"])


def test_an_error_before_anything_is_finished_names_what_is_missing_and_leaves_no_run(store_path):
    results = run(store_path, Machine(), [task("a", before=stop_at("a", WorkerError("killed")))])
    assert (str(results.trouble), results.outcomes, results.where) == ("killed", [], None)
    assert results.ending == {"interrupted": True, "unfinished": ["a"]}
    with pytest.raises(UsageError, match="no such value"):
        run(store_path, Machine(), [task("a", before=stop_at("a", UsageError("no such value")))])
    with Store.open(store_path, readonly=True) as store:
        assert store.runs() == []


def test_a_run_that_took_all_its_tasks_is_complete_whatever_came_of_them(store_path):
    machine = Machine()
    machine.status = "skipped"
    results = run(store_path, machine, [task("a")])
    assert (results.ok, results.early) == (False, False)
    assert kept(store_path) == ("done", ["a"])


def test_a_run_whose_first_session_cannot_be_opened_keeps_its_name(store_path):
    class Late(Machine):
        def open(self, task):
            if not self.opened:
                self.opened.append(task)
                raise UnsupportedError("no driver")
            return super().open(task)

    @dataclass(frozen=True, kw_only=True)
    class Kept(Numbers):
        def refused(self, row, status, reason):
            return Result("step", {"name": row.label, "status": status, "reason": reason}, row)

    rows = (TaskRow(fields={"name": "a"}, label="a", spec="a"),)
    results = run(store_path, Late(), [Kept(rows=rows), task("b", threads=2)], tolerant=True)
    assert [one.status for one in results.outcomes] == ["skipped", "ok"]
    assert kept(store_path) == ("done", ["a", "b"])
    with Store.open(store_path, readonly=True) as store:
        assert [info.id for info in store.runs()] == [results.run.id]


def test_ctrl_c_while_a_run_begins_leaves_no_run(store_path, monkeypatch):
    real = Store.begin

    def interrupted(self, *arguments, **more):
        real(self, *arguments, **more)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Store, "begin", interrupted)
    machine = Machine()
    assert run(store_path, machine, [task("a")]).interrupted
    assert machine.measured == []
    with Store.open(store_path, readonly=True) as store:
        assert store.runs() == []


def test_a_record_is_handed_on_as_it_was_measured(store_path, case, measurement):
    row = measurement(layer="x", problem=case.layer.problem, samples_s=(0.1, 0.2))

    class Kernels(Machine):
        def check_room(self, cases):
            pass

        def measure(self, cases, progress, **_):
            progress(0, 1, "")
            yield cases[0], row

    tasks = [KernelTask(rows=(TaskRow(fields={}, label="x", spec=case),))]
    (plain,) = run(store_path, Kernels(), tasks, request={}).outcomes
    assert plain.record(Measurement) == msgspec.structs.replace(row, samples_s=None)
    (read,) = run(store_path, Kernels(), tasks, request={}, resumed="last", samples=True).outcomes
    assert read.record(Measurement) == row


def test_rows_with_some_of_their_visits_survive_an_interrupt(store_path, measurement):
    """They are kept and shown, and measured again when the run is gone on with."""
    cases = [KernelSpec(layer=one) for one in find_layers(["alexnet/conv3", "alexnet/conv4"])]
    rows = tuple(TaskRow(fields={"name": one.label}, label=one.label, spec=one) for one in cases)

    class Visited(Machine):
        """Takes two laps; the second finishes rows, and is interrupted before the last one."""

        def __init__(self, interrupted):
            super().__init__()
            self.interrupted = interrupted

        def check_room(self, cases):
            pass

        def measure(self, cases, progress, **_):
            self.measured += [case.layer.name for case in cases]
            for stop_rule in ("interrupted", "visits"):
                for case in reversed(cases):
                    if self.interrupted and stop_rule == "visits" and case is cases[0]:
                        raise KeyboardInterrupt
                    progress(0.5, len(cases), case.label)
                    yield case, measurement(layer=case.layer.name, stop_rule=stop_rule)

    tasks = [KernelTask(rows=rows)]
    results = run(store_path, Visited(True), tasks, request={})
    assert (results.interrupted, results.finished) == (True, 1)
    assert [one.document["stop_rule"] for one in results.outcomes] == ["interrupted", "visits"]
    again = Visited(False)
    results = run(store_path, again, tasks, request={}, resumed="last")
    assert again.measured == ["alexnet/conv3"]
    assert results.finished == 2
    assert [one.document["stop_rule"] for one in results.outcomes] == ["visits", "visits"]
    with Store.open(store_path, readonly=True) as store:
        (info,) = store.runs()
        assert (info.status, info.measurements) == ("done", 2)


@pytest.fixture
def case():
    return KernelSpec(layer=find_layers(["mb1ic3ih8oc4oh6kh3"])[0])


def of(case, **fields):
    row = TaskRow(fields=fields, label=case.label, spec=case)
    return row_key(KernelTask(rows=(row,)), row)


def test_keys_tell_cases_apart(case):
    changes = (
        {"pass_": "backward-data"},
        {"precision": "bf16"},
        {"cache": "all-cold"},
        {"layout": "nhwc"},
        {"backend": "torch", "mode": "eager"},
        {"backend": "torch", "mode": "compiled"},
        {"fuse": "bias"},
        {"device": "cuda:0"},
        {"device": "cuda:0", "timing": "events"},
    )
    keys = [of(case), *(of(msgspec.structs.replace(case, **change)) for change in changes)]
    keys += [of(case, threads="1"), of(case, threads="2")]
    assert len(set(keys)) == len(keys)
    assert of(KernelSpec.from_dict(case.to_dict())) == keys[0]
    assert kernel_of(keys[0]) is None
    assert kernel_of(f"{keys[0]}/abc") == keys[0]


@dataclass(frozen=True, kw_only=True)
class Sum(Task):
    """A row with the sum of one kernel, which ``ends`` with an error or None."""

    kind: ClassVar[str] = "estimate"
    spec: KernelSpec
    ends: type[BaseException] | None = None

    def measure(self, session, view):
        rows = {}
        yield from kernels(self, [self.spec], session, view, rows)
        if self.ends is not None:
            raise self.ends
        yield Result("estimate", {"name": "sum", "count": len(rows)}, self.rows[0])


class Kernels(Machine):
    """A session whose kernels have an invented row."""

    def __init__(self, measurement, **changes):
        super().__init__()
        self.run = msgspec.structs.replace(self.run, **changes)
        self.row = measurement

    def measure(self, cases, progress, **_):
        for one in cases:
            progress(0, 1, one.label)
            self.measured.append(one.label)
            yield one, self.row(layer="x", problem=one.layer.problem)

    def remember(self, *_):
        self.measured.append("remembered")


ROWS = [TaskRow(fields={"name": name}, label=name, spec=name) for name in "ab"]


def test_kernels_of_sums_are_measured_once(store_path, case, measurement):
    machine = Kernels(measurement)
    results = run(store_path, machine, [Sum(rows=(row,), spec=case) for row in ROWS])
    assert machine.measured == [case.label, "remembered"]
    assert [one.document["count"] for one in results.outcomes] == [1, 1]
    (key,) = results.parts
    assert kernel_of(key) == row_key(Sum(rows=(ROWS[0],), spec=case), ROWS[0])


@pytest.mark.parametrize(
    ("ends", "changes", "taken"),
    [
        (KeyboardInterrupt, {}, True),
        (KeyboardInterrupt, {"created_utc": "2020-01-01T00:00:00Z"}, False),
        (KeyboardInterrupt, {"environment": {"packages": {"numpy": "0"}}}, False),
        (None, {}, False),
    ],
    ids=["interrupted", "old", "other library", "done"],
)
def test_kernels_of_an_interrupted_run_are_taken(
    store_path, case, measurement, ends, changes, taken
):
    before = Kernels(measurement, **changes)
    run(store_path, before, [Sum(rows=(ROWS[0],), spec=case, ends=ends)], kind="estimate")
    machine = Kernels(measurement, id="run-2")
    run(store_path, machine, [Sum(rows=(ROWS[1],), spec=case)], kind="estimate")
    assert machine.measured == (["remembered"] if taken else [case.label])


@pytest.mark.parametrize(
    ("kind", "device", "taken"),
    [
        ("breakdown", {}, True),
        ("estimate", {}, False),
        ("breakdown", {"facts": {"uuid": "GPU-2"}}, False),
        ("breakdown", {"libraries": {"cuDNN": "9.9"}}, False),
    ],
    ids=["the same", "estimate", "other GPU", "other cuDNN"],
)
def test_a_breakdown_takes_kernels_of_finished_runs_on_its_gpu(
    store_path, case, measurement, monkeypatch, kind, device, taken
):
    spec = msgspec.structs.replace(case, device="cuda:0")
    gpu = {
        "name": "NVIDIA H200",
        "facts": {"uuid": "GPU-1"},
        "libraries": {"cuDNN": "9.20"},
        "host": {"name": "a CPU"},
    }
    run(store_path, Kernels(measurement, device=gpu), [Sum(rows=(ROWS[0],), spec=spec)])
    machine = Kernels(measurement, id="run-2", device=gpu | device)
    monkeypatch.setattr(Sum, "kind", kind)
    run(store_path, machine, [Sum(rows=(ROWS[1],), spec=spec)], kind=kind)
    assert machine.measured == (["remembered"] if taken else [spec.label])


def test_each_kernel_gets_its_own_row_of_an_interrupted_run_and_keeps_it(store_path, measurement):
    first, other = (KernelSpec(layer=each) for each in find_layers(["alexnet/conv[34]"]))
    before = Kernels(measurement)
    tasks = [
        Sum(rows=(ROWS[0],), spec=first),
        Sum(rows=(ROWS[1],), spec=other, ends=KeyboardInterrupt),
    ]
    run(store_path, before, tasks, kind="estimate")
    damage = Kernels(measurement, id="run-broken", created_utc="yesterday")
    run(store_path, damage, [Sum(rows=(ROWS[0],), spec=first, ends=KeyboardInterrupt)])
    machine = Kernels(measurement, id="run-2")
    results = run(store_path, machine, [Sum(rows=(ROWS[0],), spec=first)], kind="estimate")
    assert machine.measured == ["remembered"]
    (row,) = results.parts.values()
    assert row.document["problem"] == first.layer.problem
    (entry,) = Store.open(store_path).entries("run-2", "layer")
    assert entry.document["problem"] == first.layer.problem


def test_a_run_without_a_session_is_described_as_one_with_it(store_path):
    def no_session(_):
        raise PydlbenchError("nothing opens")

    with RowRecorder(Store.open(store_path), "numbers") as recorder:
        results = execute([task("a")], no_session, recorder, progress=Quiet(), tolerant=True)
    assert [one.status for one in results.outcomes] == ["failed"]
    # Other versions would keep --resume from going on with it.
    assert results.run.environment == capabilities.environment()


# -----------------------------------------------------------------------------
# What waits while the store cannot be written.


class Refusing:
    """A store that refuses all entries until it is mended."""

    def __init__(self):
        self.kept, self.broken = [], True

    def begin(self, run, kind, *, request=None):
        pass

    def add(self, _run, entry):
        if self.broken:
            raise StoreError("no space left on the device")
        self.kept.append((entry.key, entry.document["visits"]))


def test_of_a_row_that_waits_the_newest_is_kept_once(run_record):
    store = Refusing()
    recorder = RowRecorder(store, "layers")
    recorder.start(run_record)
    for visit in range(6):
        for key in ("conv1", "conv2", None):
            recorder.add("layer", {"visits": visit}, key=key)
    assert store.kept == []
    store.broken = False
    recorder.add("layer", {"visits": 6}, key="conv2")
    # What has no key is nobody's successor.
    assert store.kept[:2] == [("conv1", 5), ("conv2", 6)]
    assert store.kept[2:] == [(None, visit) for visit in range(6)]
    recorder.add("layer", {"visits": 7}, key="conv1")
    assert store.kept[8:] == [("conv1", 7)]
