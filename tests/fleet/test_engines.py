"""The engines: Dask within this process and of the user's, Slurm by submitit, and bad input."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from invented_fleet import FILE, PROGRAM, VARIABLE
from invented_runs import RUN

from pydlbench.errors import UsageError, WorkerError
from pydlbench.fleet import node
from pydlbench.fleet.engines import (
    DaskEngine,
    SlurmEngine,
    _answered_slots,
    open_engine,
)
from pydlbench.fleet.node import NodeSlot, Order, store_name
from pydlbench.fleet.run import TABLE, FleetPlan, run_rounds
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

CPU = min(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def _locks(tmp_path, monkeypatch):
    locks = tmp_path / "locks"
    locks.mkdir()
    monkeypatch.setattr(node, "LOCKS", locks)
    node.allow()  # an engine that an earlier test has closed let no visit begin any more


def order(path, **changes):
    values = {"fleet": "f", "round": 0, "text": FILE, "folder": str(path), "program": PROGRAM}
    return Order(**{**values, **changes})


def ended(engine, count=1):
    found, end = [], time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < end, "no visit has ended"
        found += engine.finished(1.0)
    return found


@pytest.mark.parametrize(
    ("text", "how", "nearest"),
    [
        ("locl", {}, "local"),
        ("", {}, "local"),
        ("slrum", {}, "slurm"),
        ("dask:/here:1", {}, "dask://HOST:8786"),
        ("here:8786", {}, "dask://HOST:8786"),
        ("local", {"slots": "4096"}, None),
        ("local", {"slots": "gpus"}, "1"),
        ("slurm", {"options": {"partitions": "gpu"}, "nodes": ("a",)}, "partition"),
        ("slurm", {}, "--on slurm --nodes NAME..., where Slurm is, or --on local"),
        ("slurm", {"nodes": ("a",)}, "--on local"),
    ],
)
def test_bad_engines_are_refused_in_a_line(text, how, nearest, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"--(on|slots|slurm).*nearest: ") as caught:
        open_engine(text, folder=tmp_path, **how)
    if nearest is not None:
        assert str(caught.value).endswith(f"nearest: {nearest}")


def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("pydlbench.fleet.engines._CONNECT_S", 0.5)
    with pytest.raises(UsageError, match="--on dask://localhost:1: "):
        open_engine("dask://localhost:1", folder=tmp_path)
    with pytest.raises(UsageError, match=r"--on tls://localhost:1: .*distributed\.comm\.tls"):
        open_engine("tls://localhost:1", folder=tmp_path)


@pytest.mark.parametrize("name", ["distributed", "submitit"])
def test_an_engine_that_is_not_installed_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    text = "local" if name == "distributed" else "slurm"
    with pytest.raises(UsageError, match=r"nearest: pip install 'pydlbench\[fleet"):
        open_engine(text, nodes=("a",) if text == "slurm" else (), folder=tmp_path)


def test_a_worker_that_cannot_say_what_it_has_is_named_and_one_that_is_gone_is_not():
    slot = NodeSlot(name="a", cpus=(0,))
    assert _answered_slots({"tcp://a:1": slot, "tcp://b:1": OSError("gone")}) == {"tcp://a:1": slot}
    with pytest.raises(UsageError, match=r"tcp://c:1: .*No module named .*nearest: install"):
        _answered_slots({"tcp://c:1": ModuleNotFoundError("No module named 'pydlbench'")})


# -----------------------------------------------------------------------------
# Dask within this process.


@pytest.fixture
def local():
    pytest.importorskip("distributed")
    engine = DaskEngine.local([NodeSlot(name="a", cpus=(CPU,)), NodeSlot(name="b", cpus=(CPU,))])
    yield engine
    engine.close()


@pytest.mark.deep
def test_slots_of_this_process_have_their_visits_and_their_deaths(local, tmp_path, monkeypatch):
    """One slot's sweep is killed; two slots on one core wait for each other."""
    monkeypatch.setenv(VARIABLE, json.dumps({"kill": {"b": 1}}))
    slots = local.slots()
    assert sorted(slots) == ["a", "b"]
    assert local.finished(0.01) == []
    for slot in slots.values():
        local.start(slot, order(tmp_path))
    first = {one.node: one.brought.reason for one in ended(local, 2)}
    assert first == {"a": None, "b": "the sweep was killed by signal 9"}
    local.start(slots["b"], order(tmp_path))
    (again,) = ended(local)
    assert again.brought.reason is None
    assert (tmp_path / store_name("b", 0)).is_file()


# -----------------------------------------------------------------------------
# A scheduler and workers of the user's.


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


class Cluster:
    """A scheduler and single-threaded workers, each a process that can be killed."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.begin(
            "scheduler", "--host", "localhost", "--port", str(self.port), "--no-dashboard"
        )

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(process)
        return process

    def worker(self, threads: int = 1) -> subprocess.Popen[bytes]:
        return self.begin(
            *("worker", f"tcp://localhost:{self.port}", "--nthreads", str(threads)),
            *("--no-nanny", "--no-dashboard", "--memory-limit", "0"),
        )

    def engine(self) -> DaskEngine:
        end = time.monotonic() + 60
        while True:
            try:
                return open_engine(f"dask://localhost:{self.port}", folder=self._folder)
            except UsageError:
                assert time.monotonic() < end

    def close(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(node.tempfile, "tempdir", None)
    found = Cluster(tmp_path)
    yield found
    found.close()


def slots_of(engine):
    end = time.monotonic() + 60
    while not (found := engine.slots()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


@pytest.mark.deep
def test_a_worker_of_several_threads_is_refused(cluster):
    cluster.worker(threads=2)
    engine = cluster.engine()
    with pytest.raises(UsageError, match=r"has 2 threads, .*--nthreads 1"):
        slots_of(engine)
    engine.close()


@pytest.mark.deep
def test_kill_9_of_a_worker_and_of_the_scheduler_lose_nothing(cluster, tmp_path, monkeypatch):
    """The sweep of a killed worker goes on and is found done; the rest is gone on with."""
    monkeypatch.setenv(VARIABLE, json.dumps({"wait": {"": 2}}))
    plan = FleetPlan(
        fleet=RUN.id,
        text=FILE,
        folder=tmp_path / "brought",
        rounds=3,
        patience_s=60,
        program=PROGRAM,
    )
    plan.folder.mkdir()
    worker = cluster.worker()
    engine = cluster.engine()
    (slot,) = slots_of(engine)
    killed = []

    class Killing:
        """Passes everything on, and kills in the middle of a visit."""

        shares_files = False
        slots = engine.slots
        start = engine.start

        def finished(self, wait_s):
            busy = bool(engine._running)
            if busy and not killed:
                time.sleep(1)
                worker.send_signal(signal.SIGKILL)
                cluster.worker()
                killed.append("worker")
            elif busy and killed == ["worker"] and store_of(tmp_path, 0):
                time.sleep(1)
                cluster.scheduler.send_signal(signal.SIGKILL)
                killed.append("scheduler")
            return engine.finished(wait_s)

    with Store.open(tmp_path / "store.sqlite") as store:
        store.begin(RUN, "fleet", request={"text": FILE})
        with pytest.raises(WorkerError, match="scheduler is gone"):
            run_rounds(Killing(), store, plan, print)
        engine.close()
        assert killed == ["worker", "scheduler"]
        before = [one.document for one in store.entries(RUN.id, TABLE)]
        assert before[0]["status"] == "ok"
        assert before[0]["tries"] == 2
        cluster.close()
        again = Cluster(tmp_path)
        again.worker()
        other = again.engine()
        try:
            assert run_rounds(other, store, plan, print) == (3, 0)
        finally:
            other.close()
            again.close()
        after = [one.document for one in store.entries(RUN.id, TABLE)]
        assert [one for one in after if one in before] == before
        assert sorted((one["node"], one["round"]) for one in after) == [
            (slot, number) for number in range(3)
        ]


def store_of(folder, number):
    return list((folder / "brought").glob(f"*.{number}.sqlite"))


# -----------------------------------------------------------------------------
# Slurm.


def test_jobs_of_slurm_end_and_die_on_their_own(tmp_path, monkeypatch):
    """With submitit's processes in the place of Slurm's: none has been asked."""
    pytest.importorskip("submitit")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    engine = SlurmEngine(tmp_path / "jobs", ("a", "b"), {"partition": "gpu"}, 60.0, cluster="local")
    slots = engine.slots()
    assert list(slots) == ["a", "b"]
    engine.start(slots["a"], order(tmp_path, folder=None, wait_s=60.0))
    engine.start(slots["b"], order(tmp_path, folder=None, program=("/nowhere",)))
    found = {one.node: one.brought for one in ended(engine, 2)}
    assert found["a"].reason is None
    assert found["a"].data.startswith(b"SQLite format 3")
    assert "No such file" in found["b"].reason
    engine.close()


def test_what_sbatch_is_given(tmp_path, monkeypatch):
    """Read, not run: no cluster has seen it."""
    submitit = pytest.importorskip("submitit")
    from submitit.slurm import slurm

    options = {"partition": "gpu", "account": "a", "gres": "gpu:1", "exclusive": "false"}
    engine = SlurmEngine(tmp_path, ("node07",), options, 60.0, cluster="local")
    given = engine.parameters("node07", 3600.5)
    monkeypatch.setattr(slurm.SlurmExecutor, "affinity", classmethod(lambda _: 2))
    executor = submitit.AutoExecutor(folder=tmp_path, cluster="slurm")
    executor.update_parameters(**given)
    text = slurm._make_sbatch_string(
        command="python", folder=tmp_path, **executor._executor.parameters
    )
    lines = set(text.splitlines())
    assert "#SBATCH --nodelist=node07" in lines
    assert "#SBATCH --partition=gpu" in lines
    assert "#SBATCH --account=a" in lines
    assert "#SBATCH --gres=gpu:1" in lines
    assert "#SBATCH --time=61" in lines
    assert "#SBATCH --job-name=pydlbench-fleet" in lines
    assert not any("exclusive" in line for line in lines)


def test_a_job_lives_longer_than_its_sweep_may(tmp_path):
    """Slurm ends a job without asking what of its sweep is to be kept."""
    pytest.importorskip("submitit")
    engine = SlurmEngine(tmp_path, ("a",), {}, 60.0, cluster="local")
    given = {}
    engine._executor = SimpleNamespace(
        update_parameters=given.update, submit=lambda *_: SimpleNamespace()
    )
    engine.start(engine.slots()["a"], order(tmp_path, limit_s=600.0, wait_s=600.0))
    assert given["timeout_min"] * 60 > 1200


class InventedJobs:
    """In the place of submitit's executor: jobs on ``refused`` are, those on ``queued`` wait."""

    def __init__(self, folder, refused=(), queued=()):
        self.folder, self.refused, self.queued = folder, refused, queued
        self.cancelled = []
        self._node = ""

    def update_parameters(self, slurm_nodelist, **_):
        self._node = slurm_nodelist

    def submit(self, visit, slot, order):
        node = self._node
        assert slot.name == node
        if node in self.refused:
            raise RuntimeError("sbatch: error: no such node\nand more")
        output = self.folder / f"{node}.out"
        if node not in self.queued:
            output.touch()
        return SimpleNamespace(
            job_id=node,
            done=lambda: node not in self.queued,
            result=lambda: visit(slot, order),
            cancel=lambda: self.cancelled.append(node),
            paths=SimpleNamespace(stdout=output),
        )


def slurm(folder, *nodes, patience_s=600.0, **jobs):
    pytest.importorskip("submitit")
    engine = SlurmEngine(folder, nodes, {}, patience_s, cluster="local")
    engine._executor = InventedJobs(folder, **jobs)
    return engine


def test_a_job_that_is_refused_costs_its_node_s_visits_and_no_other_s(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    engine = slurm(tmp_path, "a", "b", refused=("b",))
    plan = FleetPlan(fleet=RUN.id, text=FILE, folder=tmp_path, program=PROGRAM, tries=2, rounds=1)
    with Store.open(tmp_path / "store.sqlite") as store:
        store.begin(RUN, "fleet", request={"text": FILE})
        assert run_rounds(engine, store, plan, lambda _: None) == (1, 1)
        found = [entry.document for entry in store.entries(RUN.id, TABLE)]
    of_b = [(one["tries"], one["reason"]) for one in found if one["node"] == "b"]
    assert of_b == [(2, "sbatch refuses a job: sbatch: error: no such node")]


def test_a_job_that_is_queued_for_too_long_is_cancelled_and_not_tried_again(tmp_path):
    engine = slurm(tmp_path, "a", "b", patience_s=0.0, queued=("a", "b"))
    for slot in engine.slots().values():
        engine.start(slot, order(tmp_path))
    (tmp_path / "b.out").touch()  # it has begun
    time.sleep(0.001)
    (one,) = engine.finished(0.0)
    assert (one.node, one.last, one.reason) == ("a", True, "job a: queued for more than 0 s")
    assert engine._executor.cancelled == ["a"]
    assert engine.finished(0.0) == []
    engine.close()
    assert engine._executor.cancelled == ["a", "b"]


SINFO = """n1 idle
n2 mix
n2 mix
n3 down*
n4 drng
n5 alloc
n6 idle*
n7 idle~
n8 maint
"""


def test_nodes_that_are_out_of_use_are_left_out_and_named(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    program = tmp_path / "sinfo"
    program.write_text(f"#!/bin/sh\necho '{SINFO}'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    engine = SlurmEngine(tmp_path, (), {}, 60.0, cluster="local")
    assert list(engine.slots()) == ["n1", "n2", "n5", "n7"]
    assert [note.partition(":")[0] for note in engine.notes] == ["n3", "n4", "n6", "n8"]
    assert "down*" in engine.notes[0]
    program.write_text("#!/bin/sh\necho n3 down\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"n3 is down; nearest: --nodes"):
        SlurmEngine(tmp_path, (), {}, 60.0, cluster="local")
