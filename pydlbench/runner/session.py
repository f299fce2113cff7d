"""One run: its settings, its workers and devices, and what is measured with them."""

from __future__ import annotations

import datetime as dt
import sys
import uuid
from typing import TYPE_CHECKING, Any, Self

from pydlbench.runner.kernels import Kernels, check_memory
from pydlbench.runner.laps import Laps
from pydlbench.runner.machine import Devices, Workers
from pydlbench.runner.options import Options
from pydlbench.runner.problem import by_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.backends.base import KernelFacts
    from pydlbench.devices.cpu.facts import CpuFacts
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.laps import Effort
    from pydlbench.study.table import Interference
    from pydlbench.workers.host import RemoteKernel, Worker


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
        how = self.options
        self._workers = Workers(self.cpus, how.timeout_s, how.code_limit_s, how.python)
        keep = how.keep_probes
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
        """End the processes of frameworks; the next request to each starts a new one.

        The native one stays, which reads bursts beside them.
        """
        self._workers.renew(native=False)

    def start(self, wanted: Iterable[tuple[str, str]], *, warm: Sequence[bool] = (False,)) -> None:
        """Start processes side by side; see :meth:`pydlbench.runner.machine.Workers.start`."""
        self._workers.start(wanted, warm=warm)

    def canary(self) -> float | None:
        """Ask whether the cores are ours; see :meth:`pydlbench.runner.machine.Workers.canary`."""
        return self._workers.canary()

    def interference(self) -> Interference:
        """Read bursts; see :meth:`pydlbench.runner.machine.Workers.interference`."""
        return self._workers.interference()

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
        specs: Sequence[KernelSpec],
        progress: Callable[[float, int, str], None] | None = None,
        *,
        effort: Effort | None = None,
        so_far: bool = False,
        first_of: int | None = None,
    ) -> Iterator[tuple[KernelSpec, Measurement]]:
        """Measure specs and yield each with its row; one that cannot be measured says why in it.

        Cases that differ in backend and mode only are interleaved, and with several visits rows are
        finished in the last lap, so that they need not come in the order of ``specs``.

        Args:
            specs: what to measure.
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
        laps = self._laps(specs, effort, first_of)

        def show(label: str) -> None:
            if progress:
                progress(laps.share * len(specs), len(specs), label)

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
            progress(len(specs), len(specs), "")

    def _laps(self, specs: Sequence[KernelSpec], effort: Effort | None, visits: int | None) -> Laps:
        groups = list(by_problem(specs))
        self._check_room(groups)
        for device in dict.fromkeys(spec.device for spec in specs if spec.on_gpu):
            self.devices.gpu(device, levels=())
        wanted = visits or self.options.visits
        return Laps(
            self._kernels,
            self._workers,
            groups,
            wanted or self._kernels.repetitions(specs),
            renew=self.options.renew or wanted is not None or len(specs) > 1,
            memory_bytes=self.facts.memory_available_bytes,
            effort=effort,
        )

    def sibling(self) -> Self:
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

    def remember(self, spec: KernelSpec, algorithm: str, layout: str) -> None:
        """Take a hot row's kernel from elsewhere: an estimate's cold row is timed with the same.

        Args:
            spec: of the hot row.
            algorithm: the kernel's, by its library's name.
            layout: the layouts that it works in.
        """
        self._kernels.remember(spec, algorithm, layout)

    def prepare(
        self, spec: KernelSpec, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel[KernelFacts]:
        """Have a spec made ready in its worker; raises what the backend raises.

        Args:
            spec: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        return self._kernels.prepare(spec, warm=warm, variant=variant)

    def check_room(self, specs: Sequence[KernelSpec]) -> None:
        """Make sure that specs fit into memory, those beside each other that are interleaved.

        Raises:
            UsageError: one needs more than there is; it names the largest batch that fits.
        """
        self._check_room(by_problem(specs))

    def _check_room(self, groups: Iterable[Sequence[KernelSpec]]) -> None:
        available = self.facts.memory_available_bytes
        if available is None:
            return
        for group in groups:
            check_memory(self._kernels.processes(group), available, self._kernels.cold_bytes("cpu"))
