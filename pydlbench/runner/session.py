"""One run: its settings, its workers and devices, and what is measured with them."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.runner.interleaved import random_order
from pydlbench.runner.kernels import Kernels, check_memory
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.problem import Problem, by_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.devices.cpu.record import DeviceRecord
    from pydlbench.devices.gpu.record import GpuRecord
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Options", "Session"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        visits: how often each row is visited, in processes of its own and in random order over the
            rows, which share its budget; rows are finished in their last visit
            (:mod:`pydlbench.timing.visits`).
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
    visits: int = 1
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    keep_probes: bool = True
    timeout_s: float | None = None


class Session:
    """Workers, device and settings of one run. Use as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu.affinity import choose_cpus
        from pydlbench.devices.cpu.facts import read_cpu_facts

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self._workers = Workers(self.cpus, self.options.timeout_s)
        keep = self.options.keep_probes
        self._devices = Devices(self.facts, self.cpus, self._workers, keep)
        self._kernels = Kernels(self.options, self.facts, self.cpus, self._workers, self._devices)
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

    def canary(self) -> float | None:
        """Ask whether the cores are ours; see :meth:`pydlbench.runner.machine.Workers.canary`."""
        return self._workers.canary()

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
        """Return the CPU; see :meth:`pydlbench.runner.machine.Devices.cpu`."""
        return self._devices.cpu(precisions, patterns, levels)

    def gpu(
        self,
        device: str,
        precisions: Iterable[str] = (),
        patterns: Sequence[str] | None = None,
        levels: Sequence[str] | None = None,
    ) -> GpuRecord:
        """Return a GPU; see :meth:`pydlbench.runner.machine.Devices.gpu`."""
        return self._devices.gpu(device, precisions, patterns, levels)

    def unprobed(self, reason: str) -> DeviceRecord:
        """Return the CPU with what is known, and the reason why nothing more was probed."""
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
        groups = list(by_problem(cases))
        self._check_room(groups)
        for device in dict.fromkeys(case.device for case in cases if case.on_gpu):
            self.gpu(device, levels=())
        visits = self.options.visits
        problems = [Problem(self._kernels, group, visits) for group in groups]
        order = random_order(self.options.seed)
        done = 0
        for number in range(visits):
            if number:
                self._workers.close()  # the next visit has other addresses and other pages
                order.shuffle(problems)
            for problem in problems:
                if progress:
                    which = f", visit {number + 1} of {visits}" if visits > 1 else ""
                    progress(done, len(cases), _label(problem.cases) + which)
                problem.visit()
                if number + 1 == visits:
                    yield from zip(problem.cases, problem.rows, strict=True)
                    done += len(problem.cases)
        if progress:
            progress(len(cases), len(cases), "")

    def cache_bytes(self, device: str = "cpu") -> int:
        """Return the size of the last cache before memory, as far as the session's threads see it.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        return self._devices.cache_bytes(device)

    def remember(self, case: KernelSpec, algorithm: str, layout: str) -> None:
        """Take a hot row's kernel from elsewhere: an estimate's cold row is timed with the same.

        Args:
            case: of the hot row.
            algorithm: the kernel's, by its library's name.
            layout: the layouts that it works in.
        """
        self._kernels.remember(case, algorithm, layout)

    def prepare(
        self, case: KernelSpec, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel[KernelFacts]:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        return self._kernels.prepare(case, warm=warm, variant=variant)

    def check_room(self, cases: Sequence[KernelSpec]) -> None:
        """Make sure that cases fit into memory, those beside each other that are interleaved.

        Raises:
            UsageError: one needs more than there is; it names the largest batch that fits.
        """
        self._check_room(by_problem(cases))

    def _check_room(self, groups: Iterable[Sequence[KernelSpec]]) -> None:
        available = self.facts.memory_available_bytes
        if available is None:
            return
        for group in groups:
            check_memory(self._kernels.processes(group), available, self._kernels.cold_bytes("cpu"))


def _label(group: Sequence[KernelSpec]) -> str:
    """What the progress says of a group: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
