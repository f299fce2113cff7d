"""Calls on a GPU, alone: what lies between two events is theirs; no GPU is needed."""

import contextlib
from types import SimpleNamespace

import pytest
from invented_gpu import Gpu

from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.records.trace import OperatorsFacts
from pydlbench.timing.chunk import ChunkRequest


@pytest.mark.parametrize(("record_s", "event_s"), [(0.0, 0.0), (6e-6, 0.0), (6e-6, 1.5e-6)])
@pytest.mark.parametrize("device_s", [0.0, 3e-7, 4e-6, 3e-4])
def test_what_events_cost_host_and_device_is_in_no_call(record_s, event_s, device_s):
    gpu = Gpu({}, record_s=record_s, event_s=event_s)
    call = SimpleNamespace(call=lambda: gpu.launch(8e-6, device_s), settle=lambda: None)
    made = DeviceOperators([call], OperatorsFacts(names=("call",)), gpu, contextlib.nullcontext)
    chunk = made.sample(ChunkRequest(samples=3, untimed=1))
    assert chunk.seconds == pytest.approx([device_s] * 3, abs=1e-10)
    assert chunk.enqueue_s == pytest.approx([8e-6] * 3)


def test_a_call_has_the_seconds_of_its_kernels_twice_beside_its_own():
    gpu = Gpu({}, gap_s=2e-6)
    calls = [
        SimpleNamespace(
            call=lambda one=seconds: gpu.launch(8e-6, one), settle=lambda: gpu.launch(8e-6, 9e-6)
        )
        for seconds in (4e-6, 3e-4)
    ]
    made = DeviceOperators(calls, OperatorsFacts(names=("a", "b")), gpu, contextlib.nullcontext)
    chunk = made.sample(ChunkRequest(samples=2, inner=made.PARTS))
    once = [4e-6, 4e-6, 6e-6, 3e-4, 3e-4, 3.02e-4]
    assert chunk.seconds == pytest.approx(once * 2)


@pytest.mark.parametrize("device_s", [4e-6, 3e-4])
def test_a_call_that_waits_for_the_device_is_not_charged_with_its_sleep(device_s):
    gpu = Gpu({})

    def waiting():
        gpu.launch(8e-6, device_s)
        gpu.wait()

    call = SimpleNamespace(call=waiting, settle=lambda: None)
    made = DeviceOperators([call], OperatorsFacts(names=("call",)), gpu, contextlib.nullcontext)
    chunk = made.sample(ChunkRequest(samples=3, untimed=1))
    # The two together are what it takes, whatever of it is whose.
    both = [sum(one) for one in zip(chunk.seconds, chunk.enqueue_s, strict=True)]
    assert both == pytest.approx([8e-6 + device_s] * 3)
