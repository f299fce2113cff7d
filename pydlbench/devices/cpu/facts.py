"""What is known about the CPU. Everything the system does not tell is None."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cache", "CpuFacts", "LogicalCpu", "NumaNode"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCpu:
    """One CPU as the scheduler sees it.

    Attributes:
        index: its number.
        socket: the package it sits in.
        siblings: the CPUs of its physical core, itself among them.
    """

    index: int
    socket: int
    siblings: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache, with the CPUs that share it.

    Attributes:
        level: 1 is nearest to the core.
        type: ``Data``, ``Instruction`` or ``Unified``.
        size_bytes: its capacity.
        shared_cpus: the logical CPUs behind it.
    """

    level: int
    type: str
    size_bytes: int
    shared_cpus: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One memory node.

    Attributes:
        index: its number.
        cpus: the logical CPUs that are near to it.
        memory_bytes: its memory, if told.
    """

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """Facts about the CPU and about what this process may use of it.

    Attributes:
        vendor: as CPUID names it (``AuthenticAMD``, ``GenuineIntel``).
        family: display family.
        model: display model.
        stepping: the revision.
        brand: the name for people.
        machine: instruction set architecture (``x86_64``, ``aarch64``).
        isa: instruction sets that matter for the peaks, in the kernel's spelling.
        cpus: the logical CPUs that are online.
        caches: every cache once.
        numa_nodes: the memory nodes.
        governor: frequency governor.
        turbo: whether the clock may rise above the nominal one.
        nominal_hz: nominal clock in Hz.
        nominal_source: where the nominal clock was read.
        max_hz: highest clock that the frequency driver names, in Hz.
        affinity: the CPUs on which this process may run.
        cpu_limit: CPUs' worth of time that the control group allows, or None for no limit.
        virtualised: running as a guest.
        hypervisor: its name, if told.
        memory_total_bytes: the machine's memory.
        memory_available_bytes: what can be had without swapping and within the control group.
        notes: what could not be read, and why.
    """

    vendor: str | None = None
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    brand: str | None = None
    machine: str = ""
    isa: tuple[str, ...] = ()
    cpus: tuple[LogicalCpu, ...] = ()
    caches: tuple[Cache, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    governor: str | None = None
    turbo: bool | None = None
    nominal_hz: float | None = None
    nominal_source: str | None = None
    max_hz: float | None = None
    affinity: tuple[int, ...] = ()
    cpu_limit: float | None = None
    virtualised: bool | None = None
    hypervisor: str | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The brand, or the best there is instead."""
        return self.brand or self.vendor or self.machine or "unknown CPU"

    @property
    def sockets(self) -> int:
        """Number of packages."""
        return len({cpu.socket for cpu in self.cpus}) or 1

    @property
    def logical_cpus(self) -> int:
        """Number of logical CPUs online."""
        return len(self.cpus)

    @property
    def cores(self) -> int:
        """Number of physical cores online."""
        return len({cpu.siblings for cpu in self.cpus})

    @property
    def threads_per_core(self) -> int:
        """The most logical CPUs that share one core (1: no SMT, or it is off)."""
        return max((len(cpu.siblings) for cpu in self.cpus), default=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for JSON: sizes in bytes, clocks in Hz, caches grouped by kind."""
        own = ("cpus", "caches", "numa_nodes")
        plain = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in own
        }
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()
        } | {
            "sockets": self.sockets,
            "cores": self.cores,
            "threads_per_core": self.threads_per_core,
            "logical_cpus": self.logical_cpus,
            "caches": _grouped(self.caches),
            "numa_nodes": [
                {"index": node.index, "cpus": list(node.cpus), "memory_bytes": node.memory_bytes}
                for node in self.numa_nodes
            ],
        }


def _grouped(caches: Iterable[Cache]) -> list[dict[str, Any]]:
    """A server has hundreds of equal caches: one line per kind says as much."""
    groups: dict[tuple[int, str, int, int], int] = {}
    for cache in caches:
        key = (cache.level, cache.type, cache.size_bytes, len(cache.shared_cpus))
        groups[key] = groups.get(key, 0) + 1
    return [
        {"level": level, "type": type_, "size_bytes": size, "cpus_each": shared, "count": count}
        for (level, type_, size, shared), count in sorted(groups.items())
    ]
