"""Reasons why timings on this machine are unreliable, each with a remedy."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from pydlbench.devices.cpu.affinity import physical_cores
from pydlbench.devices.cpu.facts import CpuFacts, read_text
from pydlbench.devices.findings import DeviceAdvice, advice_where

# The FMA probe loses a few per cent to its start and to interrupts.
_EXPECTED_SHARE = 0.90


def cpu_advice(
    facts: CpuFacts, cpus: Sequence[int], root: str | Path = "/", own: int = 0
) -> tuple[DeviceAdvice, ...]:
    """Return the reasons why timings on ``cpus`` may be unreliable.

    Args:
        facts: facts of the CPU.
        cpus: logical CPUs in use.
        root: folder that holds ``proc`` and ``sys``.
        own: number of processes that this one started, which are not other load.
    """
    root, cores = Path(root), physical_cores(facts, cpus)
    limit = math.inf if facts.cpu_limit is None else facts.cpu_limit
    fewer = max(1, int(min(limit, len(cpus))))
    host = f" ({facts.hypervisor})" if facts.hypervisor else ""
    # Tasks that are runnable now, without ours: the load average includes earlier runs.
    match = re.search(r"\s([0-9]+)/[0-9]+\s", read_text(root / "proc/loadavg") or "")
    others = int(match[1]) - 1 - own if match else 0
    busy = "another task is" if others == 1 else f"{others} other tasks are"
    huge_pages = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    used = [node for node in facts.numa_nodes if set(node.cpus).intersection(cpus)]
    largest = max(used, key=lambda node: len(node.cpus)).index if used else 0
    return advice_where(
        (
            facts.governor not in (None, "performance"),
            f"frequency governor {facts.governor}: the clock follows the load with a delay",
            "sudo cpupower frequency-set --governor performance",
        ),
        (
            cores != len(cpus),
            f"{len(cpus)} threads on {cores} cores: hyperthreads share one core's FMA units",
            f"--threads {cores}",
        ),
        (
            limit < len(cpus),
            (
                f"the control group allows {limit:g} CPUs for {len(cpus)} threads: the scheduler "
                "stops them for part of every period"
            ),
            f"--threads {fewer}" if fewer < len(cpus) else "raise the container's CPU limit",
        ),
        (
            facts.virtualised,
            (
                f"virtual machine{host}: neighbours share caches, memory and clock, and the "
                "topology may be wrong"
            ),
            "compare only what ran interleaved in one run; use bare metal for absolute numbers",
        ),
        (
            others >= 1 and facts.logical_cpus - others < len(cpus),
            f"{busy} running, and {len(cpus)} of {facts.logical_cpus} CPUs are needed",
            "stop other load, or leave it CPUs of its own with --threads",
        ),
        (
            "[never]" in huge_pages,
            "transparent huge pages are off: page-table walks cost bandwidth and add noise",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            len(used) > 1,
            (
                f"{len(used)} memory nodes are used: a kernel's data is on the node that touched "
                "it first"
            ),
            f"numactl --cpunodebind={largest} --membind={largest} pydlbench ...",
        ),
    )


def peak_advice(precision: str, measured: float, theoretical: float) -> DeviceAdvice | None:
    """Return a warning if a measured compute peak falls far short of the theoretical one.

    Args:
        precision: precision of both peaks.
        measured: measured peak in FLOP/s.
        theoretical: theoretical peak in FLOP/s at the clock of the measurement.
    """
    share = measured / theoretical
    if share >= _EXPECTED_SHARE:
        return None
    return DeviceAdvice(
        symptom=f"the {precision} FMA probe reached {100 * share:.0f} % of the theoretical peak at "
        "the clock it ran at",
        remedy="look for other load; in a virtual machine two CPUs may be threads of one core: try "
        "fewer --threads",
    )


def assumption_advice(precision: str, measured: float, assumed: float) -> DeviceAdvice:
    """Return the warning for a probe that exceeded the peak assumed for an unknown core.

    Args:
        precision: precision of both peaks.
        measured: measured peak in FLOP/s.
        assumed: assumed peak in FLOP/s at the clock of the measurement.
    """
    return DeviceAdvice(
        symptom=f"the {precision} FMA probe reached {measured / assumed:.2f} x the peak assumed "
        "for this unknown core: there is only a measured peak, no theoretical one",
        remedy="please report this CPU with the output of pydlbench device --json -",
    )


def unprobed_advice(reason: str) -> DeviceAdvice:
    """Return the warning for a device that could not be probed.

    Args:
        reason: message of the missing backend, with its remedy.
    """
    return DeviceAdvice(
        symptom=f"nothing was probed: {reason}",
        remedy="only facts are shown; peaks and bandwidths need the native module",
    )
