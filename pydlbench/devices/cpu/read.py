"""Reads the CPU's facts from /proc and /sys. Absence is normal and never an error."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydlbench.devices.cpu.facts import Cache, CpuFacts, LogicalCpu, NumaNode
from pydlbench.devices.cpu.kernel_files import (
    parse_cpu_list,
    parse_size,
    read_cpuinfo,
    read_number,
    read_text,
)
from pydlbench.devices.cpu.limits import read_affinity, read_cpu_limit, read_memory_limit
from pydlbench.devices.cpu.nominal import read_nominal_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["read_cpu_facts"]

_ISA = (
    *("sse2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),
)


def read_cpu_facts(root: str | Path = "/") -> CpuFacts:
    """Read what the system tells about the CPU.

    Args:
        root: folder that holds ``proc`` and ``sys``; another one than ``/`` is for tests.
    """
    root = Path(root)
    real = root == Path("/")
    blocks = read_cpuinfo(root / "proc/cpuinfo")
    first = blocks[0] if blocks else {}
    flags = (first.get("flags") or first.get("features") or "").split()
    cpus = _cpus(root, blocks)
    notes = []
    if not blocks:
        system = platform.system() or "this system"
        notes.append(f"no /proc/cpuinfo ({system}): vendor, model and features are unknown")
        if real and not cpus:
            cpus = tuple(
                LogicalCpu(index=i, socket=0, siblings=(i,)) for i in range(os.cpu_count() or 1)
            )
            notes.append("no topology: every logical CPU is taken for a core")
    nominal_hz, nominal_source = read_nominal_clock(root, first)
    cpufreq = root / "sys/devices/system/cpu/cpu0/cpufreq"
    if read_text(cpufreq / "scaling_governor") is None:
        notes.append("no cpufreq files: governor and clock limits are unknown")
    max_khz = read_number(cpufreq / "cpuinfo_max_freq")
    memory = _memory(root)
    brand = first.get("model name")
    return CpuFacts(
        vendor=first.get("vendor_id"),
        family=_number(first, "cpu family"),
        model=_number(first, "model"),
        stepping=_number(first, "stepping"),
        brand=brand or (platform.processor() or None if real and not blocks else None),
        machine=platform.machine() if real else _machine(flags),
        isa=tuple(name for name in _ISA if name in flags),
        cpus=cpus,
        caches=_caches(root, cpus),
        numa_nodes=_numa_nodes(root),
        governor=read_text(cpufreq / "scaling_governor"),
        turbo=_turbo(root),
        nominal_hz=nominal_hz,
        nominal_source=nominal_source,
        max_hz=None if max_khz is None else max_khz * 1e3,
        affinity=read_affinity(root) or tuple(cpu.index for cpu in cpus),
        cpu_limit=read_cpu_limit(root),
        virtualised=_virtualised(root, flags) if blocks else None,
        hypervisor=_hypervisor(root) if "hypervisor" in flags else None,
        memory_total_bytes=memory.get("MemTotal"),
        memory_available_bytes=_available(root, memory),
        notes=tuple(notes),
    )


def _number(block: Mapping[str, str], key: str) -> int | None:
    text = block.get(key, "")
    return int(text) if re.fullmatch(r"[0-9]+", text) else None


def _machine(flags: Sequence[str]) -> str:
    return "x86_64" if "sse2" in flags else "aarch64" if "asimd" in flags else ""


def _cpus(root: Path, blocks: Sequence[Mapping[str, str]]) -> tuple[LogicalCpu, ...]:
    folder = root / "sys/devices/system/cpu"
    named = {n: block for block in blocks if (n := _number(block, "processor")) is not None}
    online = parse_cpu_list(read_text(folder / "online")) or tuple(sorted(named))
    cores: dict[tuple[int, int], list[int]] = {}
    sockets = {}
    for index in online:
        block = named.get(index, {})
        topology = folder / f"cpu{index}/topology"
        socket = read_number(topology / "physical_package_id")
        if socket is None:
            socket = _number(block, "physical id")
        # Some virtual machines and Arm boards say -1: one package.
        sockets[index] = max(socket or 0, 0)
        siblings = parse_cpu_list(
            read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        )
        core = siblings[0] if siblings else _number(block, "core id")
        # A core's first CPU names it where the siblings are told, its number within the socket
        # where only /proc/cpuinfo tells; a CPU of which nothing is told is a core.
        key = (-1 if siblings else sockets[index], index if core is None else core)
        cores.setdefault(key, []).append(index)
    together = {index: tuple(members) for members in cores.values() for index in members}
    return tuple(LogicalCpu(index=i, socket=sockets[i], siblings=together[i]) for i in online)


def _caches(root: Path, cpus: Sequence[LogicalCpu]) -> tuple[Cache, ...]:
    found: list[Cache] = []
    covered: set[tuple[str, int]] = set()
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu.index}/cache"
        for entry in sorted(folder.glob("index[0-9]*")):
            if (entry.name, cpu.index) in covered:
                continue
            level, size = read_number(entry / "level"), parse_size(read_text(entry / "size"))
            if level is None or size is None:
                continue
            shared = parse_cpu_list(read_text(entry / "shared_cpu_list")) or (cpu.index,)
            covered.update((entry.name, index) for index in shared)
            kind = read_text(entry / "type") or "Unified"
            found.append(Cache(level=level, type=kind, size_bytes=size, shared_cpus=shared))
    return tuple(found)


def _numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        match = re.search(r"MemTotal:\s+([0-9]+) kB", read_text(folder / "meminfo") or "")
        nodes.append(
            NumaNode(
                index=int(folder.name.removeprefix("node")),
                cpus=parse_cpu_list(read_text(folder / "cpulist")),
                memory_bytes=int(match[1]) * 1024 if match else None,
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.index))


def _turbo(root: Path) -> bool | None:
    folder = root / "sys/devices/system/cpu"
    boost = read_number(folder / "cpufreq/boost")
    if boost is not None:
        return boost != 0
    no_turbo = read_number(folder / "intel_pstate/no_turbo")
    return None if no_turbo is None else no_turbo == 0


def _virtualised(root: Path, flags: Sequence[str]) -> bool:
    return "hypervisor" in flags or read_text(root / "sys/hypervisor/type") is not None


def _hypervisor(root: Path) -> str | None:
    dmi = root / "sys/class/dmi/id"
    named = (read_text(dmi / "sys_vendor"), read_text(dmi / "product_name"))
    return read_text(root / "sys/hypervisor/type") or " ".join(filter(None, named)) or None


def _memory(root: Path) -> dict[str, int]:
    text = read_text(root / "proc/meminfo") or ""
    found = re.findall(r"^(MemTotal|MemAvailable):\s+([0-9]+) kB", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in found}


def _available(root: Path, memory: Mapping[str, int]) -> int | None:
    """What is free on the machine, or what the control group still allows, whichever is less."""
    known = (memory.get("MemAvailable"), read_memory_limit(root))
    return min((size for size in known if size is not None), default=None)
