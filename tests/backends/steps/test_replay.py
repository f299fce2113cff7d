"""A step's blocks played again, which tells what its page faults cost."""

import os
import platform
import subprocess
import sys

import pytest

from pydlbench.backends.steps.operators import Lifetimes, lifetimes
from pydlbench.timing.chunk import Request


def test_a_step_s_blocks_are_played_in_its_order_and_given_back():
    large = 1 << 26  # the allocator always gives such a block back to the system
    made = Lifetimes((large, 64, -1, large, -3, 4096), cpus=(0,))
    allocate, free = made._allocate, made._free
    asked, given = [], []

    def asks(place, alignment, size):
        asked.append(size)
        return allocate(place, alignment, size)

    def gives(address):
        given.append(address)
        free(address)

    made._allocate, made._free = asks, gives
    assert made.run() > 0
    assert asked == [large, 64, large, 4096]
    # The first and third are given back within the step, the others behind it.
    assert len(given) == len(asked)
    assert lifetimes((large, -1)).sample(Request(samples=2)).faults > 16


# Prints the page faults of a replay of eight blocks of 4 MiB, all there at once.
_REPLAY = """
import sys
from pydlbench.backends.steps.operators import lifetimes
from pydlbench.timing.chunk import Request
blocks = [1 << 22] * 8 + [-n for n in range(1, 9)]
print(lifetimes(blocks, freed=int(sys.argv[1])).sample(Request(samples=2, untimed=2)).faults)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds are glibc's")
def test_what_was_freed_before_decides_how_many_pages_of_a_step_are_fresh():
    """Freed 4 MiB let the heap keep 8 of these 32 MiB, and freed 31 MiB most or all."""
    plain = {key: one for key, one in os.environ.items() if "MALLOC" not in key}
    plain.pop("GLIBC_TUNABLES", None)
    fresh, raised = (
        float(
            subprocess.run(
                [sys.executable, "-c", _REPLAY, str(freed)],
                env=plain,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for freed in (0, 31 << 20)
    )
    # A fault each is 4 KiB, or 2 MiB where the kernel gives huge pages.
    assert fresh >= 12
    # What small objects lie between the blocks decides whether a few of them find no gap.
    assert raised < fresh / 2
