"""An eager step on a GPU: the host enqueues calls in order, and the device executes them.

The two are stages of a pipeline, and the step is its makespan, not a sum: if the host takes longer
than the device, the device waits between kernels; otherwise the host runs ahead. With an unlimited
queue and calls that do not synchronize, the makespan is

    max over i of  (host seconds of calls 0 .. i) + (device seconds of calls i .. last)

In a CUDA graph the host enqueues nothing: the step is the sum of the device's seconds. These
contain the gaps between nodes if each call was timed among others of its kind.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pydlbench.records.trace import RecordedCall

#: Steps in a row before the host waits for the device.
STEPS: Final = 10
# Length of CUDA's queue: a further launch waits until the first one begins.
_DEPTH: Final = 1024
# Calls that synchronize: the host needs their results.
_WAITING: Final = frozenset(
    f"aten.{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")
)


class Enqueued(NamedTuple):
    """One call of a step. Times in seconds.

    Attributes:
        host_s: the host's time to enqueue it.
        device_s: execution time on the device; 0 if it launches no kernel, such as a view.
        waits: whether the host waits for the device after enqueuing the call.
    """

    host_s: float
    device_s: float
    waits: bool = False


def makespan(calls: Iterable[Enqueued], depth: int = _DEPTH) -> float:
    """Return the seconds until host and device have finished all calls; both are idle before.

    Args:
        calls: calls in the order of the host.
        depth: length of the queue.
    """
    host = device = 0.0
    begun: deque[float] = deque(maxlen=depth)
    for call in calls:
        launches = call.device_s > 0
        if launches and len(begun) == depth:
            host = max(host, begun[0])
        host += call.host_s
        if launches:
            begun.append(max(host, device))
            device = begun[-1] + call.device_s
        if call.waits:
            host = max(host, device)
    return max(host, device)


def period(calls: Sequence[Enqueued], steps: int = STEPS) -> float:
    """Return the seconds of a step if the host waits for the device after ``steps`` steps."""
    return makespan(call for _ in range(steps) for call in calls) / steps


def enqueued(
    calls: Sequence[RecordedCall],
    order: Iterable[int],
    host_s: Mapping[str, float],
    device_s: Mapping[str, float],
) -> list[Enqueued]:
    """Return the calls of a step in their order; those without a time are left out.

    Args:
        calls: the distinct calls.
        order: calls of the step in their order, each as an index into the distinct calls.
        host_s: the host's time for each call, by signature.
        device_s: the device's time for each call, by signature.
    """
    return [
        Enqueued(
            host_s.get(each.signature, 0.0),
            device_s[each.signature],
            each.operator in _WAITING,
        )
        for each in (calls[place] for place in order)
        if each.signature in device_s
    ]
