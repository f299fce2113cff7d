"""What makes timings on this machine unreliable, each with the remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydlbench.devices.cpu.affinity import physical_cores
from pydlbench.devices.cpu.kernel_files import read_text
from pydlbench.devices.findings import Advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.devices.cpu.facts import CpuFacts

# The FMA probe loses a few per cent to its start and to interrupts; much more has another cause.
_EXPECTED_SHARE = 0.90


def cpu_advice(facts: CpuFacts, cpus: Sequence[int], root: str | Path = "/") -> tuple[Advice, ...]:
    """Return what to know before believing timings taken on ``cpus``.

    Args:
        facts: of the CPU.
        cpus: the logical CPUs that are used.
        root: folder that holds ``proc`` and ``sys``.
    """
    root = Path(root)
    remarks = (
        _governor(facts),
        _siblings(facts, cpus),
        _quota(facts, cpus),
        _guest(facts),
        _load(facts, cpus, root),
        _huge_pages(root),
        _sockets(facts, cpus),
    )
    return tuple(advice for advice in remarks if advice is not None)


def peak_advice(precision: str, measured: float, theoretical: float) -> Advice | None:
    """Return a warning if a measured compute peak falls far short of the theoretical one.

    Args:
        precision: of both.
        measured: FLOP/s.
        theoretical: FLOP/s at the clock of the measurement.
    """
    share = measured / theoretical
    if share >= _EXPECTED_SHARE:
        return None
    return Advice(
        symptom=f"the {precision} FMA probe reached {100 * share:.0f} % of the theoretical peak at "
        "the clock it ran at",
        remedy="look for other load; in a virtual machine two CPUs may be threads of one core: try "
        "fewer --threads",
    )


def assumption_advice(precision: str, measured: float, assumed: float) -> Advice:
    """Return the warning for a probe that beat what was only assumed about an unknown core.

    Args:
        precision: of both.
        measured: FLOP/s.
        assumed: FLOP/s at the clock of the measurement.
    """
    return Advice(
        symptom=f"the {precision} FMA probe reached {measured / assumed:.2f} x what was assumed of "
        "this unknown core: there is no theoretical peak, only the measured one",
        remedy="please report this CPU with the output of pydlbench device --json -",
    )


def unprobed_advice(reason: str) -> Advice:
    """Return the warning for a device of which nothing could be probed.

    Args:
        reason: why, and what to do about it, as the missing backend says it.
    """
    return Advice(
        symptom=f"nothing was probed: {reason}",
        remedy="only facts are shown; peaks and bandwidths need the native module",
    )


def _governor(facts: CpuFacts) -> Advice | None:
    if facts.governor in (None, "performance"):
        return None
    return Advice(
        symptom=f"frequency governor {facts.governor}: the clock follows the load with a delay",
        remedy="sudo cpupower frequency-set --governor performance",
    )


def _siblings(facts: CpuFacts, cpus: Sequence[int]) -> Advice | None:
    cores = physical_cores(facts, cpus)
    if cores == len(cpus):
        return None
    return Advice(
        symptom=f"{len(cpus)} threads on {cores} cores: hyperthreads share one core's FMA units",
        remedy=f"--threads {cores}",
    )


def _quota(facts: CpuFacts, cpus: Sequence[int]) -> Advice | None:
    if facts.cpu_limit is None or facts.cpu_limit >= len(cpus):
        return None
    fewer = max(1, int(facts.cpu_limit))
    return Advice(
        symptom=f"the control group allows {facts.cpu_limit:g} CPUs for {len(cpus)} threads: the "
        "scheduler stops them for part of every period",
        remedy=f"--threads {fewer}" if fewer < len(cpus) else "raise the container's CPU limit",
    )


def _guest(facts: CpuFacts) -> Advice | None:
    if not facts.virtualised:
        return None
    host = f" ({facts.hypervisor})" if facts.hypervisor else ""
    return Advice(
        symptom=f"virtual machine{host}: neighbours share caches, memory and clock, and topology "
        "may be invented",
        remedy="compare only what ran interleaved in one run; use bare metal for absolute numbers",
    )


def _load(facts: CpuFacts, cpus: Sequence[int], root: Path) -> Advice | None:
    """Runnable tasks now, this one left out: the load average still remembers earlier runs."""
    match = re.search(r"\s([0-9]+)/[0-9]+\s", read_text(root / "proc/loadavg") or "")
    others = int(match[1]) - 1 if match else 0
    free = facts.logical_cpus - others
    if others < 1 or free >= len(cpus):
        return None
    busy = "another task is" if others == 1 else f"{others} other tasks are"
    return Advice(
        symptom=f"{busy} running, and {len(cpus)} of {facts.logical_cpus} CPUs are needed",
        remedy="stop other load, or leave it CPUs of its own with --threads",
    )


def _huge_pages(root: Path) -> Advice | None:
    setting = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if setting is None or "[never]" not in setting:
        return None
    return Advice(
        symptom="transparent huge pages are off: page-table walks cost bandwidth and add noise",
        remedy="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _sockets(facts: CpuFacts, cpus: Sequence[int]) -> Advice | None:
    used = [node for node in facts.numa_nodes if set(node.cpus).intersection(cpus)]
    if len(used) < 2:
        return None
    node = max(used, key=lambda node: len(node.cpus))
    return Advice(
        symptom=f"{len(used)} memory nodes are used: a kernel's data lies on the node that touched "
        "it first",
        remedy=f"numactl --cpunodebind={node.index} --membind={node.index} pydlbench ...",
    )
