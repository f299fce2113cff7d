"""A case in, a measurement out: the one place where layer, device, backend and timing meet."""

from __future__ import annotations

import bisect
import dataclasses
import datetime as dt
import sys
import types
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS, Case, check_device
from pydlbench.errors import BackendMissingError, PydlbenchError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pydlbench.backends.base import Preparation
    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.cpu import CpuFacts
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.layers import Layer
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Options", "Session", "measure", "probe_device"]

# Rotating copies of a cold cache state span this many last-level caches.
_COLD_FACTOR = 3
# The roof is the fastest way to move bytes; one of these is, which one depends on the machine.
_ROOF_PATTERNS = ("read", "copy", "triad")
# Rotating copies on a GPU span this many L2 caches: its replacement is not strictly the oldest
# line's, so that after twice its size one line in eight is still there.
_COLD_L2 = 4
# Frameworks whose oneDNN reports its kernels only if it was told to when they were loaded.
_LOGGED = ("tensorflow",)
_LOGGED_CALLS = 7


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
        workspace_bytes: scratch memory that a GPU's kernel may ask for at most.
        energy: measure the energy of an execution, where a GPU can tell.
        timeout_s: after so many seconds without an answer a worker counts as hung and is killed;
            None is 15 minutes, and an hour while it prepares a case.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    timeout_s: float | None = None


class Session:
    """Workers, device and settings of one run. Use as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu import choose_cpus, read_cpu_facts
        from pydlbench.devices.probing import start_record
        from pydlbench.timing.policy import Policy

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self.policy = Policy(confidence=self.options.confidence, budget_s=self.options.budget_s)
        self._workers: dict[tuple[str, str, bool, bool], Worker] = {}
        self._empty_calls: dict[tuple[str, str, str | None], float | None] = {}
        self._device: DeviceRecord = start_record(self.facts, self.cpus)
        self._gpus: dict[str, GpuRecord] = {}
        self._main = "cpu"
        self._unprobed: dict[str, str] = {}
        self._started = dt.datetime.now(dt.UTC)
        self._id = uuid.uuid4().hex[:12]

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
        for worker in self._workers.values():
            worker.discard()
        self._workers.clear()

    def worker(
        self,
        backend: str = "native",
        device: str = "cpu",
        *,
        warm: bool = False,
        logging: bool = False,
    ) -> Worker:
        """Return the worker of a backend; its process starts when it is first asked.

        Args:
            backend: its name.
            device: ``cpu`` or ``cuda:N``.
            warm: one whose C library keeps the pages that were freed.
            logging: one whose oneDNN reports its kernels; never timed by our clock.
        """
        from pydlbench.workers.environment import KEEP_PAGES, LOG_KERNELS
        from pydlbench.workers.host import Worker

        key = (backend, device, warm, logging)
        if key not in self._workers:
            limit = self.options.timeout_s
            limits = {} if limit is None else {"timeout": limit, "prepare_timeout": limit}
            extra = {**(KEEP_PAGES if warm else {}), **(LOG_KERNELS if logging else {})}
            self._workers[key] = Worker(backend, device, self.cpus, environment=extra, **limits)
        return self._workers[key]

    @property
    def run(self) -> RunRecord:
        """The record of this run: when, where, with what."""
        from pydlbench.devices.environment import read_environment
        from pydlbench.results import RunRecord

        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            device=self._described(),
            environment=read_environment(),
        )

    def _described(self) -> dict[str, Any]:
        """The device that was measured, with the host beside a GPU."""
        record = self._gpus.get(self._main)
        if record is None:
            return self._device.to_dict()
        return {**record.to_dict(), "host": self._device.to_dict()}

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
        from pydlbench.devices.probing import LEVELS, PATTERNS, extend_record

        worker = self.worker()
        self._device = extend_record(
            self._device,
            tuple(precisions),
            worker.describe(),
            worker.probe,
            PATTERNS if patterns is None else patterns,
            LEVELS if levels is None else levels,
        )
        return self._device

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
        from pydlbench.devices.gpu import GpuFacts
        from pydlbench.devices.gpu.probing import LEVELS, PATTERNS, extend_record, start_record

        worker = self.worker("native", device)
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
        """Return the record with what is known, and the reason why nothing more was probed."""
        from pydlbench.devices.reliability import unprobed_advice

        warnings = (*self._device.warnings, unprobed_advice(reason))
        self._device = dataclasses.replace(self._device, warnings=warnings)
        return self._device

    def measure(
        self,
        cases: Sequence[Case],
        progress: Callable[[int, int, str], None] | None = None,
    ) -> Iterator[Measurement]:
        """Measure cases one after another; a case that cannot be measured is a row that says why.

        Args:
            cases: what to measure.
            progress: called with rows done, rows in all and the next row's label.

        Raises:
            UsageError: a case needs more memory than there is; before anything is measured.
            BackendMissingError: the CUDA module or a library is missing; no row could be measured.
            UnsupportedError: there is no driver or no such GPU; likewise.
        """
        for case in cases:
            self._check_memory(case)
        for device in dict.fromkeys(case.device for case in cases if case.on_gpu):
            self.gpu(device, levels=())
        from pydlbench.contest import contest, groups

        done = 0
        for group in groups(cases):
            if progress:
                progress(done, len(cases), group[0].label)
            yield from [self._measure(group[0])] if len(group) == 1 else contest(self, group)
            done += len(group)
        if progress:
            progress(len(cases), len(cases), "")

    @property
    def seed(self) -> int:
        """Of the inputs and of the order of rounds."""
        return self.options.seed

    def threads(self, case: Case) -> int | None:
        """Return the threads of a row; None on a GPU."""
        return None if case.on_gpu else len(self.cpus)

    def allocates(self, case: Case) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
        return not case.on_gpu and case.backend in ("torch", "tensorflow")

    def empty_call_s(self, case: Case) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls."""
        key = (case.backend, case.device, case.mode)
        if key not in self._empty_calls:
            worker = self.worker(case.backend, case.device)
            try:
                self._empty_calls[key] = worker.probe("empty_call", mode=case.mode)["seconds"]
            except PydlbenchError:
                self._empty_calls[key] = None
        return self._empty_calls[key]

    def logged(self, case: Case, variant: str | None) -> dict[str, Any]:
        """Return what the library itself logs of a call, see ``KernelFacts.evidence``.

        Asked in a process of its own, whose pages are kept: of frameworks that cannot switch the
        log on and off. Empty where there is no such log.

        Args:
            case: what is computed.
            variant: the variant that was timed.
        """
        from pydlbench.backends.frameworks.verbose import evidence, middle_call, parse
        from pydlbench.timing.chunk import Request

        if case.on_gpu or case.backend not in _LOGGED:
            return {}
        worker = self.worker(case.backend, case.device, warm=True, logging=True)
        try:
            kernel = worker.prepare(case, self._preparation(case, variant))
            try:
                kernel.sample(Request(samples=_LOGGED_CALLS))
                return evidence(middle_call(parse(worker.said()), _LOGGED_CALLS), calls=1)
            finally:
                kernel.release()
        except PydlbenchError:
            return {}  # without a log there is one cause less to find

    def sampling_policy(self, case: Case, facts: dict[str, Any]) -> Policy:
        """Return the constants of sampling for a kernel."""
        from pydlbench.timing.policy import gpu_policy

        return gpu_policy(self.policy, facts, case.cache) if case.on_gpu else self.policy

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        worker = self.worker(case.backend, case.device, warm=warm)
        return worker.prepare(case, self._preparation(case, variant))

    def _preparation(self, case: Case, variant: str | None) -> Preparation:
        from pydlbench.backends.base import Preparation

        return Preparation(
            seed=self.options.seed,
            cold_bytes=self._cold_bytes(case),
            memory_bytes=self.facts.memory_available_bytes or (1 << 62),
            all_candidates=self.options.algorithms,
            workspace_bytes=self.options.workspace_bytes,
            energy=self.options.energy,
            variant=variant,
        )

    def _cold_bytes(self, case: Case) -> int:
        if case.on_gpu:
            facts = self.gpu(case.device, levels=()).facts
            return _COLD_L2 * facts.l2_bytes
        return _COLD_FACTOR * self._llc_bytes()

    def _llc_bytes(self) -> int:
        from pydlbench.devices.cpu import last_level_bytes

        return last_level_bytes(self.facts, self.cpus)

    def _measure(self, case: Case) -> Measurement:
        from pydlbench.rows import empty_row
        from pydlbench.timing.procedure import Sampling

        threads = self.threads(case)
        try:
            kernel = self.prepare(case)
            try:
                sampling = Sampling(self.sampling_policy(case, kernel.facts), alone=True)
                while request := sampling.next_request():
                    sampling.feed(kernel.sample(request))
                return self.row(case, kernel.facts, sampling.result())
            finally:
                kernel.release()
        except UnsupportedError as error:
            return empty_row(case, threads, "skipped", str(error))
        except PydlbenchError as error:
            return empty_row(case, threads, "failed", str(error))

    def row(self, case: Case, facts: dict[str, Any], samples: Samples) -> Measurement:
        """Return the row of a timed case, held against the limits of its device.

        Args:
            case: what was timed.
            facts: what its backend says of the kernel.
            samples: its times.
        """
        from pydlbench.devices.cpu import private_level_bytes
        from pydlbench.rows import cached_bytes, measured_row, with_limits

        row = measured_row(
            case,
            self.threads(case),
            facts,
            samples,
            keep_samples=self.options.keep_samples,
            keep_candidates=self.options.algorithms,
        )
        if case.on_gpu:
            precisions = dict.fromkeys((case.precision, *self._advisable(case)))
            levels: tuple[str, ...] = ("memory", "l2")
        else:
            precisions = dict.fromkeys((case.precision, "fp32", "bf16"))
            private = private_level_bytes(self.facts, self.cpus) or 0
            # A large kernel's time hardly depends on what its operands' first megabytes do.
            near = cached_bytes(case) <= 2 * private
            levels = ("memory", "llc", "l2") if near else ("memory", "llc")
        try:
            device = self._probed(case, precisions, levels)
            return with_limits(row, case, device, levels)
        except PydlbenchError as error:  # the time stands without a peak beside it
            return dataclasses.replace(row, warnings=(*row.warnings, str(error)))

    def _advisable(self, case: Case) -> tuple[str, ...]:
        """The precisions of a GPU that the advice to change the precision can name."""
        from pydlbench.devices.gpu import lacks

        half = "fp16-tc" if lacks(self._gpus[case.device].facts, "bf16-tc") else "bf16-tc"
        products = case.layer.kind == "gemm" and case.precision in ("fp16-tc", "bf16-tc")
        return ("fp32", half, "fp8-tc") if products else ("fp32", half)

    def _probed(
        self, case: Case, precisions: Iterable[str], levels: Sequence[str]
    ) -> DeviceRecord | GpuRecord:
        """The device for a row's roof; after a failure not every further row probes again."""
        if case.device in self._unprobed:
            raise PydlbenchError(self._unprobed[case.device])
        try:
            if case.on_gpu:
                return self.gpu(case.device, precisions, levels=levels)
            return self.device(precisions, _ROOF_PATTERNS, levels)
        except PydlbenchError as error:
            self._unprobed[case.device] = str(error)
            raise

    def _check_memory(self, case: Case) -> None:
        available = self.facts.memory_available_bytes
        if available is None or case.pass_ not in case.layer.passes:
            return
        from pydlbench.rows import memory_needed

        # Of a GPU's row the host holds the originals; the card is asked when it takes its part.
        cold_bytes = 0 if case.on_gpu else _COLD_FACTOR * self._llc_bytes()
        needed = memory_needed(case, case.layer, cold_bytes)
        if needed <= available:
            return
        from pydlbench.units import format_bytes

        def fits(batch: int) -> bool:
            return memory_needed(case, case.layer.with_batch(batch), cold_bytes) <= available

        nearest = "a smaller layer"
        batches = range(1, case.layer.batch)
        if count := bisect.bisect_left(batches, True, key=lambda batch: not fits(batch)):
            nearest = f"--batch {batches[count - 1]}"
        raise UsageError(
            f"{case.layer.name or case.layer.problem}: needs {format_bytes(needed)} of memory, "
            f"{format_bytes(available)} are available; nearest: {nearest}"
        )


def measure(
    layer: Layer,
    *,
    precision: str = "fp32",
    pass_: str = "forward",
    propagation: str = "inference",
    cache: str = "hot",
    layout: str = "best",
    backend: str = "native",
    device: str = "cpu",
    timing: str = "auto",
    fuse: str = "none",
    options: Options | None = None,
) -> Measurement:
    """Measure one layer and return the record that the command line prints.

    Args:
        layer: the problem, for example ``pydlbench.Conv2d.of(...)``.
        precision: storage and arithmetic: ``fp32``, ``bf16``, ``fp16`` on a CPU; ``fp32``,
            ``tf32``, ``fp16``, ``fp16-tc``, ``bf16-tc``, ``fp8-tc`` on a GPU.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, for the forward pass.
        cache: ``hot``, ``weights-cold`` or ``all-cold``.
        layout: ``best`` or one of ``any``, ``nchw``, ``nhwc``, ``blocked``.
        backend: who computes it.
        device: ``cpu`` or ``cuda:N``.
        timing: ``events`` or ``cuda-graph`` on a GPU; ``auto`` is what suits the cache state.
        fuse: ``bias-relu`` computes conv + bias + ReLU in one kernel on a GPU.
        options: threads, seed, budget, confidence, what to keep.

    Returns:
        The record; its ``status`` is ``skipped`` or ``failed``, with a ``reason``, where the case
        cannot be measured. Times in seconds, rates in TFLOP/s and GB/s.

    Raises:
        UsageError: an unknown word, or a layer that does not fit into memory.
    """
    case = Case(
        layer=layer,
        pass_=pass_,
        precision=precision,
        propagation=propagation,
        cache=cache,
        layout=layout,
        backend=backend,
        device=device,
        timing=timing,
        fuse=fuse,
    )
    with Session(options) as session:
        return next(session.measure([case]))


def probe_device(
    device: str = "cpu", threads: int | None = None, precisions: Sequence[str] | None = None
) -> DeviceRecord | GpuRecord:
    """Return a device's facts with its theoretical and measured peaks and bandwidths.

    Without its native module a CPU's record holds the facts and a warning that says so.

    Args:
        device: ``cpu`` or ``cuda:N``.
        threads: threads of a CPU's probes, one pinned per CPU; None is one per physical core.
        precisions: which peaks to measure; None is every one that the device has.

    Raises:
        UsageError: no such device, or more threads than CPUs.
        BackendMissingError: the CUDA module or one of its libraries is missing.
        UnsupportedError: there is no NVIDIA driver, or no such GPU.
        ImpossiblePeakError: a probe measured more than the device can do.
    """
    check_device(device)
    with Session(Options(threads=threads)) as session:
        if device != "cpu":
            return session.gpu(device, GPU_PRECISIONS if precisions is None else precisions)
        try:
            return session.device(CPU_PRECISIONS if precisions is None else precisions)
        except BackendMissingError as error:
            return session.unprobed(str(error))


class _Module(types.ModuleType):
    """``pydlbench.measure`` is this module once imported; calling it measures all the same."""

    def __call__(self, layer: Layer, **arguments: Any) -> Measurement:
        return measure(layer, **arguments)


sys.modules[__name__].__class__ = _Module
