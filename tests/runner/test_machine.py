"""The workers and devices of a session: what a death costs, and what it does not."""

from types import SimpleNamespace

import pytest

from pydlbench.backends.base import KernelFacts
from pydlbench.devices.cpu.facts import Cache, CpuFacts, LogicalCpu
from pydlbench.errors import UnsupportedError, WorkerError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.rows import measured_row
from pydlbench.study.table import Interference, Series, Visit

FACTS = KernelFacts(
    accumulate="float32",
    library="oneDNN 3.2.0",
    algorithm="brgemm",
    layout="ab",
    correct=Correctness(status="ok"),
    workspace_bytes=0,
    reorder_s={},
    setup_s=0.001,
    candidates=[],
)


SHARE, RATES = {"share": 1.0}, {"llc": 2e10, "memory": 1e10}
WHOLE, ALONE, NOTHING = Interference(fma=1.0, **RATES), Interference(fma=1.0), Interference()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([SHARE, RATES, SHARE, RATES], [WHOLE, WHOLE]),
        ([WorkerError("killed"), SHARE, RATES], [NOTHING, WHOLE]),
        ([SHARE, WorkerError("killed"), SHARE, RATES], [ALONE, WHOLE]),
        ([SHARE, UnsupportedError("none here"), SHARE, RATES], [ALONE, WHOLE]),
        ([UnsupportedError("none here")], [NOTHING, NOTHING]),
        ([{"share": None}], [NOTHING, NOTHING]),
    ],
)
def test_bursts_that_died_are_run_again_and_those_that_are_not_there_are_not(
    monkeypatch, answers, expected
):
    remaining = iter(answers)

    def probe(_name):
        answer = next(remaining)
        if isinstance(answer, Exception):
            raise answer
        return answer

    workers = Workers((0,), None)
    monkeypatch.setattr(workers, "get", lambda *_: SimpleNamespace(probe=probe))
    assert [workers.interference() for _ in expected] == expected
    assert list(remaining) == []


def test_bursts_of_fmas_alone_read_nothing(monkeypatch):
    workers = Workers((0,), None)
    probe = {"burst": SHARE}.__getitem__
    monkeypatch.setattr(workers, "get", lambda *_: SimpleNamespace(probe=probe))
    assert workers.interference(reads=False) == ALONE


def test_processes_start_side_by_side_and_all_are_waited_for(monkeypatch):
    seen = []

    def invented(backend, _):
        def describe():
            seen.append(("ready", backend))
            if backend == "bad":
                raise WorkerError("it does not start")

        return SimpleNamespace(launch=lambda: seen.append(("launched", backend)), describe=describe)

    workers = Workers((0,), None)
    monkeypatch.setattr(workers, "get", invented)
    workers.start([("bad", "cpu"), ("torch", "cpu")])
    assert seen == [(what, one) for what in ("launched", "ready") for one in ("bad", "torch")]
    seen.clear()
    workers.start([("torch", "cpu")] * 2)
    assert seen == [("launched", "torch"), ("ready", "torch")]


@pytest.mark.parametrize(
    ("which", "ended"),
    [
        ({}, ["native", "torch"]),
        ({"others": False}, ["native"]),
        ({"native": False}, ["torch"]),
    ],
)
def test_processes_are_renewed_by_what_they_hold(monkeypatch, which, ended):
    closed = []
    workers = Workers((0,), None)
    for name in ("native", "torch"):
        worker = workers.get(name, "cpu")
        monkeypatch.setattr(worker, "close", lambda kill, name=name: closed.append((name, kill)))
    workers.renew(**which)
    assert closed == [(name, True) for name in ended]
    monkeypatch.undo()
    workers.close()


def test_a_roof_survives_the_death_of_who_looks_at_it_again(monkeypatch):
    def dies(*_, **__):
        raise WorkerError("killed")

    worker = SimpleNamespace(probe=dies, describe=dies)
    devices = Devices.__new__(Devices)
    devices._workers = SimpleNamespace(get=lambda *_: worker)
    devices._probed_at = {"cuda:0": -1e6}
    record = SimpleNamespace(bandwidths=())
    monkeypatch.setattr("pydlbench.devices.gpu.record.revisit", dies)
    assert devices._revisited("cuda:0", record) is record
    assert devices._probed_at["cuda:0"] > -1e6


class Machine:
    """A CPU whose bandwidths are kept; counts the windows and tries that are asked for."""

    def __init__(self):
        self.asked = []

    def describe(self):
        return {"name": "oneDNN", "version": "3"}

    def probe(self, name, **arguments):
        self.asked.append((name, arguments.get("kind") or arguments.get("precision")))
        if name == "launch":
            return {"seconds": 1e-6}
        rate = {"fma_peak": 1e11, "bandwidth": 2e10}[name]
        return {
            "per_second": rate,
            "median_per_second": rate,
            "clock_hz": 3e9,
            "median_clock_hz": 3e9,
            "seconds": 0.02,
            "rounds": 9,
            "kernel": name,
        }


@pytest.fixture
def make_devices(tmp_path, monkeypatch):
    """Make devices on a machine, which keep what they find."""
    monkeypatch.setenv("PYDLBENCH_PROBES", str(tmp_path / "probes.json"))
    facts = CpuFacts(
        cpus=(LogicalCpu(index=0, socket=0, siblings=(0,)),),
        caches=(
            Cache(level=2, type="Unified", size_bytes=1 << 20, shared_cpus=(0,)),
            Cache(level=3, type="Unified", size_bytes=32 << 20, shared_cpus=(0,)),
        ),
    )

    def make():
        machine = Machine()
        workers = SimpleNamespace(get=lambda *_, **__: machine)
        return Devices(facts, (0,), workers), machine

    return make


@pytest.fixture
def kept_devices(make_devices):
    """Devices on a machine that an earlier run has probed."""
    make_devices()[0].cpu(("fp32",), ("read", "copy", "triad"))
    return make_devices()


@pytest.fixture
def bare_devices(make_devices):
    """Devices on a machine that nobody has probed."""
    return make_devices()


def row_of(case, seconds):
    samples = Series([Visit(subject=0, round=i, seconds=(seconds,)) for i in range(6)])
    return measured_row(case, 1, FACTS, samples)


def test_a_row_far_from_the_memory_roof_asks_for_no_window_and_one_try(kept_devices):
    devices, machine = kept_devices
    case = KernelSpec(layer=build_layer("gemm", m=512, k=512, n=512))
    held = devices.limited(row_of(case, 1.0), case)
    assert held.roofline.bound == "compute"
    assert [name for name, _ in machine.asked] == ["fma_peak", "launch"]


def test_where_nothing_is_kept_a_row_far_from_it_asks_for_one_window_of_each_level(bare_devices):
    devices, machine = bare_devices
    far = KernelSpec(layer=build_layer("gemm", m=512, k=512, n=512))
    near = KernelSpec(layer=parse_problem("relu:mb64ic64ih112"))
    held = devices.limited(row_of(far, 1.0), far)
    assert held.roofline.bound == "compute"
    assert [what for what in machine.asked if what[0] == "bandwidth"] == [
        ("bandwidth", "triad")
    ] * len({one["level"] for one in devices.described()["bandwidths"]})
    assert {len(one.windows) for one in devices.kept().read()} == {1}
    # Its operands fit into the last-level cache.
    assert {one["level"] for one in devices.described()["bandwidths"]} == {"llc"}
    # Again: nothing more is asked for. A row that memory may be the limit of has three windows.
    before = len(machine.asked)
    devices.limited(row_of(far, 1.0), far)
    assert len(machine.asked) == before
    devices.limited(row_of(near, 1.0), near)
    assert machine.asked[before:].count(("bandwidth", "read")) >= 3
    assert {len(one.windows) for one in devices.kept().read()} == {3}


def test_a_row_near_it_has_them_confirmed_also_after_one_that_was_far(kept_devices):
    devices, machine = kept_devices
    far = KernelSpec(layer=build_layer("gemm", m=512, k=512, n=512))
    near = KernelSpec(layer=parse_problem("relu:mb64ic64ih112"))
    devices.limited(row_of(far, 1.0), far)
    before = len(machine.asked)
    devices.limited(row_of(near, 1.0), near)
    windows = [name for name, _ in machine.asked[before:]]
    assert windows.count("bandwidth") >= 1
    # Its roof is that of memory: what another precision would bring is told beside it.
    assert ("fma_peak", "bf16") in machine.asked


def test_a_low_peak_is_waited_for_only_where_it_limits_a_row(bare_devices, monkeypatch):
    devices, machine = bare_devices
    pauses = []
    monkeypatch.setattr("pydlbench.devices.bandwidths.time.sleep", pauses.append)
    monkeypatch.setattr("pydlbench.devices.cpu.record._falls_short", lambda _peak: True)
    devices.cpu(("bf16",), (), (), hasty=True)
    devices.cpu(("bf16",), (), (), hasty=True)
    tries = machine.asked.count(("fma_peak", "bf16"))
    assert (tries, pauses) == (1, [])
    devices.cpu(("bf16",), (), ())
    assert machine.asked.count(("fma_peak", "bf16")) > 2 * tries
    assert len(pauses) > tries


def test_a_framework_that_is_installed_elsewhere_runs_in_its_own_interpreter():
    workers = Workers((0,), None, python="/usual", pythons={"torch": "/of/torch"})
    places = [workers.get(name, "cpu")._python for name in ("torch", "tensorflow", "native")]
    workers.close()
    assert places == ["/of/torch", "/usual", "/usual"]
