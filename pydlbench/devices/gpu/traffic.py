"""Bandwidth of a GPU for any working set, and for any mix of reads and writes.

Near the size of the L2 cache some of the bytes come from the cache and the others from memory: how
many depends on the hash of the addresses and on the replacement policy, which are not published. So
the bandwidth is probed with some working sets, and interpolated between them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from pydlbench.devices.findings import Bandwidth
from pydlbench.grouping import group_by

#: Working sets between those of the levels ``l2`` and ``memory``, as multiples of the L2 cache.
BETWEEN: Final = {"l2 x 2/3": 2 / 3, "l2 x 1": 1.0, "l2 x 2": 2.0, "l2 x 4": 4.0}
#: The share of written bytes in the traffic of each pattern.
WRITTEN: Final = {"read": 0.0, "copy": 0.5, "write": 1.0}


def bytes_per_s(
    bandwidths: Iterable[Bandwidth], working_set_bytes: float, written: float
) -> float | None:
    """Return the bandwidth of repeated use of a working set, in B/s; None without a probe.

    The time per byte is interpolated over the logarithm of the working set, and over the share of
    written bytes. A smaller working set counts as at least as fast as a larger one.

    Args:
        bandwidths: probed bandwidths, of any level.
        working_set_bytes: bytes that are used again and again; at least those of the smallest probe
            and at most those of the largest count.
        written: share of written bytes in the traffic, 0 to 1.
    """
    by_pattern = group_by(
        [item for item in bandwidths if item.pattern in WRITTEN], lambda item: item.pattern
    )
    if not by_pattern:
        return None
    patterns = sorted(by_pattern, key=WRITTEN.__getitem__)
    each = [_seconds_per_byte(by_pattern[pattern], working_set_bytes) for pattern in patterns]
    return 1 / _interpolated(written, [WRITTEN[pattern] for pattern in patterns], each)


def _seconds_per_byte(probed: Sequence[Bandwidth], working_set_bytes: float) -> float:
    fastest = 0.0
    sizes: list[float] = []
    seconds: list[float] = []
    for item in sorted(probed, key=lambda item: item.working_set_bytes, reverse=True):
        fastest = max(fastest, item.bytes_per_s)
        sizes.append(math.log(item.working_set_bytes))
        seconds.append(1 / fastest)
    return _interpolated(math.log(max(1.0, working_set_bytes)), sizes[::-1], seconds[::-1])


def _interpolated(position: float, positions: Sequence[float], values: Sequence[float]) -> float:
    import numpy as np  # slow to import, and only needed with a GPU

    return float(np.interp(position, positions, values))
