"""The CPU: facts from the kernel's files, which cores to use, what they could reach."""

from pydlbench.devices.cpu.facts import Cache, CpuFacts, LogicalCpu, NumaNode
from pydlbench.devices.cpu.microarch import FlopRate, flop_rate
from pydlbench.devices.cpu.peaks import ImpossiblePeakError, Peak, check_peak, theoretical_peak
from pydlbench.devices.cpu.read import read_cpu_facts
from pydlbench.devices.cpu.topology import choose_cpus, format_cpus, physical_cores
from pydlbench.devices.cpu.working_set import (
    cache_working_set,
    last_level_bytes,
    memory_working_set,
    private_level_bytes,
    private_working_set,
)

__all__ = [
    "Cache",
    "CpuFacts",
    "FlopRate",
    "ImpossiblePeakError",
    "LogicalCpu",
    "NumaNode",
    "Peak",
    "cache_working_set",
    "check_peak",
    "choose_cpus",
    "flop_rate",
    "format_cpus",
    "last_level_bytes",
    "memory_working_set",
    "physical_cores",
    "private_level_bytes",
    "private_working_set",
    "read_cpu_facts",
    "theoretical_peak",
]
