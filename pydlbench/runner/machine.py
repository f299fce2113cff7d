"""The workers of a session, one per backend, and its devices with their probed limits."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pydlbench.backends import capabilities
from pydlbench.devices.bandwidths import LEVELS, PATTERNS, extend_bandwidths
from pydlbench.devices.cpu import record as cpu_record
from pydlbench.devices.cpu.advice import unprobed_advice
from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.cpu.working_set import last_level_bytes, private_level_bytes
from pydlbench.devices.gpu import record as gpu_record
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import lacks
from pydlbench.devices.gpu.record import GpuRecord
from pydlbench.devices.probe_cache import ProbeCache, machine_key, probe_cache_path
from pydlbench.errors import BackendMissingError, PydlbenchError, WorkerError
from pydlbench.records.measurement import NEAR_ROOF, KernelSpec, Measurement
from pydlbench.runner.rows import cached_bytes, with_limits
from pydlbench.study.table import Interference
from pydlbench.words import GPU_FRAMEWORK, arithmetic
from pydlbench.workers.environment import allocator_environment
from pydlbench.workers.host import DEFAULT_TIMEOUT, Worker, early_count, start_together, take_early


class Workers:
    """One process per backend, device and environment.

    Args:
        cpus: logical CPUs that each process is pinned to.
        timeout_s: see ``RunnerOptions``.
        code_limit_s: see ``RunnerOptions``.
        python: see ``RunnerOptions``.
        pythons: see ``RunnerOptions``.
    """

    def __init__(
        self,
        cpus: Sequence[int],
        timeout_s: float | None,
        code_limit_s: float | None = None,
        python: str | None = None,
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        self._cpus = tuple(cpus)
        self._limits = _limits(timeout_s)
        self._code_limits = self._limits
        if code_limit_s is not None:  # the user's code runs with the first request, not before
            start = {"start_timeout": timeout_s or DEFAULT_TIMEOUT}
            self._code_limits = {**_limits(code_limit_s), **start, "allows": "--time-limit"}
        self._python, self._pythons = python, pythons or {}
        self._workers: dict[tuple[str, str, str, bool, str | None], Worker] = {}
        self._bursts = True

    def get(
        self,
        backend: str,
        device: str,
        *,
        warm: bool = False,
        logging: bool = False,
        allocator: str | None = None,
        code: str | None = None,
    ) -> Worker:
        """Return the worker of a backend; its process starts with its first request.

        Args:
            backend: name of the backend.
            device: ``cpu`` or ``cuda:N``.
            warm: a process whose C library keeps freed pages.
            logging: a process whose oneDNN logs its kernels; it is not timed.
            allocator: one of ``workers.environment.ALLOCATORS``; None is ``kept pages`` for a warm
                process, else ``default``.
            code: the user's kernel that the process runs, beside no other row; None for none.

        Raises:
            UsageError: no such allocator.
            UnsupportedError: this machine does not have the allocator.
        """
        allocator = allocator or ("kept pages" if warm else "default")
        key = (backend, device, allocator, logging, code)
        if key not in self._workers:
            log = capabilities.declaration(backend).log_environment if logging else {}
            extra = {**allocator_environment(allocator), **log}
            limits = self._limits if backend == "native" else self._code_limits
            python = self._pythons.get(backend, self._python)
            usual = not extra and python is None
            worker = take_early(backend, device, self._cpus) if usual else None
            if worker is None:
                worker = Worker(
                    backend, device, self._cpus, environment=extra, python=python, **limits
                )
            for name, limit in limits.items():
                setattr(worker, name, limit)
            self._workers[key] = worker
        return self._workers[key]

    def interference(self, *, reads: bool = True) -> Interference:
        """Run bursts in the native worker while all others are stopped.

        A rate that cannot be measured is None. If there are no bursts on this machine, no more are
        run; if the worker died of them, the next call asks a new process.

        Args:
            reads: read from cache and from memory, too, not only do FMAs on all cores.
        """
        fma: float | None = None
        rates: dict[str, float | None] = {}
        if self._bursts:
            worker = self.get("native", "cpu")
            try:
                fma = worker.probe("burst")["share"]
                self._bursts = fma is not None
                if reads and self._bursts:
                    rates = worker.probe("reads")
            except PydlbenchError as error:
                self._bursts = fma is not None or isinstance(error, WorkerError)
        return Interference(fma=fma, **rates)

    def start(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Start the processes that are not running, at the same time, and wait until all are ready.

        Nothing is timed meanwhile. A process that cannot be started raises its error when it is
        needed.

        Args:
            wanted: backend and device of each process.
        """
        start_together([self.get(*place) for place in dict.fromkeys(wanted)])

    def renew(self, *, native: bool = True, others: bool = True) -> None:
        """End processes; the next request to each starts a new one, with other addresses.

        Args:
            native: end the processes of native kernels on a CPU.
            others: end the processes of frameworks and GPUs, which take seconds to start.
        """
        for (backend, device, *_), worker in self._workers.items():
            if native if (backend, device) == ("native", "cpu") else others:
                worker.close(kill=True)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.discard()
        self._workers.clear()


def _limits(seconds: float | None) -> dict[str, Any]:
    return {} if seconds is None else {"timeout": seconds, "prepare_timeout": seconds}


#: The fastest way to move bytes is the roof; it depends on the machine which of these it is.
ROOF_PATTERNS: Final = ("read", "copy", "triad")
# Seconds between two readings of a device's limits: a window of each level and a try of each peak
# take about 0.2 s, less than 1 % of that.
_REVISIT_S: Final = 30.0
# Arithmetic over memory time from which memory cannot be the limit: see :meth:`Devices._believe`.
_FAR_FROM_MEMORY: Final = 2.0
# Bytes per second that the memory of any machine reaches.
_MIN_MEMORY_RATE: Final = 5e9
# The pattern of the single window per level for rows that memory cannot limit.
_ROUGH_PATTERN: Final = "triad"


class Devices:
    """The CPU and the GPUs of a session. Only what its rows need is probed.

    Args:
        facts: facts about the CPU.
        cpus: logical CPUs that kernels are pinned to.
        workers: workers of the session; a device is probed by its native one.
        keep_probes: use the stored probes of earlier runs if a reading confirms them.
    """

    def __init__(
        self,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        workers: Workers,
        keep_probes: bool = True,
    ) -> None:
        self._keep_probes, self._facts, self._cpus = keep_probes, facts, cpus
        self._workers = workers
        self._cpu: DeviceRecord = cpu_record.start_record(facts, cpus, early_count())
        self._gpus: dict[str, GpuRecord] = {}
        self._main = "cpu"
        # Levels with unconfirmed bandwidths of an earlier run: nothing depends on them yet.
        self._unconfirmed: set[str] = set()
        # Precisions whose peaks were tried once, for advice only.
        self._hasty: set[str] = set()
        self._unprobed: dict[str, str] = {}  # reasons, by device
        # GPUs that only a framework could describe: they are not probed.
        self._of_framework: set[str] = set()
        self._probed_at: dict[str, float] = {}
        self._kept: ProbeCache | None = None

    def described(self) -> dict[str, Any]:
        """Return the device that was measured; a GPU with its host."""
        record = self._gpus.get(self._main)
        if record is None:
            return self._cpu.to_dict()
        return {**record.to_dict(), "host": self._cpu.to_dict()}

    def cpu(
        self,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
        *,
        hasty: bool = False,
    ) -> DeviceRecord:
        """Return the CPU's facts, peaks and bandwidths, probing what has not been probed yet.

        Args:
            precisions: which compute peaks are needed.
            patterns: which bandwidths are needed; None means all of them.
            levels: memory levels whose bandwidths are needed; None means all levels.
            hasty: whether a single try is enough for a peak; it is found anew once it limits a row.
        """
        worker = self._workers.get("native", "cpu")
        precisions = tuple(precisions)
        if not hasty and (again := self._hasty.intersection(precisions)):
            peaks = tuple(peak for peak in self._cpu.peaks if peak.precision not in again)
            self._cpu = dataclasses.replace(self._cpu, peaks=peaks)
            self._hasty -= again
        self._hasty |= set(self._cpu.lacking(precisions)) if hasty else set()
        self._cpu = cpu_record.extend_record(
            self._cpu,
            precisions,
            worker.describe(),
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
            self.kept(),
            self._keep_probes,
            hasty=hasty,
        )
        return self._cpu

    def gpu(
        self,
        device: str,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> GpuRecord:
        """Return a GPU's facts, peaks and bandwidths, probing what has not been probed yet.

        Args:
            device: ``cuda:N``.
            precisions: which compute peaks are needed.
            patterns: which bandwidths are needed; None means all of them.
            levels: memory levels whose bandwidths are needed; None means all levels.

        Raises:
            BackendMissingError: the CUDA module or a library is missing.
            UnsupportedError: there is no driver or no such GPU.
        """
        if device in self._of_framework:
            return self._gpus[device]
        worker = self._workers.get("native", device)
        described = worker.describe()
        self._main = device
        if device not in self._gpus:
            self._gpus[device] = gpu_record.start_record(
                GpuFacts.from_driver(described["device"]), described["nvml"]
            )
        self._gpus[device] = gpu_record.extend_record(
            self._gpus[device],
            tuple(precisions),
            described["libraries"],
            worker.probe,
            gpu_record.PATTERNS if patterns is None else patterns,
            gpu_record.LEVELS if levels is None else levels,
        )
        return self._gpus[device]

    def describe_gpu(self, device: str, backends: Iterable[str]) -> None:
        """Read a GPU's facts before its rows are measured.

        PyTorch describes it where the native module is missing; its rows then have no limits.

        Args:
            device: ``cuda:N``.
            backends: backends of the rows.

        Raises:
            BackendMissingError: the CUDA module is missing, and no row is PyTorch's.
            UnsupportedError: there is no driver or no such GPU.
        """
        try:
            self.gpu(device, levels=())
        except BackendMissingError as error:
            if GPU_FRAMEWORK not in backends:
                raise
            described = self._workers.get(GPU_FRAMEWORK, device).describe()
            facts = GpuFacts.from_driver(described["device"])
            self._gpus[device] = gpu_record.start_record(facts, described["nvml"])
            self._main, self._unprobed[device] = device, str(error)
            self._of_framework.add(device)

    def cache_bytes(self, device: str) -> int:
        """Return the size of the last-level cache that the session's threads share.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        if device != "cpu":
            return self.gpu(device, levels=()).facts.l2_bytes
        return last_level_bytes(self._facts, self._cpus)

    def unprobed(self, reason: str) -> DeviceRecord:
        """Return the CPU with a warning that says why nothing was probed."""
        warnings = (*self._cpu.warnings, unprobed_advice(reason))
        self._cpu = dataclasses.replace(self._cpu, warnings=warnings)
        return self._cpu

    def limited(self, row: Measurement, spec: KernelSpec, *, advised: bool = True) -> Measurement:
        """Return a row with the limits of its device, or with a warning that says why not.

        Args:
            row: a timed row.
            spec: what was timed.
            advised: whether a report says what another precision would gain.
        """
        if spec.on_gpu:
            precisions = dict.fromkeys((spec.precision, *self._advisable(spec)))
            levels: tuple[str, ...] = ("memory", "l2")
        else:
            precisions = dict.fromkeys((arithmetic(spec.precision),))
            private = private_level_bytes(self._facts, self._cpus) or 0
            # The inner caches matter only to kernels whose operands nearly fit into them.
            near = cached_bytes(spec) <= 2 * private
            levels = ("llc", "l2") if near else ("llc",)
            if not self._stays_cached(spec):
                levels = ("memory", *levels)
        try:
            believed = not spec.on_gpu and self._believe(row, spec, levels)
            lacking = () if believed else levels
            held = with_limits(row, spec, self._probed(spec, precisions, lacking), levels)
            over = held.roofline
            # They say so only for kernels near their roof.
            near_roof = over and (over.bound == "memory" or over.efficiency >= NEAR_ROOF)
            if advised and near_roof and not spec.on_gpu:
                self.cpu(("fp32", "bf16"), ROOF_PATTERNS, lacking, hasty=True)
            return held
        except PydlbenchError as error:  # the row is valid without limits
            return msgspec.structs.replace(row, warnings=(*row.warnings, str(error)))

    def _stays_cached(self, spec: KernelSpec) -> bool:
        """Whether no operand comes from the memory, whose bandwidth cannot be the limit then."""
        probed = cpu_record.probed_sizes(self._cpu)["llc"] is not None
        fits = cached_bytes(spec) <= (self.cache_bytes("cpu") or 0)
        return spec.cache == "hot" and probed and fits

    def _believe(self, row: Measurement, spec: KernelSpec, levels: Sequence[str]) -> bool:
        """Use stored bandwidths without confirming them if they cannot affect a row's roof.

        A window in memory maps and fills three times the last-level cache. If the arithmetic takes
        more than twice the time that the stored bandwidth gives, memory cannot be the limit.
        Otherwise the bandwidths are confirmed. If nothing is stored, and even slow memory would not
        be the limit, one window of each level is enough.

        Returns:
            Whether the bandwidths are known, so that nothing is probed for this row.
        """
        if not self._keep_probes or self._cpu.bandwidth_reason is not None:
            return False
        known = {row.level for row in self._cpu.bandwidths} - self._unconfirmed
        if known >= set(levels):
            return False
        kept = [row for row in self.kept().read() if row.pattern in ROOF_PATTERNS]
        self._probed(spec, (arithmetic(spec.precision),), ())
        record = self._cpu
        sizes = cpu_record.probed_sizes(record)
        kept = [row for row in kept if row.working_set_bytes == sizes[row.level]]
        wanted = [level for level in levels if sizes[level] is not None]
        whole = {row.level for row in kept} >= set(wanted)
        limits = record.limits(arithmetic(spec.precision), row.clock_hz)
        compute_s = row.flops_executed / limits.measured
        memory = [row.bytes_per_s for row in kept if row.level == "memory"]
        rate = max(memory) if whole and memory else _MIN_MEMORY_RATE
        if compute_s > _FAR_FROM_MEMORY * row.bytes / rate:
            lacking = [level for level in wanted if level not in known | self._unconfirmed]
            new = tuple(row for row in kept if row.level in lacking)
            if not whole:
                probe = self._workers.get("native", "cpu").probe
                bare = dataclasses.replace(record, bandwidths=())
                rough, _ = extend_bandwidths(
                    bare,
                    lambda: cpu_record.probe_bandwidths(
                        bare, (_ROUGH_PATTERN,), lacking, probe, windows=1
                    ),
                )
                new = rough.bandwidths
                self.kept().write([row for row in new if row.disturbance is None])
            self._cpu = dataclasses.replace(record, bandwidths=(*record.bandwidths, *new))
            self._unconfirmed |= {row.level for row in new}
            return {row.level for row in self._cpu.bandwidths} >= set(wanted)
        old = [row for row in record.bandwidths if row.level not in self._unconfirmed]
        self._cpu = dataclasses.replace(record, bandwidths=tuple(old))
        self._unconfirmed.clear()
        return False

    def _revisited(self, device: str, record: DeviceRecord | GpuRecord) -> DeviceRecord | GpuRecord:
        """Return the device, with new windows of its roofs if the last ones are old."""
        now = time.monotonic()
        if now - self._probed_at.setdefault(device, now) < _REVISIT_S:
            return record
        self._probed_at[device] = now
        probe = self._workers.get("native", device).probe
        try:
            if isinstance(record, cpu_record.DeviceRecord):
                self._cpu = cpu_record.revisit(record, probe, self.kept())
                return self._cpu
            self._gpus[device] = gpu_record.revisit(record, probe)
            return self._gpus[device]
        except WorkerError:
            # The earlier windows remain valid; without them later rows would have no roof.
            return record

    def kept(self) -> ProbeCache:
        """Return the file with the probes and kernels of earlier runs on this machine."""
        if self._kept is None:
            described = self._workers.get("native", "cpu").describe()
            self._kept = ProbeCache(
                probe_cache_path(), machine_key(self._facts, self._cpus, described)
            )
        return self._kept

    def _advisable(self, spec: KernelSpec) -> tuple[str, ...]:
        """Return the precisions of a GPU that advice to change the precision can name."""
        half = "fp16-tc" if lacks(self._gpus[spec.device].facts, "bf16-tc") else "bf16-tc"
        products = spec.layer.kind == "gemm" and spec.precision in ("fp16-tc", "bf16-tc")
        return ("fp32", half, "fp8-tc") if products else ("fp32", half)

    def _probed(
        self, spec: KernelSpec, precisions: Iterable[str], levels: Sequence[str]
    ) -> DeviceRecord | GpuRecord:
        """Return the device for a row's roof; after a failure it is not probed again."""
        if spec.device in self._unprobed:
            raise PydlbenchError(self._unprobed[spec.device])
        try:
            if spec.on_gpu:
                record: DeviceRecord | GpuRecord = self.gpu(spec.device, precisions, levels=levels)
            else:
                record = self.cpu(precisions, ROOF_PATTERNS, levels)
            return self._revisited(spec.device, record)
        except PydlbenchError as error:
            self._unprobed[spec.device] = str(error)
            raise
