"""From a GPU case to a record, with an invented worker: what the session makes of its answers."""

import json
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest
from said import says

from pydlbench.backends.base import KernelFacts
from pydlbench.errors import (
    BackendMissingError,
    InsufficientMemoryError,
    PrimitiveError,
    UnsupportedError,
    WorkerError,
)
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import Correctness, KernelSpec, Measurement
from pydlbench.runner.machine import Workers
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.problem import _with_cycles
from pydlbench.runner.rows import _power_notes, cached_bytes
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import Chunk, GpuReadings

CONV = build_layer(
    "conv", batch=8, in_channels=64, in_size=14, out_channels=64, kernel=3, padding=1
)
GEMM = build_layer("gemm", m=8, k=32, n=16, name="small/fc")
QUICK = RunnerOptions(budget_s=0.02, seed=3)

FACTS = {
    "index": 0,
    "name": "NVIDIA H200",
    "uuid": "GPU-1",
    "capability": "9.0",
    "multiprocessors": 132,
    "memory_bytes": 150_000_000_000,
    "l2_bytes": 60 << 20,
    "clock_hz": 1.98e9,
    "driver_version": 13000,
}
NVML = {"reason": None, "power_limit_w": 700.0, "processes": [], "throttle": [], "mig": False}
CLOCK = 1.8e9
TIME = 2e-4


def _timing(case):
    if case.timing != "auto":
        return case.timing
    return "cuda-graph" if case.cache == "hot" else "events"


class Kernel:
    """A kernel of constant time."""

    generation = 1
    alive = True

    def __init__(self, worker, case):
        self.worker = worker
        self.facts = KernelFacts(
            algorithm="engine 7",
            layout="nhwc",
            library="cuDNN 9.28.0",
            accumulate="float32",
            workspace_bytes=1024,
            reorder_s={},
            setup_s=0.25,
            correct=Correctness(status="ok", rel_error=1e-7, tolerance=1e-5, detail="all"),
            candidates=[],
            timing=_timing(case),
            tensor_cores=False,
            notes=["NONDETERMINISTIC"],
            launch_s={"event": TIME, "graph": TIME, "host": 5e-6},
            energy_j=0.1,
            power_w=500.0,
        )

    def sample(self, request):
        if self.worker.error is not None:
            raise self.worker.error
        self.worker.requests.append(request)
        return Chunk(
            seconds=(TIME,) * request.samples,
            clock_hz=(CLOCK,) * request.samples,
            wall_s=TIME * request.samples * request.inner,
            gpu=GpuReadings(power_w=480.0, temperature_c=51.0, readings=1),
            gate_timeouts=self.worker.timeouts,
        )

    def release(self):
        self.worker.released += 1


class Worker:
    """Stands for ``workers.host.Worker`` of ``cuda:0``."""

    rates: ClassVar[dict[str, float]] = {}  # in the place of an H200's

    def __init__(self):
        self.probes = []
        self.prepared = []
        self.requests = []
        self.released = 0
        self.timeouts = 0  # of the launch gate, in each chunk
        self.starts = None  # what its start raises
        self.refuses = {}  # what prepare raises, by precision
        self.fails = set()  # probes
        self.error = None  # what sampling raises

    def launch(self):
        """There is no process."""

    def describe(self):
        if self.starts is not None:
            raise self.starts
        libraries = {"cudnn": {"version": "9.28.0", "path": "/lib/libcudnn.so.9"}}
        return {"name": "CUDA", "device": FACTS, "libraries": libraries, "nvml": NVML}

    def probe(self, name, **arguments):
        self.probes.append((name, *arguments.values()))
        if name in self.fails:
            raise WorkerError(f"the {name} probe hung")
        if name == "launch":
            return {
                "single_kernel_s": 3e-6,
                "empty_kernel_s": 2e-6,
                "host_s": 4e-6,
                "graph_node_s": 1e-6,
            }
        rates = {"fma_peak": 55e12, "gemm_peak": 700e12, "bandwidth": 4.3e12, **self.rates}
        return {
            "per_second": rates[name],
            "median_per_second": 0.99 * rates[name],
            "clock_hz": CLOCK,
            "median_clock_hz": CLOCK,
            "seconds": 0.05,
            "rounds": 9,
            "kernel": name,
        }

    def prepare(self, case, preparation):
        if case.precision in self.refuses:
            raise self.refuses[case.precision]
        self.prepared.append((case, preparation))
        return Kernel(self, case)

    def discard(self):
        pass


@pytest.fixture
def worker():
    return Worker()


@pytest.fixture
def session(worker, monkeypatch):
    def only(_, backend="native", device="cpu", *, warm=False, **_how):
        needed = (backend, device, warm)
        assert needed == ("native", "cuda:0", False), "nothing of a GPU's row needs another"
        return worker

    monkeypatch.setattr(Workers, "get", only)
    with Session(QUICK) as found:
        yield found


def case(layer=CONV, **words):
    return KernelSpec(layer=layer, device="cuda:0", **words)


def test_a_case_becomes_a_row(session, worker):
    ((_, row),) = session.measure([case()])
    assert row.status == "ok"
    assert row.device == "cuda:0"
    assert row.threads is None
    assert row.time.median == pytest.approx(TIME)
    assert row.timing == "cuda-graph"
    assert row.clock_hz == CLOCK
    assert row.cycles == pytest.approx(TIME * CLOCK)
    assert row.tensor_cores is False
    first, power = row.notes
    assert first == "NONDETERMINISTIC"
    assert says(power, "480", "700 W")
    assert row.launch_s == {"event": TIME, "graph": TIME, "host": 5e-6}
    assert (row.energy_j, row.power_w) == (0.1, 500.0)
    assert row.gpu["temperature_c"] == 51.0
    assert worker.released == 1
    text = json.dumps(row.to_dict(), allow_nan=False)
    assert Measurement.from_dict(json.loads(text)) == row


def test_its_limits_come_from_the_probes(session, worker):
    ((_, row),) = session.measure([case()])
    # The probe ran at the clock that the kernel ran at, so nothing is scaled.
    assert row.peak.measured == pytest.approx(55.0)
    # 128 multiply-adds per clock and multiprocessor.
    assert row.peak.theoretical == pytest.approx(2 * 128 * 132 * CLOCK / 1e12)
    compute = CONV.flops_executed("forward") / 55e12
    move = CONV.bytes("forward", 4) / 4.3e12
    assert row.roofline.time_s >= max(compute, move)
    assert row.roofline.time_s < compute + move + 2e-6
    assert row.roofline.efficiency == pytest.approx(row.roofline.time_s / TIME)
    names = [name for name, *_ in worker.probes]
    assert names.count("launch") == 1
    # fp32 by multiply-adds, and bf16-tc for the advice to change to it.
    assert ("fma_peak", "fp32") in [one[:2] for one in worker.probes]
    assert [one[1] for one in worker.probes if one[0] == "gemm_peak"] == ["bf16-tc"]


def test_the_peaks_that_advice_can_name_are_probed(session, worker):
    list(session.measure([case(GEMM, precision="bf16-tc")]))
    products = [one[1] for one in worker.probes if one[0] == "gemm_peak"]
    assert products == ["bf16-tc", "fp8-tc"]


def test_a_card_without_bf16_is_probed_in_fp16(session, worker, monkeypatch):
    monkeypatch.setitem(FACTS, "name", "Tesla V100-SXM2-16GB")
    monkeypatch.setitem(FACTS, "capability", "7.0")
    monkeypatch.setattr(Worker, "rates", {"fma_peak": 10e12, "gemm_peak": 90e12})
    ((_, row),) = session.measure([case()])
    assert [one[1] for one in worker.probes if one[0] == "gemm_peak"] == ["fp16-tc"]
    assert row.peak.measured == pytest.approx(10.0)


def test_a_launch_between_events_costs_more_than_a_node_of_a_graph(session):
    tiny = build_layer("gemm", m=1, k=4, n=4)
    (_, hot), (_, cold) = session.measure([case(tiny), case(tiny, cache="all-cold")])
    assert (hot.roofline.bound, hot.roofline.time_s) == ("launch", 1e-6)
    assert (cold.roofline.bound, cold.roofline.time_s) == ("launch", 3e-6)


def test_what_a_flushed_sample_writes_may_still_be_in_the_cache(session):
    """The flush behind its end writes it back; rotating copies pay for each other's."""
    layer = build_layer("relu", channels=64, height=64, width=64, batch=32)
    each = 4 * 32 * 64**3
    rows = [
        one
        for timing in ("events", "cuda-graph")
        for _, one in session.measure([case(layer, cache="all-cold", timing=timing)])
    ]
    flushed, rotated = (one.roofline.time_s for one in rows)
    assert each < FACTS["l2_bytes"]
    assert (flushed, rotated) == pytest.approx((each / 4.3e12, 2 * each / 4.3e12))


def test_nothing_is_probed_twice(session, worker):
    list(session.measure([case(), case(pass_="backward-data"), case(GEMM, cache="all-cold")]))
    # Two tries of a peak, three windows of a bandwidth, and no more of them for further rows.
    assert max(Counter(worker.probes).values()) == 3
    assert len(worker.prepared) == 3


def test_samples_that_the_launch_gate_did_not_hide_are_counted_on_the_row(session, worker):
    worker.timeouts = 3
    ((_, row),) = session.measure([case()])
    assert row.status == "ok"
    (said,) = row.warnings
    count = int(said.split()[0])
    assert count >= 3
    assert count % 3 == 0


def test_a_cold_sample_is_one_execution(session, worker):
    ((_, row),) = session.measure([case(cache="all-cold")])
    assert row.timing == "events"
    assert {request.inner for request in worker.requests} == {1}
    ((_, preparation),) = worker.prepared
    # A flush, or copies: twice the L2 cache.
    assert preparation.cold_bytes == 4 * FACTS["l2_bytes"]


def test_options_reach_the_backend(worker, monkeypatch):
    monkeypatch.setattr(Workers, "get", lambda *_, **__: worker)
    options = RunnerOptions(
        budget_s=0.02, seed=5, algorithms=True, workspace_bytes=4096, energy=True
    )
    with Session(options) as session:
        list(session.measure([case()]))
    ((_, preparation),) = worker.prepared
    assert (preparation.seed, preparation.all_candidates) == (5, True)
    assert (preparation.workspace_bytes, preparation.energy) == (4096, True)


def test_the_run_is_of_the_gpu_with_the_host_beside_it(session):
    list(session.measure([case()]))
    device = session.run.device
    assert device["kind"] == "cuda"
    assert device["name"] == "NVIDIA H200"
    assert device["facts"]["uuid"] == "GPU-1"
    assert device["facts"]["driver_version"] == "13.0"
    assert device["libraries"]["cuDNN"] == "9.28.0"
    assert device["launch_s"] == 2e-6
    assert {(one["level"], one["pattern"]) for one in device["bandwidths"]} >= {("memory", "read")}
    assert device["host"]["name"]
    assert device["host"]["threads"] == len(session.cpus)
    json.dumps(session.run.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "error",
    [
        BackendMissingError("cuDNN was not found; pip install 'pydlbench[cuda]'"),
        UnsupportedError("there is no cuda:0: no driver"),
        WorkerError("the native worker was killed by SIGSEGV"),
    ],
)
def test_a_worker_that_cannot_start_ends_it_before_any_row(session, worker, error):
    worker.starts = error
    calls = []
    rows = session.measure([case(), case(GEMM)], progress=lambda *call: calls.append(call))
    with pytest.raises(type(error), match=r"cuDNN|no driver|SIGSEGV"):
        next(iter(rows))
    assert calls == []
    assert worker.prepared == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnsupportedError("fp8-tc is for GEMM"), "skipped"),
        (PrimitiveError("no candidate gives a right result"), "failed"),
        (InsufficientMemoryError("needs 200 GB of GPU memory"), "failed"),
        (WorkerError("the native worker was killed by SIGSEGV"), "failed"),
    ],
)
def test_what_cannot_be_prepared_costs_its_row(session, worker, error, status):
    worker.refuses = {"fp16": error}
    (_, first), (_, lost), (_, last) = session.measure([case(), case(precision="fp16"), case(GEMM)])
    assert (first.status, last.status) == ("ok", "ok")
    assert (lost.status, lost.reason) == (status, str(error))
    assert lost.threads is None
    assert (lost.timing, last.timing) == ("cuda-graph", "cuda-graph")
    assert lost.time is None


def test_an_error_while_sampling_frees_the_kernel(session, worker):
    worker.error = PrimitiveError("launch gate: timed out 4 times")
    ((_, row),) = session.measure([case()])
    assert (row.status, row.reason) == ("failed", "launch gate: timed out 4 times")
    assert worker.released == 1


def test_a_probe_that_fails_leaves_the_times(session, worker):
    worker.fails = {"fma_peak"}
    rows = [row for _, row in session.measure([case(), case(GEMM)])]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert all(row.roofline is None for row in rows)
    assert all("the fma_peak probe hung" in row.warnings for row in rows)
    assert [name for name, *_ in worker.probes].count("fma_peak") == 1


def test_what_training_alone_writes_may_stay_in_the_cache_too():
    layer = parse_problem("batchnorm:mb2ic32ih28")
    words = {"layer": layer, "cache": "all-cold", "device": "cuda:0"}
    result = 2 * 32 * 28 * 28
    assert cached_bytes(KernelSpec(**words), "events") == 4 * result
    trained = KernelSpec(**words, propagation="training")
    assert cached_bytes(trained, "events") == 4 * (result + 2 * 32)  # with mean and variance


@pytest.mark.deep
def test_a_roof_holds_against_the_cpu_rows_beside_it(worker, monkeypatch):
    """Rows of two devices in one run: each has its own roof, the run names the GPU."""
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    true_worker = Workers.get

    def chosen(workers, backend, device, **how):
        gpu = device == "cuda:0"
        return worker if gpu else true_worker(workers, backend, device, **how)

    monkeypatch.setattr(Workers, "get", chosen)
    with Session(QUICK) as session:
        (_, gpu), (_, cpu) = session.measure([case(GEMM), KernelSpec(layer=GEMM)])
        assert session.run.device["kind"] == "cuda"
    assert (gpu.threads, cpu.threads) == (None, len(session.cpus))
    assert gpu.peak.measured == pytest.approx(55.0)
    assert cpu.peak.measured != pytest.approx(55.0)


@pytest.mark.parametrize(("power_w", "noted"), [(600.0, True), (300.0, False), (None, False)])
def test_above_half_of_the_power_cap_a_row_has_its_time_without_pauses(session, power_w, noted):
    ((_, row),) = session.measure([case()])
    row = msgspec.structs.replace(row, gpu={"power_w": power_w}, launch_s={"event": 2e-3}, notes=())
    device = SimpleNamespace(nvml={"power_limit_w": 700.0})
    notes = list(_power_notes(row, device))
    assert len(notes) == noted
    assert all(says(note, "600", "700 W", "2.00 ms", "cycles") for note in notes)


def test_a_ratio_on_a_gpu_is_in_cycles_too(session):
    ((_, best),) = session.measure([case()])
    best = msgspec.structs.replace(
        best, cycles=1e6, ratio={"median": 1.0, "ci_low": 1, "ci_high": 1}
    )
    other = msgspec.structs.replace(
        best, cycles=0.98e6, ratio={"median": 1.05, "ci_low": 1.04, "ci_high": 1.06}
    )
    assert _with_cycles(other, best).ratio["cycles"] == pytest.approx(0.98)
    assert says(_with_cycles(other, best).to_best, "1.05x", "0.980x")
    assert "cycles" not in _with_cycles(msgspec.structs.replace(other, device="cpu"), best).ratio
