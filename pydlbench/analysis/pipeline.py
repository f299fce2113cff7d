"""An eager step on a GPU: the host enqueues calls in order, the device executes them as they come.

The two are stages of a pipeline, and the step is its makespan, not a sum: where the host needs
longer than the device, the device waits between kernels; else the host runs ahead. Without a
limit of the queue, the makespan of calls that nothing waits for is

    max over i of  (host seconds of calls 0 .. i) + (device seconds of calls i .. last)

In a CUDA graph the host enqueues nothing: the step is the sum of the device's seconds, in which the
gaps between nodes are where each call was timed among others of its kind.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydlbench.records.operator import RecordedCall

#: Steps that are enqueued behind one another before the host waits for the device.
STEPS: Final = 10
# Launches that CUDA takes before a further one waits until the first of them begins.
_DEPTH: Final = 1024
# Calls whose result the host needs before it goes on.
_WAITING: Final = frozenset(
    f"aten.{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")
)


class Enqueued(NamedTuple):
    """One call of a step. Seconds.

    Attributes:
        host_s: until the host has put it into the device's queue.
        device_s: that the device executes it; 0 of one that launches nothing, such as a view.
        waits: whether the host goes on only when the device has done everything.
    """

    host_s: float
    device_s: float
    waits: bool = False


def makespan(calls: Iterable[Enqueued], depth: int = _DEPTH) -> float:
    """Return the seconds until host and device have done all calls; neither has any before.

    Args:
        calls: in the order in which the host makes them.
        depth: calls that the queue has room for.
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
    """Return the seconds of a step where the host waits for the device behind so many steps."""
    return makespan(call for _ in range(steps) for call in calls) / steps


def enqueued(
    calls: Sequence[RecordedCall],
    order: Iterable[int],
    host_s: Mapping[str, float],
    device_s: Mapping[str, float],
) -> list[Enqueued]:
    """Return the calls of a step in their order; those without a time are left out.

    Args:
        calls: the distinct ones.
        order: of the step, each call by its place among the distinct ones.
        host_s: by signature.
        device_s: by signature.
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
