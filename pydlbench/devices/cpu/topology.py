"""Which logical CPUs a run uses: one per physical core, within what the process may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydlbench.devices.cpu.facts import CpuFacts

__all__ = ["choose_cpus", "format_cpus", "physical_cores"]


def choose_cpus(facts: CpuFacts, threads: int | None = None) -> tuple[int, ...]:
    """Return the logical CPUs to pin threads to, in ascending order.

    One CPU per physical core, socket by socket; second threads of the cores only when more threads
    are asked for than there are cores. Without ``threads``: all cores of the affinity mask, but no
    more than the control group's quota pays for.

    Args:
        facts: of the machine.
        threads: how many, or None.

    Raises:
        UsageError: Less than one thread, or more than the affinity mask has CPUs.
    """
    ranked = _ranked(facts)
    cores = physical_cores(facts, ranked)
    if threads is None:
        quota = cores if facts.cpu_limit is None else int(facts.cpu_limit)
        threads = max(1, min(cores, quota))
    elif threads < 1:
        raise UsageError(f"--threads {threads}: at least one thread is needed; nearest: 1")
    elif threads > len(ranked):
        raise UsageError(
            f"--threads {threads}: this process may use {len(ranked)} CPUs (affinity mask "
            f"{format_cpus(facts.affinity)}); nearest: {len(ranked)}"
        )
    return tuple(sorted(ranked[:threads]))


def physical_cores(facts: CpuFacts, cpus: Collection[int]) -> int:
    """Return the number of physical cores behind ``cpus``."""
    siblings = {cpu.index: cpu.siblings for cpu in facts.cpus}
    return len({siblings.get(index, (index,)) for index in cpus})


def _ranked(facts: CpuFacts) -> list[int]:
    """The usable CPUs: first ones of their cores first, then by socket, then by number."""
    allowed = set(facts.affinity)
    usable = [cpu for cpu in facts.cpus if cpu.index in allowed]
    taken: dict[tuple[int, ...], int] = {}
    ranks = []
    for cpu in sorted(usable, key=lambda cpu: cpu.index):
        turn = taken.get(cpu.siblings, 0)
        taken[cpu.siblings] = turn + 1
        ranks.append((turn, cpu.socket, cpu.index))
    return [index for _, _, index in sorted(ranks)] or sorted(allowed) or [0]


def format_cpus(cpus: Collection[int]) -> str:
    """Return a list of CPUs the kernel's way: ``0-3,8``."""
    runs: list[list[int]] = []
    for index in sorted(cpus):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
