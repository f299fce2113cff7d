"""How much memory the bandwidth probes work on, level by level."""

import pytest

from pydlbench.devices.cpu.facts import Cache, CpuFacts
from pydlbench.devices.cpu.working_set import (
    cache_working_set,
    last_level_bytes,
    memory_working_set,
)

MIB = 1 << 20


def two_chiplets(l2, l3):
    """Eight cores; four share a last level."""
    return CpuFacts(
        caches=(
            *(
                Cache(level=1, type="Instruction", size_bytes=32 << 10, shared_cpus=(n,))
                for n in range(8)
            ),
            *(Cache(level=2, type="Unified", size_bytes=l2, shared_cpus=(n,)) for n in range(8)),
            Cache(level=3, type="Unified", size_bytes=l3, shared_cpus=(0, 1, 2, 3)),
            Cache(level=3, type="Unified", size_bytes=l3, shared_cpus=(4, 5, 6, 7)),
        )
    )


def test_only_the_caches_behind_the_used_cpus_count():
    facts = two_chiplets(MIB, 32 * MIB)
    assert last_level_bytes(facts, (0, 1)) == 32 * MIB
    assert last_level_bytes(facts, (0, 4)) == 64 * MIB
    assert memory_working_set(facts, (0, 4)) == 3 * 64 * MIB


def test_memory_bounds_the_working_set():
    facts = CpuFacts(caches=two_chiplets(MIB, 32 * MIB).caches, memory_available_bytes=200 * MIB)
    assert memory_working_set(facts, (0, 1)) == 50 * MIB


@pytest.mark.parametrize(
    ("l2", "l3", "cpus", "expected"),
    [
        (MIB, 32 * MIB, (0, 1), 16 * MIB),
        # 8 MiB of L2 before 8 MiB of victim cache: half of it would fit into the L2.
        (2 * MIB, 8 * MIB, (0, 1, 2, 3), 12 * MIB),
    ],
)
def test_the_cache_working_set_does_not_fit_into_the_level_before(l2, l3, cpus, expected):
    facts = two_chiplets(l2, l3)
    size = cache_working_set(facts, cpus)
    assert size == expected
    assert l2 * len(cpus) < size < l2 * len(cpus) + last_level_bytes(facts, cpus)


def test_without_caches_a_size_is_assumed_for_memory_only():
    assert memory_working_set(CpuFacts(), (0,)) == 192 * MIB
    assert cache_working_set(CpuFacts(), (0,)) is None
