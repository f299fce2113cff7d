"""One run: its settings, its workers and devices, and what is measured with them."""

from __future__ import annotations

import bisect
import dataclasses
import datetime as dt
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.layers.layer import result_role
from pydlbench.runner.measuring import ITEM_BYTES, Measuring
from pydlbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.devices.cpu.record import DeviceRecord
    from pydlbench.devices.gpu.record import GpuRecord
    from pydlbench.layers.layer import Layer
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = [
    "Devices",
    "Options",
    "Session",
    "Workers",
    "check_memory",
    "memory_held",
    "memory_needed",
]


# -----------------------------------------------------------------------------
# How a session measures.


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        confidence: level of the median's interval.
        keep_samples: keep the raw samples in the record.
        algorithms: time, verify and list every candidate.
        estimate: native rows on a CPU are summands, whose sum has to be good rather than each of
            them. Sampling stops at a half width of 2 % (``timing.policy.estimate_policy``), kernels
            are found by a shorter search, and cold caches are timed with the kernel that was
            fastest with hot ones, where those were measured before: the interval of an estimate
            is one kernel's. Kernels that compete side by side are searched and timed in full.
        workspace_bytes: scratch memory that a GPU's kernel may ask for at most.
        energy: measure the energy of an execution, where a GPU can tell.
        keep_probes: take over the bandwidths that an earlier run has probed on this machine, where
            a short reading agrees with them (:mod:`pydlbench.devices.kept`); else they are probed
            anew, and kept for later runs.
        timeout_s: after so many seconds without an answer a worker counts as hung and is killed;
            None is 15 minutes, and an hour while it prepares a case.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    keep_probes: bool = True
    timeout_s: float | None = None


# -----------------------------------------------------------------------------
# The workers of a session, each started when it is first asked.


class Workers:
    """One process per backend, device and environment.

    Args:
        cpus: logical CPUs that each of them is pinned to.
        timeout_s: see ``Options``.
    """

    def __init__(self, cpus: Sequence[int], timeout_s: float | None) -> None:
        self._cpus = tuple(cpus)
        self._limits = (
            {} if timeout_s is None else {"timeout": timeout_s, "prepare_timeout": timeout_s}
        )
        self._found: dict[tuple[str, str, str, bool], Worker] = {}

    def get(self, backend: str, device: str, *, allocator: str, logging: bool) -> Worker:
        """Return a worker; see ``Session.worker``."""
        from pydlbench.backends import capabilities
        from pydlbench.workers.environment import allocator_environment
        from pydlbench.workers.host import Worker

        key = (backend, device, allocator, logging)
        if key not in self._found:
            log = capabilities.of(backend).log_environment if logging else {}
            extra = {**allocator_environment(allocator), **log}
            self._found[key] = Worker(
                backend, device, self._cpus, environment=extra, **self._limits
            )
        return self._found[key]

    def close(self) -> None:
        """End them all."""
        for worker in self._found.values():
            worker.discard()
        self._found.clear()


# -----------------------------------------------------------------------------
# The devices of a session, probed as far as its rows have needed it.

# The roof is the fastest way to move bytes; one of these is, which one depends on the machine.
_ROOF_PATTERNS = ("read", "copy", "triad")


class Devices:
    """A CPU and any number of GPUs.

    Args:
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        worker: returns the native worker of a device.
        keep_probes: take over what earlier runs have probed, where a reading agrees with it.
    """

    def __init__(
        self,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        worker: Callable[[str], Worker],
        keep_probes: bool = True,
    ) -> None:
        from pydlbench.devices.cpu.record import start_record

        self._keep_probes = keep_probes

        self._facts = facts
        self._cpus = cpus
        self._worker = worker
        self._cpu: DeviceRecord = start_record(facts, cpus)
        self._gpus: dict[str, GpuRecord] = {}
        self._main = "cpu"
        self._unprobed: dict[str, str] = {}

    def described(self) -> dict[str, Any]:
        """Return the device that was measured, with the host beside a GPU."""
        record = self._gpus.get(self._main)
        if record is None:
            return self._cpu.to_dict()
        return {**record.to_dict(), "host": self._cpu.to_dict()}

    def cpu(
        self,
        precisions: Iterable[str],
        patterns: Sequence[str] | None,
        levels: Sequence[str] | None,
    ) -> DeviceRecord:
        """Return the CPU; see ``Session.device``."""
        from pydlbench.devices.bandwidths import LEVELS, PATTERNS
        from pydlbench.devices.cpu.record import extend_record
        from pydlbench.devices.kept import Kept, kept_path, machine_key

        worker = self._worker("cpu")
        told = worker.describe()
        kept = Kept(kept_path(), machine_key(self._facts, self._cpus, told))
        self._cpu = extend_record(
            self._cpu,
            tuple(precisions),
            told,
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
            kept,
            self._keep_probes,
        )
        return self._cpu

    def gpu(
        self,
        device: str,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> GpuRecord:
        """Return a GPU; see ``Session.gpu``."""
        from pydlbench.devices.gpu.facts import GpuFacts
        from pydlbench.devices.gpu.record import LEVELS, PATTERNS, extend_record, start_record

        worker = self._worker(device)
        told = worker.describe()
        self._main = device
        if device not in self._gpus:
            self._gpus[device] = start_record(GpuFacts.of(told["device"]), told["nvml"])
        self._gpus[device] = extend_record(
            self._gpus[device],
            tuple(precisions),
            told["libraries"],
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
        )
        return self._gpus[device]

    def unprobed(self, reason: str) -> DeviceRecord:
        """Return the CPU with what is known, and the reason why nothing more was probed."""
        from pydlbench.devices.cpu.advice import unprobed_advice

        warnings = (*self._cpu.warnings, unprobed_advice(reason))
        self._cpu = dataclasses.replace(self._cpu, warnings=warnings)
        return self._cpu

    def limited(self, row: Measurement, case: KernelSpec) -> Measurement:
        """Return a row held against the limits of its device, or with the reason why not.

        Args:
            row: a timed one.
            case: what was timed.
        """
        from pydlbench.devices.cpu.working_set import private_level_bytes
        from pydlbench.runner.measuring import cached_bytes, with_limits

        if case.on_gpu:
            precisions = dict.fromkeys((case.precision, *self._advisable(case)))
            levels: tuple[str, ...] = ("memory", "l2")
        else:
            precisions = dict.fromkeys((case.precision, "fp32", "bf16"))
            private = private_level_bytes(self._facts, self._cpus) or 0
            # A large kernel's time hardly depends on what its operands' first megabytes do.
            near = cached_bytes(case) <= 2 * private
            levels = ("memory", "llc", "l2") if near else ("memory", "llc")
        try:
            return with_limits(row, case, self._probed(case, precisions, levels), levels)
        except PydlbenchError as error:  # the time stands without a peak beside it
            return msgspec.structs.replace(row, warnings=(*row.warnings, str(error)))

    def _advisable(self, case: KernelSpec) -> tuple[str, ...]:
        """The precisions of a GPU that the advice to change the precision can name."""
        from pydlbench.devices.gpu.peaks import lacks

        half = "fp16-tc" if lacks(self._gpus[case.device].facts, "bf16-tc") else "bf16-tc"
        products = case.layer.kind == "gemm" and case.precision in ("fp16-tc", "bf16-tc")
        return ("fp32", half, "fp8-tc") if products else ("fp32", half)

    def _probed(
        self, case: KernelSpec, precisions: Iterable[str], levels: Sequence[str]
    ) -> DeviceRecord | GpuRecord:
        """The device for a row's roof; after a failure not every further row probes again."""
        if case.device in self._unprobed:
            raise PydlbenchError(self._unprobed[case.device])
        try:
            if case.on_gpu:
                return self.gpu(case.device, precisions, levels=levels)
            return self.cpu(precisions, _ROOF_PATTERNS, levels)
        except PydlbenchError as error:
            self._unprobed[case.device] = str(error)
            raise


# -----------------------------------------------------------------------------
# Whether what is to be measured fits into memory: asked before anything is measured.

# What a search holds at once: layouts of every operand, and pools of two finalists.
_LAYOUTS = 3
_POOLS = 2


def check_memory(processes: Sequence[KernelSpec], available: int, cold_bytes: int) -> None:
    """Make sure that processes of one problem have room beside each other.

    Args:
        processes: the case of each; those of one problem are prepared one after another, and all
            of them hold their operands until the last one is timed.
        available: bytes of memory.
        cold_bytes: what the rotating copies of a cold cache state span.

    Raises:
        UsageError: there is too little memory.
    """
    processes = [case for case in processes if case.pass_ in case.layer.passes]
    if not processes:
        return
    layer = processes[0].layer

    def needed(batch: int) -> int:
        return group_memory(processes, layer.with_batch(batch), cold_bytes)

    if needed(layer.batch) <= available:
        return
    several = f" for {len(processes)} processes at a time" if len(processes) > 1 else ""
    nearest = "fewer of --backend and --mode" if several else "a smaller layer"
    batches = range(1, layer.batch)
    if count := bisect.bisect_left(batches, True, key=lambda batch: needed(batch) > available):
        nearest = f"--batch {batches[count - 1]}"
    raise UsageError(
        f"{layer.name or layer.problem}: needs {format_bytes(needed(layer.batch))} of memory"
        f"{several}, {format_bytes(available)} are available; nearest: {nearest}"
    )


def group_memory(processes: Sequence[KernelSpec], layer: Layer, cold_bytes: int) -> int:
    """Return the most bytes that processes of one problem hold at a time.

    Each is prepared while all others hold theirs: whichever dies is prepared once more at the end.

    Args:
        processes: the case of each.
        layer: their layer, or the same with another batch.
        cold_bytes: see :func:`check_memory`.
    """
    total, most = 0, 0
    for case in processes:
        # Of a GPU's row the host holds the originals; the card is asked when it takes its part.
        cold = 0 if case.on_gpu else cold_bytes
        held = memory_held(case, layer, cold)
        total += held
        most = max(most, memory_needed(case, layer, cold) - held)
    return total + most


def memory_needed(case: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that measuring a case takes, verification and finals included.

    The float32 originals; every operand in up to three layouts in the storage type; a float32 copy
    of the output; where caches are cold, two pools of rotating copies, each of which spans
    ``cold_bytes`` and ends with whole copies.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: what the rotating copies of a cold cache state span at least.
    """
    operands = layer.operands(case.pass_)
    output = result_role(layer, case.pass_)
    elements = sum(operands.values())
    stored = elements * ITEM_BYTES[case.precision]
    needed = 4 * elements + _LAYOUTS * stored + 4 * operands[output]
    return needed if case.cache == "hot" else needed + _POOLS * (cold_bytes + 2 * stored)


def memory_held(case: KernelSpec, layer: Layer, cold_bytes: int) -> int:
    """Return the bytes of memory that a prepared case keeps until it is released.

    Every operand once, in the storage type; where caches are cold, one pool of rotating copies
    instead, which ends with a whole copy. A GPU's row holds nothing on the host.

    Args:
        case: what is to be measured.
        layer: its layer, or the same with another batch.
        cold_bytes: see :func:`memory_needed`.
    """
    if case.on_gpu:
        return 0
    stored = sum(layer.operands(case.pass_).values()) * ITEM_BYTES[case.precision]
    return stored if case.cache == "hot" else cold_bytes + 2 * stored


class Session:
    """Workers, device and settings of one run. Use as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu.affinity import choose_cpus
        from pydlbench.devices.cpu.facts import read_cpu_facts

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self._workers = Workers(self.cpus, self.options.timeout_s)
        self._devices = Devices(
            self.facts, self.cpus, partial(self.worker, "native"), self.options.keep_probes
        )
        self._measuring = Measuring(self.options, self.facts, self.cpus, self._devices, self.worker)
        self._started = dt.datetime.now(dt.UTC)
        self._id = f"{self._started:%Y%m%d}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def worker(
        self,
        backend: str = "native",
        device: str = "cpu",
        *,
        warm: bool = False,
        logging: bool = False,
        allocator: str | None = None,
    ) -> Worker:
        """Return the worker of a backend; its process starts when it is first asked.

        Args:
            backend: its name.
            device: ``cpu`` or ``cuda:N``.
            warm: one whose C library keeps the pages that were freed.
            logging: one whose oneDNN reports its kernels; never timed by our clock.
            allocator: one of ``session.allocators.ALLOCATORS``; None is ``kept pages`` for a warm
                one, else ``default``.

        Raises:
            UsageError: no such allocator.
            UnsupportedError: an allocator that this machine has not.
        """
        chosen = allocator or ("kept pages" if warm else "default")
        return self._workers.get(backend, device, allocator=chosen, logging=logging)

    @property
    def run(self) -> RunRecord:
        """The record of this run: when, where, with what."""
        from pydlbench.backends import capabilities
        from pydlbench.records.run import RunRecord

        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            device=self._devices.described(),
            environment=capabilities.environment(),
        )

    def device(
        self,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> DeviceRecord:
        """Return facts, peaks and bandwidths, probing what has not been probed yet.

        Args:
            precisions: which compute peaks are needed.
            patterns: which bandwidths are needed; None is all of them.
            levels: of which levels of the memory; None is all of them.
        """
        return self._devices.cpu(precisions, patterns, levels)

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
            patterns: which bandwidths are needed; None is all of them.
            levels: of which levels of the memory; None is all of them.

        Raises:
            BackendMissingError: the CUDA module or a library is missing.
            UnsupportedError: there is no driver or no such GPU.
        """
        return self._devices.gpu(device, precisions, patterns, levels)

    def unprobed(self, reason: str) -> DeviceRecord:
        """Return the record with what is known, and the reason why nothing more was probed."""
        return self._devices.unprobed(reason)

    def measure(
        self,
        cases: Sequence[KernelSpec],
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Iterator[tuple[KernelSpec, Measurement]]:
        """Measure cases and yield each with its row; one that cannot be measured says why in it.

        Cases that differ in backend and mode only are interleaved, so rows need not come in the
        order of ``cases``.

        Args:
            cases: what to measure.
            progress: called with rows done, rows in all and the next row's label.

        Raises:
            UsageError: a case needs more memory than there is; before anything is measured.
            BackendMissingError: the CUDA module or a library is missing; no row could be measured.
            UnsupportedError: there is no driver or no such GPU; likewise.
        """
        from pydlbench.runner.problem import by_problem, measure_problem

        found = list(by_problem(cases))
        self.check_room(cases)
        for device in dict.fromkeys(case.device for case in cases if case.on_gpu):
            self.gpu(device, levels=())
        done = 0
        for group in found:
            if progress:
                progress(done, len(cases), _label(group))
            if len(group) == 1:
                yield group[0], self._measuring.alone(group[0])
            else:
                yield from zip(group, measure_problem(self._measuring, group), strict=True)
            done += len(group)
        if progress:
            progress(len(cases), len(cases), "")

    def cache_bytes(self, device: str = "cpu") -> int:
        """Return the size of the last cache before memory, as far as the session's threads see it.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        if device != "cpu":
            return self.gpu(device, levels=()).facts.l2_bytes
        from pydlbench.devices.cpu.working_set import last_level_bytes

        return last_level_bytes(self.facts, self.cpus)

    def remember(self, case: KernelSpec, algorithm: str, layout: str) -> None:
        """Take a hot row's kernel from elsewhere: an estimate's cold row is timed with the same.

        Args:
            case: of the hot row.
            algorithm: the kernel's, by its library's name.
            layout: the layouts that it works in.
        """
        self._measuring.remember(case, algorithm, layout)

    def prepare(
        self, case: KernelSpec, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        return self._measuring.prepare(case, warm=warm, variant=variant)

    def check_room(self, cases: Sequence[KernelSpec]) -> None:
        """Make sure that cases fit into memory, those beside each other that are interleaved.

        Raises:
            UsageError: one needs more than there is; it names the largest batch that fits.
        """
        from pydlbench.runner.problem import by_problem

        available = self.facts.memory_available_bytes
        if available is None:
            return
        for group in by_problem(cases):
            processes = self._measuring.processes(group)
            check_memory(processes, available, self._measuring.cold_bytes())


def _label(group: Sequence[KernelSpec]) -> str:
    """What the progress says of a group: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
