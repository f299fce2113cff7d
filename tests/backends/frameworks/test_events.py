"""Clocks on invented devices: what is put into the stream, in which order, and what comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.backends.cupy.backend import CupyClock
from pydlbench.backends.frameworks.events import EventClock
from pydlbench.timing.chunk import Request
from pydlbench.timing.guards import GpuReadings

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def capture(self, call: Callable[[], Any], times: int) -> Callable[[], None]:
        self.log.append(("capture", times))

        def launch() -> None:
            self.host += LAUNCH_S
            self.stream = max(self.stream, self.host) + times * WORK_S
            self.log.append("graph")

        assert call is not None
        return launch


class Operator:
    """An operator of the invented device."""

    def __init__(self, device: Device, timing: str = "events") -> None:
        self.device = device
        self.timing = timing
        self.settled = 0

    def call(self) -> None:
        self.device.work()

    again = call

    def wait(self) -> None:
        self.device.wait()

    def settle(self) -> None:
        self.settled += 1

    def outputs(self) -> dict[str, Any]:
        return {}


class Watcher:
    """Reads an invented GPU."""

    def mark(self) -> float:
        return 1.0

    def since(self, mark: float) -> GpuReadings | None:
        assert mark == 1.0
        return GpuReadings(sm_clock_hz=1.5e9, readings=1)


def test_launches_hide_behind_a_sleep() -> None:
    device = Device()
    clock = EventClock(Operator(device), device)
    chunk = clock.sample(Request(samples=2, inner=3, untimed=1))
    assert chunk.seconds == pytest.approx((WORK_S, WORK_S))
    pause = ("sleep", round(LAUNCH_S * 3 * 1.5 + 50e-6, 9))
    one_sample = [pause, "event", "call", "call", "call", "event", "wait"]
    assert device.log[-14:] == one_sample * 2
    assert chunk.wall_s > 6 * WORK_S


def test_without_the_sleep_the_host_would_show() -> None:
    """The sleep is what hides the launch: with none, the first launch is part of the sample."""
    device = Device()
    clock = EventClock(Operator(device), device)
    (seconds,) = clock.spans(1, 1, 0.0, device.work)
    assert seconds == pytest.approx(WORK_S + LAUNCH_S)


def test_the_cost_of_a_launch_is_measured_once() -> None:
    device = Device()
    clock = EventClock(Operator(device), device)
    clock.sample(Request(samples=1))
    before = device.log.count("call")
    clock.sample(Request(samples=1))
    assert device.log.count("call") == before + 1


def test_readings_of_the_gpu_travel_with_the_chunk() -> None:
    device = Device()
    chunk = EventClock(Operator(device), device, Watcher()).sample(Request(samples=1))
    assert chunk.clock_hz == (1.5e9,)
    assert chunk.gpu is not None
    assert chunk.disturbance is None


def test_a_graph_is_launched_once_untimed_and_captured_once() -> None:
    device = Device()
    operator = Operator(device, "cuda-graph")
    clock = CupyClock(operator, device)
    chunk = clock.sample(Request(samples=2, inner=4, untimed=4))
    clock.sample(Request(samples=1, inner=4))
    assert chunk.seconds == pytest.approx((WORK_S, WORK_S), rel=0.05)
    assert device.log.count(("capture", 4)) == 1
    assert device.log[:3] == [("capture", 4), "graph", "graph"]
    assert operator.settled == 2


def test_another_number_of_launches_is_another_graph() -> None:
    device = Device()
    clock = CupyClock(Operator(device, "cuda-graph"), device)
    for inner in (2, 3):
        clock.sample(Request(samples=1, inner=inner))
    assert [one for one in device.log if one[0] == "capture"] == [("capture", 2), ("capture", 3)]


def test_events_settle_the_arithmetic_before_each_chunk() -> None:
    device = Device()
    operator = Operator(device)
    clock = CupyClock(operator, device)
    for _ in range(3):
        clock.sample(Request(samples=1))
    assert operator.settled == 3
    assert clock.timing == "events"
    assert not any(isinstance(one, tuple) and one[0] == "capture" for one in device.log)
