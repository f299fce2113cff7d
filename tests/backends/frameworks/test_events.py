"""Clocks on invented devices: what is put into the stream, in which order, and what comes out."""

from typing import Any

import pytest

from pydlbench.backends.frameworks.events import EventClock
from pydlbench.backends.host_clock import HostClock
from pydlbench.timing.chunk import GpuReadings, Request

WORK_S, LAUNCH_S = 3e-3, 2e-4


class Device:
    """A runtime that writes down what is asked of it; the device works 3 ms per call."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.host = self.stream = 0.0

    def work(self) -> None:
        """What an operator's call does."""
        self.host += LAUNCH_S
        self.stream = max(self.stream, self.host) + WORK_S
        self.log.append("call")

    def record(self) -> float:
        self.log.append("event")
        return max(self.stream, self.host)

    def between(self, start: float, end: float) -> float:
        return end - start

    def wait(self) -> None:
        self.host = max(self.host, self.stream)
        self.log.append("wait")

    def sleep(self, seconds: float) -> None:
        self.stream = max(self.stream, self.host) + seconds
        self.log.append(("sleep", round(seconds, 9)))

    def now(self) -> float:
        return self.host


class Operator:
    """An operator of the invented device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def call(self) -> None:
        self.device.work()

    def wait(self) -> None:
        self.device.wait()

    def outputs(self) -> dict[str, Any]:
        return {}


class Watcher:
    """Reads an invented GPU."""

    def mark(self) -> float:
        return 1.0

    def since(self, mark: float) -> GpuReadings | None:
        assert mark == 1.0
        return GpuReadings(sm_clock_hz=1.5e9, readings=1)


def test_launches_hide_behind_a_sleep():
    device = Device()
    clock = EventClock(Operator(device), device)
    chunk = clock.sample(Request(samples=2, inner=3, untimed=1))
    assert chunk.seconds == pytest.approx((WORK_S, WORK_S))
    pause = ("sleep", round(LAUNCH_S * 3 * 1.5 + 50e-6, 9))
    one_sample = [pause, "event", "call", "call", "call", "event", "wait"]
    assert device.log[-14:] == one_sample * 2
    assert chunk.wall_s > 6 * WORK_S


def test_without_the_sleep_the_host_would_show():
    """The sleep is what hides the launch: with none, the first launch is part of the sample."""
    device = Device()
    clock = EventClock(Operator(device), device)
    (seconds,) = clock.spans(1, 1, 0.0, device.work)
    assert seconds == pytest.approx(WORK_S + LAUNCH_S)


def test_the_cost_of_a_launch_is_measured_once():
    device = Device()
    clock = EventClock(Operator(device), device)
    clock.sample(Request(samples=1))
    before = device.log.count("call")
    clock.sample(Request(samples=1))
    assert device.log.count("call") == before + 1


def test_readings_of_the_gpu_travel_with_the_chunk():
    """Of a step, too, which is timed on the host's clock."""
    device = Device()
    for clock in (
        EventClock(Operator(device), device, Watcher()),
        HostClock(Operator(device), (0,), watcher=Watcher()),
    ):
        chunk = clock.sample(Request(samples=1))
        assert chunk.clock_hz == (1.5e9,)
        assert chunk.gpu is not None
        assert chunk.disturbance is None
