from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING

import pytest

from pydlbench.devices.cpu.affinity import choose_cpus, physical_cores
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.devices.cpu.peaks import flop_rate
from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_cpu = pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")

FACTS = read_cpu_facts()
CPUS = choose_cpus(FACTS)
X86 = FACTS.machine in ("x86_64", "AMD64")
pytestmark = pytest.mark.skipif(not X86, reason="the probes are written for x86-64")
PRECISIONS = ("fp32", "bf16", "fp16", "int8")
MIB = 1 << 20
TRIES = 50


def one_of(tries: Iterator[float], low: float, high: float) -> None:
    """One try within the limits is enough.

    Whoever else uses the machine, between the probe and the reading of the clock that it is
    divided by, spoils a try in either direction; a probe that counts wrongly is outside of them
    every time.
    """
    seen = []
    for _, found in zip(range(TRIES), tries, strict=False):
        if low < found <= high:
            return
        seen.append(found)
    pytest.fail(f"none of {TRIES} tries lies in {low:g}..{high:g}: {sorted(seen)}")


def test_isa_agrees_with_the_kernel():
    native = set(_cpu.isa())
    known = {"sse2", "fma", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}
    known |= {"avx_vnni", "avx512_vnni", "amx_int8"}
    assert native & known == set(FACTS.isa) & known


def test_the_clock_is_one_that_silicon_has():
    assert 0.4e9 < _cpu.clock_hz() < 8e9


def test_more_iterations_read_the_same_clock():
    one_of((_cpu.clock_hz(65536) / _cpu.clock_hz(8192) for _ in iter(int, 1)), 0.9, 1.1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("count", [1, len(CPUS)])
def test_no_probe_beats_the_hardware(precision, count):
    rate = flop_rate(FACTS, precision)
    cpus = CPUS[:count]
    if rate is None:
        with pytest.raises(UnsupportedError, match=precision):
            _cpu.fma_peak(precision, cpus)
        return
    flop_per_clock = rate.flop_per_clock * physical_cores(FACTS, cpus)

    def shares() -> Iterator[float]:
        while True:
            found = _cpu.fma_peak(precision, cpus, seconds=0.05)
            assert 0 < found.median_per_second <= found.per_second
            assert found.rounds >= 5
            assert found.kernel
            yield found.per_second / (flop_per_clock * found.clock_hz)

    one_of(shares(), 0, 1.03)


def test_the_fma_units_are_kept_busy():
    """One core, so that another busy one cannot spoil it."""
    rate = flop_rate(FACTS, "fp32")
    if rate is None or rate.assumed:
        pytest.skip("this CPU is not in the table of FMA pipes")
    found = (_cpu.fma_peak("fp32", CPUS[:1], seconds=0.03) for _ in iter(int, 1))
    one_of((one.per_second / (rate.flop_per_clock * one.clock_hz) for one in found), 0.8, 1.03)


@pytest.mark.parametrize("kind", ["read", "write", "copy", "triad"])
@pytest.mark.parametrize("streaming", [False, True])
def test_bandwidth(kind, streaming):
    found = _cpu.bandwidth(kind, 8 * MIB, CPUS, seconds=0.01, streaming=streaming)
    assert 0 < found.median_per_second <= found.per_second
    assert found.kernel.startswith(kind)
    assert ("non-temporal" in found.kernel) == (streaming and kind != "read")


def test_the_cache_is_faster_than_memory():
    if len(FACTS.caches) < 2:
        pytest.skip("this machine does not tell its caches")

    def ratios() -> Iterator[float]:
        while True:
            near = _cpu.bandwidth("read", 16 << 10, CPUS[:1], 0.01).per_second
            yield near / _cpu.bandwidth("read", 128 * MIB, CPUS[:1], 0.01).per_second

    one_of(ratios(), 1, math.inf)


def test_an_odd_working_set_is_taken():
    assert _cpu.bandwidth("triad", MIB + 12345, CPUS[:1], 0.005).per_second > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _cpu.fma_peak("fp8", CPUS), "precision fp8"),
        (lambda: _cpu.fma_peak("fp32", []), "no CPU"),
        (lambda: _cpu.fma_peak("fp32", [0, 0]), "twice"),
        (lambda: _cpu.fma_peak("fp32", [-1]), "CPU -1"),
        (lambda: _cpu.fma_peak("fp32", [CPUS[0], 100_000]), "CPU 100000: cannot pin"),
        (lambda: _cpu.fma_peak("fp32", CPUS, 0), "seconds"),
        (lambda: _cpu.fma_peak("fp32", CPUS, float("nan")), "seconds"),
        (lambda: _cpu.bandwidth("scan", MIB, CPUS), "bandwidth scan"),
        (lambda: _cpu.bandwidth("read", 1024, CPUS), "1024 bytes"),
        (lambda: _cpu.clock_hz(0), "iterations"),
    ],
)
def test_bad_arguments_are_value_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_memory_that_is_not_there_is_a_memory_error():
    with pytest.raises(MemoryError):
        _cpu.bandwidth("read", 1 << 52, CPUS[:1])


def test_the_callers_affinity_is_left_alone():
    before = os.sched_getaffinity(0)
    _cpu.fma_peak("fp32", CPUS[:1], 0.01)
    assert os.sched_getaffinity(0) == before


def test_other_python_threads_run_meanwhile():
    """With the GIL held the other thread could not count until the probe returned."""
    counted = 0
    done = threading.Event()

    def count():
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    other = threading.Thread(target=count)
    other.start()
    try:
        before = counted
        _cpu.fma_peak("fp32", CPUS[:1], 0.5)
        assert counted > before + 2
    finally:
        done.set()
        other.join()


@pytest.mark.parametrize("cpus", [(), CPUS])
def test_a_burst_does_what_the_fma_units_do(cpus):
    """On the threads of the pool and on threads of its own."""
    rate = flop_rate(FACTS, "fp32")
    if rate is None or rate.assumed:
        pytest.skip("this CPU is not in the table of FMA pipes")
    cores = physical_cores(FACTS, CPUS)
    if not cpus:
        cores = min(cores, _cpu.library()["threads"] or 1)
    limit = rate.flop_per_clock * cores
    one_of((_cpu.fma_burst(cpus) / _cpu.clock_hz() / limit for _ in iter(int, 1)), 0.5, 1.05)


def test_a_burst_knows_its_cpus():
    with pytest.raises(ValueError, match="given twice"):
        _cpu.fma_burst([CPUS[0], CPUS[0]])
