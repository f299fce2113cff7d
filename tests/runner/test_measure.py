"""From a case to a record, with a real worker; short, because no time is judged here."""

import dataclasses
import json
import os
import signal
import threading

import msgspec
import pytest

import pydlbench
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.devices.findings import Reading
from pydlbench.errors import (
    BackendMissingError,
    UnsupportedError,
    UsageError,
    WorkerError,
)
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session, probe_device
from pydlbench.workers.host import RemoteKernel, Worker

pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")

CONV = build_layer("conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1)
GEMM = build_layer("gemm", m=8, k=32, n=16, name="small/fc")
POOL = build_layer("pool", batch=2, channels=16, in_size=9, kernel=3, stride=2)
QUICK = RunnerOptions(budget_s=0.02, seed=3)
_TWO = ("native", "numba")


@pytest.fixture(scope="module")
def session():
    """A session on this CPU with caches of a usual size and probes that nothing disturbs.

    A last-level cache of hundreds of MB would need more copies of a small tensor than there may be.
    """
    true_facts, true_reading = read_cpu_facts(), Reading.from_reply
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
    caches = tuple(
        dataclasses.replace(one, size_bytes=min(one.size_bytes, sizes.get(one.level, 16 << 20)))
        for one in true_facts.caches
    )
    facts = dataclasses.replace(true_facts, caches=caches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pydlbench.runner.session.read_cpu_facts", lambda: facts)
        patch.setattr(
            Reading, "from_reply", lambda reply: true_reading({**reply, "disturbance": None})
        )
        with Session(QUICK) as session:
            yield session


def row(session, layer=CONV, **words) -> Measurement:
    ((_, record),) = session.measure([KernelSpec(layer=layer, **words)])
    return record


def test_the_public_function_returns_a_verified_record_with_what_is_asked_for():
    options = dataclasses.replace(QUICK, keep_samples=True, algorithms=True)
    record = pydlbench.measure(GEMM, precision="fp32", pass_="forward", options=options)
    assert record.ok
    assert record.correct.status == record.status == "ok"
    assert 0 <= record.correct.rel_error <= record.correct.tolerance
    assert (record.layer, record.problem) == ("small/fc", GEMM.problem)
    assert (record.backend, record.device, record.cache) == ("native", "cpu", "hot")
    assert record.library.startswith("oneDNN ")
    assert len(record.samples_s) == record.time.n
    (chosen,) = [entry for entry in record.candidates if entry["chosen"]]
    assert (chosen["algorithm"], chosen["layout"]) == (record.algorithm, record.layout)
    assert all(entry["time_s"]["median"] > 0 for entry in record.candidates)


@pytest.mark.parametrize("pass_", ["forward", "backward-data", "backward-weights"])
def test_a_record_adds_up(session, pass_):
    record = row(session, pass_=pass_)
    time = record.time
    assert time.min <= time.q1 <= time.median <= time.q3
    assert time.n >= 3
    assert record.flops == CONV.flops(pass_)
    assert record.flops_executed == CONV.flops_executed(pass_)
    assert record.bytes == CONV.bytes(pass_, 4)
    assert record.tflops == pytest.approx(record.flops / time.median / 1e12)
    assert record.gbps == pytest.approx(record.bytes / time.median / 1e9)
    assert record.arithmetic_intensity == pytest.approx(record.flops_executed / record.bytes)
    assert record.roofline.efficiency == pytest.approx(record.roofline.time_s / time.median)
    assert record.peak.measured > 0
    assert record.threads == len(session.cpus)
    assert record.clock_hz > 1e8
    assert record.stop_reason
    assert record.candidates is record.samples_s is None
    assert (record.correct.status, record.roofline.bandwidth) == ("ok", "l2")
    text = json.dumps(record.to_dict(), allow_nan=False)
    assert Measurement.from_dict(json.loads(text)) == record


@pytest.mark.parametrize(
    ("layer", "cache"),
    [(CONV, "weights-cold"), pytest.param(POOL, "all-cold", marks=pytest.mark.deep)],
)
def test_cold_caches_are_held_against_memory(session, layer, cache):
    record = row(session, layer, cache=cache)
    assert (record.status, record.cache) == ("ok", cache)
    assert record.correct.status == "ok"
    assert record.roofline.bandwidth == "memory"


def test_what_cannot_be_done_is_a_skipped_row(session):
    for layer, words in (
        (CONV, {"precision": "fp8-tc"}),
        (POOL, {"pass_": "backward-weights"}),
        (POOL, {"cache": "weights-cold"}),
    ):
        record = row(session, layer, **words)
        assert record.status == "skipped"
        assert record.reason
        assert record.time is None
        assert not record.ok


def test_fp16_is_skipped_where_the_cpu_lacks_it(session):
    record = row(session, precision="fp16")
    if {"avx512_fp16", "amx_fp16"} & set(session.facts.isa):
        assert record.ok
    else:
        assert (record.status, record.time) == ("skipped", None)
        assert "this CPU has no fp16" in record.reason


def test_a_worker_killed_from_outside_costs_its_row_and_no_other(session, monkeypatch):
    """SIGKILL in the middle of the second of three cases."""
    true_sample = RemoteKernel.sample
    victims = []

    def sample(kernel, request):
        if kernel.facts.algorithm.startswith(("inner_product", "matmul")) and not victims:
            victims.append(session.worker().pid)
            timer = threading.Timer(0.1, os.kill, (victims[0], signal.SIGKILL))
            timer.start()
            request = msgspec.structs.replace(request, samples=1, inner=2**31 - 1)
        return true_sample(kernel, request)

    monkeypatch.setattr(RemoteKernel, "sample", sample)
    rows = [
        row for _, row in session.measure([KernelSpec(layer=layer) for layer in (CONV, GEMM, CONV)])
    ]
    assert [record.status for record in rows] == ["ok", "failed", "ok"]
    assert rows[1].reason.startswith("the native worker was killed by SIGKILL")
    assert rows[1].layer == "small/fc"
    assert rows[1].time is None
    assert session.worker().pid not in (None, *victims)


def test_progress_counts_rows(session):
    calls = []
    cases = [KernelSpec(layer=GEMM), KernelSpec(layer=POOL, pass_="backward-weights")]
    list(session.measure(cases, progress=lambda *call: calls.append(call)))
    assert calls == [
        (0, 2, "small/fc forward fp32"),
        (1, 2, f"{POOL.problem} backward-weights fp32"),
        (2, 2, ""),
    ]


def test_memory_is_asked_for_before_anything_is_measured():
    large = build_layer("gemm", m=100_000, k=1000, n=1000, name="large")
    with Session(QUICK) as session:
        session.facts = dataclasses.replace(session.facts, memory_available_bytes=100_000_000)
        with pytest.raises(UsageError) as caught:
            list(session.measure([KernelSpec(layer=GEMM), KernelSpec(layer=large)]))
        assert session.worker().pid is None
    text = str(caught.value)
    # 201 million elements: the float32 original, three layouts, and a copy of the output.
    assert text.startswith(
        "large: needs 3.62 GB of memory, 100 MB are available; nearest: --batch "
    )
    # The advice is one that works.
    fits = large.with_batch(int(text.rpartition(" ")[2]))
    session.check_room([KernelSpec(layer=fits)])
    more = large.with_batch(fits.batch + 1)
    with pytest.raises(UsageError):
        session.check_room([KernelSpec(layer=more)])


def test_memory_of_all_who_compete_is_counted_together():
    """Who competes holds its operands until the last one is timed."""
    large = build_layer("gemm", m=100_000, k=1000, n=1000, name="large")
    alone = [KernelSpec(layer=large)]
    every = [
        *alone,
        *(KernelSpec(layer=large, backend="torch", mode=m) for m in ("eager", "compiled")),
    ]
    with Session(QUICK) as session:
        # Enough for any one of them.
        session.facts = dataclasses.replace(session.facts, memory_available_bytes=4_000_000_000)
        session.check_room(alone)
        with pytest.raises(UsageError) as caught:
            list(session.measure(every))
        assert session.worker().pid is None
        text = str(caught.value)
        # torch twice as users run it, and twice where pages are kept.
        assert text.startswith("large: needs 6.83 GB of memory for 5 processes at a time, 4.00 GB")
        batch = int(text.rpartition("nearest: --batch ")[2])
        fits = [msgspec.structs.replace(case, layer=large.with_batch(batch)) for case in every]
        session.check_room(fits)
        more = [msgspec.structs.replace(case, layer=large.with_batch(batch + 1)) for case in every]
        with pytest.raises(UsageError, match=f"nearest: --batch {batch}$"):
            session.check_room(more)


@pytest.mark.parametrize(
    ("backends", "cache", "count"),
    [
        (["native"], "hot", 1),
        (["torch"], "hot", 1),  # without others nobody asks what an allocation costs
        (["native", "numba"], "hot", 3),
        (["native", "torch"], "hot", 3),
        (["native", "tensorflow"], "hot", 4),  # one more for its log
        (["native", "torch", "tensorflow", "numba"], "hot", 8),
        (["native", "torch", "numba"], "all-cold", 1),  # frameworks are timed hot only
    ],
)
def test_processes_that_hold_operands(backends, cache, count):
    group = [KernelSpec(layer=GEMM, backend=name, cache=cache) for name in backends]
    with Session(QUICK) as session:
        assert len(session._kernels.processes(group)) == count


def test_memory_that_no_batch_would_save(session, monkeypatch):
    facts = dataclasses.replace(session.facts, memory_available_bytes=1000)
    monkeypatch.setattr(session, "facts", facts)
    with pytest.raises(UsageError, match=r"nearest: a smaller layer$"):
        row(session, CONV.with_batch(1))
    with pytest.raises(UsageError, match=r"nearest: fewer of --backend and --mode$"):
        session.check_room([KernelSpec(layer=CONV.with_batch(1), backend=name) for name in _TWO])
    monkeypatch.setattr(session, "facts", dataclasses.replace(facts, memory_available_bytes=None))
    session.check_room([KernelSpec(layer=CONV)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"precision": "fp23"}, "--precision fp23"),
        ({"pass_": "forwards"}, "--pass forwards"),
        ({"cache": "warm"}, "--cache warm"),
        ({"backend": "torhc"}, "--backend torhc"),
        ({"options": RunnerOptions(threads=100_000)}, "--threads 100000"),
        ({"options": RunnerOptions(budget_s=-1)}, "--budget -1"),
    ],
)
def test_a_bad_word_starts_nothing(words, message, monkeypatch):
    monkeypatch.setattr(Worker, "_start", lambda _: pytest.fail("a worker was started"))
    with pytest.raises(UsageError, match=message):
        pydlbench.measure(CONV, **words)


def test_the_run_says_where_and_with_what(session):
    run = session.run
    assert run.id == session.run.id
    assert run.device["threads"] == len(session.cpus)
    assert run.created_utc.endswith("+00:00")
    assert json.loads(json.dumps(run.to_dict(), allow_nan=False))["environment"]


def test_closing_a_session_ends_its_workers():
    session = Session(QUICK)
    session.worker().describe()
    pid = session.worker().pid
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.deep
def test_probing_a_device():
    record = probe_device(threads=1, precisions=("fp32",))
    assert [peak.precision for peak in record.peaks] == ["fp32"]
    assert len(record.cpus) == 1
    with pytest.raises(UsageError, match=r"--device gpu: .*nearest: cuda:0"):
        probe_device("gpu")


def test_a_gpu_that_is_hidden_or_not_there_is_one_sentence():
    with pytest.raises((BackendMissingError, UnsupportedError)) as caught:
        probe_device("cuda:0")
    assert "\n" not in str(caught.value)


def test_a_device_without_the_native_module_still_has_its_facts(monkeypatch):
    def missing(_):
        raise BackendMissingError("pydlbench._cpu was not built; pip install pydlbench")

    monkeypatch.setattr(Worker, "_start", missing)
    record = probe_device(threads=1)
    assert record.facts.logical_cpus >= 1
    assert record.peaks == record.bandwidths == ()
    (advice,) = [item for item in record.warnings if "was not built" in item.symptom]
    assert advice.symptom.startswith("nothing was probed: pydlbench._cpu was not built")


def test_a_failed_probe_is_not_repeated_for_every_row(monkeypatch):
    probes = []

    def probe(_, name, **_arguments):
        probes.append(name)
        raise WorkerError("the probe hung")

    monkeypatch.setattr(Worker, "probe", probe)
    with Session(QUICK) as session:
        rows = [row for _, row in session.measure([KernelSpec(layer=GEMM), KernelSpec(layer=CONV)])]
    assert len(probes) == 1
    assert all(record.status == "ok" and record.roofline is None for record in rows)
    assert all("the probe hung" in record.warnings for record in rows)


@pytest.mark.deep
def test_a_roof_does_not_depend_on_the_rows_before_it(session):
    large = build_layer("pool", batch=8, channels=64, in_size=112, kernel=3, stride=2)
    first = row(session, large)
    row(session, GEMM)  # small: it has the nearest cache probed
    again = row(session, large)
    assert again.roofline.time_s == first.roofline.time_s


def test_visits_go_round_the_rows_in_processes_of_their_own(monkeypatch):
    """Rows are finished in the last lap; each lap has started a worker of its own."""
    processes, labels = [], []
    true_start = Worker._start

    def start(worker):
        true_start(worker)
        if worker.pid not in processes:
            processes.append(worker.pid)

    monkeypatch.setattr(Worker, "_start", start)
    layers = [build_layer("gemm", m=4, k=16, n=8), build_layer("gemm", m=4, k=16, n=16)]
    with Session(RunnerOptions(budget_s=0.06, repetitions=3)) as visiting:
        rows = dict(
            visiting.measure(
                [KernelSpec(layer=one) for one in layers],
                lambda done, _, label: labels.append((done, label)),
            )
        )
    assert {spec.layer for spec in rows} == set(layers)
    assert all(row.ok and row.complete and row.time.repetitions == 3 for row in rows.values())
    assert all(row.stop_rule == "rounds" for row in rows.values())
    assert len(processes) >= max(row.time.repetitions for row in rows.values())
    assert [done for done, _ in labels] == sorted(done for done, _ in labels)
    assert [label.rpartition(", ")[2] for _, label in labels[:6:2]] == [
        f"repetition {number} of 3" for number in range(1, 4)
    ]
    assert labels[-1] == (2, "")


def test_the_first_of_several_visits_is_a_row_that_is_done(session, monkeypatch):
    sampled = []
    sample = RemoteKernel.sample

    def counting(kernel, request):
        sampled.append(kernel.generation)
        return sample(kernel, request)

    monkeypatch.setattr(RemoteKernel, "sample", counting)
    cases = [KernelSpec(layer=layer) for layer in (CONV, POOL)]
    found = list(session.measure(cases, first_of=6))
    assert [case for case, _ in found] == cases
    assert all(one.ok and one.complete for _, one in found)
    assert {one.time.repetitions for _, one in found} == {1}
    assert len(set(sampled)) == 1


def test_a_row_alone_has_its_visits_in_one_process(monkeypatch):
    generations = set()
    true_sample = RemoteKernel.sample
    monkeypatch.setattr(
        RemoteKernel,
        "sample",
        lambda kernel, request: generations.add(kernel._generation) or true_sample(kernel, request),
    )
    with Session(RunnerOptions(budget_s=0.12, repetitions=None)) as alone:
        found = list(alone.measure([KernelSpec(layer=GEMM)], so_far=True))
    assert [row.time.repetitions for _, row in found[:4]] == [1, 2, 3, 4]
    # Later ones may take the place of visits that somebody disturbed.
    assert all(row.time.repetitions >= 4 for _, row in found[3:])
    assert [row.complete for _, row in found[:3]] == [False] * 3
    assert found[-1][1].complete
    assert len(generations) == 1
