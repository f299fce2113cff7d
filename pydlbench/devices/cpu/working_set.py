"""Working sets of bandwidth probes and cold-cache runs for each level of the memory."""

from collections.abc import Collection

from pydlbench.devices.cpu.facts import Cache, CpuFacts

# If the caches are unknown: as much as large desktop chips have.
_ASSUMED_LAST_LEVEL = 64 << 20


def last_level_bytes(facts: CpuFacts, cpus: Collection[int]) -> int:
    """Return the bytes of last-level cache behind ``cpus``, each cache counted once."""
    levels = {cache.level for cache in _data_caches(facts, cpus)}
    return _level_bytes(facts, cpus, max(levels)) if levels else _ASSUMED_LAST_LEVEL


def memory_working_set(facts: CpuFacts, cpus: Collection[int]) -> int:
    """Return a size that does not fit into the caches: three times the last level.

    At most a quarter of the available memory.
    """
    wanted = 3 * last_level_bytes(facts, cpus)
    available = facts.memory_available_bytes
    return wanted if available is None else min(wanted, available // 4)


def cache_working_set(facts: CpuFacts, cpus: Collection[int]) -> int | None:
    """Return a size that fits into the last-level cache but not into the level before it.

    Half of the last level. If the level before it is nearly as large (server chips with a big L2
    and a victim cache), the sum of that level and half of the last. None without a second level.
    """
    levels = sorted({cache.level for cache in _data_caches(facts, cpus)})
    if len(levels) < 2:
        return None
    last = _level_bytes(facts, cpus, levels[-1])
    nearer = _level_bytes(facts, cpus, levels[-2])
    half = last // 2
    return half if half >= 2 * nearer else nearer + half


def private_level_bytes(facts: CpuFacts, cpus: Collection[int]) -> int | None:
    """Return the bytes of the cache level before the last one, over all cores; None without two."""
    levels = sorted({cache.level for cache in _data_caches(facts, cpus)})
    return _level_bytes(facts, cpus, levels[-2]) if len(levels) > 1 else None


def nearer_level_bytes(facts: CpuFacts, cpus: Collection[int]) -> int | None:
    """Return the bytes of the levels before that one, over all cores; None without three."""
    levels = sorted({cache.level for cache in _data_caches(facts, cpus)})
    return sum(_level_bytes(facts, cpus, level) for level in levels[:-2]) or None


def private_working_set(facts: CpuFacts, cpus: Collection[int]) -> int | None:
    """Return a size that fits into the level before the last one: half of it, or None."""
    size = private_level_bytes(facts, cpus)
    return None if size is None else size // 2


def _data_caches(facts: CpuFacts, cpus: Collection[int]) -> list[Cache]:
    used = set(cpus)
    return [
        cache
        for cache in facts.caches
        if cache.type != "Instruction" and used.intersection(cache.shared_cpus)
    ]


def _level_bytes(facts: CpuFacts, cpus: Collection[int], level: int) -> int:
    return sum(cache.size_bytes for cache in _data_caches(facts, cpus) if cache.level == level)
