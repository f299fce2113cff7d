"""Facts about the CPU from /proc and /sys, and limits of this process. Unknown facts are None."""

import dataclasses
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogicalCpu:
    """A logical CPU of the scheduler.

    Attributes:
        index: number in the kernel's list.
        socket: number of the package that the CPU is in.
        siblings: logical CPUs of the same physical core, including this one.
    """

    index: int
    socket: int
    siblings: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One cache, with the CPUs that share it.

    Attributes:
        level: level of the cache; 1 is nearest to the core.
        type: contents of the cache: ``Data``, ``Instruction`` or ``Unified``.
        size_bytes: capacity of the cache.
        shared_cpus: logical CPUs that share the cache.
    """

    level: int
    type: str
    size_bytes: int
    shared_cpus: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One memory node.

    Attributes:
        index: number in the kernel's list.
        cpus: logical CPUs of the node.
        memory_bytes: memory of the node; None if unknown.
    """

    index: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """Facts about the CPU, and about the share of it that this process may use.

    Attributes:
        vendor: name of the vendor from CPUID (``AuthenticAMD``, ``GenuineIntel``).
        family: display family.
        model: display model.
        stepping: revision of the chip.
        brand: marketing name of the CPU.
        machine: instruction set architecture (``x86_64``, ``aarch64``).
        isa: instruction sets that affect the peaks, in the kernel's spelling.
        cpus: logical CPUs that are online.
        caches: caches of all cores, each with the CPUs that share it.
        numa_nodes: memory nodes of the machine.
        governor: frequency governor.
        turbo: whether the clock may rise above the nominal one.
        nominal_hz: nominal clock in Hz.
        nominal_source: source of the nominal clock.
        max_hz: highest clock of the frequency driver, in Hz.
        affinity: CPUs on which this process may run.
        cpu_limit: CPU quota of the control group, in CPUs; None if there is no limit.
        virtualised: whether the machine is a guest.
        hypervisor: name of the hypervisor, if known.
        memory_total_bytes: size of the machine's memory.
        memory_available_bytes: memory available without swapping and within the control group.
        notes: facts that could not be read, with reasons.
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
        """The brand; if unknown, the vendor or the machine."""
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
        """The largest number of logical CPUs of a core (1: no SMT, or it is off)."""
        return max((len(cpu.siblings) for cpu in self.cpus), default=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for JSON: sizes in bytes, clocks in Hz, caches grouped by kind."""
        grouped = ("cpus", "caches", "numa_nodes")
        plain = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in grouped
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
    """Return one entry per kind of cache with its count: servers have hundreds of equal caches."""
    groups: dict[tuple[int, str, int, int], int] = {}
    for cache in caches:
        key = (cache.level, cache.type, cache.size_bytes, len(cache.shared_cpus))
        groups[key] = groups.get(key, 0) + 1
    return [
        {"level": level, "type": type_, "size_bytes": size, "cpus_each": shared, "count": count}
        for (level, type_, size, shared), count in sorted(groups.items())
    ]


# -----------------------------------------------------------------------------
# The nominal clock of the data sheet; the core may run at another one.


def read_nominal_clock(
    root: Path, cpuinfo: Mapping[str, str]
) -> tuple[float, str] | tuple[None, None]:
    """Return the nominal clock in Hz and its source, or (None, None).

    Sources in this order: the frequency driver, the firmware's CPPC table, the brand string, the
    time-stamp counter (it ticks at the nominal clock on x86; the kernel publishes it as half of
    the bogomips), and the present clock, which may differ but is all that some systems provide.

    Args:
        root: folder that holds ``sys``.
        cpuinfo: fields of the first block of /proc/cpuinfo.
    """
    folder = root / "sys/devices/system/cpu/cpu0"
    khz = read_number(folder / "cpufreq/base_frequency")
    if khz:
        return khz * 1e3, "cpufreq base_frequency"
    mhz = read_number(folder / "acpi_cppc/nominal_freq")
    if mhz:
        return mhz * 1e6, "ACPI CPPC nominal_freq"
    brand = re.search(r"@\s*([0-9.]+)\s*([GM])Hz", cpuinfo.get("model name", ""))
    if brand and (value := _positive(brand[1])):
        return value * {"G": 1e9, "M": 1e6}[brand[2]], "brand string"
    if "constant_tsc" in cpuinfo.get("flags", "").split():
        bogomips = _positive(cpuinfo.get("bogomips", ""))
        if bogomips:
            return bogomips / 2 * 1e6, "time-stamp counter (bogomips / 2)"
    present = _positive(cpuinfo.get("cpu mhz", ""))
    return (present * 1e6, "/proc/cpuinfo cpu MHz (present clock)") if present else (None, None)


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e6 else None


# -----------------------------------------------------------------------------
# Reading facts from /proc and /sys. Missing files are normal and not an error.

_ISA = (
    *("sse2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),
)


def read_cpu_facts(root: str | Path = "/") -> CpuFacts:
    """Read the facts about the CPU.

    Args:
        root: folder that holds ``proc`` and ``sys``; other than ``/`` for tests only.
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
            notes.append("no topology: every logical CPU is assumed to be a core")
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


def _machine(flags: Sequence[str]) -> str:
    return "x86_64" if "sse2" in flags else "aarch64" if "asimd" in flags else ""


def _virtualised(root: Path, flags: Sequence[str]) -> bool:
    return "hypervisor" in flags or read_text(root / "sys/hypervisor/type") is not None


def _available(root: Path, memory: Mapping[str, int]) -> int | None:
    """The free memory of the machine or of the control group, whichever is less."""
    known = (memory.get("MemAvailable"), read_memory_limit(root))
    return min((size for size in known if size is not None), default=None)


def _number(block: Mapping[str, str], key: str) -> int | None:
    text = block.get(key, "")
    return int(text) if re.fullmatch(r"[0-9]+", text) else None


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
        # Some virtual machines and Arm boards have -1: one package.
        sockets[index] = max(socket or 0, 0)
        siblings = parse_cpu_list(
            read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        )
        core = siblings[0] if siblings else _number(block, "core id")
        # A core is identified by its first CPU if the siblings are known, else by its number within
        # the socket from /proc/cpuinfo; without either, every CPU is a core.
        key = (-1 if siblings else sockets[index], index if core is None else core)
        cores.setdefault(key, []).append(index)
    siblings_of = {index: tuple(members) for members in cores.values() for index in members}
    return tuple(LogicalCpu(index=i, socket=sockets[i], siblings=siblings_of[i]) for i in online)


def _caches(root: Path, cpus: Sequence[LogicalCpu]) -> tuple[Cache, ...]:
    caches: list[Cache] = []
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
            caches.append(Cache(level=level, type=kind, size_bytes=size, shared_cpus=shared))
    return tuple(caches)


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


def _hypervisor(root: Path) -> str | None:
    dmi = root / "sys/class/dmi/id"
    named = (read_text(dmi / "sys_vendor"), read_text(dmi / "product_name"))
    return read_text(root / "sys/hypervisor/type") or " ".join(filter(None, named)) or None


def _memory(root: Path) -> dict[str, int]:
    text = read_text(root / "proc/meminfo") or ""
    amounts = re.findall(r"^(MemTotal|MemAvailable):\s+([0-9]+) kB", text, re.MULTILINE)
    return {name: int(value) * 1024 for name, value in amounts}


# Limit and usage, and the field of the page cache. In version 1, fields without the prefix "total"
# exclude the children of the group.
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
# Without a limit, version 1 has the largest multiple of a page.
_UNLIMITED = 1 << 60


def read_affinity(root: Path) -> tuple[int, ...]:
    """Return the CPUs on which this process may run; empty if unknown."""
    status = read_text(root / "proc/self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    allowed = parse_cpu_list(match[1]) if match else ()
    if not allowed and root == Path("/") and hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return allowed


def read_cpu_limit(root: Path) -> float | None:
    """Return the tightest CPU quota of this process's control groups, in CPUs; None for no limit.

    Version 2 (``cpu.max``) and version 1 (``cpu.cfs_quota_us``) are read; a group's ancestors
    limit it too.
    """
    limits = (
        _quota_v2(folder) if version == 2 else _quota_v1(folder)
        for version, folder in _groups(root, "cpu")
    )
    return min((limit for limit in limits if limit is not None), default=None)


def read_memory_limit(root: Path) -> int | None:
    """Return the bytes that remain within this process's control groups; None for no limit.

    Version 2 (``memory.max`` less ``memory.current``) and version 1 (``memory.limit_in_bytes`` less
    ``memory.usage_in_bytes``) are read; a group's ancestors limit it too. Usage includes the page
    cache; the part that the kernel reclaims first (``inactive_file``) counts as free.
    """
    limits = (
        _available_bytes(folder, *_MEMORY_FILES[version])
        for version, folder in _groups(root, "memory")
    )
    return min((limit for limit in limits if limit is not None), default=None)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of every control group that limits this process."""
    top = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            for mount in (top, top / "unified"):
                yield from ((2, folder) for folder in _upwards(mount, path))
        elif controller in controllers.split(","):
            for mount in (top / controller, top / controllers):
                yield from ((1, folder) for folder in _upwards(mount, path))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a group and of its ancestors up to the mount.

    In a container the path may be that of the host, without a folder; the mount itself counts.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _quota_v2(folder: Path) -> float | None:
    match = re.fullmatch(r"([0-9]+) ([1-9][0-9]*)", read_text(folder / "cpu.max") or "")
    return int(match[1]) / int(match[2]) if match else None


def _quota_v1(folder: Path) -> float | None:
    quota = read_number(folder / "cpu.cfs_quota_us")
    period = read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _available_bytes(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    limit = read_number(folder / limit_name)  # None if it is "max"
    if limit is None or limit < 0 or limit >= _UNLIMITED:
        return None
    usage = read_number(folder / usage_name) or 0
    text = read_text(folder / "memory.stat") or ""
    match = re.search(rf"^{cache_name} ([0-9]+)$", text, re.MULTILINE)
    return max(0, limit - max(0, usage - (int(match[1]) if match else 0)))


# -----------------------------------------------------------------------------
# Reading the kernel's small text files under /proc and /sys; None for missing ones.


def read_text(path: Path) -> str | None:
    """Return the stripped text of ``path``, or None if it is missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the whole number in ``path``, or None."""
    text = read_text(path)
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]+", text) else None


def parse_cpu_list(text: str | None) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-3,8``; empty for None or another text."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        if match is None:
            return ()
        first = int(match[1])
        numbers.update(range(first, int(match[2] or first) + 1))
    return tuple(sorted(numbers))


def parse_size(text: str | None) -> int | None:
    """Return the bytes of a size such as ``32K`` or ``8M``, or None."""
    match = re.fullmatch(r"([0-9]+)([KMG]?)", text or "")
    return None if match is None else int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def read_cpuinfo(path: Path) -> list[dict[str, str]]:
    """Return one dict per block of /proc/cpuinfo: its keys in lower case, its values stripped."""
    blocks = []
    for block in re.split(r"\n\s*\n", read_text(path) or ""):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        values = {key.strip().lower(): value.strip() for key, value in pairs}
        if values:
            blocks.append(values)
    return blocks
