"""How one case is made ready, timed and turned into a row, in the workers of a session."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.backends.base import Preparation
    from pydlbench.backends.case import Case
    from pydlbench.backends.frameworks.verbose import Turn
    from pydlbench.devices.cpu import CpuFacts
    from pydlbench.results import Measurement
    from pydlbench.session.devices import Devices
    from pydlbench.session.options import Options
    from pydlbench.timing.policy import Policy
    from pydlbench.timing.procedure import Samples
    from pydlbench.workers.host import RemoteKernel, Worker

__all__ = ["Measuring"]

# Rotating copies of a cold cache state span this many last-level caches.
_COLD_FACTOR = 3
# Rotating copies on a GPU span this many L2 caches: its replacement is not strictly the oldest
# line's, so that after twice its size one line in eight is still there.
_COLD_L2 = 4
# Frameworks whose oneDNN reports its kernels only if it was told to when they were loaded.
_LOGGED = ("tensorflow",)
_LOGGED_TURNS = 7
_LONG_S, _FEW_TURNS = 0.1, 3
# Of calls that do nothing, beside each contest: at most a tenth of a second.
_FEW_CALLS = {"samples": 11, "inner": 30}


class Measuring:
    """What a session and a contest need for a row; the ``Host`` of :mod:`pydlbench.contest`.

    Args:
        options: see there.
        facts: of the CPU.
        cpus: logical CPUs that kernels are pinned to.
        devices: of the session.
        worker: returns a worker, as ``Session.worker``.
    """

    def __init__(
        self,
        options: Options,
        facts: CpuFacts,
        cpus: tuple[int, ...],
        devices: Devices,
        worker: Callable[..., Worker],
    ) -> None:
        from pydlbench.timing.policy import Policy, estimate_policy

        self._options = options
        self._facts = facts
        self._cpus = cpus
        self._devices = devices
        self._worker = worker
        self._policy = Policy(confidence=options.confidence, budget_s=options.budget_s)
        self._summand = estimate_policy(self._policy)
        # Of hot cases, the name of the fastest kernel.
        self._fastest: dict[Case, str] = {}
        self._without_empty_call: set[tuple[str, str, str | None]] = set()

    @property
    def seed(self) -> int:
        """Of the inputs and of the order of rounds."""
        return self._options.seed

    def threads(self, case: Case) -> int | None:
        """Return the threads of a row; None on a GPU."""
        return None if case.on_gpu else len(self._cpus)

    def allocates(self, case: Case) -> bool:
        """Whether a backend allocates its outputs in each call, from the C library."""
        return not case.on_gpu and case.backend in ("torch", "tensorflow", "numba")

    def processes(self, group: Sequence[Case]) -> list[Case]:
        """Return the case of each process that holds operands of a group's problem.

        Args:
            group: cases that differ in backend and mode only.
        """
        if len(group) == 1:
            return list(group)
        # With cold caches frameworks are not timed: they refuse before they hold anything.
        holding = [one for one in group if one.backend == "native" or one.cache == "hot"]
        warm = [one for one in holding if self.allocates(one)]
        # One log is read at a time.
        log = [one for one in warm if one.backend in _LOGGED][:1]
        return [*holding, *warm, *log]

    def empty_call_s(self, case: Case) -> float | None:
        """Return the seconds of a call that does nothing, made as this case's backend calls.

        Measured now: in the course of a run it changes by more than a third.
        """
        key = (case.backend, case.device, case.mode)
        if key in self._without_empty_call:
            return None
        try:
            worker = self._worker(case.backend, case.device)
            found = worker.probe("empty_call", mode=case.mode, **_FEW_CALLS)["seconds"]
        except PydlbenchError:
            self._without_empty_call.add(key)
            return None
        return float(found)

    def logged(
        self, case: Case, variant: str | None, beside: RemoteKernel | None = None
    ) -> dict[str, Any]:
        """Return what the library itself logs of a call, see ``KernelFacts.evidence``.

        Asked in a process of its own, whose pages are kept: of frameworks that cannot switch the
        log on and off. Empty where there is no such log.

        Args:
            case: what is computed.
            variant: the variant that was timed.
            beside: the same where pages are kept as well, without a log: its calls take turns with
                the logged ones, to tell what writing a log costs.
        """
        from pydlbench.backends.frameworks.verbose import evidence, middle_turn

        if case.on_gpu or case.backend not in _LOGGED:
            return {}
        worker = self._worker(case.backend, case.device, warm=True, logging=True)
        try:
            kernel = worker.prepare(case, self._preparation(case, variant))
            try:
                turns = [_turn(worker, kernel, beside)]
                wanted = _LOGGED_TURNS if turns[0].logged_s < _LONG_S else _FEW_TURNS
                turns += [_turn(worker, kernel, beside) for _ in range(wanted - 1)]
                return evidence(*middle_turn(turns))
            finally:
                kernel.release()
        except PydlbenchError:
            return {}  # without a log there is one cause less to find

    def sampling_policy(self, case: Case, facts: dict[str, Any]) -> Policy:
        """Return the constants of sampling for a kernel."""
        from pydlbench.timing.policy import gpu_policy

        return gpu_policy(self._policy, facts, case.cache) if case.on_gpu else self._policy

    def prepare(
        self, case: Case, *, warm: bool = False, variant: str | None = None
    ) -> RemoteKernel:
        """Have a case made ready in its worker; raises what the backend raises.

        Args:
            case: what is to be computed.
            warm: in a process of its own whose allocator keeps the pages that were freed.
            variant: see ``Preparation``.
        """
        worker = self._worker(case.backend, case.device, warm=warm)
        return worker.prepare(case, self._preparation(case, variant))

    def _summand_of(self, case: Case) -> bool:
        """Whether a case's row is one of an estimate's native ones on a CPU."""
        return self._options.estimate and case.backend == "native" and not case.on_gpu

    def _prepare_summand(self, case: Case) -> RemoteKernel:
        """Have a case made ready after a short search, or with the kernel of its hot row."""
        hot = dataclasses.replace(case, cache="hot")
        variant = None if case == hot else self._fastest.get(hot)
        worker = self._worker(case.backend, case.device)
        kernel = worker.prepare(case, self._preparation(case, variant, brief=True))
        if case == hot:
            self.remember(case, kernel.facts["algorithm"], kernel.facts["layout"])
        return kernel

    def remember(self, case: Case, algorithm: str, layout: str) -> None:
        """Keep the kernel of a hot row for the cold one of an estimate."""
        self._fastest[case] = f"{algorithm} {layout}"

    def _preparation(self, case: Case, variant: str | None, *, brief: bool = False) -> Preparation:
        from pydlbench.backends.base import Preparation

        return Preparation(
            seed=self._options.seed,
            cold_bytes=self._cold_bytes(case),
            memory_bytes=self._facts.memory_available_bytes or (1 << 62),
            all_candidates=self._options.algorithms,
            brief=brief,
            workspace_bytes=self._options.workspace_bytes,
            energy=self._options.energy,
            variant=variant,
        )

    def _cold_bytes(self, case: Case) -> int:
        if case.on_gpu:
            facts = self._devices.gpu(case.device, levels=()).facts
            return _COLD_L2 * facts.l2_bytes
        return self.cold_bytes()

    def cold_bytes(self) -> int:
        """Return the bytes that the rotating copies of a cold cache state span on the CPU."""
        from pydlbench.devices.cpu import last_level_bytes

        return _COLD_FACTOR * last_level_bytes(self._facts, self._cpus)

    def alone(self, case: Case) -> Measurement:
        """Measure a case that competes with nobody; a failure is a row that says why."""
        from pydlbench.rows import empty_row
        from pydlbench.timing.procedure import Sampling

        threads = self.threads(case)
        try:
            summand = self._summand_of(case)
            kernel = self._prepare_summand(case) if summand else self.prepare(case)
            try:
                policy = self._summand if summand else self.sampling_policy(case, kernel.facts)
                sampling = Sampling(policy, alone=True)
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
        from pydlbench.rows import measured_row

        row = measured_row(
            case,
            self.threads(case),
            facts,
            samples,
            keep_samples=self._options.keep_samples,
            keep_candidates=self._options.algorithms,
        )
        return self._devices.limited(row, case)


def _turn(worker: Worker, kernel: RemoteKernel, beside: RemoteKernel | None) -> Turn:
    """Have a call logged, and the same made without a log right before it."""
    from pydlbench.backends.frameworks.verbose import Turn, last_call, parse
    from pydlbench.side_by_side import rest
    from pydlbench.timing.chunk import Request

    # The first call wakes the threads; of two equal calls, the log of the second counts.
    request = Request(samples=1, untimed=1)
    rest()
    plain = None if beside is None else beside.sample(request)
    rest()
    logged = kernel.sample(request)
    return Turn(
        executions=last_call(parse(worker.said()), 2),
        logged_s=logged.seconds[0],
        plain_s=None if plain is None else plain.seconds[0],
    )
