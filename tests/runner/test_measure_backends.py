"""Several backends in one table, one of them in trouble: it costs its rows and says what to do."""

import dataclasses
import importlib.util
import itertools
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.workers import host
from pydlbench.workers.host import RemoteKernel

pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")

POOL = build_layer("pool", batch=2, channels=16, in_size=9, kernel=3, stride=2, name="small/pool")
QUICK = RunnerOptions(budget_s=0.02, seed=3, repetitions=1)
INVENTED = Path(__file__).parents[1] / "workers" / "invented"
torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed here"
)

# The invented backend comes under the name of numba; native is itself.
_INVENTED = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "import invented_backend; from pydlbench.backends import capabilities; "
    "true = capabilities.load; capabilities.load = lambda name, device: "
    "invented_backend.create() if name == 'numba' else true(name, device); "
    "from pydlbench.workers.worker import main; main()"
)
_WITHOUT_TORCH = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "import importlib.util as util; true = util.find_spec; "
    "util.find_spec = lambda name, *rest: None if name == 'torch' else true(name, *rest); "
    "from pydlbench.workers.worker import main; main()"
)


def both(layer, other):
    return [KernelSpec(layer=layer), KernelSpec(layer=layer, backend=other)]


@pytest.fixture
def session():
    """A quick one, new for each test: workers die here."""
    with Session(QUICK) as session:
        yield session


@pytest.mark.parametrize(
    "name", ["native", "torch", "numba", pytest.param("tensorflow", marks=pytest.mark.deep)]
)
def test_every_backend_computes_with_all_threads(session, name):
    """GNU OpenMP binds the thread that loads it: to what is then taken for all there is."""
    if name != "native" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed here")
    said = session.worker(name).describe()
    assert said["threads"] == len(session.cpus)


@pytest.fixture
def invented(session, monkeypatch):
    monkeypatch.syspath_prepend(str(INVENTED))
    monkeypatch.setattr(host, "_BOOTSTRAP", _INVENTED)
    for worker in both_workers(session):
        worker.heartbeat_s = 0.05
        worker.silence = 1.0
    return session


def both_workers(session):
    """The process that allocates as usual, and the one that keeps its pages."""
    return [session.worker("numba", warm=warm) for warm in (False, True)]


TROUBLE = {
    "is killed": "was killed by SIGKILL",
    "is stopped": "gave no sign of life for 1 s and was killed",
    "exits": "ended with exit code 7: something native went wrong",
    "allocates": "out of memory; try a smaller --batch",
}


@pytest.mark.deep
@pytest.mark.parametrize("first", ["now", "later"])
def test_trouble_costs_its_rows_only(invented, first):
    """One trouble after the other, in turn when a kernel is prepared and when it is timed."""
    turns = itertools.cycle(("now", "later") if first == "now" else ("later", "now"))
    names = [*(f"{when} {deed}" for when, deed in zip(turns, TROUBLE, strict=False)), "later works"]
    layers = [dataclasses.replace(POOL, name=name) for name in names]
    rows = [row for _, row in invented.measure([one for x in layers for one in both(x, "numba")])]
    native, others = rows[::2], rows[1::2]
    assert {row.backend for row in native} == {"native"}
    assert all(row.correct.status == row.status == "ok" for row in native)
    assert [row.status for row in others] == ["failed"] * len(TROUBLE) + ["ok"]
    for row, reason in zip(others, TROUBLE.values(), strict=False):
        assert reason in row.reason
        assert row.time is None


@pytest.mark.deep
def test_a_hung_worker_that_beats_costs_its_row(invented):
    for worker in both_workers(invented):
        worker.describe()
        worker.timeout = 1.0
    bad = dataclasses.replace(POOL, name="later hangs")
    (_, ok), (_, failed) = invented.measure(both(bad, "numba"))
    assert ok.ok
    assert "gave no answer for 1 s and was killed" in failed.reason


def test_an_uninstalled_framework_costs_its_rows_and_names_the_command(session, monkeypatch):
    monkeypatch.setattr(host, "_BOOTSTRAP", _WITHOUT_TORCH)
    monkeypatch.setattr(host, "template_for", lambda *_: None)
    native, lost = (row for _, row in session.measure(both(POOL, "torch")))
    assert (native.status, lost.status) == ("ok", "failed")
    assert lost.reason == "torch is not installed; get it with: pip install 'pydlbench[torch]'"


@pytest.mark.deep
@torch
def test_kill_minus_nine_of_torch_in_the_middle_of_a_sample(session, monkeypatch):
    true_sample = RemoteKernel.sample
    victims = []

    def sample(kernel, request):
        if kernel.worker is session.worker("torch") and not victims:
            victims.append(kernel.worker.pid)
            timer = threading.Timer(0.2, os.kill, (victims[0], signal.SIGKILL))
            timer.start()
            request = ChunkRequest(samples=1, inner=2**31 - 1)  # would take hours
        return true_sample(kernel, request)

    monkeypatch.setattr(RemoteKernel, "sample", sample)
    rows = [
        row
        for _, row in session.measure([*both(POOL, "torch"), *both(POOL.with_batch(1), "torch")])
    ]
    assert [row.status for row in rows] == ["ok", "failed", "ok", "ok"]
    assert rows[1].reason.startswith("the torch worker was killed by SIGKILL")
    assert session.worker("torch").pid not in (None, *victims)


@pytest.mark.deep
@torch
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process")
def test_torch_without_memory_costs_its_row(session):
    """As after ``ulimit -v``, in one worker."""
    worker = session.worker("torch")
    worker.prepare(KernelSpec(layer=POOL, backend="torch"), Preparation())  # loads what it needs
    pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (20 << 20)  # a thread needs 8 MiB of them
    _, hard = resource.prlimit(worker.pid, resource.RLIMIT_AS)
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, hard))
    large = build_layer("pool", batch=64, channels=64, in_size=112, kernel=3, stride=2)
    (_, ok), (_, failed) = session.measure(both(large, "torch"))
    assert ok.ok
    assert failed.status == "failed"
    assert "out of memory" in failed.reason
    assert failed.reason.endswith("; try a smaller --batch")
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (hard, hard))
    ((_, row),) = session.measure([KernelSpec(layer=POOL, backend="torch")])
    assert row.ok
