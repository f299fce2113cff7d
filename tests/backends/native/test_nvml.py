"""The monitor on an invented NVML: no GPU, no driver."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from pydlbench.backends.native.nvml import Monitor

UUID = "GPU-0"


class Invented:
    """NVML as the monitor uses it; a value that is an exception is raised."""

    def __init__(self, **answers):
        self.answers = {
            "nvmlInit": None,
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetClockInfo": lambda _handle, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetPowerUsage": 650_000,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 1,
            **answers,
        }

    def __getattr__(self, name):
        answer = self.answers[name]  # a call that the driver lacks is a KeyError, as good as any

        def call(*arguments):
            if isinstance(answer, Exception):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call


def process(pid, **words):
    return SimpleNamespace(pid=pid, **words)


def test_a_mig_slice_has_the_readings_of_its_gpu():
    def device(uuid):
        if not uuid.startswith("MIG-"):
            raise LookupError(uuid)
        return uuid

    def clock(handle, kind):
        if handle != "the GPU":
            raise LookupError(handle)
        return {1: 1980, 2: 3201}[kind]

    monitor = Monitor(
        "GPU-7",
        Invented(
            nvmlDeviceGetHandleByUUID=device,
            nvmlDeviceGetDeviceHandleFromMigDeviceHandle={"MIG-7": "the GPU"}.__getitem__,
            nvmlDeviceGetClockInfo=clock,
            nvmlDeviceGetMigMode=[1, 1],
        ),
    )
    assert monitor.snapshot()["mig"] is True
    assert monitor.since(monitor.mark()).sm_clock_hz == 1.98e9
    assert (
        "GPU-"
        not in Monitor("GPU-7", Invented(nvmlDeviceGetHandleByUUID=LookupError("gone"))).reason
    )


def test_a_chunk_without_a_periodic_reading_still_has_one():
    monitor = Monitor(UUID, Invented(), period_s=3600)
    readings = monitor.since(monitor.mark())
    assert readings.readings >= 1
    assert readings.sm_clock_hz == 1.98e9
    assert readings.memory_clock_hz == pytest.approx(3.201e9)
    assert readings.power_w == pytest.approx(650)
    assert readings.temperature_c == 55
    assert readings.reasons == ("power cap",)
    assert readings.others == ()


def test_the_thread_reads_while_samples_are_taken():
    seen = threading.Event()
    powers = iter([100_000, 300_000])

    def power(_handle):
        value = next(powers, None)
        if value is None:
            seen.set()
            return 300_000
        return value

    monitor = Monitor(UUID, Invented(nvmlDeviceGetPowerUsage=power), period_s=0.001)
    mark = monitor.mark()
    assert seen.wait(10)
    readings = monitor.since(mark)
    assert readings.readings >= 3
    assert readings.power_w == pytest.approx(300)  # not the mean: the first is beside the load


def test_readings_of_an_earlier_chunk_are_not_those_of_the_next():
    times = iter(range(1000))
    heats = iter([90, 50, 50, 50, 50])
    monitor = Monitor(
        UUID,
        Invented(nvmlDeviceGetTemperature=lambda *_: next(heats)),
        clock=lambda: float(next(times)),
        period_s=3600,
    )
    assert monitor.since(monitor.mark()).temperature_c == 90
    assert monitor.since(monitor.mark()).temperature_c == 50


def test_power_is_that_of_the_moment_where_the_driver_tells_it():
    def fields(_handle, asked):
        assert asked == [186]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=480_000))]

    monitor = Monitor(UUID, Invented(nvmlDeviceGetFieldValues=fields), period_s=3600)
    assert monitor.since(monitor.mark()).power_w == 480
    refused = [SimpleNamespace(nvmlReturn=3)]
    monitor = Monitor(UUID, Invented(nvmlDeviceGetFieldValues=refused), period_s=3600)
    assert monitor.since(monitor.mark()).power_w == 650


def test_a_sensor_that_is_not_there_is_a_reading_that_is_not_there():
    library = Invented(
        nvmlDeviceGetPowerUsage=RuntimeError("Not Supported"),
        nvmlDeviceGetCurrentClocksEventReasons=RuntimeError("Not Supported"),
    )
    monitor = Monitor(UUID, library, period_s=3600)
    readings = monitor.since(monitor.mark())
    assert readings.power_w is None
    assert readings.reasons == ()
    assert readings.sm_clock_hz == 1.98e9


def test_without_nvml_there_are_no_readings_but_a_reason():
    monitor = Monitor(UUID, Invented(nvmlInit=RuntimeError("Driver Not Loaded")))
    assert monitor.since(monitor.mark()) is None
    assert monitor.energy_j() is None
    assert monitor.snapshot() == {"reason": "NVML: Driver Not Loaded"}


def test_another_process_that_computes_is_named():
    own = os.getpid()
    samples = iter(
        [
            [process(own, smUtil=90, timeStamp=10), process(9, smUtil=50, timeStamp=10)],  # before
            [process(own, smUtil=90, timeStamp=20), process(9, smUtil=50, timeStamp=20)],
            [process(8, smUtil=70, timeStamp=30)],  # between two chunks
            [process(9, smUtil=0, timeStamp=40), process(8, smUtil=70, timeStamp=15)],
        ]
    )
    library = Invented(
        nvmlDeviceGetComputeRunningProcesses=[process(own), process(9)],
        nvmlDeviceGetProcessUtilization=lambda *_: next(samples),
    )
    monitor = Monitor(UUID, library, period_s=3600)
    assert monitor.since(monitor.mark()).others == (9,)
    assert monitor.since(monitor.mark()).others == ()  # idle, or told before


def test_where_the_driver_knows_us_by_another_number_nobody_is_accused():
    library = Invented(
        nvmlDeviceGetComputeRunningProcesses=[process(10**7)],
        nvmlDeviceGetProcessUtilization=[process(10**7, smUtil=90, timeStamp=5)],
    )
    monitor = Monitor(UUID, library, period_s=3600)
    for _ in range(3):
        assert monitor.since(monitor.mark()).others == ()


def test_this_runs_own_workers_are_not_others(monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        stamps = iter(range(1, 100))
        library = Invented(
            nvmlDeviceGetComputeRunningProcesses=[process(os.getpid())],
            nvmlDeviceGetProcessUtilization=lambda *_: [
                process(worker.pid, smUtil=50, timeStamp=next(stamps))
            ],
        )
        monitor = Monitor(UUID, library, period_s=3600)
        assert monitor.since(monitor.mark()).others == (worker.pid,)
        monkeypatch.setattr(os, "getppid", os.getpid)  # now we are its sibling, not its parent
        assert monitor.since(monitor.mark()).others == ()
        worker.communicate(b"\n")


def test_energy_is_read_when_its_counter_moves():
    counts = iter([5000, 5000, 5000, 7500])
    monitor = Monitor(
        UUID, Invented(nvmlDeviceGetTotalEnergyConsumption=lambda *_: next(counts)), period_s=3600
    )
    assert monitor.energy_j() == 7.5


def test_a_counter_that_stands_still_gives_no_energy():
    times = iter(range(1000))
    monitor = Monitor(
        UUID,
        Invented(nvmlDeviceGetTotalEnergyConsumption=5000),
        clock=lambda: float(next(times)),
        period_s=3600,
    )
    assert monitor.energy_j() is None


def test_the_snapshot_leaves_this_process_out():
    library = Invented(
        nvmlDeviceGetComputeRunningProcesses=[process(os.getpid()), process(7)],
        nvmlDeviceGetMigMode=RuntimeError("Not Supported"),
        nvmlDeviceGetComputeMode=3,
    )
    assert Monitor(UUID, library, period_s=3600).snapshot() == {
        "reason": None,
        "exclusive": True,
        "power_limit_w": 700.0,
        "mig": None,
        "persistence": True,
        "temperature_c": 55,
        "throttle": ["power cap"],
        "processes": [7],
    }


@pytest.mark.parametrize(("mode", "exclusive"), [(0, False), (1, True), (3, True)])
def test_a_card_for_one_process_at_a_time_is_noticed(mode, exclusive):
    library = Invented(nvmlDeviceGetComputeMode=mode)
    assert Monitor(UUID, library, period_s=3600).snapshot()["exclusive"] is exclusive
