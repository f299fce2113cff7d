"""One run: its settings, its workers and devices, and what is measured with them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import sys
import uuid
from functools import partial
from typing import TYPE_CHECKING

from pydlbench.session.devices import Devices
from pydlbench.session.measuring import Measuring
from pydlbench.session.memory import check_memory
from pydlbench.session.options import Options
from pydlbench.session.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from pydlbench.backends.case import Case
    from pydlbench.devices import DeviceRecord
    from pydlbench.devices.cpu import CpuFacts
    from pydlbench.devices.gpu import GpuRecord
    from pydlbench.results import Measurement, RunRecord
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Session"]


class Session:
    """Workers, device and settings of one run. Use as a context manager."""

    def __init__(self, options: Options | None = None) -> None:
        from pydlbench.devices.cpu import choose_cpus, read_cpu_facts

        self.options = options or Options()
        self.facts: CpuFacts = read_cpu_facts()
        self.cpus: tuple[int, ...] = choose_cpus(self.facts, self.options.threads)
        self._workers = Workers(self.cpus, self.options.timeout_s)
        self._devices = Devices(self.facts, self.cpus, partial(self.worker, "native"))
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
        from pydlbench.devices.environment import read_environment
        from pydlbench.results import RunRecord

        return RunRecord(
            id=self._id,
            created_utc=self._started.isoformat(timespec="seconds"),
            command=tuple(sys.argv),
            device=self._devices.described(),
            environment=read_environment(),
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
        from pydlbench.contest import contest, groups

        found = list(groups(cases))
        for group in found:
            self._check_memory(group)
        for device in dict.fromkeys(case.device for case in cases if case.on_gpu):
            self.gpu(device, levels=())
        done = 0
        for group in found:
            if progress:
                progress(done, len(cases), _label(group))
            if len(group) == 1:
                yield self._measuring.alone(group[0])
            else:
                yield from contest(self._measuring, group)
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
        from pydlbench.devices.cpu import last_level_bytes

        return last_level_bytes(self.facts, self.cpus)

    def remember(self, case: Case, algorithm: str, layout: str) -> None:
        """Take a hot row's kernel from elsewhere: an estimate's cold row is timed with the same.

        Args:
            case: of the hot row.
            algorithm: the kernel's, by its library's name.
            layout: the layouts that it works in.
        """
        self._measuring.remember(case, algorithm, layout)

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        return self._measuring.prepare(case, warm=warm, variant=variant)

    def _check_memory(self, group: Sequence[Case]) -> None:
        available = self.facts.memory_available_bytes
        if available is not None:
            processes = self._measuring.processes(group)
            check_memory(processes, available, self._measuring.cold_bytes())


def _label(group: Sequence[Case]) -> str:
    """What the progress says of a group: ``conv3 forward fp32, 6 rows``."""
    problem = dataclasses.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
