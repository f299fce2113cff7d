"""A session: settings, workers and devices of one run, and the repetitions of its rows."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec

from pydlbench.backends import capabilities
from pydlbench.backends.base import KernelFacts
from pydlbench.backends.capabilities import default_device
from pydlbench.devices.cpu import affinity
from pydlbench.devices.cpu.facts import CpuFacts, read_cpu_facts
from pydlbench.devices.cpu.record import DeviceRecord
from pydlbench.devices.gpu.peaks import rated_clock
from pydlbench.devices.gpu.record import GpuRecord
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.ops.fused import canonical_fusion
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import DevicePeaks, KernelSpec, Measurement
from pydlbench.records.run import RunRecord, command_line
from pydlbench.runner.kernels import SessionKernels, user_kernel_of
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.memory import check_memory, memory_held
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.problem import RowProblem, by_problem, is_quick
from pydlbench.study.loop import random_order
from pydlbench.study.table import Interference
from pydlbench.timing.policy import LAYER_BUDGET_S
from pydlbench.words import CPU_PEAKS, GPU_LAYER_PRECISIONS, check_device, check_word
from pydlbench.workers.host import RemoteKernel, Worker


class Session:
    """Workers, devices and settings of one run. Use as a context manager.

    Attributes:
        options: settings.
        facts: facts about the CPU.
        cpus: logical CPUs that kernels are pinned to.
        devices: CPU and GPUs with what was probed; probes more on request.
        recorded: recorded calls by step. A user's model runs once for all requests of a session.
    """

    def __init__(self, options: RunnerOptions | None = None) -> None:
        self.options = how = options or RunnerOptions()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = affinity.choose_cpus(self.facts, how.threads)
        self._workers = Workers(self.cpus, how.timeout_s, how.code_limit_s, how.python, how.pythons)
        self.devices = Devices(self.facts, self.cpus, self._workers, how.keep_probes)
        self._kernels = SessionKernels(how, self.facts, self.cpus, self._workers, self.devices)
        self.recorded: dict[bytes, Any] = {}
        self._started = dt.datetime.now(dt.UTC)
        self._id = f"{self._started:%Y%m%d}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Return the worker of a backend; see :meth:`pydlbench.runner.machine.Workers.get`."""
        return self._workers.get(backend, device, warm=warm, logging=logging, allocator=allocator)

    def renew(self) -> None:
        """End the processes of frameworks; the next request to each starts a new one.

        The native process stays: it reads the bursts.
        """
        self._workers.renew(native=False)

    def interference(self, *, reads: bool = True) -> Interference:
        """Measure interference; see :meth:`pydlbench.runner.machine.Workers.interference`."""
        return self._workers.interference(reads=reads)

    @property
    def run(self) -> RunRecord:
        """The record of this run: time, command, environment, and devices as probed so far."""
        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=command_line(),
            device=self.devices.described(),
            environment=self._environment,
        )

    @functools.cached_property
    def _environment(self) -> dict[str, Any]:
        """The software of this process; reading it takes as long as a short row."""
        return capabilities.environment()

    def measure(
        self,
        specs: Sequence[KernelSpec],
        progress: Callable[[float, int, str], None] = lambda *_: None,
        *,
        effort: Effort | None = None,
        so_far: bool = False,
        first_of: int | None = None,
        prepared: dict[KernelSpec, RemoteKernel[KernelFacts]] | None = None,
    ) -> Iterator[tuple[KernelSpec, Measurement]]:
        """Measure specs and yield each with its row, which says why if it could not be measured.

        Specs that differ only in backend and mode are interleaved. With several repetitions, rows
        are finished in the last one, so they need not come in the order of ``specs``.

        Args:
            specs: what to measure.
            progress: called with the number of finished rows (fractions included), the number of
                all rows, and what comes next.
            effort: see :func:`pydlbench.runner.session.repeated_problems`.
            so_far: also yield a row after each of its repetitions, from the samples so far
                (:attr:`Measurement.complete <pydlbench.records.measurement.Measurement>`).
            first_of: search for each kernel and take only the first of this many repetitions; the
                caller takes the others.
            prepared: filled with the kernels of yielded rows that are still prepared: those on a
                GPU that fit into its memory. The caller releases them.

        Raises:
            UsageError: a spec needs more memory than available; raised before anything is measured.
            BackendMissingError: the CUDA module or a library is missing, so that no row can be
                measured.
            UnsupportedError: there is no driver or no such GPU, so that no row can be measured.
        """
        self.check_room(specs)
        for device in dict.fromkeys(spec.device for spec in specs if spec.on_gpu):
            self.devices.describe_gpu(device, [spec.backend for spec in specs])
        wanted = first_of or self.options.repetitions
        repeated = repeated_problems(
            self._kernels,
            self._workers,
            list(by_problem(specs)),
            wanted or self._kernels.stored.repetitions(specs),
            lambda share, label: progress(share * len(specs), len(specs), label),
            renew=self.options.renew or wanted is not None or len(specs) > 1,
            fresh=self.options.fresh,
            memory_bytes=min(
                (self.room_bytes(device) or 0 for device in {spec.device for spec in specs}),
                default=None,
            ),
            effort=effort,
        )
        with contextlib.closing(repeated) as problems:
            for problem in problems:
                if first_of and problem.taken and not problem.finished:
                    problem.conclude()
                if so_far or problem.finished:
                    yield from problem.results
                if prepared is not None and problem.finished:
                    prepared |= problem.hand_over()
        progress(len(specs), len(specs), "")

    def sibling(self) -> Self:
        """Return a session with the same options and its own processes."""
        return type(self)(self.options)

    def room_bytes(self, device: str = "cpu") -> int | None:
        """Return the memory available for operands; None if unknown.

        Args:
            device: ``cpu`` (the memory available now) or ``cuda:N``.
        """
        if device == "cpu":
            return self.facts.memory_available_bytes
        return self.devices.gpu(device, levels=()).facts.memory_bytes

    def nominal_clock(self, device: str, precision: str) -> float | None:
        """Return the clock of a GPU's published figures in Hz; None if unknown, and for a CPU.

        Args:
            device: ``cpu`` or ``cuda:N``.
            precision: a mode; tensor cores have a clock of their own.
        """
        if device == "cpu":
            return None
        return rated_clock(self.devices.gpu(device, levels=()).facts, precision)

    def processor(self, device: str = "cpu") -> str:
        """Return the name of the CPU, or of a GPU and the CPU that launches its kernels.

        Raises:
            BackendMissingError: the CUDA module or a library is missing.
            UnsupportedError: there is no driver or no such GPU.
        """
        if device == "cpu":
            return self.facts.name
        return f"{self.devices.gpu(device, levels=()).facts.name}, {self.facts.name}"

    def cache_bytes(self, device: str = "cpu") -> int:
        """Return the size of the last-level cache that the session's threads share.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        return self.devices.cache_bytes(device)

    def remember(self, spec: KernelSpec, algorithm: str, layout: str) -> None:
        """Remember the kernel chosen for a hot-cache row that was measured elsewhere.

        The estimate's cold-cache row then uses it too.

        Args:
            spec: spec of the hot row.
            algorithm: algorithm of the kernel.
            layout: layouts of the kernel.
        """
        self._kernels.remember(spec, algorithm, layout)

    def prepare(
        self, spec: KernelSpec, *, variant: str | None = None, alone: bool = False
    ) -> RemoteKernel[KernelFacts]:
        """Prepare a spec in its worker; raises what the backend raises.

        Args:
            spec: what to compute.
            variant: see ``Preparation``.
            alone: whether no other backend computes the same, as in :meth:`measure`; in that case a
                kernel that was verified there is not verified again.
        """
        return self._kernels.prepare(spec, variant=variant, alone=alone)

    def check_room(self, specs: Sequence[KernelSpec]) -> None:
        """Check that specs fit into memory; those of one problem are prepared at the same time.

        Raises:
            UsageError: a spec needs more memory than available; names the largest batch that fits.
        """
        available = self.facts.memory_available_bytes
        if available is None:
            return
        for group in by_problem(specs):
            check_memory(self._kernels.processes(group), available, self._kernels.cold_bytes("cpu"))


# -----------------------------------------------------------------------------
# Repetitions of all rows of a run, each in a new random order.

#: See :func:`repeated_problems`.
Effort = Callable[[Sequence[KernelSpec], Mapping[KernelSpec, Measurement]], str | None]

# Maximum share of the free memory for kernels that stay prepared between repetitions.
_KEPT_SHARE = 0.25


def repeated_problems(
    kernels: SessionKernels,
    workers: Workers,
    groups: Sequence[Sequence[KernelSpec]],
    count: int,
    progress: Callable[[float, str], None],
    *,
    renew: bool = True,
    fresh: bool = False,
    memory_bytes: int | None = None,
    effort: Effort | None = None,
) -> Generator[RowProblem, None, None]:
    """Repeat all unfinished problems of a run, and yield each after each of its repetitions.

    Native kernels get a new process in each repetition, which prepares the variant that the first
    one chose. The processes of frameworks take seconds to start, and compilers take seconds for a
    kernel: they are replaced once, after half of the repetitions, and their kernels stay prepared
    until then if memory allows it. Kernels that are still prepared are freed when the iterator is
    closed.

    Args:
        kernels: kernels of the session.
        workers: workers of the session.
        groups: specs by problem, see :func:`pydlbench.runner.problem.by_problem`.
        count: repetitions of each row.
        progress: called with the share of all repetitions that have been taken, and with what is
            measured next.
        renew: whether processes are replaced. If not, each kernel is prepared in new memory beside
            those of earlier repetitions.
        fresh: whether those of frameworks are replaced in each repetition, and slow rows take all
            repetitions, too.
        memory_bytes: free memory; for a GPU, all of its memory.
        effort: called before each repetition of a problem, with its specs and all rows so far;
            returns the reason why it is not worth it, or None. Without it all problems are repeated
            until they are finished.
    """
    room = _KEPT_SHARE * (memory_bytes or 0)
    problems = _problems(kernels, groups, count, room, renew=renew, whole=fresh)
    order = random_order(kernels.seed)
    rows: dict[KernelSpec, Measurement] = {}
    try:
        for number in itertools.count():
            waiting = [problem for problem in problems if not problem.finished]
            if not waiting:
                return
            if number and renew:
                workers.renew(others=fresh or number == (count + 1) // 2)
            workers.start(
                (spec.backend, spec.device)
                for problem in waiting
                for spec in problem.unmade
                if user_kernel_of(spec) is None
            )
            if number:  # at first in the given order: hot caches before cold ones
                order.shuffle(waiting)
            for problem in waiting:
                reason = effort and effort(problem.specs, rows)
                if reason is None:
                    turn = f", repetition {problem.taken + 1} of {count}" if count > 1 else ""
                    progress(_share(problems, count), label(problem.specs) + turn)
                    problem.repeat()
                else:
                    problem.conclude(reason)
                rows |= problem.results
                yield problem
    finally:
        for problem in problems:
            problem.release()


def _problems(
    kernels: SessionKernels,
    groups: Sequence[Sequence[KernelSpec]],
    count: int,
    room: float,
    *,
    renew: bool,
    whole: bool,
) -> list[RowProblem]:
    """Return the problems of groups; prepared kernels take at most ``room`` bytes."""
    problems = []
    for group in groups:
        held = _held_bytes(spec for spec in kernels.processes(group) if not is_quick(spec))
        keep = 0 < held <= room
        room -= held if keep else 0
        once = _held_bytes(spec for spec in group if spec.pass_ in spec.layer.passes)
        in_place = not renew and count * once <= room
        how = {"keep": keep, "in_place": in_place, "whole": whole}
        problems.append(RowProblem(kernels, group, count, **how))
    return problems


def _share(problems: Sequence[RowProblem], count: int) -> float:
    """Return the share of all repetitions that have been taken."""
    taken = [1.0 if problem.finished else problem.taken / count for problem in problems]
    return sum(taken) / len(taken)


def _held_bytes(specs: Iterable[KernelSpec]) -> int:
    """Return the memory of prepared kernels."""
    return sum(memory_held(spec, spec.layer, 0) for spec in specs)


def label(group: Sequence[KernelSpec]) -> str:
    """Return the text for a group in progress lines: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"


# -----------------------------------------------------------------------------
# Measures a single layer, and the limits of a device, for the Python API.


def measure(
    layer: Layer | str,
    *,
    precision: str = "fp32",
    pass_: str = "forward",
    propagation: str = "inference",
    cache: str = "hot",
    layout: str = "best",
    backend: str = "native",
    device: str | None = None,
    timing: str = "auto",
    fuse: str = "none",
    options: RunnerOptions | None = None,
) -> Measurement:
    """Measure one layer and return the record that the command line prints.

    Args:
        layer: the problem, ``pydlbench.build_layer("conv", ...)``, or its name or descriptor, as
            ``--shape`` takes it: ``conv3``.
        precision: storage and arithmetic: ``fp32``, ``bf16``, ``fp16``, ``int8``, ``u8s8f32``... on
            a CPU; ``fp32``, ``tf32``, ``fp16``, ``fp16-tc``, ``bf16-tc``, ``fp8-tc`` on a GPU.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        propagation: ``inference`` or ``training``, for the forward pass.
        cache: ``hot``, ``weights-cold`` or ``all-cold``.
        layout: ``best`` or one of ``any``, ``nchw``, ``nhwc``, ``blocked``.
        backend: name of the backend.
        device: ``cpu`` or ``cuda:N``; None is the GPU if there is one, as on the command line.
        timing: ``events`` or ``cuda-graph`` on a GPU; ``auto`` chooses by cache state.
        fuse: operations in the same kernel, as ``--fuse``: ``bias+relu``, ``sum+add:per_oc``.
        options: settings of the session; None for those of the command line: four repetitions in a
            second of sampling.

    Returns:
        The record. If the layer cannot be measured, its ``status`` is ``skipped`` or ``failed``,
        with a ``reason``. Times in seconds, rates in TFLOP/s and GB/s.

    Raises:
        UsageError: an unknown word, or a layer that does not fit into memory.
    """
    capabilities.declaration(backend)
    if isinstance(layer, str):
        layer, *others = find_layers([layer], option="layer")
        if others:
            raise UsageError(f"layer {layer}: several layers; nearest: {layer.name}")
    spec = KernelSpec(
        layer=layer,
        pass_=pass_,
        precision=precision,
        propagation=propagation,
        cache=cache,
        layout=layout,
        backend=backend,
        device=device or default_device()[0],
        timing=timing,
        fuse=canonical_fusion(fuse),
    )
    usual = RunnerOptions(budget_s=LAYER_BUDGET_S, repetitions=None)
    with Session(options or usual) as session:
        return next(row for _, row in session.measure([spec]))


def peaks(
    device: str = "cpu", precision: str = "fp32", *, threads: int | None = None
) -> DevicePeaks:
    """Return the compute peaks of a device, theoretical and measured, for MFU.

    Args:
        device: ``cpu`` or ``cuda:N``.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8`` on a CPU; others on a GPU.
        threads: threads of a CPU's probe, one pinned per core; None for one per physical core.

    Returns:
        The record, in FLOP/s: theoretical peak at the clock of the probe, and measured peak. That
        of a CPU is stored for a day and only confirmed.

    Raises:
        UsageError: no such device or precision, or more threads than CPUs.
        BackendMissingError: the native module or a library is missing.
        UnsupportedError: the device cannot compute in this precision; says why.
    """
    check_device(device)
    check_word("precision", precision, CPU_PEAKS if device == "cpu" else GPU_LAYER_PRECISIONS)
    with Session(RunnerOptions(threads=threads)) as session:
        probed: DeviceRecord | GpuRecord
        if device == "cpu":
            probed = session.devices.cpu((precision,), (), ())
        else:
            probed = session.devices.gpu(device, (precision,), (), ())
        limits, peak = probed.limits(precision), probed.peak(precision)
        assert peak is not None, "its limits are known"
        return DevicePeaks(
            device=device,
            name=str(probed.to_dict()["name"]),
            precision=precision,
            threads=len(session.cpus) if device == "cpu" else None,
            measured=limits.measured,
            theoretical=limits.theoretical,
            nominal=None if peak.nominal is None else peak.nominal.flops_per_s,
            clock_hz=peak.clock_hz or 0.0,
            derivation=None if peak.theoretical is None else peak.theoretical.derivation,
            kernel=peak.kernel,
        )


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
    with Session(RunnerOptions(threads=threads, keep_probes=False)) as session:
        if device != "cpu":
            return session.devices.gpu(
                device, GPU_LAYER_PRECISIONS if precisions is None else precisions
            )
        try:
            return session.devices.cpu(CPU_PEAKS if precisions is None else precisions)
        except BackendMissingError as error:
            return session.devices.unprobed(str(error))
