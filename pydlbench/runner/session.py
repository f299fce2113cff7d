"""A session: settings, workers and devices of one run, and the measurements made with them."""

from __future__ import annotations

import contextlib
import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from pydlbench.backends import capabilities
from pydlbench.backends.base import KernelFacts
from pydlbench.devices.cpu import affinity
from pydlbench.devices.cpu.facts import CpuFacts, read_cpu_facts
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.run import RunRecord, command_line
from pydlbench.runner.kernels import SessionKernels
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.memory import check_memory
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.problem import by_problem
from pydlbench.runner.repetitions import Effort, repeated_problems
from pydlbench.study.table import Interference
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
        self._workers = Workers(self.cpus, how.timeout_s, how.code_limit_s, how.python)
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
            environment=capabilities.environment(),
        )

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
            effort: see :func:`pydlbench.runner.repetitions.repeated_problems`.
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
            self.devices.gpu(device, levels=())
        wanted = first_of or self.options.repetitions
        repeated = repeated_problems(
            self._kernels,
            self._workers,
            list(by_problem(specs)),
            wanted or self._kernels.stored.repetitions(specs),
            lambda share, label: progress(share * len(specs), len(specs), label),
            renew=self.options.renew or wanted is not None or len(specs) > 1,
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
