"""A kernel of the user's own in another stream than the one that is timed; no GPU is needed."""

import pytest

pytest.importorskip("torch")

from pydlbench.backends.torch.layers.user_kernel import check_stream
from pydlbench.errors import PrimitiveError


class Device:
    """Two streams: the time at which each has finished."""

    def __init__(self, kernel_s, stream):
        self.kernel_s, self.stream = kernel_s, stream
        self.time = 0.0
        self.busy = {"current": 0.0, "side": 0.0}

    def call(self):
        self.time += 5e-6
        self.busy[self.stream] = self.time + self.kernel_s

    def wait_for_stream(self):
        self.time = max(self.time, self.busy["current"]) + 1e-6

    def wait_for_device(self):
        self.time = max(self.time, *self.busy.values()) + 1e-6

    def check(self):
        check_stream(self.call, self.wait_for_stream, self.wait_for_device, lambda: self.time)


@pytest.mark.parametrize("kernel_s", [1e-6, 1e-3])
def test_a_kernel_in_the_current_stream_passes(kernel_s):
    Device(kernel_s, "current").check()


@pytest.mark.parametrize("kernel_s", [3e-5, 1e-3])
def test_a_kernel_in_a_side_stream_is_refused(kernel_s):
    with pytest.raises(PrimitiveError, match="another stream"):
        Device(kernel_s, "side").check()
