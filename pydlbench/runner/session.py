"""One run: its settings, its workers and devices, and what is measured with them."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pydlbench.backends.base import DEFAULT_WORKSPACE
from pydlbench.runner.kernels import Kernels, check_memory
from pydlbench.runner.laps import Laps
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.problem import by_problem
from pydlbench.timing.visits import VISITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.laps import Effort
    from pydlbench.workers.host import RemoteKernel, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a session measures.

    Attributes:
        threads: threads, one pinned per CPU; None is one per physical core.
        seed: of the inputs and of the order in interleaved measurements.
        budget_s: sampling time per kernel, in seconds.
        visits: how often each row is visited at least, in new processes and in random order over
            the rows; visits share the budget of their row (:mod:`pydlbench.timing.visits`). None is
            six; of a single row in one process, with new memory for each. Commands, and functions
            that are given no options, take six.
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
        code_limit_s: the same of the frameworks' workers, where the user's own code runs in them;
            None is as of the others.
    """

    threads: int | None = None
    seed: int = 0
    budget_s: float = 2.0
    visits: int | None = 1
    confidence: float = 0.95
    keep_samples: bool = False
    algorithms: bool = False
    estimate: bool = False
    workspace_bytes: int = DEFAULT_WORKSPACE
    energy: bool = False
    keep_probes: bool = True
    timeout_s: float | None = None
    code_limit_s: float | None = None


class Session:
    """Workers, devices and settings of one run. Use as a context manager.

    Attributes:
        options: as given.
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        devices: what is known of CPU and GPUs; asked for more, it probes.
        recorded: what steps consist of, by the step: a model of the user's own is run to find that
            out, once for all that ask in a session.
    """

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu.affinity import choose_cpus
        from pydlbench.devices.cpu.facts import read_cpu_facts

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self._workers = Workers(self.cpus, self.options.timeout_s, self.options.code_limit_s)
        keep = self.options.keep_probes
        self.devices = Devices(self.facts, self.cpus, self._workers, keep)
        self._kernels = Kernels(self.options, self.facts, self.cpus, self._workers, self.devices)
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
        """End all processes; the next request to each starts a new one, with other addresses."""
        self._workers.renew(everything=True)

    def start(self, wanted: Iterable[tuple[str, str]], *, warm: Sequence[bool] = (False,)) -> None:
        """Start processes side by side; see :meth:`pydlbench.runner.machine.Workers.start`."""
        self._workers.start(wanted, warm=warm)

    def canary(self) -> float | None:
        """Ask whether the cores are ours; see :meth:`pydlbench.runner.machine.Workers.canary`."""
        return self._workers.canary()

    @property
    def run(self) -> RunRecord:
        """The record of this run: when, where, with what; of devices what was probed by now."""
        from pydlbench.backends import capabilities
        from pydlbench.records.run import RunRecord

        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            device=self.devices.described(),
            environment=capabilities.environment(),
        )

    def measure(
        self,
        cases: Sequence[KernelSpec],
        progress: Callable[[float, int, str], None] | None = None,
        *,
        effort: Effort | None = None,
        so_far: bool = False,
        first_of: int | None = None,
    ) -> Iterator[tuple[KernelSpec, Measurement]]:
        """Measure cases and yield each with its row; one that cannot be measured says why in it.

        Cases that differ in backend and mode only are interleaved, and with several visits rows are
        finished in the last lap, so that they need not come in the order of ``cases``.

        Args:
            cases: what to measure.
            progress: called with rows done, parts of them too, rows in all and what comes next.
            effort: see :class:`pydlbench.runner.laps.Laps`.
            so_far: also yield rows after each of their visits, of what there is until then
                (:attr:`Measurement.complete <pydlbench.records.measurement.Measurement>`).
            first_of: find each kernel, and make only the first of so many visits: whoever asks
                makes the others.

        Raises:
            UsageError: a case needs more memory than there is; before anything is measured.
            BackendMissingError: the CUDA module or a library is missing; no row could be measured.
            UnsupportedError: there is no driver or no such GPU; likewise.
        """
        laps = self.laps(cases, effort=effort, visits=first_of)

        def show(label: str) -> None:
            if progress:
                progress(laps.share * len(cases), len(cases), label)

        try:
            while not laps.finished:
                for problem in laps.lap(show):
                    if first_of and problem.taken and not problem.finished:
                        problem.conclude()
                    if so_far or problem.finished:
                        yield from problem.results
        finally:
            laps.close()
        if progress:
            progress(len(cases), len(cases), "")

    def laps(
        self,
        cases: Sequence[KernelSpec],
        *,
        effort: Effort | None = None,
        visits: int | None = None,
        apart: bool = False,
    ) -> Laps:
        """Return cases whose next visit can be taken whenever the caller wants it.

        Args:
            cases: what to measure; those that differ in backend and mode only are interleaved.
            effort: see :class:`pydlbench.runner.laps.Laps`; so are visits.
            visits: None is what the options say: by default six, and for a single case in one
                process.
            apart: in processes besides the session's, which are not ended with them; the caller
                closes the laps.

        Raises:
            UsageError: a case needs more memory than there is.
            BackendMissingError: the CUDA module or a library is missing.
            UnsupportedError: there is no driver or no such GPU.
        """
        groups = list(by_problem(cases))
        self._check_room(groups)
        for device in dict.fromkeys(case.device for case in cases if case.on_gpu):
            self.devices.gpu(device, levels=())
        asked = visits or self.options.visits
        workers, kernels = self._workers, self._kernels
        if apart:
            workers = Workers(self.cpus, self.options.timeout_s)
            kernels = Kernels(self.options, self.facts, self.cpus, workers, self.devices)
        return Laps(
            kernels,
            workers,
            groups,
            asked or VISITS,
            renew=asked is not None or len(cases) > 1,
            own=apart,
            memory_bytes=self.facts.memory_available_bytes,
            effort=effort,
        )

    def beside(self) -> Self:
        """Return a session with the same options and processes of its own."""
        return type(self)(self.options)

    def room_bytes(self, device: str = "cpu") -> int | None:
        """Return the memory that operands may lie in; None where nobody knows.

        Args:
            device: ``cpu``, of which it is what is available now, or ``cuda:N``.
        """
        if device == "cpu":
            return self.facts.memory_available_bytes
        return self.devices.gpu(device, levels=()).facts.memory_bytes

    def processor(self, device: str = "cpu") -> str:
        """Return the name of what computes: the CPU, or a GPU with the CPU that launches.

        Raises:
            BackendMissingError: the CUDA module or a library is missing.
            UnsupportedError: there is no driver or no such GPU.
        """
        if device == "cpu":
            return self.facts.name
        return f"{self.devices.gpu(device, levels=()).facts.name}, {self.facts.name}"

    def cache_bytes(self, device: str = "cpu") -> int:
        """Return the size of the last cache before memory, as far as the session's threads see it.

        Args:
            device: ``cpu`` or ``cuda:N``.
        """
        return self.devices.cache_bytes(device)

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
